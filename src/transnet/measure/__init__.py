"""Measuring a trained network."""
