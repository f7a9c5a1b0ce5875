"""Graph rewrites for `torch.compile` on a GPU."""
