"""The ledger: what a certificate assumes, as typed premises and in words.

What enters: the assumptions of a certificate. What leaves: `Premises`, from which every number of
the assumptions reaches the derivation. The premises write the assumptions again, texts included,
and the two must agree exactly: a text cannot say anything but what its data say, and no assumption
can be added, dropped or declared checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from lipcert.certificate.canonical import Json
from lipcert.certificate.fields import CertificateFormatError, Fields
from lipcert.certificate.numbers import write_float
from lipcert.certificate.records import Assumption

__all__ = ["CHECKED", "DECLARED", "MECHANISMS", "Circumstances", "Premises", "Run"]

CHECKED: Final = "checked"
DECLARED: Final = "declared"
MECHANISMS: Final = ("none", "clipless", "fixed-weight-norm", "gradient-clipping")

Members: TypeAlias = dict[str, Json]
LossParameter: TypeAlias = tuple[str, float | str]

_RELATIONS: Final = {
    "add-remove": "one data set has one example more than the other",
    "replace-one": "one example of the data set is another one",
    "zero-out": "one example contributes nothing, and the batches stay as they are",
}
_SCHEMES: Final = {
    "poisson": "every example is in every batch with probability B/N, independently",
    "without-replacement": "every batch is a uniformly random set of B of the N examples",
    "shuffle": "the batches of an epoch are disjoint and do not depend on the examples",
    "full-batch": "every batch holds all examples",
}


@final
@dataclass(frozen=True, slots=True)
class Run:
    """The training run that ε speaks of.

    participations: the largest number of steps whose batches hold one example (of a shuffle).
    """

    scheme: str
    dataset_size: int
    batch_size: int
    steps: int
    participations: int

    @classmethod
    def read(cls, fields: Fields) -> Run:
        """From the data of A-SAMPLING."""
        run = cls(
            scheme=fields.text("scheme"),
            dataset_size=fields.integer("dataset_size"),
            batch_size=fields.integer("batch_size"),
            steps=fields.integer("steps"),
            participations=fields.integer("participations"),
        )
        fields.finish()
        fits = 1 <= run.batch_size <= run.dataset_size and 1 <= run.participations <= run.steps
        whole = run.scheme in {"shuffle"} or run.participations == run.steps
        full = run.scheme != "full-batch" or run.batch_size == run.dataset_size
        if run.scheme not in _SCHEMES or not (fits and whole and full and run.is_possible()):
            raise CertificateFormatError(f"{fields.where} describes no run")
        return run

    def is_possible(self) -> bool:
        """Whether some example may indeed be in no more batches than is said.

        Proof: an epoch of disjoint batches has at most ⌈N/B⌉ of them, so that T steps begin at
        least T/⌈N/B⌉ epochs, and an example is in one batch of each that is complete.
        """
        return self.steps <= self.participations * -(-self.dataset_size // self.batch_size)

    def written(self) -> Members:
        """The data of A-SAMPLING."""
        return {
            "scheme": self.scheme,
            "dataset_size": self.dataset_size,
            "batch_size": self.batch_size,
            "steps": self.steps,
            "participations": self.participations,
        }


@final
@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the checker itself knows when it writes the ledger.

    frozen: tensors that reach the data path as constants. constrained: the scope is a set of
    weights. releases: whether sensitivities and noise are claimed. epsilon_declared: whether an ε
    is claimed that was not recomputed.
    """

    batch_proved: bool
    frozen: tuple[str, ...]
    constrained: bool
    releases: bool
    epsilon_declared: bool


@final
@dataclass(frozen=True, slots=True)
class Premises:
    """The assumptions as numbers and names. None: not assumed.

    divisor: the public constant that a mean divides the sum of gradients by; None for a sum.
    """

    input_norm: float | None
    input_box: tuple[float, float] | None
    loss: str
    loss_parameters: tuple[LossParameter, ...]
    loss_clip: float | None
    mechanism: str
    clip: tuple[float, str, str] | None
    relation: str
    divisor: int | None
    run: Run | None

    @classmethod
    def read(cls, assumptions: Sequence[Assumption]) -> Premises:
        """From the assumptions of a certificate; `CertificateFormatError` where they are others."""
        known = {item.id: Fields(dict(item.data), item.id) for item in assumptions}
        for name in ("A-INPUT", "A-LOSS", "A-MECHANISM", "A-NEIGH", "A-GRAD-AGG"):
            if name not in known:
                raise CertificateFormatError(f"the assumption {name} is missing")
        loss, mechanism = known["A-LOSS"], known["A-MECHANISM"]
        norm, box = _input(known["A-INPUT"])
        found = cls(
            input_norm=norm,
            input_box=box,
            loss=loss.text("kind"),
            loss_parameters=_loss_parameters(loss.object("parameters")),
            loss_clip=loss.optional("clip", loss.bound),
            mechanism=mechanism.text("kind"),
            clip=_clip(mechanism),
            relation=known["A-NEIGH"].text("relation"),
            divisor=_divisor(known["A-GRAD-AGG"]),
            run=Run.read(known["A-SAMPLING"]) if "A-SAMPLING" in known else None,
        )
        if found.relation not in _RELATIONS or found.mechanism not in MECHANISMS:
            raise CertificateFormatError("a relation or a mechanism is not known")
        return found

    def assumptions(self, known: Circumstances) -> tuple[Assumption, ...]:
        """The ledger of a certificate with these premises."""
        entries = [self._input(), self._loss(), _examples(known.batch_proved)]
        if known.frozen:
            entries.append(_frozen(known.frozen))
        if known.constrained:
            entries.append(_PROJECTION)
        entries += [self._mechanism(), self._neighbours(), self._aggregation()]
        if self.run is not None:
            entries.append(self._sampling(self.run))
            if not known.constrained and self.clip is None:
                entries.append(_FIXED)
        if known.epsilon_declared:
            entries.append(_ACCOUNTING)
        if known.releases:
            entries.append(_RANDOMNESS)
        return (*entries, _ARITHMETIC)

    def _input(self) -> Assumption:
        parts, data = [], Members()
        if self.input_norm is not None:
            parts.append(f"a Euclidean norm of at most {self.input_norm!r}")
            data["norm"] = write_float(self.input_norm)
        if self.input_box is not None:
            low, high = self.input_box
            parts.append(f"entries between {low!r} and {high!r}")
            data["box"] = [write_float(low), write_float(high)]
        return _declared("A-INPUT", f"Every example has {' and '.join(parts)}.", data)

    def _loss(self) -> Assumption:
        numbers = ", ".join(f"{name} = {value}" for name, value in self.loss_parameters)
        text = f"The loss of one example is {self.loss}" + (f" with {numbers}" if numbers else "")
        data: Members = {
            "kind": self.loss,
            "parameters": {
                name: value if isinstance(value, str) else write_float(value)
                for name, value in self.loss_parameters
            },
        }
        if self.loss_clip is not None:
            text += f"; its gradient at the output is clipped to {self.loss_clip!r}"
            data["clip"] = write_float(self.loss_clip)
        return _declared("A-LOSS", f"{text}.", data)

    def _mechanism(self) -> Assumption:
        data: Members = {"kind": self.mechanism}
        if self.clip is None:
            return _declared("A-MECHANISM", "Gradients are what backpropagation finds.", data)
        norm, scope, decay = self.clip
        data |= {"clip_norm": write_float(norm), "clip_scope": scope, "decay": decay}
        text = f"The gradient of every example is clipped to {norm!r} ({scope}), decay {decay}."
        return _declared("A-MECHANISM", text, data)

    def _neighbours(self) -> Assumption:
        text = f"Data sets are neighbours if {_RELATIONS[self.relation]}."
        return _declared("A-NEIGH", text, {"relation": self.relation})

    def _aggregation(self) -> Assumption:
        if self.divisor is None:
            text, data = "The gradients of a batch are summed.", Members(reduction="sum")
        else:
            text = f"The sum of the gradients of a batch is divided by {self.divisor}, "
            text += "a constant whatever the batch holds."
            data = Members(reduction="mean", divisor=self.divisor)
        return _declared("A-GRAD-AGG", text, data)

    @staticmethod
    def _sampling(run: Run) -> Assumption:
        text = (
            f"{run.steps} steps; N = {run.dataset_size}, B = {run.batch_size}: "
            f"{_SCHEMES[run.scheme]}; an example is in at most {run.participations} batches."
        )
        return _declared("A-SAMPLING", text, run.written())


def _declared(name: str, text: str, data: Mapping[str, Json]) -> Assumption:
    return Assumption(name, DECLARED, text, data)


def _examples(proved: bool) -> Assumption:
    if proved:
        text = "Examples of a batch do not influence each other, for batches of every size."
        return Assumption("A-PERSAMPLE", CHECKED, text, {})
    text = "The file computes one example at a time, and training applies it to each separately."
    return _declared("A-PERSAMPLE", text, {})


def _frozen(tensors: tuple[str, ...]) -> Assumption:
    text = f"{len(tensors)} tensors of the file are constants that training does not change."
    return _declared("A-FROZEN", text, {"tensors": list(tensors)})


_PROJECTION: Final = _declared(
    "A-PROJ", "Training holds every trained tensor within its constraint at every step.", {}
)
_FIXED: Final = _declared(
    "A-POINT", "At every step of the run the weights are those of the file.", {}
)
_ACCOUNTING: Final = _declared(
    "A-EPSILON",
    "The accountant that found epsilon is right: the checker did not find as small a one.",
    {},
)
_RANDOMNESS: Final = _declared(
    "A-RNG", "The noise is Gaussian, fresh and independent at every step, and kept secret.", {}
)
_ARITHMETIC: Final = _declared(
    "A-NUMERIC", "Real arithmetic: the rounding of the training run is not included.", {}
)


def _input(fields: Fields) -> tuple[float | None, tuple[float, float] | None]:
    norm = fields.optional("norm", fields.bound)
    box: tuple[float, float] | None = None
    if fields.has("box"):
        ends = fields.numbers("box")
        if len(ends) != 2 or ends[0] > ends[1]:
            raise CertificateFormatError(f"{fields.where}.box is not an interval")
        box = (ends[0], ends[1])
    if norm is None and box is None:
        raise CertificateFormatError(f"{fields.where} bounds nothing")
    return norm, box


def _loss_parameters(fields: Fields) -> tuple[LossParameter, ...]:
    """Numbers are written as such; what is no number is a word."""
    found: list[LossParameter] = []
    for name in sorted(fields.members()):
        word = fields.text(name)
        is_number = word.removeprefix("-").startswith("0x")
        found.append((name, fields.number(name) if is_number else word))
    return tuple(found)


def _clip(fields: Fields) -> tuple[float, str, str] | None:
    if fields.text("kind") != "gradient-clipping":
        return None
    scope, decay = fields.text("clip_scope"), fields.text("decay")
    if scope not in {"flat", "group"} or decay not in {"decoupled", "inside"}:
        raise CertificateFormatError(f"{fields.where} describes no clip")
    return fields.bound("clip_norm"), scope, decay


def _divisor(fields: Fields) -> int | None:
    if fields.text("reduction") == "sum":
        return None
    divisor = fields.integer("divisor")
    if fields.text("reduction") != "mean" or divisor < 1:
        raise CertificateFormatError(f"{fields.where} is neither a sum nor a mean")
    return divisor
