"""Settings: everything that `analyze` needs to know about a planned run, in plain values.

What enters: values of the right type from the command line, the environment, a TOML file or
Python. What leaves: a frozen record that is consistent. Invariant: an instance is valid; every
check of a value stands in this file, and a failure is a `UsageError` that names the key.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Final, final, get_args

from lipcert.choices import (
    AccountantName,
    AllocationName,
    ClipScopeName,
    ConstraintName,
    ConvClipName,
    DecayName,
    GroupName,
    MechanismName,
    NeighboursName,
    ReductionName,
    SamplingName,
    ScopeName,
    SizeSourceName,
    TermsName,
    TierName,
    check_choice,
    check_nonnegative,
    check_positive,
    nearest,
)
from lipcert.conversion import Kind, convert, names, number, pair, switch, table, whole, word
from lipcert.errors import UsageError

_OWN_KEYS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "backprop-clipping": ("input_clip", "cotangent_clip", "conv_clip"),
        "gradient-clipping": ("clip_norm", "clip_scope", "decay"),
    }
)
_NEEDED_KEYS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "backprop-clipping": ("input_clip", "cotangent_clip"),
        "gradient-clipping": ("clip_norm",),
    }
)
_RUN_KEYS: Final = (
    "dataset_size",
    "sampling",
    "steps",
    "epochs",
    "delta",
    "target_epsilon",
    "accountant",
)
ON_WEIGHTS: Final = frozenset({"clipless", "weight-clipping", "fixed-weight-norm"})
"""mechanisms that hold weights, and are none where no weight is trained"""
_INPUT_BOX: Final = (0.0, 1.0)


@final
@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """‖θ‖ ≤ radius throughout training, in the stated norm; written `spectral:1`.

    A Euclidean norm may be held at 0, as a bias norm of 0 holds biases.
    """

    kind: ConstraintName
    radius: float

    def __post_init__(self) -> None:
        convert(self, {"radius": lambda _, value: number("constraint", value)})
        check_choice("constraint", self.kind, get_args(ConstraintName))
        check = check_nonnegative if self.kind == "frobenius" else check_positive
        check("constraint", self.radius)

    @classmethod
    def of(cls, key: str, value: object) -> ConstraintSpec:
        """From itself, or from its text."""
        if isinstance(value, ConstraintSpec):
            return value
        kind, _, radius = value.partition(":") if isinstance(value, str) else ("", "", "")
        try:
            parsed = float(radius)
        except ValueError:
            raise UsageError(
                f"{key}: {value!r} is not a constraint such as 'spectral:1' or 'frobenius:3'"
            ) from None
        return cls(kind, parsed)  # type: ignore[arg-type]  # checked there

    def __str__(self) -> str:
        return f"{self.kind}:{self.radius:.17g}"


@dataclass(frozen=True)
class LossChoice:
    """Which loss, and of how many classes."""

    loss: str = "auto"
    classes: int | None = None


@dataclass(frozen=True, kw_only=True)
class LossParameters:
    """Every parameter that some loss has; what it means and where it may lie, its class says."""

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


def loss_parameters(given: LossParameters) -> dict[str, Any]:
    """Those alone, by name."""
    return {item.name: getattr(given, item.name) for item in fields(LossParameters)}


@final
@dataclass(frozen=True, slots=True)
class Settings(LossParameters, LossChoice):
    """A planned run. None means "not given"; "auto" is resolved on construction.

    loss: one of `choices.LOSSES`; its parameters are checked by `losses.make_loss`. auto
        is cross-entropy for a vector of class scores (nll behind LogSoftmax), otherwise binary
        cross-entropy, and the report says that it was assumed.
    classes: number of different labels, to be held against the shape of the output.
    loss_clip: training clips the gradient at the output to this norm (a mechanism).
    input_norm, input_box: the inputs one example may have; neither: the box [0, 1] is assumed, or
        nothing at all under mechanisms that bound gradients whatever the inputs are.
    scope: "point" = the weights of the file, "constraint-set" = all weights within the
        constraints; auto: the latter where a constraint is declared.
    constraint, bias_norm: for trained weights and biases; constraints: per parameter (names or
        globs; the first match wins over both).
    mechanism: how training bounds what one example can move; none: by the network as it is.
    input_clip, cotangent_clip, conv_clip: of backprop-clipping; the last is the norm that clips
        the cotangents of convolutions (None: l1.5).
    clip_norm, clip_scope, decay: of gradient-clipping (None: flat, decoupled).
    noise_multiplier: σ; 1 where neither it nor target_epsilon is given, which is solved for it.
    noise_multipliers: of groups (names or globs, the first match wins), for a custom allocation;
        noise_multiplier or target_epsilon, where given, rescale them all.
    dataset_size to accountant: the run whose ε is asked for, checked by `privacy.TrainingPlan`.
    dataset_size_from: "declared" = N is a public constant, the same for neighbouring data sets;
        "data" = somebody counted the private examples.
    reduction: auto is the mean where batch_size is given, otherwise the sum.
    cache: whether the command line remembers slow norms; a library call never does by itself.
    """

    loss_clip: float | None = None
    input_norm: float | None = None
    input_box: tuple[float, float] | None = None
    scope: ScopeName = "auto"
    constraint: ConstraintSpec | None = None
    bias_norm: float | None = None
    constraints: tuple[tuple[str, ConstraintSpec], ...] = ()
    trainable: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    mechanism: MechanismName = "none"
    input_clip: float | None = None
    cotangent_clip: float | None = None
    conv_clip: ConvClipName | None = None
    clip_norm: float | None = None
    clip_scope: ClipScopeName | None = None
    decay: DecayName | None = None
    group: GroupName = "layer"
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    dataset_size: int | None = None
    dataset_size_from: SizeSourceName = "declared"
    sampling: SamplingName | None = None
    steps: int | None = None
    epochs: float | None = None
    delta: float | None = None
    accountant: AccountantName | None = None
    allocation: AllocationName = "per-layer"
    noise_multipliers: tuple[tuple[str, float], ...] = ()
    neighbours: NeighboursName = "add-remove"
    reduction: ReductionName = "auto"
    batch_size: int | None = None
    tier: TierName = "fast"
    output: str | None = None
    as_exported: bool = False
    cache: bool = True

    def __post_init__(self) -> None:
        convert(self, _KINDS)
        check_choice("scope", self.scope, get_args(ScopeName))
        check_choice("group", self.group, get_args(GroupName))
        check_choice("allocation", self.allocation, get_args(AllocationName))
        check_choice("neighbours", self.neighbours, get_args(NeighboursName))
        check_choice("reduction", self.reduction, get_args(ReductionName))
        check_choice("tier", self.tier, get_args(TierName))
        check_positive("loss-clip", self.loss_clip)
        self._check_input()
        self._check_mechanism()
        self._check_scope()
        self._check_release()

    @property
    def input_is_assumed(self) -> bool:
        """Whether nobody said what the inputs are, and the bounds depend on it."""
        return not (self.declares_inputs or self.weights_are_free)

    @property
    def declares_inputs(self) -> bool:
        """Whether somebody said what the inputs are."""
        return self.input_norm is not None or self.input_box is not None

    @property
    def effective_input_box(self) -> tuple[float, float] | None:
        """The box of every input entry: as given, or [0, 1] where it is assumed."""
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

    def noise_weight(self, group: str) -> float:
        """The multiplier declared for a group; 1 where the allocation is not custom."""
        if not self.noise_multipliers:
            return 1.0
        for pattern, multiplier in self.noise_multipliers:
            if _matches(group, (pattern,)):
                return multiplier
        raise UsageError(f"noise-multipliers: no entry for group {group!r}; add one, or '*'")

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
        check_nonnegative("input-norm", self.input_norm)
        if self.input_box is not None:
            low, high = self.input_box
            if not (math.isfinite(low) and math.isfinite(high)):
                raise UsageError(f"input-box: [{low}, {high}] is not finite; give two numbers")
            if low > high:
                raise UsageError(f"input-box: [{low}, {high}] is empty; give LO ≤ HI")

    def _check_mechanism(self) -> None:
        check_choice("mechanism", self.mechanism, get_args(MechanismName))
        for key in ("input_clip", "cotangent_clip", "clip_norm"):
            check_positive(key.replace("_", "-"), getattr(self, key))
        for key, choices in (
            ("conv_clip", ConvClipName),
            ("clip_scope", ClipScopeName),
            ("decay", DecayName),
        ):
            if getattr(self, key) is not None:
                check_choice(key.replace("_", "-"), getattr(self, key), get_args(choices))
        for mechanism, keys in _OWN_KEYS.items():
            given = [key.replace("_", "-") for key in keys if getattr(self, key) is not None]
            if given and self.mechanism != mechanism:
                raise UsageError(f"{given[0]}: belongs to {mechanism}; add --mechanism {mechanism}")
        for key in _NEEDED_KEYS.get(self.mechanism, ()):
            if getattr(self, key) is None:
                option = key.replace("_", "-")
                raise UsageError(f"mechanism: {self.mechanism} needs its radius; give --{option}")
        if self.mechanism in ON_WEIGHTS and not self._declares_constraints:
            raise UsageError(
                f"mechanism: {self.mechanism} holds the weights; say within what with "
                "--constraint, --bias-norm or a [constraints] table"
            )

    @property
    def _declares_constraints(self) -> bool:
        return bool(self.constraint or self.constraints or self.bias_norm is not None)

    def _check_scope(self) -> None:
        check_nonnegative("bias-norm", self.bias_norm)
        if self.scope == "auto":
            object.__setattr__(self, "scope", self._usual_scope)
        declared = self._declares_constraints
        if self.scope == "constraint-set" and not (declared or self.weights_are_free):
            raise UsageError(
                "scope: constraint-set needs a constraint; declare one with --constraint, "
                "--bias-norm or a [constraints] table"
            )
        if self.scope == "point" and self.mechanism in {"clipless", "fixed-weight-norm"}:
            raise UsageError(
                f"scope: {self.mechanism} is bounded over the whole constraint set; leave out "
                "--scope point"
            )
        if self.scope == "point" and declared and self.mechanism != "weight-clipping":
            raise UsageError(
                "scope: point speaks of the weights in the file alone, but constraints are "
                "declared; remove them or use --scope constraint-set"
            )

    @property
    def _usual_scope(self) -> ScopeName:
        """The scope whose bounds hold for the whole run; if there is none, the present weights."""
        if self.mechanism == "weight-clipping":
            return "point"
        whole_run = self._declares_constraints or self.weights_are_free
        return "constraint-set" if whole_run else "point"

    @property
    def weights_are_free(self) -> bool:
        """Whether the mechanism bounds gradients whatever weights and inputs are."""
        return self.mechanism in _OWN_KEYS

    @property
    def describes_a_run(self) -> bool:
        """Whether the user asked for the privacy of a run."""
        return any(getattr(self, key) is not None for key in _RUN_KEYS)

    def _check_release(self) -> None:
        check_positive("noise-multiplier", self.noise_multiplier)
        check_positive("target-epsilon", self.target_epsilon)
        for pattern, multiplier in self.noise_multipliers:
            check_positive(f"noise-multipliers, {pattern}", multiplier)
        if (self.allocation == "custom") != bool(self.noise_multipliers):
            raise UsageError(
                "allocation: custom takes the [noise-multipliers] table of the settings file, and "
                "nothing else does; give both or neither"
            )
        if self.target_epsilon is not None and self.noise_multiplier is not None:
            raise UsageError(
                "target-epsilon: the noise multiplier follows from it; give one of the two"
            )
        if self.sampling is not None:
            check_choice("sampling", self.sampling, get_args(SamplingName))
        check_choice("dataset-size-from", self.dataset_size_from, get_args(SizeSourceName))
        if self.accountant is not None:
            check_choice("accountant", self.accountant, get_args(AccountantName))
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


def _constraints(key: str, value: object) -> tuple[tuple[str, ConstraintSpec], ...]:
    return table(key, value, ConstraintSpec.of)


def _multipliers(key: str, value: object) -> tuple[tuple[str, float], ...]:
    return table(key, value, number)


_BY_TYPE: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "float": number,
        "Bound": number,
        "int": whole,
        "bool": switch,
        "str": word,
        "Sha256": word,
        "tuple[float, float]": pair,
        "tuple[str, ...]": names,
        "ConstraintSpec": ConstraintSpec.of,
        "tuple[tuple[str, ConstraintSpec], ...]": _constraints,
        "tuple[tuple[str, str | ConstraintSpec], ...]": _constraints,
        "tuple[tuple[str, float], ...]": _multipliers,
    }
)


def kinds_of(record: type[Any]) -> Mapping[str, Kind]:
    """How the fields of a dataclass are converted, by their declared types, which are texts;
    the remaining ones are choices of words."""
    types = {item.name: str(item.type).removesuffix(" | None") for item in fields(record)}
    return {
        name: word if kind.endswith("Name") else _BY_TYPE[kind]
        for name, kind in types.items()
        if kind.endswith("Name") or kind in _BY_TYPE
    }


_KINDS: Final = kinds_of(Settings)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
