"""Settings: everything that `analyze` needs to know about a planned run, in plain values.

They come from the command line, the environment, a TOML file or Python. Invariant: an instance is
consistent; every check of a value is in this file, and a failure is a `UsageError` that names the
key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin, get_type_hints

from lipcert.core.codec import Bound
from lipcert.core.ledger.layer_clipping import BackpropClipping, ConvClipName
from lipcert.core.ledger.mechanism import MECHANISMS, Mechanism, names_of
from lipcert.core.ledger.premises import InputPart
from lipcert.core.ledger.updates import ClipScopeName, DecayName
from lipcert.core.losses import KINDS
from lipcert.errors import UsageError
from lipcert.settings.loss_spec import HeadLoss, heads_text, read_heads, weighted
from lipcert.settings.values import (
    LOSSES,
    AccountantName,
    AllocationName,
    Asks,
    AxisName,
    ConstraintName,
    GroupName,
    Kind,
    NeighboursName,
    ReductionName,
    SamplingName,
    ScopeName,
    SizeSourceName,
    TermsName,
    TierName,
    asks_of_run,
    check_choice,
    check_nonnegative,
    check_patterns,
    check_positive,
    convert,
    first_match,
    matches,
    missing,
    names,
    nearest,
    number,
    pair,
    switch,
    table,
    whole,
    word,
)

if TYPE_CHECKING:
    from lipcert.core.program import Part  # which loads numpy

NO_CLIP: Final = "none"
"""The word for a layer that does not clip its input."""
AS_EXPORTED: Final = (
    "Take the tensors of the file for the trained parameters, even if the exporter folded "
    "others into them."
)
FOUND: Final = frozenset({"input_parts"})
"""Fields of settings that users do not give."""
RUN_KEYS: Final = (
    "dataset_size",
    "sampling",
    "steps",
    "epochs",
    "trials",
    "delta",
    "target_epsilon",
    "accountant",
)
"""Fields of settings that describe a run and not a single release."""
_INPUT_BOX: Final = (0.0, 1.0)
_CONSTRAINTS: Final = ("--constraint KIND:R or --bias-norm B or a [constraints] table",)


def option(
    text: str, metavar: str = "", default: Any = None, check: Callable[..., None] | None = None
) -> Any:
    """Return a field that users may give, with its help.

    metavar: what is given, if that is not a choice. check: the check of a number.
    """
    return field(default=default, metadata={"text": text, "metavar": metavar, "check": check})


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """‖θ‖ ≤ radius throughout training, in the stated norm; written `spectral:1`.

    A Euclidean norm may have the radius 0, as a bias norm of 0 does for biases.
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
        """Return the constraint, given as itself or as its text."""
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


@dataclass(frozen=True, slots=True)
class Domain:
    """What is assumed of entries of a flat example: norm and box, None if nothing is.

    input: the name of these entries, if they are one of several inputs.
    """

    entries: slice
    norm: float | None
    box: tuple[float, float] | None
    input: str = ""


@dataclass(frozen=True)
class LossChoice:
    """The loss and its number of classes."""

    loss: str = option(
        "Loss at the output of the network, or OUTPUT=LOSS,… for several.", "|".join(LOSSES), "auto"
    )
    loss_weight: tuple[tuple[str, float], ...] = option(
        "Weights of the losses of several outputs (1).", "OUTPUT=W,…", ()
    )
    classes: int | None = option("Number of classes; compared with the shape of the output.", "K")


@dataclass(frozen=True, kw_only=True)
class LossParameters:
    """Every parameter of any loss; the class of the loss checks its range."""

    temperature: float | None = option("The loss is applied to logits / T (1).", "T")
    label_smoothing: float | None = option("Share of the target spread over all classes.", "S")
    label_norm: float | None = option("Largest 2-norm of a label (regression losses).", "R")
    margin: float | None = option("Margin of the hinge losses (1).", "M")
    huber_delta: float | None = option("Where the Huber loss turns linear (1).", "D")
    focal_gamma: float | None = option("Exponent of the focal loss (2).", "G")
    hkr_weight: float | None = option("Weight of the hinge part of hkr (1).", "W")
    cosine_floor: float | None = option("Least 2-norm of the output for the cosine loss.", "F")
    output_reduction: TermsName | None = option("How the terms of one example are combined.")
    half: bool | None = option("The squared error has a factor 1/2.")
    per_token: TermsName | None = option(
        "Each token (or pixel) of the output has a label: the mean of their losses, or the sum."
    )
    class_axis: AxisName | None = option(
        "--per-token: axis of an example's output along which the classes lie (last)."
    )


def values_of(record: Any, kind: type[Any] | None = None) -> dict[str, Any]:
    """Return the fields of a dataclass, by name; kind: only those inherited from this class."""
    return {item.name: getattr(record, item.name) for item in fields(kind or type(record))}


def loss_parameters(given: LossParameters) -> dict[str, Any]:
    """Return only the parameters of losses, by name."""
    return values_of(given, LossParameters)


@dataclass(frozen=True, slots=True)
class Settings(LossParameters, LossChoice):
    """A planned run. None means "not given"; "auto" is resolved on construction.

    loss: one of `values.LOSSES`; its parameters are checked by `losses.make_loss`. auto
        is cross-entropy for a vector of class scores (nll after LogSoftmax), otherwise binary
        cross-entropy, and the report says that it was assumed. Several outputs have a loss each,
        added with weights, as `heads` spells them; loss parameters given here apply to all of
        these losses that have them.
    loss_weight: by output; on construction they become part of `loss`.
    classes: number of different labels, compared with the shape of the output.
    loss_clip: training clips the gradient at the output to this norm (a mechanism).
    input_norm, input_box: the inputs that one example may have. Without either, the box [0, 1] is
        assumed, or nothing under mechanisms that bound gradients for any inputs. For several
        inputs, the norm of all of them together, and the box of those without one of their own.
    input_norms, input_boxes: for single inputs of several, by name. A table {name: value} given as
        a norm or a box is stored here; "" is the name for all inputs.
    input_parts: what is assumed of each of several inputs, as `with_inputs` finds it.
    scope: "point" = the weights of the file, "constraint-set" = all weights within the
        constraints; auto: the latter if a constraint is declared.
    constraint, bias_norm: for trained weights and biases; constraints: per parameter (names or
        globs; the first match takes precedence over both).
    mechanism: how training bounds what one example can move; none: by the network as it is.
    input_clip, cotangent_clip, conv_clip: of backprop-clipping; the last is the norm that clips
        the cotangents of convolutions (None: l1.5). Without input_clip no layer clips its input;
        a layer then has bounds only if its input has one for any weights.
    input_clips, cotangent_clips: of single layers, by the names of layers or of their parameters
        (or globs; the first match takes precedence over the radius for all layers); None, or
        "none": no input clip.
    clip_norm, clip_scope, decay: of gradient-clipping (None: flat, decoupled).
    noise_multiplier: σ; 1 if neither it nor target_epsilon, from which σ is solved, is given.
    noise_multipliers: of groups (names or globs, the first match counts), for a custom allocation;
        noise_multiplier or target_epsilon, if given, rescales all of them.
    dataset_size to accountant: the run whose ε is requested, checked by `privacy.TrainingPlan`.
    dataset_size_from: "declared" = N is a public constant, the same for neighbouring data sets;
        "data" = the private examples were counted.
    reduction: auto is the mean if batch_size is given, otherwise the sum.
    """

    loss_clip: float | None = option(
        "Training clips the loss gradient at the output to C.", "C", check=check_positive
    )
    input_norm: float | None = option(
        "Every example has a 2-norm of at most R; NAME=R: this one of several inputs.",
        "R",
        check=check_nonnegative,
    )
    input_box: tuple[float, float] | None = option(
        "Every entry of an example lies in [LO, HI]; NAME=LO HI: one of several inputs.", "LO HI"
    )
    input_norms: tuple[tuple[str, Bound], ...] = ()
    input_boxes: tuple[tuple[str, tuple[float, float]], ...] = ()
    input_parts: tuple[InputPart, ...] = ()
    scope: ScopeName = option(
        "The weights of the file, or all within the constraints.", default="auto"
    )
    constraint: ConstraintSpec | None = option(
        "On all trained weights: spectral:R or frobenius:R.", "KIND:R"
    )
    bias_norm: float | None = option(
        "All trained biases have a 2-norm of at most B.", "B", check=check_nonnegative
    )
    constraints: tuple[tuple[str, ConstraintSpec], ...] = ()
    trainable: tuple[str, ...] = option("Only these parameters are trained.", "GLOB", ())
    freeze: tuple[str, ...] = option("These parameters are not trained.", "GLOB", ())
    mechanism: str = option(
        "How training bounds one example's gradient.", "|".join(MECHANISMS), "none"
    )
    input_clip: float | None = option(
        "backprop-clipping: each trained layer's input is clipped.", "R", check=check_positive
    )
    cotangent_clip: float | None = option(
        "backprop-clipping: the gradient at its output is clipped.", "C", check=check_positive
    )
    conv_clip: ConvClipName | None = option("backprop-clipping: norm on convolutions (l1.5).")
    input_clips: tuple[tuple[str, float | None], ...] = ()
    cotangent_clips: tuple[tuple[str, float], ...] = ()
    clip_norm: float | None = option("gradient-clipping: radius.", "C", check=check_positive)
    clip_scope: ClipScopeName | None = option("gradient-clipping: all at once, or C/√K each.")
    decay: DecayName | None = option("gradient-clipping: where weight decay enters.")
    group: GroupName = option("What is noised together.", default="layer")
    noise_multiplier: float | None = option(
        "σ = noise standard deviation / sensitivity (1).", "S", check=check_positive
    )
    target_epsilon: float | None = option(
        "The ε that the run may cost; σ follows from it.", "E", check=check_positive
    )
    dataset_size: int | None = option("Number of examples (asks for the ε of a run).", "N")
    dataset_size_from: SizeSourceName = option("Whether N is public.", default="declared")
    sampling: SamplingName | None = option("How batches are really drawn.")
    sampling_rate: float | None = option(
        "Rate of Poisson sampling, if it is not B/N: 1/45 for a loader of 45 batches.", "Q"
    )
    steps: int | None = option("Training steps, each of them a release.", "T")
    epochs: float | None = option("Passes over the data, instead of --steps.", "E")
    trials: int | None = option("Runs from which the best is chosen; ε covers all of them.", "K")
    delta: float | None = option("δ of the (ε, δ) statement; below 1/N.", "D")
    accountant: AccountantName | None = option("auto: the tightest sound one.")
    allocation: AllocationName = option(
        "How the noise is split among the groups.", default="per-layer"
    )
    noise_multipliers: tuple[tuple[str, float], ...] = ()
    neighbours: NeighboursName = option(
        "Which data sets count as neighbours.", default="add-remove"
    )
    reduction: ReductionName = option("Whether a step releases a mean or a sum.", default="auto")
    batch_size: int | None = option("Public constant that the mean divides by.", "B")
    tier: TierName = option("How much work a bound may cost.", default="fast")
    output: str | None = option(
        "Output of the model to analyse, if it has several; or a value inside.", "NAME"
    )
    as_exported: bool = option(AS_EXPORTED, default=False)

    def __post_init__(self) -> None:
        divide_inputs(self)
        convert(self, CONVERTERS)
        for item in fields(Settings):
            check, value, key = item.metadata.get("check"), getattr(self, item.name), key_of(item)
            if check is not None:
                check(key, value)
            elif item.name in CHOICES and (value is not None or item.default is not None):
                check_choice(key, value, CHOICES[item.name])
        self._check_loss()
        self._check_input()
        self._check_mechanism()
        self._check_scope()
        self._check_release()
        if self._own_asks:
            raise missing(self._own_asks | self.asks)

    @property
    def asks(self) -> Asks:
        """What an analysis lacks about the loss, and about a run if one is described."""
        found: Asks = {}
        if self.loss in KINDS:
            from lipcert.core.losses.base import parameters_of  # which loads numpy

            needed = {
                name for name, is_optional in parameters_of(self.loss).items() if not is_optional
            }
            found = {f"of the loss {self.loss}": self._written(needed)}
        if self.describes_a_run:
            found |= asks_of_run(values_of(self))
        return {why: options for why, options in found.items() if options}

    @property
    def _own_asks(self) -> Asks:
        """What is missing of mechanism, scope and release."""
        chosen, kind = self.enforced, self.mechanism
        radii = self._written(
            name for name, has_default in names_of(chosen).items() if not has_default
        )
        if chosen is BackpropClipping and self.cotangent_clip is None and not self.cotangent_clips:
            radii = ("--cotangent-clip C or a [cotangent-clips] table",)
        free = () if self._declares_constraints else _CONSTRAINTS
        found: Asks = {f"of the mechanism {kind}": radii}
        if chosen.holds_weights():
            found[f"within which the mechanism {kind} holds the weights"] = free
        elif self.scope == "constraint-set" and not self.weights_are_free:
            found["of the scope constraint-set"] = free
        if self.reduction == "mean":
            found["the public constant that a mean divides by"] = self._written(["batch_size"])
        return {why: options for why, options in found.items() if options}

    def _written(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the options that are not given, with their metavars."""
        known = {item.name: item for item in fields(Settings)}
        return tuple(
            f"--{key_of(known[name])} {known[name].metadata['metavar']}"
            for name in sorted(names)
            if getattr(self, name) is None
        )

    @property
    def heads(self) -> tuple[HeadLoss, ...]:
        """The losses of named outputs; none if a single loss is given."""
        return read_heads(self.loss)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that the loss reads; none if the only one is meant."""
        named = tuple(head.output for head in self.heads)
        return named or (() if self.output is None else (self.output,))

    @property
    def input_is_assumed(self) -> bool:
        """Whether the input domain was not given, though the bounds depend on it."""
        return not (self.declares_inputs or self.weights_are_free)

    @property
    def declares_inputs(self) -> bool:
        """Whether the input domain was given."""
        whole = self.input_norm is not None or self.input_box is not None
        return whole or bool(self.input_norms or self.input_boxes)

    @property
    def effective_input_box(self) -> tuple[float, float] | None:
        """The box of every input entry: as given, or [0, 1] if it is assumed.

        None if several inputs have boxes of their own (`input_parts`).
        """
        if self.input_parts:
            return None
        return _INPUT_BOX if self.input_is_assumed else self.input_box

    @property
    def domains(self) -> tuple[Domain, ...]:
        """What is assumed of the entries of one example, or of parts of them."""
        whole = Domain(slice(None), self.input_norm, self.effective_input_box)
        found, start = [], 0
        for part in self.input_parts:
            where = slice(start, start + math.prod(part.shape))
            found.append(Domain(where, part.norm, part.box, part.name))
            start = where.stop
        return (*found, whole) if self.input_norm is not None or not found else tuple(found)

    def with_inputs(self, inputs: Sequence[Part]) -> Settings:
        """Return the settings for these inputs, with the domain of each if there are several.

        Whole numbers below `Part.ids` are the domain of ids if nothing else is given.

        Raises:
            UsageError: for a name that no input has.
        """
        self._check_names(inputs)
        norms, boxes = dict(self.input_norms), dict(self.input_boxes)
        if len(inputs) == 1:
            (only,) = inputs
            found = replace(
                self,
                input_norm=norms.get(only.name, self.input_norm),
                input_box=boxes.get(only.name, self.input_box),
                input_norms=(),
                input_boxes=(),
            )
            if only.ids is None or not found.input_is_assumed:
                return found
            return replace(found, input_box=(0.0, float(only.ids - 1)))
        if self.input_norm is not None and any(item.ids is not None for item in inputs):
            raise UsageError(
                "input-norm: a norm of ids has no meaning; give norms of the other inputs, as in "
                "--input-norm NAME=R"
            )
        rest = _INPUT_BOX if self.input_is_assumed else self.input_box
        ids = {item.name: (0.0, float(item.ids - 1)) for item in inputs if item.ids is not None}
        parts = tuple(
            InputPart(
                item.name, item.shape, norms.get(item.name), (ids | boxes).get(item.name, rest)
            )
            for item in inputs
        )
        known = self.input_boxes if len(ids) < len(inputs) else tuple((ids | boxes).items())
        return replace(self, input_parts=parts, input_boxes=known)

    def is_trained(self, parameter: str) -> bool:
        """Whether training updates a parameter: selected by `trainable`, not frozen."""
        selected = not self.trainable or matches(parameter, self.trainable)
        return selected and not matches(parameter, self.freeze)

    def own_constraint(self, parameter: str) -> ConstraintSpec | None:
        """Return the constraint declared for exactly this parameter, if any."""
        return first_match(self.constraints, (parameter,), None)

    def input_radius(self, names: Collection[str]) -> float | None:
        """Return the radius to which a layer with these names clips its input; None: no clip."""
        return first_match(self.input_clips, names, self.input_clip)

    def cotangent_radius(self, names: Collection[str]) -> float:
        """Return the radius to which a layer with these names clips cotangents at its output."""
        radius = first_match(self.cotangent_clips, names, self.cotangent_clip)
        if radius is not None:
            return radius
        raise UsageError(
            f"cotangent-clips: no entry for the layer {next(iter(names))!r}; add one, or give "
            "--cotangent-clip for all layers that have none"
        )

    def noise_weight(self, group: str) -> float:
        """Return the multiplier declared for a group; 1 if the allocation is not custom."""
        weight = first_match(self.noise_multipliers, (group,), None)
        if weight is None and self.noise_multipliers:
            raise UsageError(f"noise-multipliers: no entry for group {group!r}; add one, or '*'")
        return 1.0 if weight is None else weight

    def check_patterns(self, parameters: Iterable[str]) -> None:
        """Raise UsageError if a pattern names no parameter: a typo must not change a bound."""
        names = list(parameters)
        for key, patterns in (
            ("trainable", self.trainable),
            ("freeze", self.freeze),
            ("constraints", tuple(pattern for pattern, _ in self.constraints)),
        ):
            check_patterns(key, patterns, names)

    def _check_names(self, inputs: Sequence[Part]) -> None:
        known = [item.name for item in inputs]
        for key, given in (("input-norm", self.input_norms), ("input-box", self.input_boxes)):
            for name in dict(given):
                if name not in known:
                    hint = nearest(name, known) or f"known: {', '.join(map(repr, known[:8]))}"
                    raise UsageError(f"{key}: the model has no input {name!r}; {hint}")

    def _check_loss(self) -> None:
        if self.loss_weight:
            object.__setattr__(self, "loss", weighted(self.heads, dict(self.loss_weight)))
            object.__setattr__(self, "loss_weight", ())
        heads = self.heads
        if heads and self.output is not None:
            raise UsageError("output: --loss names the outputs that it reads; leave out --output")
        if len(heads) == 1 and heads[0].weight != 1.0:
            raise UsageError(
                f"loss-weight: {heads[0].output!r} is the only output with a loss; weights are for "
                "several"
            )

    def _check_input(self) -> None:
        boxes = dict(self.input_boxes)
        for low, high in (*boxes.values(), *(() if self.input_box is None else (self.input_box,))):
            if not (math.isfinite(low) and math.isfinite(high)):
                raise UsageError(f"input-box: [{low}, {high}] is not finite; give two numbers")
            if low > high:
                raise UsageError(f"input-box: [{low}, {high}] is empty; give LO ≤ HI")

    @property
    def _declares_constraints(self) -> bool:
        return bool(self.constraint or self.constraints or self.bias_norm is not None)

    @property
    def enforced(self) -> type[Mechanism]:
        """The class of the mechanism, which says what training does."""
        return MECHANISMS[self.mechanism]

    @property
    def weights_are_free(self) -> bool:
        """Whether the mechanism bounds gradients for any weights and inputs."""
        return self.enforced.weights == "free"

    @property
    def is_stepwise(self) -> bool:
        """Whether bounds may be computed at the weights that a step starts from."""
        return self.enforced.weights == "stepwise"

    def _check_mechanism(self) -> None:
        check_choice("mechanism", self.mechanism, tuple(MECHANISMS))
        chosen = self.enforced
        own = names_of(chosen)
        for mechanism, found in MECHANISMS.items():
            for name in (*names_of(found), *found.tables):
                if name not in {*own, *chosen.tables} and getattr(self, name) not in (None, ()):
                    option = name.replace("_", "-")
                    raise UsageError(
                        f"{option}: belongs to {mechanism}; add --mechanism {mechanism}"
                    )

    def _check_scope(self) -> None:
        declared = self._declares_constraints
        if self.scope == "auto":  # bounds that hold for the whole run; if there are none, now
            whole_run = (declared or self.weights_are_free) and not self.is_stepwise
            object.__setattr__(self, "scope", "constraint-set" if whole_run else "point")
        if self.scope == "point" and self.enforced.weights == "held" and declared:
            raise UsageError(
                f"scope: {self.mechanism} is bounded over the whole constraint set; leave out "
                "--scope point"
            )
        if self.scope == "point" and declared and not self.is_stepwise:
            raise UsageError(
                "scope: point means the weights in the file alone, but constraints are "
                "declared; remove them or use --scope constraint-set"
            )

    @property
    def describes_a_run(self) -> bool:
        """Whether the user asked for the privacy of a run."""
        return any(getattr(self, key) is not None for key in RUN_KEYS)

    def _check_release(self) -> None:
        if (self.allocation == "custom") != bool(self.noise_multipliers):
            raise UsageError(
                "allocation: custom takes the [noise-multipliers] table of the settings file, and "
                "nothing else does; give both or neither"
            )
        if self.target_epsilon is not None and self.noise_multiplier is not None:
            raise UsageError(
                "target-epsilon: the noise multiplier follows from it; give one of the two"
            )
        if self.classes is not None and self.classes < 1:
            raise UsageError(f"classes: {self.classes} is not a positive number of labels")
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(f"batch-size: {self.batch_size} is not a positive number of examples")
        if self.reduction == "auto":
            object.__setattr__(self, "reduction", "mean" if self.batch_size else "sum")


def divide_inputs(record: object) -> None:
    """Move what is given for single inputs, as a table instead of a norm or a box, to its field.

    It acts on a frozen record that is being made.
    """
    for name, parts in (("input_norm", "input_norms"), ("input_box", "input_boxes")):
        given = getattr(record, name)
        if isinstance(given, Mapping):
            rest = dict(given)
            object.__setattr__(record, name, rest.pop("", None))
            object.__setattr__(record, parts, (*getattr(record, parts), *rest.items()))


def _positive(key: str, value: object) -> float:
    found = number(key, value)
    check_positive(key, found)
    return found


def _nonnegative(key: str, value: object) -> float:
    found = number(key, value)
    check_nonnegative(key, found)
    return found


def _radius(key: str, value: object) -> float | None:
    return None if value is None or value == NO_CLIP else _positive(key, value)


_CONSTRAINTS_OF: Final = partial(table, kind=ConstraintSpec.of)
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
        "tuple[tuple[str, ConstraintSpec], ...]": _CONSTRAINTS_OF,
        "tuple[tuple[str, str | ConstraintSpec], ...]": _CONSTRAINTS_OF,
        "tuple[tuple[str, float], ...]": partial(table, kind=_positive),
        "tuple[tuple[str, Bound], ...]": partial(table, kind=_nonnegative),
        "tuple[tuple[str, tuple[float, float]], ...]": partial(table, kind=pair),
        "tuple[tuple[str, float | None], ...]": partial(table, kind=_radius),
    }
)


def kinds_of(record: type[Any]) -> Mapping[str, Kind]:
    """Return converters for the fields of a dataclass, by their declared types, which are texts.

    Fields without a converter are choices of words.
    """
    types = {item.name: str(item.type).removesuffix(" | None") for item in fields(record)}
    return {
        name: word if kind.endswith("Name") else _BY_TYPE[kind]
        for name, kind in types.items()
        if kind.endswith("Name") or kind in _BY_TYPE
    }


def key_of(item: Field[Any]) -> str:
    """Return what users call a field, on the command line and in files."""
    return item.name.replace("_", "-")


def _choices_of(record: type[Any]) -> Mapping[str, tuple[str, ...]]:
    """Return the words that fields with choices may have."""
    found = {}
    for name, hint in get_type_hints(record).items():
        literal = next(
            (part for part in (hint, *get_args(hint)) if get_origin(part) is Literal), None
        )
        if literal is not None:
            found[name] = get_args(literal)
    return found


CONVERTERS: Final = MappingProxyType({**kinds_of(Settings), "loss": heads_text})
"""Converters of the fields of settings."""
CHOICES: Final = _choices_of(Settings)
TABLES: Final = frozenset(item.name for item in fields(Settings) if not item.metadata) - FOUND
"""Fields without an option: tables of the settings file."""
