"""The rewritten graphs of a compiled step: the same values and gradients, with less work."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from graphs import Graphs, images, run
from transnet import TransNet, backbones
from transnet.errors import ConfigError
from transnet.train.inductor import GRAPH, SETTINGS, compiler_options
from transnet.train.inductor.graph import RewriteGraph, columns, kernel_of_columns

ATEN = torch.ops.aten


# ---------------------------------------------------------------------------------------------------------- the switch


def names_of(options: dict[str, Any]) -> set[str]:
    """The settings and rewrites among the options of `torch.compile`."""
    rewrite = options.pop("joint_custom_post_pass", None)
    assert all(value is True for value in options.values())
    return set(options) | set(rewrite.counts if rewrite else ())


@pytest.mark.parametrize(
    ("version", "given", "expected"),
    [
        ("2.11.0+cu130", None, {*GRAPH, *SETTINGS}),
        ("2.12.1", None, set()),
        ("2.1.1", None, set()),
        ("3.0.0a0+git12", "all", {*GRAPH, *SETTINGS}),
        ("2.11.0", "none", set()),
        ("2.12.1", "columns,combo_kernels", {"columns", "combo_kernels"}),
    ],
)
def test_rewrites_follow_the_version_of_torch_unless_the_environment_names_them(
    monkeypatch: pytest.MonkeyPatch, version: str, given: str | None, expected: set[str]
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    if given is not None:
        monkeypatch.setenv("TRANSNET_REWRITES", given)
    assert names_of(compiler_options()) == expected


def test_an_unknown_rewrite_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSNET_REWRITES", "columns,rows")
    with pytest.raises(ConfigError, match="rows; known are all, none") as caught:
        compiler_options()
    assert caught.value.field == "TRANSNET_REWRITES"


@pytest.mark.parametrize("name", GRAPH)
def test_each_rewrite_works_alone(name: str) -> None:
    graphs = Graphs(RewriteGraph([name]))
    run(TransNet(wide_resnet8(), ("r0", "r1")).train(), images(), graphs, mixed=True)
    assert graphs.rewrite is not None
    assert list(graphs.rewrite.counts) == [name]
    assert graphs.rewrite.counts[name] > 0
    assert bool(stems(graphs)) == (name != "columns")


# ----------------------------------------------------------------------------------------------- the first convolution


def stems(graphs: Graphs) -> list[list[int]]:
    """The kernels that convolutions, forward or backward, apply to three channels."""
    calls = graphs.calls(ATEN.convolution.default), graphs.calls(ATEN.convolution_backward.default)
    weights = [node.args[1] for node in calls[0]] + [node.args[2] for node in calls[1]]
    shapes = [list(weight.meta["val"].shape) for weight in weights]  # type: ignore[union-attr]
    return [shape for shape in shapes if shape[1] == 3]


def wide_resnet8() -> nn.Module:
    """With a stem of 32 kernels: its 27 columns are fewer."""
    torch.manual_seed(0)
    model = backbones.create("resnet8-small", num_classes=10, in_channels=3)
    assert isinstance(model.conv1, nn.Conv2d)
    first = nn.Conv2d(3, 32, 3, padding=1, bias=False)
    model.conv1 = nn.Sequential(first, nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 1, bias=False))
    return model.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("bn", ["joint", "separate"])
def test_rewriting_the_first_convolution_changes_no_value(bn: Any) -> None:
    net = TransNet(wide_resnet8(), ("r0", "r1"), bn=bn).double().train()
    plain, rewritten = Graphs(None), Graphs(RewriteGraph())
    expected = run(net, images().double(), plain)
    found = run(net, images().double(), rewritten)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert rewritten.rewrite is not None
    assert rewritten.rewrite.counts["columns"] == 1
    assert len(stems(plain)) == 2
    assert not stems(rewritten)


def assert_as_exact_in_mixed_precision(net: TransNet, graphs: Graphs) -> None:
    """The gradients are as close to those of full precision as without the rewrite."""
    truth, plain = run(net, images(), Graphs(None)), run(net, images(), Graphs(None), mixed=True)
    found = run(net, images(), graphs, mixed=True)
    gradients = [name for name, _ in net.named_parameters()]

    def error(values: dict[str, Tensor]) -> Tensor:
        return torch.stack([(values[name] - truth[name]).norm() / truth[name].norm() for name in gradients])

    assert error(plain).max() > 0.01  # a bfloat16 has 8 bits
    assert error(found).max() < 1.5 * error(plain).max()
    assert error(found).mean() < 1.2 * error(plain).mean()


def test_rewriting_the_first_convolution_loses_no_accuracy_in_mixed_precision() -> None:
    graphs = Graphs(RewriteGraph())
    assert_as_exact_in_mixed_precision(TransNet(wide_resnet8(), ("r0", "r1")).train(), graphs)
    assert not stems(graphs)


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
    rewrite = RewriteGraph()
    run(model, images(), Graphs(rewrite))
    assert rewrite.counts["columns"] == 0


def test_a_convolution_whose_input_has_a_gradient_is_left_alone() -> None:
    torch.manual_seed(0)
    before = nn.Conv2d(3, 3, 1, bias=False)
    model = nn.Sequential(
        before, nn.Conv2d(3, 64, 3, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )
    rewrite = RewriteGraph()
    found = run(model, images(), Graphs(rewrite))
    assert rewrite.counts["columns"] == 0
    assert found["0.weight"].abs().max() > 0


class Twice(nn.Module):
    """One kernel used on the images in two ways."""

    def __init__(self, **other: int) -> None:
        super().__init__()
        self.first, self.last, self.other = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Linear(64, 10), other

    def forward(self, x: Tensor) -> Tensor:
        again = nn.functional.conv2d(x, self.first.weight, **self.other)
        return self.last(self.first(x).mean((2, 3)) + again.sin().mean((2, 3)))


@pytest.mark.parametrize(
    "other", [{"padding": 1}, {"padding": 2, "dilation": 2}, {"stride": 2}], ids=["the same", "dilated", "strided"]
)
def test_a_kernel_used_twice_gets_both_gradients(other: dict[str, int]) -> None:
    torch.manual_seed(0)
    model = Twice(**other).double()
    expected = run(model, images().double(), Graphs(None))
    for name, value in run(model, images().double(), Graphs(RewriteGraph())).items():
        assert torch.allclose(value, expected[name], rtol=1e-9, atol=1e-12), name


def test_a_gradient_inside_the_loss_is_possible() -> None:
    class Sharp(Twice):
        def forward(self, x: Tensor) -> Tensor:
            slope = torch.func.grad(lambda weight: nn.functional.conv2d(x, weight).sin().mean())(self.first.weight)
            return super().forward(x) + slope.square().sum()

    torch.manual_seed(0)
    model = Sharp().double()
    expected = run(model, images().double(), Graphs(None))
    for name, value in run(model, images().double(), Graphs(RewriteGraph())).items():
        assert torch.allclose(value, expected[name], rtol=1e-9, atol=1e-12), name


class Part(nn.Module):
    """Uses a view of its batch."""

    def __init__(self, padding: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 64, 3, padding=padding, bias=False), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x[2:]).mean((2, 3)))


@pytest.mark.parametrize(("padding", "stems"), [(0, 0), (1, 1)])
def test_columns_do_not_read_beyond_a_view(padding: int, stems: int) -> None:
    graphs = Graphs(RewriteGraph())
    run(Part(padding), images(), graphs)
    assert graphs.rewrite is not None
    assert graphs.rewrite.counts["columns"] == stems


def test_images_with_their_channels_first_are_left_alone() -> None:
    graphs = Graphs(RewriteGraph())
    run(Part(1), images().contiguous(), graphs)
    assert graphs.rewrite is not None
    assert graphs.rewrite.counts["columns"] == 0


def test_a_convolution_is_a_product_of_columns() -> None:
    random = torch.Generator().manual_seed(0)
    for side, kernel, stride, padding in (((8, 8), (3, 3), (1, 1), (1, 1)), ((9, 7), (5, 3), (2, 3), (2, 0))):
        x = torch.randn(2, 3, *side, generator=random, dtype=torch.float64)
        weight = torch.randn(64, 3, *kernel, generator=random, dtype=torch.float64)
        arranged = columns(x, list(kernel), list(stride), list(padding))
        assert arranged.shape[1] % 8 == 0
        found = nn.functional.conv2d(arranged, kernel_of_columns(weight))
        torch.testing.assert_close(found, nn.functional.conv2d(x, weight, stride=stride, padding=padding))


def test_the_compilers_cache_distinguishes_the_rewrites() -> None:
    assert RewriteGraph().uuid() == RewriteGraph(GRAPH).uuid()
    assert len({RewriteGraph(names).uuid() for names in ([], ["columns"], ["batchnorm"], GRAPH)}) == 4


def compiled_and_eager(model: nn.Module, device: torch.device, options: dict[str, Any]) -> tuple[list[Tensor], ...]:
    """The gradients of the real compiler, and those of eager mode."""
    model = nn.Sequential(nn.BatchNorm2d(3, affine=False), model).to(device, memory_format=torch.channels_last)
    x = images().to(device, memory_format=torch.channels_last)

    def gradients(forward: Any) -> list[Tensor]:
        model.zero_grad()
        forward(x).square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    torch._dynamo.reset()
    return gradients(torch.compile(model, dynamic=False, options=options)), gradients(model)


MODELS = [(Part(0), 0), (Part(1), 1), (Twice(padding=1), 2)]
NAMES = ["part", "padded part", "twice"]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "rewritten"), MODELS, ids=NAMES)
def test_compiled_gradients_are_the_eager_ones(model: nn.Module, rewritten: int) -> None:
    rewrite = RewriteGraph()
    found, expected = compiled_and_eager(
        model, torch.device("cpu"), {"joint_custom_post_pass": rewrite, "force_disable_caches": True}
    )
    assert rewrite.counts["columns"] == rewritten
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("model", [model for model, _ in MODELS], ids=NAMES)
def test_compiled_gradients_are_the_eager_ones_on_a_gpu(model: nn.Module) -> None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device("cuda")
    found, expected = compiled_and_eager(model, device, compiler_options())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------- batch norm


def mixed_signs(model: nn.Module) -> nn.Module:
    """Batch norms as training may leave them: negative scales reverse the comparison."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return model.to(memory_format=torch.channels_last)


def resnet8() -> nn.Module:
    torch.manual_seed(0)
    return mixed_signs(backbones.create("resnet8-small", num_classes=10, in_channels=3))


def wide10() -> nn.Module:
    """Batch norm and ReLU before the convolutions instead of after them."""
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
def test_rewriting_batch_norm_changes_no_value(residual: bool, masks: int) -> None:
    model, x = Wider(residual), images()
    plain, rewritten = Graphs(None), Graphs(RewriteGraph())
    expected, found = run(model, x, plain), run(model, x, rewritten)
    assert rewritten.rewrite is not None
    assert rewritten.rewrite.counts["batchnorm"] == 2
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
def test_rewriting_batch_norm_loses_no_accuracy_in_mixed_precision(model: Callable[[], nn.Module], norms: int) -> None:
    graphs = Graphs(RewriteGraph())
    assert_as_exact_in_mixed_precision(TransNet(model(), ("r0", "r1")).train(), graphs)
    assert graphs.rewrite is not None
    assert graphs.rewrite.counts["batchnorm"] == norms


def test_masks_read_a_relus_output_only_if_it_is_used_twice() -> None:
    plain, rewritten = Graphs(None), Graphs(RewriteGraph())
    for graphs in (plain, rewritten):
        run(resnet8(), images(), graphs, mixed=True)
    # The first ReLU in each of three blocks. The results of the stem and of the blocks are used twice, or by the pool.
    assert saved_relus_as_masks(plain) - saved_relus_as_masks(rewritten) == 3


def test_the_activations_kept_for_the_backward_pass_are_the_same() -> None:
    def kept(graphs: Graphs) -> set[str]:
        names = {node.name for node in graphs.parts[1].find_nodes(op="placeholder")}
        return {name for name in names if name.startswith(("convolution", "relu"))}

    plain, rewritten = Graphs(None), Graphs(RewriteGraph())
    for graphs in (plain, rewritten):
        run(resnet8(), images(), graphs, mixed=True)
    assert kept(rewritten) == kept(plain)


def test_batch_norm_in_full_precision_is_left_alone() -> None:
    rewrite = RewriteGraph()
    run(resnet8(), images(), Graphs(rewrite))
    assert rewrite.counts["batchnorm"] == 0


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
    assert graphs.rewrite.counts["batchnorm"] == 0
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
