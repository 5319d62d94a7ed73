"""Powers of a measure under cyclic convolution, by a Fourier transform with a proved error.

The additions and multiplications are float64 and rounded to nearest: a complex sum is off by at
most 2^−53 of itself, a product by √5·2^−53 of itself (Brent, Percival and Zimmermann, 2007). The
roots of unity come from integers, so nothing is asked of a library's sine.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.interval import Array

_Complex: TypeAlias = npt.NDArray[np.complex128]
_BITS = 96


def convolution_power(measure: Array, times: int) -> tuple[Array, float]:
    """Returns y and e with |y_j − (measure^{*times})_j| ≤ e; cyclic, of length a power of 2.

    Hypotheses: entries ≥ 0, their sum S has S^times ≤ 2, times ≤ 2^32; else e is inf or honest.
    Proof: with the relative errors ρ of `_transform` (of S) and τ = 2^−50 of a product, repeated
    squaring of ẑ has the relative error (1+τ)^(times−1) − 1 ≤ 2·τ·times, and
    |z^n − ẑ^n| ≤ n·(|ẑ|+ρS)^(n−1)·ρS. An inverse transform is the mean of the z_k·(unit), so its
    error is at most the mean of the errors, and ρ times the mean of |ẑ^n|. Means and powers are
    raised by 1 + 2^−9 for their own rounding; what underflows is below 2^−450 in total.
    """
    if times == 1:
        return measure, 0.0
    relative = len(measure).bit_length() * 2.0**-49
    mass = float(np.sum(measure)) * (1.0 + 2.0**-20)
    values = _transform(measure.astype(np.complex128))
    steep = _size(_power((_size(values) + 2.0 * relative * mass).astype(np.complex128), times - 1))
    product = _power(values, times)
    errors = times * (steep * (relative * mass) + 2.0**-49 * _size(product))
    error = np.mean(errors + 2.0 * relative * _size(product)) * (1.0 + 2.0**-9) + 2.0**-400
    return np.conj(_transform(np.conj(product))).real / len(measure), float(error)


def _size(values: _Complex) -> Array:
    """|values| within 2^−9 of itself, plus 2^−500."""
    return np.sqrt(values.real * values.real + values.imag * values.imag) + 2.0**-500


def _power(base: _Complex, exponent: int) -> _Complex:
    """base^exponent, by squaring from the highest digit down."""
    result = base
    for digit in bin(exponent)[3:]:
        result = result * result
        if digit == "1":
            result = result * base
    return result


def _transform(values: _Complex) -> _Complex:
    """Σ_j values_j·e^(−2πijk/n); each output off by less than log2(2n)·2^−49·Σ|values|.

    Proof: every output is a sum over the inputs, each multiplied by log2 n roots of unity; root
    (2·2^−53), product (√5·2^−53) and sum (2^−53) are off by less than 2^−50 of it at each level.
    """
    size = len(values)
    roots = _roots(size)
    table = values.reshape(1, size)
    while table.shape[0] < size:
        rows, half = table.shape[0], table.shape[1] // 2
        twisted = table[:, half:] * roots[:: size // (2 * rows)][:rows, None]
        table = np.concatenate([table[:, :half] + twisted, table[:, :half] - twisted])
    return table.ravel()


@lru_cache(maxsize=2)
def _roots(size: int) -> _Complex:
    """e^(−2πik/n) for k < n/2, each within 2·2^−53.

    Proof: from n = 4 on, the table for 2n holds the one for n and its products with e^(−πi/n),
    whose cosine is √((1 + cos)/2). In integers of 96 bits a level loses 3 units of 2^−96, so after
    30 levels they are within 2^−60, and then rounded to the nearest float64.
    """
    one = 1 << _BITS
    table, step = [(one, 0)], (0, -one)  # angle 0; the step −π/2 of n = 4
    for level in range(size.bit_length() - 2):
        if level:
            cosine, sine = step
            half = math.isqrt((one + cosine) * one >> 1)
            step = half, (sine * one) // (2 * half)
        table = [angle for pair in table for angle in (pair, _rotated(pair, step))]
    return np.array([complex(c / one, s / one) for c, s in table], dtype=np.complex128)


def _rotated(angle: tuple[int, int], by: tuple[int, int]) -> tuple[int, int]:
    (c, s), (d, t) = angle, by
    return (c * d - s * t) >> _BITS, (c * t + s * d) >> _BITS
