import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from transnet import fold
from transnet.errors import TransnetError
from transnet.runs.weights import LONGEST_HEADER, load_weights, read_shapes


def linear():
    return nn.Linear(3, 2)


def saved(path: Path, **changes) -> Path:
    tensors = {"weight": torch.ones(2, 3), "bias": torch.zeros(2), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    return path


def test_weights_load_as_they_were_saved(tmp_path):
    model = load_weights(saved(tmp_path / "w"), linear, "linear")
    assert torch.equal(model.weight, torch.ones(2, 3))
    assert not model.training


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bias": None}, r"Missing key\(s\) in state_dict: .bias"),
        ({"more": torch.ones(1)}, r"Unexpected key\(s\) in state_dict: .more"),
        ({"weight": torch.ones(3, 3)}, r"weight: .* shape torch.Size\(\[3, 3\]\) .* model is torch.Size\(\[2, 3\]\)"),
        ({"weight": torch.ones(2, 3).long()}, "weight is torch.int64"),
        ({"weight": torch.full((2, 3), float("nan"))}, "'weight' holds NaN"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tmp_path, changes, message):
    with pytest.raises(TransnetError, match=message):
        load_weights(saved(tmp_path / "w", **changes), linear, "linear")


def test_a_model_that_is_larger_than_its_file_is_never_allocated(tmp_path):
    built = []

    def build():
        model = nn.Linear(10**6, 10**7)  # forty terabytes
        built.append(model.weight.device.type)
        return model

    with pytest.raises(TransnetError, match=r"current model is torch.Size\(\[10000000, 1000000\]\)"):
        load_weights(saved(tmp_path / "w"), build, "huge")
    assert built == ["meta"]


class Narrow(nn.Module):
    """A network whose kernels are not square."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, (1, 3), stride=2)
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.conv(x).mean((2, 3)))


def test_a_folded_network_with_turned_kernels_loads(tmp_path):
    folded = fold(Narrow().eval(), "r1", 8)
    assert folded.conv.weight.shape == (4, 1, 3, 1)
    save_file(folded.state_dict(), tmp_path / "w")
    again = load_weights(tmp_path / "w", Narrow, "narrow", finish=lambda model: fold(model.eval(), "r1", 8))
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(again(x), folded(x))
    # The other way round, and of another size, it is still refused.
    save_file({**folded.state_dict(), "conv.weight": torch.ones(4, 1, 1, 3)}, tmp_path / "w")
    with pytest.raises(TransnetError, match=r"does not fit narrow.*conv.weight"):
        load_weights(tmp_path / "w", Narrow, "narrow", finish=lambda model: fold(model.eval(), "r1", 8))
    save_file({**folded.state_dict(), "conv.weight": torch.ones(4, 1, 3, 3)}, tmp_path / "w")
    with pytest.raises(TransnetError, match=r"size mismatch for conv\.weight"):
        load_weights(tmp_path / "w", Narrow, "narrow", finish=lambda model: fold(model.eval(), "r1", 8))


def test_a_header_of_a_false_size_is_not_read(tmp_path):
    path = tmp_path / "w"
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", LONGEST_HEADER + 1))
        file.truncate(LONGEST_HEADER + 100)
    with pytest.raises(TransnetError, match="at most 16,777,216 are read"):
        read_shapes(path)
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(TransnetError, match="is damaged: a header of 18,446,744,073,709,551,615 bytes"):
        read_shapes(path)
