"""The rewritten backward pass of batch norm with ReLU: same gradients, fewer tensors read."""

from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import config as inductor
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes

from transnet import backbones
from transnet.train.fusion import MaskFromInput

ATEN = torch.ops.aten


class Graphs:
    """Compiles as the real backend does up to the split of the graph, and runs what comes out op by op."""

    def __init__(self, rewrite: MaskFromInput | None) -> None:
        self.rewrite = rewrite
        self.backward: fx.Graph | None = None

    def __call__(self, module: fx.GraphModule, inputs: Any) -> Any:
        def split(joint: fx.GraphModule, *args: Any, **options: Any) -> Any:
            with inductor.patch(joint_custom_post_pass=self.rewrite):
                joint_graph_passes(joint)
            options.pop("compiler", None)
            forward, backward = min_cut_rematerialization_partition(joint, *args, compiler="inductor", **options)
            self.backward = backward.graph
            return forward, backward

        return aot_autograd(
            fw_compiler=lambda graph, _: make_boxed_func(graph),
            partition_fn=split,
            decompositions=select_decomp_table(),
        )(module, inputs)


def gradients(model: nn.Module, x: torch.Tensor, graphs: Graphs | None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    torch._dynamo.reset()
    model.zero_grad()

    def loss(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        return nn.functional.cross_entropy(out.float(), torch.arange(len(x)) % 10)

    value = (torch.compile(loss, backend=graphs, dynamic=False) if graphs else loss)(x)
    value.backward()
    return value.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    model = backbones.create("resnet8-small", num_classes=10, in_channels=3).to(memory_format=torch.channels_last)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)  # negative scales turn the comparison round
            nn.init.normal_(module.bias)
    return model


def test_gradients_stay_and_the_outputs_of_relu_are_not_read_for_masks(model: nn.Module) -> None:
    x = torch.randn(16, 3, 16, 16).to(memory_format=torch.channels_last)
    plain, rewritten = Graphs(None), Graphs(MaskFromInput())
    value, before = gradients(model, x, plain)
    other, after = gradients(model, x, rewritten)
    assert rewritten.rewrite is not None
    # The stem and the first convolution of each of three blocks; the others add the shortcut before their ReLU.
    assert rewritten.rewrite.rewritten == 4
    assert abs(value - other) < 1e-2
    for name, gradient in before.items():
        # bfloat16 activations: what another order of rounding in float32 changes is far below 2⁻⁸.
        error = (after[name] - gradient).norm() / gradient.norm()
        assert error < 0.02, name
    assert _masks_of_saved_relus(plain.backward) - _masks_of_saved_relus(rewritten.backward) == 4


def test_full_precision_is_left_as_it_is(model: nn.Module) -> None:
    rewrite = MaskFromInput()
    graphs = Graphs(rewrite)
    torch._dynamo.reset()
    torch.compile(model, backend=graphs, dynamic=False)(torch.randn(8, 3, 16, 16)).sum().backward()
    assert graphs.backward is not None
    assert rewrite.rewritten == 0


def test_its_mark_for_the_compilers_cache_is_of_its_source() -> None:
    assert MaskFromInput().uuid() == MaskFromInput().uuid()


def _masks_of_saved_relus(graph: fx.Graph | None) -> int:
    assert graph is not None
    masks = graph.find_nodes(op="call_function", target=ATEN.le.Scalar)
    return sum(node.args[0].op == "placeholder" and node.args[0].name.startswith("relu") for node in masks)
