import pytest

from trained import digits_run
from transnet.errors import ConfigError
from transnet.ship.thresholds import Target, Threshold, choose_threshold


def test_choosing_a_threshold_needs_a_validation_split():
    chosen = choose_threshold(digits_run())
    assert 0.5 <= chosen.confidence <= 1
    assert (chosen.heads, chosen.n) == (3, 143)
    assert chosen.lost <= 0.1
    assert 1 <= chosen.passes <= 3
    with pytest.raises(ConfigError, match=r"`val_fraction`.*give a number") as caught:
        choose_threshold(digits_run(transforms="r0,r1", val_fraction=0.0))
    assert caught.value.field == "confidence"


def test_a_threshold_can_be_chosen_for_a_number_of_passes():
    assert 1 <= choose_threshold(digits_run(), Target(passes=1.5)).passes <= 1.5
    assert choose_threshold(digits_run(), Target(passes=3)).confidence == 1


def test_the_text_of_a_threshold_states_its_cost_and_accuracy():
    text = str(Threshold(0.5, 1.25, heads=3, n=1430, lost=0.07))
    for part in ("confidence 0.5000", "1.25 of 3 heads", "-0.07 points", "1,430 validation images"):
        assert part in text


@pytest.mark.parametrize(("field", "value"), [("passes", 0.5), ("within", float("nan")), ("within", -1)])
def test_an_impossible_target_is_refused(field, value):
    with pytest.raises(ConfigError) as caught:
        Target(**{field: value})
    assert caught.value.field == field
