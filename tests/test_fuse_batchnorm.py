"""Batch norm of a compiled step by one scale and one shift: the same values and gradients, fewer tensors read."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

from graphs import Graphs, images, run
from transnet import TransNet, backbones
from transnet.train.inductor import RewriteGraph

ATEN = torch.ops.aten


def mixed_signs(model: nn.Module) -> nn.Module:
    """Batch norms as training may leave them: negative scales turn the comparison round."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return model.to(memory_format=torch.channels_last)


def resnet8() -> nn.Module:
    torch.manual_seed(0)
    return mixed_signs(backbones.create("resnet8-small", num_classes=10, in_channels=3))


def wide10() -> nn.Module:
    """Batch norm and ReLU before the convolutions instead of behind them."""
    torch.manual_seed(0)
    blocks = backbones.WideBlock(16, 16, 1), backbones.WideBlock(16, 32, 2), backbones.WideBlock(32, 64, 2)
    end = nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    return mixed_signs(nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), *blocks, *end))


def saved_relus_as_masks(graphs: Graphs) -> int:
    """ReLUs' results that were kept and that the backward pass compares with zero."""
    masks = graphs.parts[1].find_nodes(op="call_function", target=ATEN.le.Scalar)
    kept = [node.args[0] for node in masks if isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder"]
    return sum(node.name.startswith("relu") for node in kept)


class Wider(nn.Module):
    """Batch norm in double precision between convolutions in single: the pattern, without bfloat16's error."""

    def __init__(self, residual: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 16, 3, bias=False), nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(16).double(), nn.BatchNorm2d(16).double()])
        self.last, self.residual = nn.Linear(16, 10), residual
        mixed_signs(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.first(x).double()).float().relu()
        y = self.norms[1](self.second(x).double()).float()
        return self.last((y + x if self.residual else y).relu().mean((2, 3)))


@pytest.mark.parametrize(("residual", "masks"), [(False, 1), (True, 0)])
def test_loss_gradients_and_running_statistics_stay(residual: bool, masks: int) -> None:
    model, x = Wider(residual), images()
    plain, rewritten = Graphs(None), Graphs(RewriteGraph())
    expected, found = run(model, x, plain), run(model, x, rewritten)
    assert rewritten.rewrite is not None
    assert rewritten.rewrite.norms == 2
    assert saved_relus_as_masks(plain) - saved_relus_as_masks(rewritten) == masks
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize(
    ("model", "norms"),
    [
        (resnet8, 9),  # the stem's, two in each of three blocks and two on their shortcuts
        (wide10, 7),  # two in each of three blocks, and the last
    ],
)
def test_in_mixed_precision_it_is_as_near_to_the_truth_as_the_plain_graph(
    model: Callable[[], nn.Module], norms: int
) -> None:
    net = TransNet(model(), ("r0", "r1")).train()
    truth, plain = run(net, images(), Graphs(None)), run(net, images(), Graphs(None), mixed=True)
    graphs = Graphs(RewriteGraph())
    found = run(net, images(), graphs, mixed=True)
    assert graphs.rewrite is not None
    assert graphs.rewrite.norms == norms
    gradients = [name for name, _ in net.named_parameters()]

    def error(values: dict[str, Tensor]) -> Tensor:
        return torch.stack([(values[name] - truth[name]).norm() / truth[name].norm() for name in gradients])

    assert error(plain).max() > 0.01  # a bfloat16 has 8 bits
    assert error(found).max() < 1.5 * error(plain).max()
    assert error(found).mean() < 1.2 * error(plain).mean()


def test_the_outputs_of_relu_are_not_read_for_masks_but_where_they_are_used_twice() -> None:
    plain, rewritten = Graphs(None), Graphs(RewriteGraph())
    for graphs in (plain, rewritten):
        run(resnet8(), images(), graphs, mixed=True)
    # The first ReLU in each of three blocks. The stem's result and the blocks' own go two ways, or into the pool.
    assert saved_relus_as_masks(plain) - saved_relus_as_masks(rewritten) == 3


def test_the_activations_kept_for_the_backward_pass_are_the_same() -> None:
    def kept(graphs: Graphs) -> set[str]:
        names = {node.name for node in graphs.parts[1].find_nodes(op="placeholder")}
        return {name for name in names if name.startswith(("convolution", "relu"))}

    plain, rewritten = Graphs(None), Graphs(RewriteGraph())
    for graphs in (plain, rewritten):
        run(resnet8(), images(), graphs, mixed=True)
    assert kept(rewritten) == kept(plain)


def test_full_precision_is_left_as_it_is() -> None:
    rewrite = RewriteGraph()
    run(resnet8(), images(), Graphs(rewrite))
    assert rewrite.norms == 0


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm([16, 14, 14]), nn.GroupNorm(4, 16), nn.BatchNorm2d(16, affine=False)], ids=str
)
def test_other_norms_are_left_alone(norm: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, bias=False), norm, nn.ReLU(), nn.Conv2d(16, 16, 3, bias=False), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    graphs = Graphs(RewriteGraph())
    expected, found = run(model, images(), Graphs(None), mixed=True), run(model, images(), graphs, mixed=True)
    assert graphs.rewrite is not None
    assert graphs.rewrite.norms == 0
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
