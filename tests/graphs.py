"""Compile a step as the real backend does, up to the split of its graph, and run the result op by op."""

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import config as inductor
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes

from transnet.train.inductor.graph import RewriteGraph


class Graphs:
    """The backend: ``parts`` are the forward and the backward graph."""

    def __init__(self, rewrite: RewriteGraph | None) -> None:
        self.rewrite = rewrite
        self.parts: list[fx.Graph] = []

    def __call__(self, module: fx.GraphModule, inputs: Any) -> Any:
        def split(joint: fx.GraphModule, *args: Any, **options: Any) -> Any:
            with inductor.patch(joint_custom_post_pass=self.rewrite, fallback_random=True):
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

    def calls(self, target: Any) -> list[fx.Node]:
        return [node for graph in self.parts for node in graph.find_nodes(op="call_function", target=target)]


def run(model: nn.Module, x: Tensor, graphs: Graphs, *, mixed: bool = False) -> dict[str, Tensor]:
    """Loss, gradients and buffers after one step. The model is restored afterwards."""
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
