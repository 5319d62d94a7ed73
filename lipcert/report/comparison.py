"""Comparison: what became of bounds, privacy and assumptions from one document to another.

A certificate or an analysis is read as a statement: its numbers, and its assumptions in its own
words and in those that both kinds share. Compared are every number and every assumption; a bound
that one side lacks counts as infinite there, and nothing is rounded before it is compared.
Displayed bounds are rounded up; where that hides a change, they are shown in full.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any, Final, NamedTuple, TypeAlias, final

from lipcert.analysis.records import Analysis
from lipcert.core.certificate import SCHEMA as CERTIFICATE
from lipcert.core.certificate import (
    Certificate,
    CertificateFormatError,
    PrivacyClaim,
    read_certificate,
)
from lipcert.core.ledger import Premises
from lipcert.core.ledger.mechanism import is_stepwise
from lipcert.core.ledger.premises import InputPart, spelt
from lipcert.errors import NoVerdictError
from lipcert.report import document as doc
from lipcert.report.json import JsonObject, dump
from lipcert.report.numbers import NO_BOUND, at_most
from lipcert.report.privacy import RunPrivacy
from lipcert.report.sources import ANALYSIS, read_analysis

Number: TypeAlias = float | Fraction

_NOT_ASSUMED: Final = ("allocation", "noise_multiplier", "tier")
_SAMPLING: Final = ("sampling", "dataset_size", "batch_size", "steps", "participations")
_NOISE: Final = "noise_std"
_MULTIPLIER: Final = "noise_multiplier"
_MODELS: Final = {
    "same": "both speak of the same file",
    "saved-again": "the files differ, what they compute does not",
    "other": "the two speak of different files",
}
_WHOLE: Final = 10**6
_NUMBER_COLUMNS: Final = (
    doc.Column("", optional=True),
    doc.Column("where", least=12, most=_WHOLE),
    doc.Column("number"),
    doc.Column("old", is_number=True),
    doc.Column("new", is_number=True),
    doc.Column("by", is_number=True),
)


class Place(NamedTuple):
    """Where a number stands. section: "network", "privacy", "group" or "parameter"."""

    section: str
    name: str
    quantity: str


@final
@dataclass(frozen=True, slots=True)
class Assumed:
    """An assumption. checked: somebody established it, so that it assumes nothing.

    slack: numbers that assume less the larger all of them are; None where there is no such order.
    """

    text: str
    checked: bool = False
    slack: tuple[float, ...] | None = None


@final
@dataclass(frozen=True, slots=True)
class Statement:
    """What a document states. kind: "certificate" or "analysis".

    structure: the digest of what the model computes, where the document has it. assumptions: in the
    words of the document; terms: the same in words that both kinds share.
    """

    kind: str
    path: str
    sha256: str
    structure: str | None
    numbers: Mapping[Place, Number | None]
    assumptions: Mapping[str, Assumed]
    terms: Mapping[str, Assumed] = field(default_factory=dict)


def read_statement(path: str, document: Mapping[str, object], data: bytes) -> Statement:
    """What a certificate, of which these are the bytes, or the document of an analysis states.

    NoVerdictError where it is neither, or not a complete one.
    """
    try:
        match document.get("schema"):
            case str(schema) if schema == CERTIFICATE:
                return _certified(path, read_certificate(data))
            case str(schema) if schema == ANALYSIS:
                return _analysed(path, document)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        what = "certificate" if isinstance(error, CertificateFormatError) else "complete document"
        raise NoVerdictError(f"{path}: not a {what} ({error})") from error
    raise NoVerdictError(f"{path}: neither a certificate nor an analysis written as JSON")


def _certified(path: str, certificate: Certificate) -> Statement:
    scope, premises = certificate.scope, Premises.read(certificate.assumptions)
    constraints = [f"{item.kind}:{item.radius!r} {item.tensor}" for item in scope.constraints]
    assumptions = {
        item.id: Assumed(item.text, item.status == "checked") for item in certificate.assumptions
    }
    if not premises.input_parts:
        slack = (_radius(premises.input_norm), *_width(premises.input_box))
        assumptions["A-INPUT"] = replace(assumptions["A-INPUT"], slack=slack)
    assumptions["scope"] = Assumed(", ".join([scope.kind, *constraints]))
    loss = {"kind": premises.loss, **dict(premises.loss_parameters)}
    if premises.loss_parts:
        loss["parts"] = spelt(premises.loss_parts)
    if premises.loss_clip is not None:
        loss["clip"] = premises.loss_clip
    run, multiplier = premises.run, certificate.network.noise_multiplier
    return Statement(
        kind="certificate",
        path=path,
        sha256=certificate.model.sha256,
        structure=certificate.model.structure,
        numbers=dict(_numbers(certificate, multiplier, certificate.privacy)),
        assumptions=assumptions,
        terms=_terms(
            norm=certificate.input.output_norm,
            box=premises.input_box,
            parts=premises.input_parts,
            loss=loss,
            mechanism=premises.mechanism.record(),
            relation=premises.relation,
            divisor=premises.divisor,
            scope=scope.kind,
            eval_layers={kind for kind, _ in premises.eval_layers},
            run=None if run is None else {**asdict(run), "sampling": run.scheme},
        ),
    )


def _analysed(path: str, document: Mapping[str, object]) -> Statement:
    analysis, run = read_analysis(document)
    facts, members = analysis.assumptions, document["assumptions"]
    if not isinstance(members, dict):
        raise TypeError("an object is missing")
    assumptions = {
        name: Assumed(_words(value)) for name, value in members.items() if name not in _NOT_ASSUMED
    }
    for name, slack in (
        ("input_norm", (_radius(facts.input_norm),)),
        ("input_box", _width(facts.input_box)),
    ):
        assumptions[name] = replace(assumptions[name], slack=slack)
    assumptions["batch"] = replace(assumptions["batch"], checked=facts.batch == "proved")
    if run is not None:
        assumptions["run"] = Assumed(_run_words(asdict(run)))
    multiplier = facts.noise_multiplier if run is None else run.noise_multiplier
    return Statement(
        kind="analysis",
        path=path,
        sha256=analysis.model.sha256,
        structure=None,
        numbers=dict(_numbers(analysis, multiplier, run)),
        assumptions=assumptions,
        terms=_terms(
            norm=facts.input_norm,
            box=facts.input_box,
            parts=facts.input_parts,
            loss=facts.loss,
            mechanism=facts.mechanism,
            relation=facts.neighbours,
            divisor=facts.batch_size if facts.reduction == "mean" else None,
            scope=facts.scope,
            eval_layers={layer.kind for layer in facts.eval_layers},
            run=None if run is None else asdict(run),
        ),
    )


def _numbers(
    found: Certificate | Analysis,
    multiplier: float | None,
    privacy: PrivacyClaim | RunPrivacy | None,
) -> Iterator[tuple[Place, Number | None]]:
    """Every number that is compared; ValueError for one that bounds nothing."""
    for name in ("lipschitz", "grad_norm", "sensitivity"):
        yield Place("network", "", name), _bound(getattr(found.network, name))
    yield Place("network", "", _MULTIPLIER), _bound(multiplier)
    if privacy is not None:
        delta = privacy.delta if isinstance(privacy, PrivacyClaim) else repr(privacy.delta)
        yield Place("privacy", "", "epsilon"), _bound(privacy.epsilon)
        yield Place("privacy", "", "delta"), _bound(Fraction(delta), 1)
    for group in found.groups:
        for name in ("grad_norm", "sensitivity", _NOISE):
            yield Place("group", group.name, name), _bound(getattr(group, name))
    for parameter in found.parameters:
        if getattr(parameter, "trainable", True):
            yield Place("parameter", parameter.name, "grad_norm"), _bound(parameter.grad_norm)


def _bound(value: Number | None, most: float = math.inf) -> Number | None:
    """A number that bounds something; None: no bound."""
    if value is not None and not 0 <= value <= most:
        raise ValueError(f"{value!r} is not a bound")
    return value


def _radius(norm: float | None) -> float:
    return math.inf if norm is None else norm


def _width(box: tuple[float, float] | None) -> tuple[float, float]:
    low, high = box or (-math.inf, math.inf)
    return -low, high


def _terms(
    *,
    norm: float | None,
    box: tuple[float, float] | None,
    parts: Iterable[InputPart],
    loss: Mapping[str, object],
    mechanism: Mapping[str, object],
    relation: object,
    divisor: object,
    scope: object,
    eval_layers: set[str],
    run: Mapping[str, object] | None,
) -> dict[str, Assumed]:
    """The words that certificates and analyses share, equal where they mean the same.

    Both bound the input in Euclidean norm by what was stated or follows from the box, rounded each
    in its own way: nine digits are compared. Weights that are clipped lie within constraints.
    Layers in eval mode have the names of modules or of nodes: their kinds are compared.
    """
    kind = "clipless" if is_stepwise(mechanism) else mechanism["kind"]
    size = float(f"{_radius(norm):.9g}")
    found = {
        "input norm": Assumed(f"{size:.9g}", slack=(size,)),
        "input box": Assumed(_words(box), slack=_width(box)),
        "loss": Assumed(_words({name: _plain(value) for name, value in loss.items()})),
        "mechanism": Assumed(_words({**mechanism, "kind": kind})),
        "neighbours": Assumed(_words(relation)),
        "divisor": Assumed(_words(divisor)),
        "scope": Assumed(_words(scope)),
        "eval mode": Assumed(_words(sorted(eval_layers))),
    }
    inputs = [{name: getattr(part, name) for name in ("name", "norm", "box")} for part in parts]
    if inputs:
        found["inputs"] = Assumed(_words(inputs))
    if run is not None:
        found["run"] = Assumed(_run_words(run))
    return found


def _words(value: Any) -> str:
    """A value of JSON on one line."""
    match value:
        case dict():
            return ", ".join(f"{name} = {_words(value[name])}" for name in sorted(value))
        case list() | tuple():
            return ", ".join(_words(item) for item in value) or "none"
        case None:
            return "none"
    return str(value)


def _run_words(run: Mapping[str, object]) -> str:
    """How the batches of a run are drawn, and how many."""
    return _words({name: run[name] for name in _SAMPLING})


def _plain(value: object) -> object:
    """A parameter of a loss: flags as certificates spell them, numbers as float64."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return float(value) if isinstance(value, int) else value


@final
@dataclass(frozen=True, slots=True)
class Change:
    """A number that is not the same on both sides; None: no bound there."""

    place: Place
    old: Number | None
    new: Number | None

    @property
    def kind(self) -> str:
        """What happened to it."""
        if self.old is None:
            return "appeared"
        if self.new is None:
            return "disappeared"
        return "grew" if self.new > self.old else "shrank"

    @property
    def is_bound(self) -> bool:
        """Whether it is an upper bound of something; noise is what a release needs or has."""
        return self.place.quantity not in {_NOISE, _MULTIPLIER}

    def is_regression(self, tolerance: Fraction) -> bool:
        """Whether less is stated: a larger bound, a smaller noise multiplier, or none at all.

        More noise in a group is no regression by itself: whatever asked for it is one.
        """
        if self.place.quantity == _NOISE or self.old is None:
            return False
        if self.new is None:
            return True
        old, new = Fraction(self.old), Fraction(self.new)
        if self.place.quantity == _MULTIPLIER:
            old, new = new, old
        return new > old * (1 + tolerance)


@final
@dataclass(frozen=True, slots=True)
class AssumptionChange:
    """An assumption that is not the same on both sides; None: not assumed there."""

    name: str
    old: Assumed | None
    new: Assumed | None

    @property
    def kind(self) -> str:
        """What happened to it."""
        if self.old is None:
            return "added"
        return "dropped" if self.new is None else "changed"

    @property
    def is_regression(self) -> bool:
        """Whether more may be assumed than before; where nobody can tell, it may be."""
        if self.new is None or self.new.checked:
            return False
        if self.old is None or self.old.slack is None or self.new.slack is None:
            return True
        pairs = zip(self.old.slack, self.new.slack, strict=True)
        return self.old.checked or any(new < old for old, new in pairs)


@final
@dataclass(frozen=True, slots=True)
class Comparison:
    """Two statements, what differs, and by what factor more than 1 a bound may grow."""

    old: Statement
    new: Statement
    tolerance: float
    changes: tuple[Change, ...]
    assumptions: tuple[AssumptionChange, ...]

    @property
    def regressions(self) -> tuple[Change, ...]:
        """Numbers that state less than before."""
        allowed = Fraction(self.tolerance)
        return tuple(change for change in self.changes if change.is_regression(allowed))

    @property
    def is_regression(self) -> bool:
        """Whether anything states less, or assumes more."""
        return bool(self.regressions) or any(item.is_regression for item in self.assumptions)

    @property
    def model(self) -> str:
        """Whether both speak of one model: "same", "saved-again" or "other"."""
        if self.old.sha256 == self.new.sha256:
            return "same"
        structure = self.old.structure
        return "saved-again" if structure and structure == self.new.structure else "other"

    def count(self, kind: str) -> int:
        """How many bounds changed in this way."""
        return sum(change.is_bound and change.kind == kind for change in self.changes)


def compared(old: Statement, new: Statement, tolerance: float = 0.0) -> Comparison:
    """Everything that differs between two statements."""
    return Comparison(
        old, new, tolerance, tuple(_changes(old, new)), tuple(_assumption_changes(old, new))
    )


def _changes(old: Statement, new: Statement) -> Iterator[Change]:
    for place in dict.fromkeys([*old.numbers, *new.numbers]):
        before, after = old.numbers.get(place), new.numbers.get(place)
        if before != after:
            yield Change(place, before, after)


def _assumption_changes(old: Statement, new: Statement) -> Iterator[AssumptionChange]:
    """In the documents' own words where they are of one kind, else in those they share."""
    same = old.kind == new.kind
    before, after = (old.assumptions, new.assumptions) if same else (old.terms, new.terms)
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield AssumptionChange(name, before.get(name), after.get(name))


def comparison_document(comparison: Comparison) -> doc.Document:
    """What people read of a comparison."""
    old, new = comparison.old, comparison.new
    tone = doc.Tone.BAD if comparison.is_regression else doc.Tone.GOOD
    assumed = [row for item in comparison.assumptions for row in _changed(item)]
    facts = [("old", _source(old)), ("new", _source(new)), ("model", _MODELS[comparison.model])]
    return doc.Document(
        "LipCert comparison",
        (doc.Answer(_answer(comparison), tone),),
        sections=doc.sections_of(
            ("", doc.Statements.of(facts)),
            ("Numbers that changed", doc.table(_NUMBER_COLUMNS, _rows(comparison))),
            ("Assumptions that changed", doc.Statements(tuple(assumed))),
        ),
    )


def comparison_json(comparison: Comparison) -> str:
    """`lipcert.comparison/1`."""
    regressions = comparison.regressions
    return dump(
        {
            "schema": "lipcert.comparison/1",
            "regression": comparison.is_regression,
            "tolerance": comparison.tolerance,
            "old": _identity(comparison.old),
            "new": _identity(comparison.new),
            "model": comparison.model,
            "counts": {
                kind: comparison.count(kind)
                for kind in ("grew", "shrank", "appeared", "disappeared")
            },
            "changes": [
                {
                    **change.place._asdict(),
                    "change": change.kind,
                    "old": _float(change.old),
                    "new": _float(change.new),
                    "regression": change in regressions,
                }
                for change in comparison.changes
            ],
            "assumptions": [
                {
                    "id": item.name,
                    "change": item.kind,
                    "old": _assumed(item.old),
                    "new": _assumed(item.new),
                    "regression": item.is_regression,
                }
                for item in comparison.assumptions
            ],
        }
    )


def _answer(comparison: Comparison) -> str:
    """The first line."""
    counts = [(kind, comparison.count(kind)) for kind in ("grew", "shrank")]
    counts += [(kind, comparison.count(kind)) for kind in ("disappeared", "appeared")]
    first, *rest = [(kind, count) for kind, count in counts if count or kind in {"grew", "shrank"}]
    words = [f"{first[1]} {'bound' if first[1] == 1 else 'bounds'} {first[0]}"]
    words += [f"{count} {kind}" for kind, count in rest]
    found = len(comparison.assumptions)
    words.append(f"{found} {'assumption' if found == 1 else 'assumptions'} changed")
    verdict = "a regression" if comparison.is_regression else "no regression"
    return f"{', '.join(words)}: {verdict}"


def _source(statement: Statement) -> str:
    return f"{statement.path}, {statement.kind} of the model {statement.sha256[:12]}"


def _rows(comparison: Comparison) -> list[tuple[str, ...]]:
    regressions = comparison.regressions
    return [_row(change, change in regressions) for change in comparison.changes]


def _row(change: Change, is_regression: bool) -> tuple[str, ...]:
    place = change.place
    where = f"{place.section} {place.name}".strip()
    mark = "worse" if is_regression else ""
    old, new = _shown(change.old), _shown(change.new)
    if old == new:
        old, new = repr(_float(change.old)), repr(_float(change.new))
    return mark, where, place.quantity, old, new, _growth(change)


def _growth(change: Change) -> str:
    old, new = _float(change.old), _float(change.new)
    if not old or new is None:
        return change.kind
    return f"{100.0 * ((new - old) / old):+.3g}%"


def _changed(item: AssumptionChange) -> Iterator[doc.Statement]:
    """What was assumed, and what is."""
    status = f"{item.kind} (worse)" if item.is_regression else item.kind
    told = [("old", item.old), ("new", item.new)]
    words = [f"{name}: {_status(assumed)}" for name, assumed in told if assumed is not None]
    tone = doc.Tone.BAD if item.is_regression else doc.Tone.PLAIN
    yield doc.Statement(item.name, words[0], status, tone)
    yield from (doc.Statement("", text) for text in words[1:])


def _status(assumed: Assumed) -> str:
    return f"{assumed.text} (checked)" if assumed.checked else assumed.text


def _identity(statement: Statement) -> JsonObject:
    return {name: getattr(statement, name) for name in ("path", "kind", "sha256", "structure")}


def _assumed(assumed: Assumed | None) -> JsonObject | None:
    return assumed and {"text": assumed.text, "checked": assumed.checked}


def _float(number: Number | None) -> float | None:
    return None if number is None else float(number)


def _shown(number: Number | None) -> str:
    return NO_BOUND if number is None else at_most(float(number))
