"""The rewritten graph of a compiled step: the same values and gradients, by other means."""

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import config as inductor
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes

from transnet import TransNet, backbones
from transnet.train.rewrite import Faster, columns, kernel_of_columns, statistics_by_sums

ATEN = torch.ops.aten


class Graphs:
    """Compiles as the real backend does up to the split of the graph, and runs what comes out op by op."""

    def __init__(self, rewrite: Faster | None) -> None:
        self.rewrite = rewrite
        self.parts: list[fx.Graph] = []

    def __call__(self, module: fx.GraphModule, inputs: Any) -> Any:
        def split(joint: fx.GraphModule, *args: Any, **options: Any) -> Any:
            with inductor.patch(joint_custom_post_pass=self.rewrite):
                joint_graph_passes(joint)
            options.pop("compiler", None)
            parts = min_cut_rematerialization_partition(joint, *args, compiler="inductor", **options)
            self.parts = [part.graph for part in parts]
            return parts

        return aot_autograd(
            fw_compiler=lambda graph, _: make_boxed_func(graph),
            partition_fn=split,
            decompositions=select_decomp_table(),
        )(module, inputs)

    def count(self, target: Any) -> int:
        return sum(len(graph.find_nodes(op="call_function", target=target)) for graph in self.parts)


def run(model: nn.Module, x: Tensor, graphs: Graphs, *, mixed: bool = False) -> dict[str, Tensor]:
    """Loss, gradients and buffers after one step; the model is as before afterwards."""
    torch._dynamo.reset()
    model.zero_grad()
    before = {name: value.clone() for name, value in model.named_buffers()}

    def loss(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            out = model(x)
        return nn.functional.cross_entropy(
            (out.float() if mixed else out).flatten(0, -2), torch.arange(out[..., 0].numel()) % 10
        )

    value = torch.compile(loss, backend=graphs, dynamic=False)(x)
    value.backward()
    found = {"loss": value.detach()}
    found |= {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    found |= {name: buffer.clone() for name, buffer in model.named_buffers()}
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])
    return found


def images(n: int = 16, side: int = 16) -> Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randn(n, 3, side, side, generator=random).to(memory_format=torch.channels_last)


def wide_resnet8() -> nn.Module:
    """With a stem of 32 kernels: its 27 columns are fewer."""
    torch.manual_seed(0)
    model = backbones.create("resnet8-small", num_classes=10, in_channels=3)
    assert isinstance(model.conv1, nn.Conv2d)
    first = nn.Conv2d(3, 32, 3, padding=1, bias=False)
    model.conv1 = nn.Sequential(first, nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 1, bias=False))
    return model.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("bn", ["joint", "separate"])
def test_loss_gradients_and_running_statistics_stay(bn: Any) -> None:
    net = TransNet(wide_resnet8(), ("r0", "r1"), bn=bn).double().train()
    plain, rewritten = Graphs(None), Graphs(Faster())
    expected = run(net, images().double(), plain)
    found = run(net, images().double(), rewritten)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )
    layers = sum(isinstance(module, nn.BatchNorm2d) for module in net.modules()) * (2 if bn == "separate" else 1)
    assert rewritten.rewrite is not None
    assert (rewritten.rewrite.statistics, rewritten.rewrite.stems) == (layers, 1)
    assert plain.count(ATEN.var_mean.correction) == layers
    assert rewritten.count(ATEN.var_mean.correction) == 0
    assert rewritten.count(ATEN.convolution.default) == plain.count(ATEN.convolution.default)


def test_in_mixed_precision_it_differs_by_less_than_a_rounding() -> None:
    net = TransNet(wide_resnet8(), ("r0", "r1")).train()
    expected = run(net, images(), Graphs(None), mixed=True)
    found = run(net, images(), Graphs(Faster()), mixed=True)
    for name, value in expected.items():
        error = (found[name] - value).float().norm() / value.float().norm().clamp(min=1e-3)
        assert error < 0.03, name  # a bfloat16 has 8 bits, and twelve layers of them stand behind the first gradient


@pytest.mark.parametrize(
    "stem",
    [
        nn.Conv2d(3, 16, 3, padding=1, bias=False),  # 27 columns for 16 results
        nn.Conv2d(3, 64, 3, padding=1, bias=True),
        nn.Conv2d(3, 64, 3, padding=2, dilation=2, bias=False),
        nn.Conv2d(3, 48, 3, groups=3, bias=False),
    ],
    ids=["columns would be larger", "bias", "dilation", "groups"],
)
def test_other_first_convolutions_are_left_alone(stem: nn.Conv2d) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(stem, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(stem.out_channels, 10))
    rewrite = Faster()
    run(model, images(), Graphs(rewrite))
    assert rewrite.stems == 0


def test_a_layer_norm_is_left_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.LayerNorm(48), nn.Linear(48, 10))
    graphs = Graphs(Faster())
    run(model, images(), graphs)
    assert graphs.rewrite is not None
    assert graphs.rewrite.statistics == 0
    assert graphs.count(ATEN.var_mean.correction) == 1


def test_a_convolution_whose_input_has_a_gradient_is_left_alone() -> None:
    torch.manual_seed(0)
    before = nn.Conv2d(3, 3, 1, bias=False)
    model = nn.Sequential(
        before, nn.Conv2d(3, 64, 3, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )
    rewrite = Faster()
    found = run(model, images(), Graphs(rewrite))
    assert rewrite.stems == 0
    assert found["0.weight"].abs().max() > 0


def test_columns_make_a_convolution_a_product() -> None:
    random = torch.Generator().manual_seed(0)
    for side, kernel, stride, padding in (((8, 8), (3, 3), (1, 1), (1, 1)), ((9, 7), (5, 3), (2, 3), (2, 0))):
        x = torch.randn(2, 3, *side, generator=random, dtype=torch.float64)
        weight = torch.randn(64, 3, *kernel, generator=random, dtype=torch.float64)
        laid = columns(x, list(kernel), list(stride), list(padding))
        assert laid.shape[1] % 8 == 0
        found = nn.functional.conv2d(laid, kernel_of_columns(weight))
        torch.testing.assert_close(found, nn.functional.conv2d(x, weight, stride=stride, padding=padding))


@pytest.mark.parametrize("mean", [0.0, 1e3, -1e4])
def test_sums_do_not_cancel_where_the_mean_is_large(mean: float) -> None:
    x = torch.randn(64, 5, 8, 8, generator=torch.Generator().manual_seed(0)) + mean
    variance, average = statistics_by_sums(x, [0, 2, 3])
    exact, middle = torch.var_mean(x.double(), [0, 2, 3], correction=0, keepdim=True)
    torch.testing.assert_close(variance.double(), exact, rtol=1e-4, atol=0)
    torch.testing.assert_close(average.double(), middle, rtol=1e-6, atol=1e-6)


def test_a_constant_channel_has_no_variance() -> None:
    variance, average = statistics_by_sums(torch.full((4, 2, 3, 3), 0.1), [0, 2, 3])
    assert variance.tolist() == [[[[0.0]], [[0.0]]]]
    assert average.flatten().tolist() == pytest.approx([0.1, 0.1])


def test_its_mark_for_the_compilers_cache_is_of_its_source() -> None:
    assert Faster().uuid() == Faster().uuid()
