"""The proofs of `norms` on the GPU that holds the weights, read once for all norms.

It uses the same matrices, guesses and residuals in torch's float64, and makes the same assumption
about its products: IEEE double arithmetic, and entries that are sums of products in some order.
(cuBLAS can emulate float64 by integers, whose errors differ: if it is asked to, this module is not
used.) What the first guess does not prove is left to the CPU, which continues guessing.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
import torch
from torch import Tensor

from lipcert.core.program import FloatArray
from lipcert.graph.ir import Operand
from lipcert.training.projection.matrices import Matrices, RealMatrices, SymbolMatrices
from lipcert.training.projection.norms import (
    FLOOR,
    RESIDUAL,
    SLACK,
    Entrywise,
    Measure,
    Norm,
    Numbers,
    Stack,
    Use,
    euclidean_bound,
)

_EMULATION: Final = ("CUBLAS_EMULATE_DOUBLE_PRECISION", "CUBLAS_EMULATION_STRATEGY")
_SQUARINGS: Final = 6  # of a matrix, by whose power the estimates of the last step are improved

Live = Mapping[str, Tensor]
"""Parameters on their device, by the graph's names."""


def is_ieee(device: torch.device) -> bool:
    """Whether products in float64 satisfy the assumption of the proofs."""
    return device.type == "cuda" and not any(os.environ.get(name) for name in _EMULATION)


def below(grams: Tensor, shifts: Tensor) -> Tensor:
    """Return for which of the matrices [n, d, d] λ_max ≤ shift is proved, as `norms.below`: [n]."""
    shifted = -grams
    shifted.diagonal(dim1=1, dim2=2).add_(shifts[:, None])
    factors, _ = torch.linalg.cholesky_ex(shifted)
    residual = _frobenius(shifted - _squared(factors))
    return (_frobenius(grams) <= shifts) | (residual <= RESIDUAL * shifts)


def _squared(factors: Tensor) -> Tensor:
    """Return R R*, by real products."""
    if not factors.is_complex():
        return factors @ factors.mT
    real, imaginary = factors.real.contiguous(), factors.imag.contiguous()
    mixed = imaginary @ real.mT
    return torch.complex(real @ real.mT + imaginary @ imaginary.mT, mixed - mixed.mT)


def _frobenius(stack: Tensor) -> Tensor:
    rows = torch.view_as_real(stack) if stack.is_complex() else stack
    norms: Tensor = torch.linalg.vector_norm(rows.flatten(1), dim=1)
    return norms


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """`viewed` for a tensor on a device.

    places: None for all entries in order. read: which entries are read; the others are 0.
    """

    operand: Operand
    places: Tensor | None
    read: Tensor | None

    @classmethod
    def of(cls, operand: Operand, device: torch.device) -> Self:
        if operand.places is None:
            return cls(operand, None, None)
        places = torch.from_numpy(np.maximum(operand.places, 0).astype(np.int64)).to(device)
        return cls(operand, places, torch.from_numpy(operand.places >= 0).to(device))

    def __call__(self, whole: Tensor) -> Tensor:
        if self.places is None or self.read is None:
            view = whole.reshape(self.operand.shape)
        else:
            gathered = whole.reshape(-1)[self.places]
            view = torch.where(self.read, gathered, torch.zeros_like(gathered))
        view = view if self.operand.scale == 1.0 else self.operand.scale * view
        plus = self.operand.plus
        return view if plus is None else view + torch.from_numpy(plus.copy()).to(view)


@dataclass(frozen=True, slots=True, eq=False)
class _Grams:
    """`Matrices.gram` on a device."""

    matrices: Matrices
    view: _View
    arrays: Mapping[str, Tensor]

    @classmethod
    def of(cls, matrices: Matrices, device: torch.device) -> Self:
        arrays: dict[str, FloatArray | np.ndarray] = {}
        if isinstance(matrices, RealMatrices) and matrices.index is not None:
            arrays = {"index": matrices.index.astype(np.int64)}
        if isinstance(matrices, SymbolMatrices):
            arrays = {
                "index": matrices.index.astype(np.int64),
                "cosines": matrices.cosines,
                "sines": matrices.sines,
            }
        moved = {name: torch.from_numpy(item).to(device) for name, item in arrays.items()}
        return cls(matrices, _View.of(matrices.operand, device), moved)

    def __call__(self, whole: Tensor) -> Tensor:
        """Return the Gram matrices: [count, side, side]."""
        array = self.view(whole)
        if not self.arrays:
            wide = array if array.shape[0] <= array.shape[1] else array.mT
            return (wide @ wide.mT)[None]
        taps = torch.cat((array.new_zeros(1), array.reshape(-1)))[self.arrays["index"]]
        if "sines" not in self.arrays:
            return taps @ taps.mT
        shape = (self.matrices.count, self.matrices.side, -1)
        cosine = (self.arrays["cosines"] @ taps).reshape(shape)
        sine = (self.arrays["sines"] @ taps).reshape(shape)
        mixed = sine @ cosine.mT
        return torch.complex(cosine @ cosine.mT + sine @ sine.mT, mixed - mixed.mT)


@dataclass(frozen=True, slots=True, eq=False)
class _DeviceStack:
    """A `Stack` whose first guess is made and proved on the device."""

    here: Stack
    grams: tuple[_Grams, ...]
    owners: Tensor
    limits: Tensor
    vectors: Tensor = field(repr=False)

    @classmethod
    def of(cls, stack: Stack, device: torch.device) -> Self:
        return cls(
            stack,
            tuple(_Grams.of(item, device) for item in stack.matrices),
            torch.from_numpy(stack.owners.astype(np.int64)).to(device),
            torch.from_numpy(stack.limits).to(device),
            torch.from_numpy(stack.vectors.copy()).to(device),
        )

    def asked(self, live: Live, *, tight: bool) -> Tensor:
        """Return for each use q, and whether a proof failed that its matrices are below it.  # [2,
        uses]"""
        stack = self._stack(live)
        peaks = self._over_uses(self._iterated(stack))
        guesses = torch.maximum(peaks * (1.0 + SLACK), self.limits * FLOOR)
        inside = peaks < self.limits
        if tight:
            inside &= guesses > self.limits
        squares = torch.where(inside, self.limits, guesses)
        fails = (~below(stack, squares[self.owners])).double()
        return torch.stack((squares, self._over_uses(fails)))

    def _stack(self, live: Live) -> Tensor:
        here = self.here
        if len(here.uses) == 1:
            return self.grams[0](live[here.uses[0].parameter])
        stack = self.vectors.new_zeros(here.grams.shape)
        for use, item, rows in zip(here.uses, self.grams, here.parts, strict=True):
            side = item.matrices.side
            stack[rows, :side, :side] = item(live[use.parameter])
        return stack

    def _iterated(self, stack: Tensor) -> Tensor:
        """Return lower estimates of the largest eigenvalues: [n]."""
        wide = _frobenius(stack)[:, None, None]
        power = torch.where(wide > 0.0, stack / wide, stack)
        for _ in range(_SQUARINGS):
            power = power @ power
        nearer = power @ self.vectors
        wide = _frobenius(nearer)[:, None, None]
        is_direction = (wide > 0.0) & (wide < math.inf)
        self.vectors.copy_(torch.where(is_direction, nearer / wide, self.vectors))
        image = stack @ self.vectors
        before, after = _frobenius(image), _frobenius(stack @ image)
        return torch.where(before > 0.0, after / before, torch.zeros_like(after))

    def _over_uses(self, values: Tensor) -> Tensor:
        """Return the largest value of each use; no value is below 0."""
        if len(self.limits) == 1:
            return values.amax(0, keepdim=True)
        return torch.zeros_like(self.limits).scatter_reduce(0, self.owners, values, "amax")


@dataclass(frozen=True, slots=True, eq=False)
class OnDevice:
    """All measures of weights on one device, evaluated together."""

    stacks: tuple[_DeviceStack, ...]
    entrywise: Entrywise

    @classmethod
    def of(cls, measures: Sequence[Measure], device: torch.device) -> Self:
        """Move the measures of a projector to the device."""
        stacks = [_DeviceStack.of(each, device) for each in measures if isinstance(each, Stack)]
        (entrywise,) = (each for each in measures if isinstance(each, Entrywise))
        return cls(tuple(stacks), entrywise)

    def bounds(self, live: Live, numbers: Numbers, *, tight: bool) -> Sequence[tuple[Use, float]]:
        """Return the bounds of all measures, as `Measure.bounds`.

        numbers: read only if a guess fails.
        """
        wide = {name: item.double() for name, item in live.items()}
        euclidean = [use for use in self.entrywise.uses if use.norm is Norm.EUCLIDEAN]
        lengths = [torch.linalg.vector_norm(wide[use.parameter]) for use in euclidean]
        asked = [each.asked(wide, tight=tight) for each in self.stacks]
        parts = [item.reshape(-1) for item in (*lengths, *asked)]
        answers = torch.cat(parts).tolist() if parts else []
        found = [
            (use, euclidean_bound(use, value, wide[use.parameter].numel()))
            for use, value in zip(euclidean, answers, strict=False)
        ]
        rest = Entrywise.of([use for use in self.entrywise.uses if use.norm is not Norm.EUCLIDEAN])
        found += zip(rest.uses, rest.bounds(numbers, tight=tight), strict=True)
        start = len(lengths)
        for each in self.stacks:
            count = len(each.here.uses)
            squares, fails = answers[start : start + count], answers[start + count :][:count]
            start += 2 * count
            if any(fails) or not all(map(math.isfinite, squares)):
                found += zip(each.here.uses, each.here.bounds(numbers, tight=tight), strict=True)
                continue
            pairs = zip(each.here.uses, squares, each.here.factors, strict=True)
            found += [(use, math.sqrt(square) * factor) for use, square, factor in pairs]
        return found
