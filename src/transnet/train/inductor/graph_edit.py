"""Insert the graph of a function into the graph of a compiled step."""

from collections.abc import Callable
from typing import Any

from torch import fx
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx


def insert_before(at: fx.Node, function: Callable[..., Any], *args: Any) -> list[fx.Node]:
    """Insert the graph of ``function(*args)`` before a node, and return the nodes of its results."""
    values = [arg.meta["val"] for arg in args]
    with values[0].fake_mode:
        traced = make_fx(function, decomposition_table=select_decomp_table())(*values)
    copies: dict[fx.Node, Any] = dict(zip(traced.graph.find_nodes(op="placeholder"), args, strict=True))
    with at.graph.inserting_before(at):
        for node in traced.graph.nodes:
            if node.op == "output":
                return [copies[result] for result in node.args[0]]
            if node not in copies:
                copies[node] = at.graph.node_copy(node, copies.__getitem__)
                # Keep the replaced node's records of its pass and its origin.
                own = {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}
                copies[node].meta = {**at.meta, **own}
    raise AssertionError("a graph without an output")
