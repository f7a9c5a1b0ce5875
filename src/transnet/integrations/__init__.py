"""TransNet inside the training loops of other libraries."""
