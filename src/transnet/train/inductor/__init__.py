"""What makes the compiled step faster on a GPU than `torch.compile` alone: rewrites of its graph, and settings.

They rely on details of the compiler, so each is active only with versions of torch for which a recorded run shows its
gain. With other versions the step is compiled and captured without them. The environment variable
``TRANSNET_REWRITES`` overrides this: ``all``, ``none``, or names such as ``columns,combo_kernels``. Only ``graph.py``
uses private parts of the compiler.
"""

import os

import torch

from transnet.errors import ConfigError

# Each name with its versions of torch (results/training_speed.json).
GRAPH = {
    "columns": ("2.11",),  # the first convolution as a product of columns
    "batchnorm": ("2.11",),  # batch norm as one product and one sum per value
}
SETTINGS = {  # they are options of `torch.compile`
    "max_autotune_pointwise": ("2.11",),  # try more tilings of the batch-norm kernels
    "combo_kernels": ("2.11",),  # run the many small kernels together, such as the casts of the weights
    "triton.enable_pdl": ("2.11",),  # set up a kernel while the one before it ends
}


def compiler_options() -> dict[str, object]:
    """Return the options of `torch.compile` for the training step."""
    known, version = GRAPH | SETTINGS, ".".join(torch.__version__.split(".")[:2])
    default = [name for name, versions in known.items() if version in versions]
    given = os.environ.get("TRANSNET_REWRITES", "")
    names = {"": default, "all": list(known), "none": []}.get(given, given.split(","))
    if unknown := set(names) - set(known):
        works = f"all, none, or some of {','.join(known)}"
        raise ConfigError(f"unknown {','.join(unknown)}; known are {works}", field="TRANSNET_REWRITES")
    options: dict[str, object] = {name: True for name in names if name in SETTINGS}
    if rewrites := [name for name in names if name in GRAPH]:
        from transnet.train.inductor.graph import RewriteGraph  # imports the compiler, which takes seconds

        options["joint_custom_post_pass"] = RewriteGraph(rewrites)
    return options
