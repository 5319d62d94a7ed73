"""Layers of Lipschitz-bounded networks that torch lacks, as plain modules.

Each takes a batch [examples, …], and every example of its output depends only on the same example
of its input.

Invariant: `lipcert.export` exports each layer to nodes that `lipcert.load_model` recognises, so
that an analysis finds the Lipschitz constant and the output norm that its docstring states; each
layer accepts empty batches.

Three published layers are left out, because no true bound can be stated for them: conversion to HSV
(the hue is discontinuous), a layer that averages over the batch, and a convolution that is
1-Lipschitz only by a factor of average energy (use a constraint on the weight, which bounds the
norm of the convolution itself).
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
