"""Gradient statistics: measured per-example gradients, to compare with noise. No bounds."""
