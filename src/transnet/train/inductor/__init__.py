"""Graph rewrites for `torch.compile` on a GPU.

They use private parts of the compiler, and nothing else in the package does. `transnet.train.step.compiler_options`
switches them on and off with ``rewrite_graph``.
"""
