"""Records of a trace: what a run declares, and what each of its steps used, did and released.

The records are frozen, and the same for writers and readers. A UsageError names the member of a
`Declaration` that is unknown or contradicts an earlier declaration. None, or an empty tuple or
mapping, means "was not recorded", never zero. A number may be NaN or infinite if a run computed
such a number.
"""

from __future__ import annotations  # `kinds_of` reads declared types as texts

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.audit.trace.blobs import Array, Blob
from lipcert.core.codec import Bound, Limit, Sha256, member
from lipcert.errors import UsageError
from lipcert.measure.precision import Precision
from lipcert.privacy.plan import Sampling
from lipcert.settings.settings import kinds_of
from lipcert.settings.values import check_choice, check_positive, number, table

SCHEMA: Final = "lipcert.trace/2"
_MAX_RANKS: Final = 1 << 16

IndexArray: TypeAlias = npt.NDArray[np.int64]
Norms: TypeAlias = Mapping[str, Mapping[str, float]]
Shape = tuple[int, ...]
_OPTIONAL: Final[Mapping[str, Any]] = member(optional=True)
_BY_GROUP: Final = ("noise_std", "clip_norms")


def _are_ranks(numbers: Iterable[int]) -> bool:
    return all(0 <= rank < _MAX_RANKS for rank in numbers)


_Count = Annotated[int, Limit(f"from 1 to {_MAX_RANKS}", lambda ranks: 1 <= ranks <= _MAX_RANKS)]
_ByRank = Annotated[Mapping[int, Sha256], Limit("by rank", _are_ranks)]


class Reduction(Enum):
    """How the losses of a batch are combined into the number that is differentiated."""

    MEAN = "mean"
    SUM = "sum"
    NONE = "none"
    """The loss function returns one loss for each example."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What the run declares about itself; audits compare what was recorded with it.

    noise_std: of the noise added to each group, in the units of what is noised (a sum, or a mean
    that was divided by `divisor`). clip_norms: of the per-example gradients of each group.
    clip_stability: γ, if automatic clipping scales each gradient g to C·g/(‖g‖ + γ). weight_decay:
    λ, if ∇ℓ + λθ is clipped; decay after the noise does not count. groups: the parameters noised
    together. data, data_sha256: where the examples are, and their digest. examples: how many there
    really are, if dataset_size is another public constant. dropout: names of parts whose masks were
    drawn for each example, and are not recorded.
    """

    dataset_size: int | None = None
    batch_size: int | None = None
    sampling: Sampling | None = None
    sampling_rate: Bound | None = None
    steps: int | None = None
    noise_multiplier: Bound | None = None
    noise_std: Mapping[str, Bound] = field(default_factory=dict, metadata=_OPTIONAL)
    clip_norms: Mapping[str, Bound] = field(default_factory=dict, metadata=_OPTIONAL)
    clip_stability: Bound | None = None
    weight_decay: Bound | None = None
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict, metadata=_OPTIONAL)
    reduction: Reduction | None = None
    divisor: Bound | None = None
    data: str | None = None
    data_sha256: Sha256 | None = None
    examples: int | None = None
    dropout: tuple[str, ...] = field(default=(), metadata=_OPTIONAL)


@dataclass(frozen=True, slots=True)
class Redaction:
    """The original of a redacted trace: digests of its manifest and last lines."""

    manifest: Sha256
    heads: _ByRank
    """Digests by rank."""
    keeps_weights: bool


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a whole trace; it is written once, and every chain begins with it.

    versions: of libraries, by name. parameters, buffers: shapes by name, as the model names them.
    """

    versions: Mapping[str, str]
    ranks: _Count
    parameters: Mapping[str, Shape]
    buffers: Mapping[str, Shape] = field(default_factory=dict)
    model_sha256: Sha256 | None = None
    """Digest of the ONNX file."""
    examples_key: Sha256 | None = None
    """Digest of the key under which examples are named; None if the examples themselves are
    stored."""
    declaration: Declaration = field(default_factory=Declaration, metadata=member("declared"))
    redaction: Redaction | None = field(default=None, metadata=member("redacted"))
    schema: Literal["lipcert.trace/2"] = SCHEMA


@dataclass(frozen=True, slots=True)
class ExamplesName:
    """Identifies the examples of a batch, for a trace that does not hold them (see `blobs`).

    hmac: of the tensors "input" and "labels". input, labels: their types, as in blobs. drawn:
    the name is of inputs as the data set holds them; what rounding left outside of the declared
    domain was moved into it before the network read them (see `gradient_stats.examples`).
    """

    hmac: Sha256
    input: str
    labels: str
    drawn: bool = field(default=False, metadata=_OPTIONAL)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One forward and backward pass; a step that accumulates gradients has several.

    examples: how many. index: of each example in the data; tags: replace it in a redacted trace,
    equal for equal indices. sampler, rate: how they were drawn. divisor: what the sum of the
    examples' gradients was divided by. loss: as it was differentiated; the mean if `reduction` is
    NONE. tensors: only with detail and stored data, as far as they were seen: "input" (after all
    transforms) with one row for each example, "labels" as the loss function got them; further
    inputs of the network as "input.1" or "input.name". name: with detail, if data are not stored.
    """

    examples: int | None = None
    index: IndexArray | None = None
    tags: tuple[str, ...] = field(default=(), metadata=_OPTIONAL)
    sampler: Sampling | None = None
    rate: Bound | None = None
    reduction: Reduction | None = None
    divisor: Bound | None = None
    loss: float | None = None
    tensors: Blob | None = None
    name: ExamplesName | None = None


Guessable: TypeAlias = Literal["default", "below 2^32"]
"""Why a seed can be guessed: it is the one that torch gives all new generators, or small. The seed
itself is never recorded."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise that the run said it would add: its standard deviation by group.

    generator: digest of the state from which its generator starts; two steps or ranks with the same
    digest draw the same noise. seed: of the generator, if it can be guessed.
    """

    std: Mapping[str, float]
    generator: str | None = None
    seed: Guessable | None = field(default=None, metadata=_OPTIONAL)


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients by name of the parameter, with detail only.

    clean: before the noise; noised: after it, in the same units; applied: as the optimizer used
    them (`Parameter.grad` when its step began).
    """

    clean: Blob | None = None
    noised: Blob | None = None
    applied: Blob | None = None

    @property
    def each(self) -> tuple[Blob | None, Blob | None, Blob | None]:
        """All of them, in this order."""
        return self.clean, self.noised, self.applied

    def tensors(self) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """Read all of them, in this order; nothing where none was recorded."""
        clean, noised, applied = ({} if blob is None else blob.tensors() for blob in self.each)
        return clean, noised, applied


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The device and the arithmetic of a step.

    dtype: of the parameters; autocast: the type in which products are computed, None if autocast is
    off. tf32_matmul, tf32_conv: whether TF32 is allowed, which matters only on a GPU.
    """

    device: str
    dtype: str
    autocast: str | None
    tf32_matmul: bool
    tf32_conv: bool
    deterministic: bool

    @property
    def stored(self) -> Precision | None:
        """The arithmetic in which parameters are stored and gradients added up; None for a type
        that audits do not support."""
        return next((item for item in Precision if item.value == self.dtype), None)

    def products(self, *, convolves: bool) -> Precision | None:
        """Return the arithmetic of products, for a network with convolutions or without; None as
        for `stored`."""
        name = self.autocast or self.dtype
        is_short = self.tf32_matmul or (convolves and self.tf32_conv)
        if name == "float32" and self.device == "cuda" and is_short:
            return Precision.TF32
        return next((item for item in Precision if item.value == name), None)


@dataclass(frozen=True, slots=True)
class OptimizerGroup:
    """Parameters that are updated alike.

    options: hyper-parameters of this step, each as numbers: a truth value is 0 or 1, None is empty.
    """

    parameters: tuple[str, ...]
    options: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class OptimizerRecord:
    """The optimizer as its step began, with detail only.

    kind: its class, with the module. state: tensors of its state as "key@parameter". unwritten:
    options and parts of the state that are not numbers, so that the step cannot be repeated.
    """

    kind: str
    groups: tuple[OptimizerGroup, ...]
    state: Blob | None = None
    unwritten: tuple[str, ...] = field(default=(), metadata=_OPTIONAL)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of the optimizer, numbered from 0 within its rank.

    time: seconds since 1970. weights_before, weights_after: every parameter and buffer.
    weights_start: the weights before the step, if they were not asked for and the previous step
    records those after it. norms: of tensors, in redacted traces of earlier versions only.
    """

    rank: int = field(metadata=member(apart=True))
    number: int = field(metadata=member("step"))
    time: Bound
    batches: tuple[Batch, ...] = ()
    learning_rates: tuple[float, ...] = field(default=(), metadata=_OPTIONAL)
    """Of the optimizer's parameter groups."""
    noise: Noise | None = None
    arithmetic: Arithmetic | None = None
    weights_before: Blob | None = None
    weights_after: Blob | None = None
    weights_start: Blob | None = None
    optimizer: OptimizerRecord | None = None
    gradients: Gradients = field(default_factory=Gradients, metadata=_OPTIONAL)
    norms: Norms = field(default_factory=dict, metadata=_OPTIONAL)

    @property
    def filled(self) -> tuple[Batch, ...]:
        """The batches that are not known to be empty."""
        return tuple(batch for batch in self.batches if batch.examples != 0)

    @property
    def examples(self) -> int:
        """The known number of examples in all batches."""
        return sum(batch.examples or 0 for batch in self.batches)

    @property
    def trained(self) -> frozenset[str]:
        """The names of the parameters that its optimizer trains, as far as they are recorded."""
        groups = () if self.optimizer is None else self.optimizer.groups
        return frozenset(name for group in groups for name in group.parameters)

    @property
    def has_detail(self) -> bool:
        """Whether tensors of the batch, their name, or gradients were recorded."""
        batches = (batch.tensors or batch.name for batch in self.batches)
        return any((*self.gradients.each, *batches))

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """All tensors that the step names."""
        named = [batch.tensors for batch in self.batches]
        named += [*self.gradients.each, self.weights_before, self.weights_after, self.weights_start]
        named += [] if self.optimizer is None else [self.optimizer.state]
        return tuple(blob for blob in named if blob is not None)


@dataclass(frozen=True, slots=True)
class Start:
    """The first line of a rank."""

    time: Bound


@dataclass(frozen=True, slots=True)
class Resume:
    """Recording continued after an end.

    cut: bytes of an unfinished line that were removed.
    """

    time: Bound
    steps: int
    """Steps recorded before."""
    cut: int
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Close:
    """The recording was ended on purpose."""

    time: Bound
    steps: int
    """Steps recorded before."""


Event: TypeAlias = Start | Step | Resume | Close


def word_of(choices: Any, name: str, word: object) -> Any:
    """Return a member of an enum, given as itself or as its word."""
    if isinstance(word, choices):
        return word
    check_choice(f"recorder: {name}", str(word), tuple(item.value for item in choices))
    return choices(word)


def declaration_of(declared: Mapping[str, Any]) -> Declaration:
    """Return a declaration from its members by name; enums may be given as their words."""
    names = tuple(item.name for item in fields(Declaration))
    for name in declared:
        check_choice("recorder: declare", name, names)
    known = dict(declared)
    for name, choices in (("sampling", Sampling), ("reduction", Reduction)):
        if known.get(name) is not None:
            known[name] = word_of(choices, name, known[name])
    for name, kind in kinds_of(Declaration).items():
        if known.get(name) is not None:
            known[name] = kind(f"recorder: {name}", known[name])
    for name in _BY_GROUP:
        if known.get(name) is not None:
            known[name] = dict(table(f"recorder: {name}", known[name], number))
    if "groups" in known:
        known["groups"] = {group: tuple(names) for group, names in known["groups"].items()}
    for name in ("dataset_size", "batch_size"):
        check_positive(f"recorder: {name}", known.get(name))
    return Declaration(**known)


def merged(first: Declaration, second: Declaration) -> Declaration:
    """Merge two declarations; raise UsageError if they contradict each other."""
    empty = Declaration()
    changes: dict[str, Any] = {}
    for item in fields(Declaration):
        old, new = getattr(first, item.name), getattr(second, item.name)
        nothing = getattr(empty, item.name)
        if new != nothing:
            if old not in (nothing, new):
                raise UsageError(f"recorder: {item.name} is declared as {old!r} and as {new!r}")
            changes[item.name] = new
    return replace(first, **changes)
