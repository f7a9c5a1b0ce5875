"""Fold a transform into a network's weights: Prop. 1 of the paper, made exact."""
