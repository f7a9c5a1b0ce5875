"""Training a run."""
