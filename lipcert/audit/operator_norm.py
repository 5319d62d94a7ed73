"""Two ends of the operator norm of a layer's weight T: what the core proves, and one vector.

What enters: an op with a weight. What leaves: a number ≥ ‖T‖₂, or one ≤ ‖T‖₂.

Proof of the lower end: ‖T‖ ≥ ‖Tv‖/‖v‖ for every v ≠ 0. Each entry of the computed Tv is a sum of
at most n products, n the number of entries of v, so it is off by at most γ_n·(|T||v|), in any order
of summation; the norm of the error is at most γ_n·‖|T||v|‖, and |T||v| itself is computed within a
factor 1 + γ_n.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from lipcert.audit.lowering.dispatch import lower
from lipcert.choices import TierName
from lipcert.core.interval import Interval
from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.steps import Kernel
from lipcert.core.program import Dense as DenseStep
from lipcert.core.program import Operand, Shape
from lipcert.core.program import Window as Windows
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.ops.linear import Dense
from lipcert.search.norms import proved_bound
from lipcert.upper import ONE, FloatArray, Lower, Upper, gamma, norm, norm_lower

Layer = Dense | Conv | ConvTranspose
_ITERATIONS: Final = 60


def operator_norm_upper(op: Layer, tier: TierName) -> Upper:
    """An upper bound that the core proves, about the least that it can; inf where it proves none.

    Proving takes a share of 4e-8 of the norm, or a little more.
    """
    return Upper(proved_bound(_kernel(op), tier))


def _kernel(op: Layer) -> Kernel:
    """The linear part; a transposed convolution has the norm of the one that it transposes."""
    weight = op.weight.array
    if isinstance(op, Dense):
        step = DenseStep(Operand(weight, weight), None)
        return Kernel.of(step, weight.shape[1:], weight.shape[:1])
    windows = Windows(
        tuple(window.taps for window in op.geometry),
        tuple(window.stride for window in op.geometry),
        tuple(window.dilation for window in op.geometry),
        tuple(window.pad_begin for window in op.geometry),
        tuple(window.outputs for window in op.geometry),
    )
    sizes = tuple(window.size for window in op.geometry)
    frame = Convolution(weight, sizes, windows, op.groups)
    return Kernel(Interval(weight, weight), frame, adjoint=False)


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
