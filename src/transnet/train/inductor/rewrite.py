"""The graph pass that rewrites a compiled training step for a GPU, before forward and backward are split.

It rewrites the first convolution (`stem_im2col`) and batch norm (`fuse_batchnorm`).
"""

from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from transnet.train.inductor import fuse_batchnorm as affine
from transnet.train.inductor import graph_edit as splice
from transnet.train.inductor import stem_im2col as stem
from transnet.train.inductor.graph_edit import calls_of

_aten = torch.ops.aten


class Rewrite(CustomGraphPass):
    """For `torch.compile(…, options={"joint_custom_post_pass": Rewrite()})`.

    Attributes:
        stems: how many convolutions of the last graph were rewritten.
        norms: how many batch norms.
    """

    stems = norms = 0

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite a joint graph in place."""
        self.stems = sum(map(stem.as_columns, calls_of(graph, _aten.convolution.default)))
        self.norms = sum(map(affine.by_scale_and_shift, calls_of(graph, torch.ops.prims.convert_element_type.default)))
        graph.eliminate_dead_code()
        graph.lint()

    def uuid(self) -> Any:
        """The compiler's cache keeps graphs made by other versions of these files apart."""
        return get_hash_for_files((__file__, *(str(module.__file__) for module in (affine, splice, stem))))
