"""A lower bound of the operator norm of a layer's weight: what it does to one vector.

What enters: an op with a weight, and its input shape. What leaves: B ≤ ‖T‖₂.

Proof: ‖T‖ ≥ ‖Tv‖/‖v‖ for every v ≠ 0. Each entry of the computed Tv is a sum of at most n products,
n the number of entries of v, so it is off by at most γ_n·(|T||v|), in any order of summation; the
norm of the error is at most γ_n·‖|T||v|‖, and |T||v| itself is computed within a factor 1 + γ_n.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from lipcert.audit.lowering.dispatch import lower
from lipcert.facts import Shape
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.ops.linear import Dense
from lipcert.upper import ONE, FloatArray, Lower, gamma, norm, norm_lower

Layer = Dense | Conv | ConvTranspose
_ITERATIONS: Final = 60


def operator_norm_lower(op: Layer, input_shape: Shape) -> Lower:
    """A lower bound by the best vector that a power iteration finds."""
    linear = replace(op, bias=None)
    shape = tuple(input_shape)
    vector = _long_vector(linear, shape[-1:] if isinstance(op, Dense) else shape)
    magnitudes = replace(op, bias=None, weight=replace(op.weight, array=np.abs(op.weight.array)))
    image = linear.evaluate(vector[None])
    spread = norm(magnitudes.evaluate(np.abs(vector)[None]))
    terms = math.prod(shape) + 2
    error = gamma(terms) * spread * (ONE + gamma(terms))
    length = norm_lower(image).value - error.value
    if length <= 0.0:
        return Lower(0.0)
    return Lower(length * (1.0 - 2.0**-50)).over(norm(vector))


def _long_vector(op: Layer, shape: Shape) -> FloatArray:
    """What (TᵀT)^k makes of a fixed vector."""
    weight = torch.from_numpy(op.weight.array.copy())
    start = np.random.default_rng(0).standard_normal((1, *shape))
    vector = torch.from_numpy(start)
    for _ in range(_ITERATIONS):
        vector = vector.detach().requires_grad_()
        with torch.enable_grad():
            image = lower(op, (vector,), {"weight": weight})
            (back,) = torch.autograd.grad(image, vector, image.detach())
        length = float(back.norm())
        if not (math.isfinite(length) and length > 0.0):
            break
        vector = back / length
    return np.array(vector.detach().numpy()[0], dtype=np.float64)
