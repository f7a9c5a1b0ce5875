import pytest

from trained import digits_run
from transnet.errors import ConfigError
from transnet.ship.thresholds import Target, Threshold, choose_threshold


def test_choosing_a_threshold_needs_a_validation_split():
    chosen = choose_threshold(digits_run())
    assert 0.5 <= chosen.confidence <= 1
    assert (chosen.heads, chosen.n, chosen.target) == (3, 143, Target(within=0.1))
    assert 1 <= chosen.passes <= 3
    with pytest.raises(ConfigError, match=r"`val_fraction`.*give a number") as caught:
        choose_threshold(digits_run(transforms="r0,r1", val_fraction=0.0))
    assert caught.value.field == "confidence"


def test_a_threshold_can_be_chosen_for_a_number_of_passes():
    assert 1 <= choose_threshold(digits_run(), Target(passes=1.5)).passes <= 1.5
    assert choose_threshold(digits_run(), Target(passes=3)).confidence == 1


@pytest.mark.parametrize(
    ("passes", "meaning"),
    [(1.0, "one head for every image"), (3.0, "all 3 heads for every image"), (1.25, "1.25 of 3 heads per image")],
)
def test_the_text_of_a_threshold_explains_it(passes, meaning):
    text = str(Threshold(0.5, passes, heads=3, n=1430, lost=0.07))
    assert meaning in text
    assert "confidence 0.5000" in text
    assert "within 0.1 points of all heads on 1,430 validation images" in text


@pytest.mark.parametrize(
    ("lost", "meaning"), [(0.21, "0.21 points below"), (0.0, "no worse than"), (-0.3, "no worse than")]
)
def test_for_a_number_of_passes_the_text_states_the_loss(lost, meaning):
    threshold = Threshold(0.9, 1.4, heads=3, n=50, lost=lost, target=Target(passes=1.4))
    assert f"{meaning} all heads on 50 validation images" in str(threshold)


@pytest.mark.parametrize(("field", "value"), [("passes", 0.5), ("within", float("nan")), ("within", -1)])
def test_an_impossible_target_is_refused(field, value):
    with pytest.raises(ConfigError) as caught:
        Target(**{field: value})
    assert caught.value.field == field
