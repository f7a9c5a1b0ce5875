"""Replace a node of a compiled step's graph by the graph of a function."""

from collections.abc import Callable
from typing import Any, cast

from torch import fx
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx


def calls_of(graph: fx.Graph, target: Any) -> list[fx.Node]:
    """The nodes that call ``target``."""
    return list(graph.find_nodes(op="call_function", target=target))


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
                copies[node].meta = {
                    **at.meta,
                    **{key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta},
                }
    raise AssertionError("a graph without an output")


def replace_items(node: fx.Node, items: dict[int, fx.Node]) -> None:
    """Replace items of the tuple that a node returns, and remove the node from the graph."""
    for user in list(node.users):
        if (found := items.get(cast(int, user.args[1]))) is not None:
            user.replace_all_uses_with(found)
        node.graph.erase_node(user)
    node.graph.erase_node(node)
