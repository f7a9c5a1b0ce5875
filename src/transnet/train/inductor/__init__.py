"""Rewrite a compiled training step for a GPU, before forward and backward are separated.

This changes the first convolution (`stem_im2col`) and batch norm (`fuse_batchnorm`). It uses private parts of the
compiler, and nothing else in the package does. `transnet.train.step.compiler_options` switches it on.
"""

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from transnet.train.inductor import fuse_batchnorm, graph_edit, stem_im2col


class RewriteGraph(CustomGraphPass):
    """Use it as `torch.compile(…, options={"joint_custom_post_pass": RewriteGraph()})`."""

    convolutions = norms = 0  # numbers of nodes that were rewritten in the last graph

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite a joint graph in place."""
        convolutions = graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
        self.convolutions = sum(map(stem_im2col.rewrite_convolution, list(convolutions)))
        rounded = graph.find_nodes(op="call_function", target=torch.ops.prims.convert_element_type.default)
        self.norms = sum(map(fuse_batchnorm.rewrite_batchnorm, list(rounded)))
        graph.eliminate_dead_code()
        graph.lint()

    def uuid(self) -> object:
        """A hash of these files, so that the compiler's cache does not reuse graphs of another version."""
        modules = (fuse_batchnorm, graph_edit, stem_im2col)
        return get_hash_for_files((__file__, *(str(module.__file__) for module in modules)))
