"""Truth for the tests of operator norms: explicit matrices by plain loops, and exact arithmetic."""

import itertools
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from lipcert.geometry import Geometry, Window
from lipcert.norms.linear_map import ConvMap
from lipcert.norms.operator_norm import Tier, operator_norm
from lipcert.operand import Operand

Array = npt.NDArray[np.float64]


def conv_matrix(weight: Array, geometry: Geometry, groups: int = 1) -> Array:
    """The finite zero-padded convolution as a matrix, straight from its definition."""
    outer, inner = weight.shape[0], weight.shape[1] * groups
    outputs = tuple(
        (w.size + w.pad_begin + w.pad_end - w.dilation * (w.taps - 1) - 1) // w.stride + 1
        for w in geometry
    )
    inputs = tuple(w.size for w in geometry)
    matrix = np.zeros((outer, *outputs, inner, *inputs))
    for place in np.ndindex(*outputs):
        for taps in np.ndindex(*weight.shape[2:]):
            source = tuple(
                o * w.stride + t * w.dilation - w.pad_begin
                for o, t, w in zip(place, taps, geometry, strict=True)
            )
            if all(0 <= s < n for s, n in zip(source, inputs, strict=True)):
                for o, i in itertools.product(range(outer), range(weight.shape[1])):
                    channel = o // (outer // groups) * weight.shape[1] + i
                    matrix[(o, *place, channel, *source)] += weight[(o, i, *taps)]
    return matrix.reshape(outer * int(np.prod(outputs)), inner * int(np.prod(inputs)))


def true_norm(matrix: Array) -> float:
    """The spectral norm by singular values: accurate to about 1e-14."""
    return float(np.linalg.norm(matrix, 2))


def certified(weight: Array, geometry: Geometry, groups: int = 1, tier: Tier = Tier.FAST) -> float:
    """The bound of the ladder."""
    return operator_norm(ConvMap(Operand(weight), geometry, groups), tier).value.value


def random_window(rng: np.random.Generator, largest: int) -> Window:
    """A window with any stride, dilation, asymmetric pads, also wider than its input."""
    while True:
        taps, dilation = int(rng.integers(1, 5)), int(rng.integers(1, 4))
        reach = dilation * (taps - 1) + 1
        pads = rng.integers(0, reach + 1, size=2)
        size = int(rng.integers(1, largest + 1))
        if size + pads.sum() >= reach:
            return Window(size, taps, int(rng.integers(1, 4)), dilation, int(pads[0]), int(pads[1]))


def random_kernel(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Gaussian, signs, checkerboards or non-negative entries, of any magnitude."""
    weight = rng.standard_normal(shape)
    kind = int(rng.integers(5))
    if kind == 1:
        weight = np.sign(weight)
    if kind == 2:
        weight = np.abs(weight)
    if kind == 3:
        sign = (-1.0) ** np.indices(shape[2:]).sum(axis=0)
        weight = np.abs(weight) * sign
    if kind == 4:
        weight[rng.random(shape) < 0.6] = 0.0
    return weight * 10.0 ** float(rng.integers(-12, 12))


def is_at_least_the_norm(bound: float, matrix: Array) -> bool:
    """Whether bound² I − W Wᵀ is positive semidefinite, in exact rational arithmetic."""
    rows = [[Fraction(float(entry)) for entry in row] for row in matrix]
    size = len(rows)
    square = Fraction(bound) ** 2
    work = [
        [
            (square if i == j else 0) - sum(a * b for a, b in zip(rows[i], rows[j], strict=True))
            for j in range(size)
        ]
        for i in range(size)
    ]
    return is_semidefinite(work)


def is_semidefinite(work: list[list[Fraction]]) -> bool:
    """Exact symmetric Gaussian elimination; destroys its argument."""
    size = len(work)
    for pivot in range(size):
        diagonal = work[pivot][pivot]
        if diagonal < 0 or (diagonal == 0 and any(work[pivot][pivot + 1 :])):
            return False
        for row in range(pivot + 1, size):
            if work[row][pivot]:
                factor = work[row][pivot] / diagonal
                for column in range(pivot, size):
                    work[row][column] -= factor * work[pivot][column]
    return True
