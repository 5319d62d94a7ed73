"""Scope: for which weights a statement holds, and the norms of weights in it.

`PointScope` speaks of the weights in the file. `ConstraintScope` speaks of every θ with
‖θ_p‖ ≤ radius_p for the constrained parameters (frozen ones stay at the file's values). Rules
ask a scope for norms and entries and never look at a weight themselves, so the same rules serve
both. Answers are remembered, because certified norms cost seconds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import final
from weakref import WeakKeyDictionary

import numpy as np

from lipcert.facts import Bound, no_bound
from lipcert.interval import Interval
from lipcert.norms.linear_map import ConvMap, DenseMap, LinearMap, PaddedConvMap
from lipcert.norms.operator_norm import Tier, operator_norm
from lipcert.norms.windows import window_multiplicity
from lipcert.operand import Operand
from lipcert.upper import ONE, Upper, norm

NormRule = Callable[[LinearMap, Tier], Bound]
"""What certifies a norm: `norms.operator_norm`, or a cache in front of it."""


class ConstraintKind(Enum):
    """What is held below the radius throughout training."""

    SPECTRAL = "spectral"
    """operator norm of every op that uses the parameter (largest magnitude, for a scale)"""
    FROBENIUS = "frobenius"
    """Euclidean norm of all entries"""


@final
@dataclass(frozen=True, slots=True)
class Constraint:
    """‖θ‖ ≤ radius in the stated norm."""

    kind: ConstraintKind
    radius: Upper


class Scope(ABC):
    """The set of weights for which every bound holds."""

    @abstractmethod
    def entries(self, operand: Operand) -> Interval:
        """Entrywise bounds of the operand over the scope."""

    @abstractmethod
    def norm(self, operand: Operand) -> Bound:
        """Bound of the Euclidean (Frobenius) norm of the operand over the scope."""

    @abstractmethod
    def operator_norm(self, linear_map: LinearMap) -> Bound:
        """Bound of the spectral norm of the linear map over the scope."""

    def max_abs(self, operand: Operand) -> Bound:
        """Bound of the largest magnitude of any entry (the norm of a diagonal map)."""
        value = self.entries(operand).max_abs()
        if value.is_finite:
            return Bound(value, "scope.max_abs")
        return self.norm(operand)


@final
class PointScope(Scope):
    """The single point θ₀: the weights of the file."""

    def __init__(self, tier: Tier, certify: NormRule = operator_norm) -> None:
        self._tier = tier
        self._certify = certify
        self._norms: WeakKeyDictionary[Operand, dict[tuple[object, ...], Bound]]
        self._norms = WeakKeyDictionary()

    def entries(self, operand: Operand) -> Interval:
        """The entries themselves, exactly."""
        return Interval.exact(operand.array)

    def norm(self, operand: Operand) -> Bound:
        """The Euclidean norm, computed with directed rounding."""
        return Bound(norm(operand.array), "scope.norm.point")

    def operator_norm(self, linear_map: LinearMap) -> Bound:
        """A certified norm of the map: by `norms.operator_norm`, unless told otherwise.

        An answer is remembered as long as the very operand lives.
        """
        known, use = self._norms.setdefault(linear_map.weight, {}), _use(linear_map)
        if use not in known:
            known[use] = self._certify(linear_map, self._tier)
        return known[use]


@final
class ConstraintScope(Scope):
    """All weights that satisfy the declared constraints."""

    def __init__(
        self,
        constraints: Mapping[str, Constraint],
        trainable: frozenset[str],
        tier: Tier,
        certify: NormRule = operator_norm,
    ) -> None:
        self._constraints = dict(constraints)
        self._trainable = trainable
        self._frozen = PointScope(tier, certify)

    def entries(self, operand: Operand) -> Interval:
        """[−r, r] for every entry: each norm bounds each entry. Exact for frozen operands.

        Entries that no op ever uses (taps that read nothing but padding) count as 0.
        """
        if self._is_frozen(operand):
            return self._frozen.entries(operand)
        constraint = self._constraint(operand)
        if constraint is None:
            unknown = np.full(operand.shape, np.inf)
            return Interval(-unknown, unknown)
        return Interval.symmetric(_reach(constraint, operand), operand.shape)

    def norm(self, operand: Operand) -> Bound:
        """r under a Frobenius constraint; √n·r for n entries under a spectral one.

        Proof of the latter: each entry is at most r, as in `entries`.
        """
        if self._is_frozen(operand):
            return self._frozen.norm(operand)
        constraint = self._constraint(operand)
        if constraint is None:
            return self._unconstrained(operand)
        reach = _reach(constraint, operand)
        if constraint.kind is ConstraintKind.FROBENIUS:
            return Bound(reach, "scope.norm.frobenius")
        root = Upper(float(math.prod(operand.shape))).sqrt()
        return Bound(reach * root, "scope.norm.spectral")

    def operator_norm(self, linear_map: LinearMap) -> Bound:
        """r under a spectral constraint; r, times κ for a convolution, under a Frobenius one.

        Proof: ‖W‖₂ ≤ ‖W‖_F; for convolutions `window_multiplicity` proves ‖T‖ ≤ κ‖W‖_F.
        """
        operand = linear_map.weight
        if self._is_frozen(operand):
            return self._frozen.operator_norm(linear_map)
        constraint = self._constraint(operand)
        if constraint is None:
            return self._unconstrained(operand)
        reach = _reach(constraint, operand)
        if constraint.kind is ConstraintKind.SPECTRAL:
            if isinstance(linear_map, PaddedConvMap):
                reach = reach * Upper(float(linear_map.repetitions())).sqrt()
            return Bound(reach, "scope.operator_norm.spectral")
        match linear_map:
            case DenseMap():
                return Bound(reach, "scope.operator_norm.frobenius")
            case ConvMap():
                stretch = window_multiplicity(linear_map.geometry)
                return Bound(reach * stretch, "scope.operator_norm.frobenius")
            case PaddedConvMap():
                stretch = window_multiplicity(linear_map.geometry)
                repeated = Upper(float(linear_map.repetitions())).sqrt()
                return Bound(reach * stretch * repeated, "scope.operator_norm.frobenius")

    def _is_frozen(self, operand: Operand) -> bool:
        return operand.parameter not in self._trainable

    def _constraint(self, operand: Operand) -> Constraint | None:
        return self._constraints.get(operand.parameter or "")

    def _unconstrained(self, operand: Operand) -> Bound:
        return no_bound(
            "scope.unconstrained",
            f"parameter {operand.parameter!r} is trained but no constraint is declared for it",
            "declare one (--constraint, --bias-norm or a [constraints] table) or --freeze it",
        )


def _reach(constraint: Constraint, operand: Operand) -> Upper:
    """The radius as the op sees it, behind the view from parameter to operand.

    A Euclidean norm grows by at most the gain of the view. A spectral constraint speaks of the op
    itself, or of the parameter where the two differ by a factor: the larger one covers both.
    """
    if constraint.kind is ConstraintKind.FROBENIUS:
        return constraint.radius * operand.gain
    return constraint.radius * max(ONE, operand.gain)


def _use(linear_map: LinearMap) -> tuple[object, ...]:
    """How a map applies its operand."""
    match linear_map:
        case DenseMap():
            return ("dense",)
        case ConvMap(_, geometry, groups):
            return ("conv", geometry, groups)
        case PaddedConvMap(_, geometry, pads, border, groups):
            return ("padded", geometry, pads, border, groups)
