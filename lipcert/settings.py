"""Settings: everything that `analyze` needs to know about a planned run, in plain values.

What enters: values of the right type from the command line, the environment, a TOML file or
Python. What leaves: a frozen record that is consistent. Invariant: an instance is valid; every
check of a value stands in this file, and a failure is a `UsageError` that names the key.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal, final, get_args

from lipcert.errors import UsageError

__all__ = [
    "AllocationName",
    "ConstraintName",
    "ConstraintSpec",
    "GroupName",
    "LossName",
    "NeighboursName",
    "ReductionName",
    "ScopeName",
    "Settings",
    "TermsName",
    "TierName",
    "nearest",
]

LossName = Literal[
    "auto",
    "cross-entropy",
    "bce",
    "mse",
    "mae",
    "huber",
    "focal",
    "multiclass-hinge",
    "multi-margin",
    "kr",
    "hkr",
    "cosine",
]
TermsName = Literal["mean", "sum"]
ScopeName = Literal["auto", "point", "constraint-set"]
ConstraintName = Literal["spectral", "frobenius"]
GroupName = Literal["parameter", "layer"]
AllocationName = Literal["global", "per-layer", "optimal"]
NeighboursName = Literal["add-remove", "replace-one"]
ReductionName = Literal["auto", "mean", "sum"]
TierName = Literal["quick", "fast", "tight"]

_INPUT_BOX: Final = (0.0, 1.0)


@final
@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """‖θ‖ ≤ radius throughout training, in the stated norm; written `spectral:1`."""

    kind: ConstraintName
    radius: float

    def __post_init__(self) -> None:
        _choice("constraint", self.kind, get_args(ConstraintName))
        _positive("constraint", self.radius)

    def __str__(self) -> str:
        return f"{self.kind}:{self.radius:.17g}"


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """A planned run. None means "not given"; "auto" is resolved on construction.

    loss to half: the loss (a `LossName`) and its parameters, checked by `losses.make_loss`; auto
        is cross-entropy for a vector of class scores, otherwise binary cross-entropy.
    classes: number of different labels, to be held against the shape of the output.
    loss_clip: training clips the gradient at the output to this norm (a mechanism).
    input_norm, input_box: the inputs one example may have; neither: the box [0, 1] is assumed.
    scope: "point" = the weights of the file, "constraint-set" = all weights within the
        constraints; auto: the latter where a constraint is declared.
    constraint, bias_norm: for trained weights and biases; constraints: per parameter (names or
        globs; the first match wins over both).
    reduction: auto is the mean where batch_size is given, otherwise the sum.
    cache: whether the command line remembers slow norms; a library call never does by itself.
    """

    loss: str = "auto"
    classes: int | None = None
    temperature: float | None = None
    label_smoothing: float | None = None
    label_norm: float | None = None
    margin: float | None = None
    huber_delta: float | None = None
    focal_gamma: float | None = None
    hkr_weight: float | None = None
    cosine_floor: float | None = None
    output_reduction: TermsName | None = None
    half: bool | None = None
    loss_clip: float | None = None
    input_norm: float | None = None
    input_box: tuple[float, float] | None = None
    scope: ScopeName = "auto"
    constraint: ConstraintSpec | None = None
    bias_norm: float | None = None
    constraints: tuple[tuple[str, ConstraintSpec], ...] = ()
    trainable: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    group: GroupName = "layer"
    noise_multiplier: float = 1.0
    allocation: AllocationName = "per-layer"
    neighbours: NeighboursName = "add-remove"
    reduction: ReductionName = "auto"
    batch_size: int | None = None
    tier: TierName = "fast"
    output: str | None = None
    as_exported: bool = False
    cache: bool = True

    def __post_init__(self) -> None:
        _choice("scope", self.scope, get_args(ScopeName))
        _choice("group", self.group, get_args(GroupName))
        _choice("allocation", self.allocation, get_args(AllocationName))
        _choice("neighbours", self.neighbours, get_args(NeighboursName))
        _choice("reduction", self.reduction, get_args(ReductionName))
        _choice("tier", self.tier, get_args(TierName))
        _positive("loss-clip", self.loss_clip)
        self._check_input()
        self._check_scope()
        self._check_release()

    @property
    def input_is_assumed(self) -> bool:
        """Whether nobody said what the inputs are."""
        return self.input_norm is None and self.input_box is None

    @property
    def effective_input_box(self) -> tuple[float, float] | None:
        """The box of every input entry: as given, or [0, 1] when nothing is known."""
        return _INPUT_BOX if self.input_is_assumed else self.input_box

    def is_trained(self, parameter: str) -> bool:
        """Whether training updates a parameter: selected by `trainable`, not frozen."""
        selected = not self.trainable or _matches(parameter, self.trainable)
        return selected and not _matches(parameter, self.freeze)

    def own_constraint(self, parameter: str) -> ConstraintSpec | None:
        """The constraint declared for this very parameter, if any."""
        for pattern, constraint in self.constraints:
            if _matches(parameter, (pattern,)):
                return constraint
        return None

    def check_patterns(self, parameters: Iterable[str]) -> None:
        """UsageError if a pattern names no parameter: a typing error must not change a bound."""
        names = list(parameters)
        for key, patterns in (
            ("trainable", self.trainable),
            ("freeze", self.freeze),
            ("constraints", tuple(pattern for pattern, _ in self.constraints)),
        ):
            for pattern in patterns:
                if not any(_matches(name, (pattern,)) for name in names):
                    hint = nearest(pattern, names) or "`lipcert inspect` lists the names"
                    raise UsageError(f"{key}: {pattern!r} matches no parameter; {hint}")

    def _check_input(self) -> None:
        _nonnegative("input-norm", self.input_norm)
        if self.input_box is not None:
            low, high = self.input_box
            if not (math.isfinite(low) and math.isfinite(high)):
                raise UsageError(f"input-box: [{low}, {high}] is not finite; give two numbers")
            if low > high:
                raise UsageError(f"input-box: [{low}, {high}] is empty; give LO ≤ HI")

    def _check_scope(self) -> None:
        _nonnegative("bias-norm", self.bias_norm)
        declared = bool(self.constraint or self.constraints or self.bias_norm is not None)
        if self.scope == "auto":
            object.__setattr__(self, "scope", "constraint-set" if declared else "point")
        elif self.scope == "constraint-set" and not declared:
            raise UsageError(
                "scope: constraint-set needs a constraint; declare one with --constraint, "
                "--bias-norm or a [constraints] table"
            )
        elif self.scope == "point" and declared:
            raise UsageError(
                "scope: point speaks of the weights in the file alone, but constraints are "
                "declared; remove them or use --scope constraint-set"
            )

    def _check_release(self) -> None:
        _positive("noise-multiplier", self.noise_multiplier)
        if self.classes is not None and self.classes < 1:
            raise UsageError(f"classes: {self.classes} is not a positive number of labels")
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(f"batch-size: {self.batch_size} is not a positive number of examples")
        if self.reduction == "auto":
            object.__setattr__(self, "reduction", "mean" if self.batch_size else "sum")
        elif self.reduction == "mean" and self.batch_size is None:
            raise UsageError(
                "reduction: a mean divides by a public constant; give it with --batch-size"
            )


def nearest(name: str, known: Iterable[str]) -> str:
    """ "did you mean 'x'?" for the most similar known name, "" where none is similar."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else ""


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        hint = nearest(value, choices) if isinstance(value, str) else ""
        raise UsageError(
            f"{key}: {value!r} is not one of {', '.join(choices)}{hint and '; ' + hint}"
        )


def _positive(key: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0.0):
        raise UsageError(f"{key}: {value!r} is not a positive finite number")


def _nonnegative(key: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value >= 0.0):
        raise UsageError(f"{key}: {value!r} is not a non-negative finite number")
