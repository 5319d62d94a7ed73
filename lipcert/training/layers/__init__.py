"""Layers that Lipschitz-bounded networks use and torch lacks, as plain modules.

Input: batches [examples, …]. Output: batches in which every example depends on the same example of
the input alone. Invariant: each layer exports with `lipcert.export` to nodes that
`lipcert.load_model` recognises, so that an analysis finds the Lipschitz constant and the output
norm in its docstring; each accepts empty batches.

Not here, because no true bound could be stated for them: conversion to HSV (the hue jumps), a layer
that averages over the batch, a convolution that is 1-Lipschitz by a factor of average energy (a
constraint on the weight holds the norm of the convolution itself).
"""

from lipcert.training.layers.activations import GroupSort, Householder, MaxMin, ScaledL2NormPool2d
from lipcert.training.layers.blocks import (
    AddBias,
    BoundedSelfAttention,
    ColourSpace,
    HalfResidual,
    InputClip,
    InputNormalization,
    LayerCentering,
    MixerBlock,
    Residual,
    ScaledResidual,
)
from lipcert.training.layers.normalization import (
    BoundedGroupNorm,
    BoundedLayerNorm,
    UnitGroupNorm,
    UnitLayerNorm,
)

__all__ = [
    "AddBias",
    "BoundedGroupNorm",
    "BoundedLayerNorm",
    "BoundedSelfAttention",
    "ColourSpace",
    "GroupSort",
    "HalfResidual",
    "Householder",
    "InputClip",
    "InputNormalization",
    "LayerCentering",
    "MaxMin",
    "MixerBlock",
    "Residual",
    "ScaledL2NormPool2d",
    "ScaledResidual",
    "UnitGroupNorm",
    "UnitLayerNorm",
]
