"""Clips that a training run enforces: on per-example gradients, or inside backpropagation.

From the bounded graph of a network and its live module, this package computes sums of clipped
gradients, and installs hooks that clip the input and the cotangent of each layer.
"""
