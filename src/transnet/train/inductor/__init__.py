"""Rewrite a compiled training step for a GPU, before forward and backward are separated.

This changes the first convolution (`stem_im2col`) and batch norm (`fuse_batchnorm`). It uses private parts of the
compiler, and nothing else in the package does. `transnet.train.step.compiler_options` switches it on and off.
"""

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from transnet.train.inductor import fuse_batchnorm, graph_edit, stem_im2col
from transnet.train.inductor.graph_edit import calls_of


class RewriteGraph(CustomGraphPass):
    """Use it as `torch.compile(…, options={"joint_custom_post_pass": RewriteGraph()})`.

    Attributes:
        convolutions: number of convolutions rewritten in the last graph.
        norms: number of batch norms.
    """

    convolutions = norms = 0

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite a joint graph in place."""
        convolution = torch.ops.aten.convolution.default
        rounded = torch.ops.prims.convert_element_type.default
        self.convolutions = sum(map(stem_im2col.rewrite_convolution, calls_of(graph, convolution)))
        self.norms = sum(map(fuse_batchnorm.rewrite_batchnorm, calls_of(graph, rounded)))
        graph.eliminate_dead_code()
        graph.lint()

    def uuid(self) -> object:
        """A hash of these files, so that the compiler's cache does not reuse graphs of another version."""
        modules = (fuse_batchnorm, graph_edit, stem_im2col)
        return get_hash_for_files((__file__, *(str(module.__file__) for module in modules)))
