"""Knobs: every setting a user may give, under one key for all sources.

The key `input-norm` is the option `--input-norm`, the variable `LIPCERT_INPUT_NORM`, the TOML key
`input-norm` and the field `Settings.input_norm`. What enters: raw text or TOML values. What
leaves: values of the field's type; what they mean is checked by `Settings` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, cast, final, get_args

from lipcert.choices import (
    LOSSES,
    AccountantName,
    AllocationName,
    ClipScopeName,
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
)
from lipcert.errors import UsageError
from lipcert.settings import ConstraintSpec

AS_EXPORTED: Final = (
    "Take the tensors of the file for the trained parameters, even where the exporter folded "
    "others into them."
)
CONSTRAINTS: Final = "constraints"
"""The TOML table of constraints per parameter: a setting without an option."""
NOISE_MULTIPLIERS: Final = "noise-multipliers"
"""The TOML table of noise multipliers per group: the other one."""


@final
@dataclass(frozen=True, slots=True)
class Knob:
    """One setting: how it is written, read and explained.

    parse turns text or a TOML value into the field's value, or raises `UsageError`.
    count: how many words the option takes; 0: it is a switch. repeated: it may be given again.
    """

    key: str
    parse: Callable[[object], object]
    metavar: str
    text: str
    count: int = 1
    repeated: bool = False

    @property
    def field(self) -> str:
        """Name of the field of `Settings`."""
        return self.key.replace("-", "_")

    @property
    def option(self) -> str:
        """Name on the command line."""
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        """Name in the environment."""
        return f"LIPCERT_{self.field.upper()}"


def constraint_table(raw: object) -> tuple[tuple[str, ConstraintSpec], ...]:
    """The TOML table {name or glob: "spectral:1"}."""
    if not isinstance(raw, dict):
        raise UsageError(f"{raw!r} is not a table of parameter names and constraints")
    table = cast("dict[str, object]", raw)
    return tuple((pattern, _constraint(value)) for pattern, value in table.items())


def multiplier_table(raw: object) -> tuple[tuple[str, float], ...]:
    """The TOML table {name or glob of a group: multiplier}."""
    if not isinstance(raw, dict):
        raise UsageError(f"{raw!r} is not a table of group names and noise multipliers")
    table = cast("dict[str, object]", raw)
    return tuple((pattern, _number(value)) for pattern, value in table.items())


def _number(raw: object) -> float:
    if isinstance(raw, str | int | float) and not isinstance(raw, bool):
        try:
            return float(raw)
        except (ValueError, OverflowError):
            pass
    raise UsageError(f"{raw!r} is not a number")


def _whole(raw: object) -> int:
    if isinstance(raw, str | int) and not isinstance(raw, bool):
        try:
            return int(raw)
        except ValueError:
            pass
    raise UsageError(f"{raw!r} is not a whole number")


def _word(raw: object) -> str:
    if isinstance(raw, str) and raw:
        return raw
    raise UsageError(f"{raw!r} is not a name")


def _switch(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if isinstance(raw, str) and raw.lower() in words:
        return words[raw.lower()]
    raise UsageError(f"{raw!r} is neither true nor false")


def _box(raw: object) -> tuple[float, float]:
    ends = _items(raw)
    if len(ends) != 2:
        raise UsageError(f"{raw!r} is not a pair LO HI")
    return _number(ends[0]), _number(ends[1])


def _words(raw: object) -> tuple[str, ...]:
    return tuple(_word(item) for item in _items(raw))


def _items(raw: object) -> list[object]:
    """A list as it is; text from the environment split at commas or blanks."""
    if isinstance(raw, str):
        return list(raw.replace(",", " ").split())
    if isinstance(raw, list | tuple):
        return list(raw)
    raise UsageError(f"{raw!r} is not a list")


def _constraint(raw: object) -> ConstraintSpec:
    return ConstraintSpec.of("constraint", raw)


def _of(literal: object) -> str:
    return "|".join(get_args(literal))


KNOBS: Final[tuple[Knob, ...]] = (
    Knob("loss", _word, "|".join(LOSSES), "Loss at the output of the network."),
    Knob("classes", _whole, "K", "Number of classes; held against the shape of the output."),
    Knob("temperature", _number, "T", "The loss is applied to logits / T."),
    Knob("label-smoothing", _number, "S", "Share of the target spread over all classes."),
    Knob("label-norm", _number, "R", "Largest 2-norm of a label (regression losses)."),
    Knob("margin", _number, "M", "Margin of the hinge losses."),
    Knob("huber-delta", _number, "D", "Where the Huber loss turns linear."),
    Knob("focal-gamma", _number, "G", "Exponent of the focal loss."),
    Knob("hkr-weight", _number, "W", "Weight of the hinge part of hkr."),
    Knob("cosine-floor", _number, "F", "Least 2-norm of the output for the cosine loss."),
    Knob("output-reduction", _word, _of(TermsName), "How the terms of one example are combined."),
    Knob("half", _switch, "", "The squared error has a factor 1/2.", count=0),
    Knob("loss-clip", _number, "C", "Training clips the loss gradient at the output to C."),
    Knob("input-norm", _number, "R", "Every example has a 2-norm of at most R."),
    Knob("input-box", _box, "LO HI", "Every entry of an example lies in [LO, HI].", count=2),
    Knob("scope", _word, _of(ScopeName), "The weights of the file, or all within the constraints."),
    Knob("constraint", _constraint, "KIND:R", "On all trained weights: spectral:R or frobenius:R."),
    Knob("bias-norm", _number, "B", "All trained biases have a 2-norm of at most B."),
    Knob("trainable", _words, "GLOB", "Only these parameters are trained.", repeated=True),
    Knob("freeze", _words, "GLOB", "These parameters are not trained.", repeated=True),
    Knob("mechanism", _word, _of(MechanismName), "How training bounds one example's gradient."),
    Knob("input-clip", _number, "R", "backprop-clipping: each trained layer's input is clipped."),
    Knob("cotangent-clip", _number, "C", "backprop-clipping: its upstream cotangent is clipped."),
    Knob("conv-clip", _word, _of(ConvClipName), "backprop-clipping: norm on convolutions (l1.5)."),
    Knob("clip-norm", _number, "C", "gradient-clipping: radius."),
    Knob("clip-scope", _word, _of(ClipScopeName), "gradient-clipping: all at once, or C/√K each."),
    Knob("decay", _word, _of(DecayName), "gradient-clipping: where weight decay enters."),
    Knob("group", _word, _of(GroupName), "What is noised together."),
    Knob("noise-multiplier", _number, "S", "σ = noise standard deviation / sensitivity (1)."),
    Knob("target-epsilon", _number, "E", "The ε that the run may cost; σ follows from it."),
    Knob("dataset-size", _whole, "N", "Number of examples (asks for the ε of a run)."),
    Knob("dataset-size-from", _word, _of(SizeSourceName), "Where N comes from (declared)."),
    Knob("sampling", _word, _of(SamplingName), "How batches are really drawn."),
    Knob("steps", _whole, "T", "Number of releases."),
    Knob("epochs", _number, "E", "Passes over the data, instead of --steps."),
    Knob("delta", _number, "D", "δ of the (ε, δ) statement; below 1/N."),
    Knob("accountant", _word, _of(AccountantName), "auto: the tightest that is sound."),
    Knob("allocation", _word, _of(AllocationName), "How the noise is split among the groups."),
    Knob("neighbours", _word, _of(NeighboursName), "Which data sets count as neighbours."),
    Knob("reduction", _word, _of(ReductionName), "Whether a step releases a mean or a sum."),
    Knob("batch-size", _whole, "B", "Public constant that the mean divides by."),
    Knob("tier", _word, _of(TierName), "How much work a bound may cost."),
    Knob("output", _word, "NAME", "Output of the model to analyse, if it has several."),
    Knob("as-exported", _switch, "", AS_EXPORTED, count=0),
    Knob("cache", _switch, "", "Of analyze: remember slow norms in a private directory.", count=0),
)

TABLES: Final[Mapping[str, Callable[[object], object]]] = MappingProxyType(
    {CONSTRAINTS: constraint_table, NOISE_MULTIPLIERS: multiplier_table}
)
