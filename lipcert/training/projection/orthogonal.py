"""Orthogonalisation: weights towards multiples of orthogonal matrices, where these have norm 1.

Input: a weight and a certified bound of its norm. Output: the weight after some Björck iterations,
scaled to its radius. Invariant: nothing is claimed about the result; it is projected like any other
weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.core.program import Conv, Dense
from lipcert.graph.ir import Node
from lipcert.training.projection.constrained import Constrained, Norm, Use
from lipcert.upper import ONE, FloatArray

_INSIDE: Final = 1.0 - 2.0**-20


@final
@dataclass(frozen=True, slots=True)
class Orthogonal:
    """How a parameter is seen as matrices: [groups, rows, columns]."""

    shape: tuple[int, int, int]
    radius: float
    iterations: int

    def improved(self, whole: FloatArray, bound: float) -> FloatArray:
        """The weight after the iterations, of norm close to the radius from below.

        bound: of the norm of the matrices. Their singular values over it are at most 1, and each
        iteration W ← W(3I − WᵀW)/2 takes σ to σ(3 − σ²)/2, which is in [σ, 1] for σ in [0, 1].
        """
        matrices = whole.reshape(self.shape) / bound
        tall = matrices.shape[1] > matrices.shape[2]
        wide = matrices.swapaxes(1, 2) if tall else matrices
        for _ in range(self.iterations):
            wide = 1.5 * wide - 0.5 * (wide @ wide.swapaxes(1, 2)) @ wide
        result = wide.swapaxes(1, 2) if tall else wide
        numbers: FloatArray = (self.radius * _INSIDE) * result.reshape(whole.shape)
        return numbers


def orthogonal_of(constrained: Constrained, iterations: int) -> Orthogonal | str:
    """How to orthogonalise a parameter, or why orthogonal matrices would not give it norm 1."""
    match constrained.uses:
        case (Use(norm=Norm.OPERATOR) as use,):
            shape = _shape(use)
        case (Use(norm=Norm.EUCLIDEAN),):
            return "its constraint is one of the Euclidean norm"
        case (Use(),):
            return "it is not the matrix of a linear map"
        case _:
            return "several ops use it"
    if isinstance(shape, str):
        return shape
    return Orthogonal(shape, constrained.radius, iterations)


def _shape(use: Use) -> tuple[int, int, int] | str:
    """A transposed matrix is as orthogonal as the matrix itself."""
    operand, node = use.operand, use.node
    if node is None or operand is None or operand.scale != 1.0 or operand.gain > ONE:
        return "the op sees it rescaled or repeated"
    if isinstance(node.op, Dense):
        rows, columns = operand.shape
        if operand.places is None:
            return (1, rows, columns)
        transposed = np.arange(rows * columns).reshape(columns, rows).T
        if np.array_equal(operand.places, transposed):
            return (1, columns, rows)
        return "the op uses a part of it"
    if operand.places is not None:
        return "the op sees it rearranged"
    if isinstance(node.op, Conv) and _are_disjoint(node):
        outer, *inner = operand.shape
        return (node.op.groups, outer // node.op.groups, math.prod(inner))
    return "the windows of the convolution overlap or leave the input"


def _are_disjoint(node: Node) -> bool:
    """Whether the op is its matrix [out, in · taps], once for each window."""
    whole = all(max(window.reads()) == window.taps for window in node.geometry)
    return whole and math.prod(window.overlap for window in node.geometry) == 1
