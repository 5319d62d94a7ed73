"""Comparison: how bounds, privacy and assumptions differ between two documents.

A certificate or an analysis is read as a statement: its numbers, and its assumptions in its own
words, which the other kind does not share. Every number and every assumption is compared. A bound
that one side lacks counts as infinite there, and nothing is rounded before it is compared.
Displayed bounds are rounded up; if that would hide a change, they are shown with all digits.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final, Literal, TypeAlias

from lipcert.analysis.records import Analysis
from lipcert.core.certificate import SCHEMA as CERTIFICATE
from lipcert.core.certificate import Certificate, PrivacyClaim
from lipcert.core.codec import member
from lipcert.core.ledger.premises import Premises
from lipcert.core.text import texts
from lipcert.errors import NoVerdictError, UsageError
from lipcert.privacy.account import Account
from lipcert.report import document as doc
from lipcert.report.certificate import Claimed
from lipcert.report.json import DOCUMENT, dump
from lipcert.report.sources import ANALYSIS, read_source
from lipcert.text.numbers import NO_BOUND, at_most

Number: TypeAlias = float | Fraction

_NOT_ASSUMED: Final = ("allocation", "noise_multiplier", "tier")
_SAMPLING: Final = ("sampling", "dataset_size", "batch_size", "steps", "participations")
_NOISE: Final = "noise_std"
_MULTIPLIER: Final = "noise_multiplier"
_AS_FOUND: Final = 1 + Fraction(1, 10**9)
"""Within this factor a multiplier that is sought for an ε is the same."""
_MODELS: Final = {
    "same": "both describe the same file",
    "saved-again": "the files differ, but compute the same function",
    "other": "they describe different files",
}

Place: TypeAlias = tuple[str, str, str]
"""The place of a number: "network", "privacy", "group" or "parameter", a name, and what it is."""


@dataclass(frozen=True, slots=True)
class Assumed:
    """An assumption. checked: it was established, so that it assumes nothing.

    slack: numbers; the larger all of them are, the less is assumed; None without such an order.
    """

    text: str
    checked: bool = False
    slack: tuple[float, ...] | None = field(default=None, metadata=member(apart=True))


@dataclass(frozen=True, slots=True)
class Statement:
    """What a document states. kind: "certificate" or "analysis".

    structure: the digest of what the model computes, if the document has it.
    """

    path: str
    kind: str
    sha256: str
    structure: str | None
    numbers: Mapping[Place, Number | None] = field(metadata=member(apart=True))
    assumptions: Mapping[str, Assumed] = field(metadata=member(apart=True))


def read_statement(path: str, document: Mapping[str, object], data: bytes) -> Statement:
    """Read what a certificate with these bytes, or the document of an analysis, states.

    Raises:
        NoVerdictError: if it is neither, or incomplete.
    """
    if document.get("schema") not in (CERTIFICATE, ANALYSIS):
        raise NoVerdictError(f"{path}: neither a certificate nor an analysis in JSON")
    record = read_source(path, document, data).record
    try:
        if isinstance(record, Claimed):
            return _certified(path, record.certificate)
        return _analysed(path, record, document["assumptions"])
    except (KeyError, TypeError, ValueError) as error:
        raise NoVerdictError(f"{path}: not a complete document ({error})") from error


def _certified(path: str, certificate: Certificate) -> Statement:
    scope, premises = certificate.scope, Premises.read(certificate.assumptions)
    constraints = [f"{item.kind}:{item.radius!r} {item.tensor}" for item in scope.constraints]
    said = texts(certificate.assumptions)
    assumptions = {
        item.id: Assumed(said[item.id], item.status == "checked")
        for item in certificate.assumptions
    }
    if not premises.input_parts:
        slack = _slack(premises.input_norm, premises.input_box)
        assumptions["A-INPUT"] = replace(assumptions["A-INPUT"], slack=slack)
    assumptions["scope"] = Assumed(", ".join([scope.kind, *constraints]))
    return Statement(
        path=path,
        kind="certificate",
        sha256=certificate.model.sha256,
        structure=certificate.model.structure,
        numbers=_numbers(certificate, certificate.network.noise_multiplier, certificate.privacy),
        assumptions=assumptions,
    )


def _analysed(path: str, analysis: Analysis, members: Any) -> Statement:
    """Read an analysis. members: its assumptions as the document has them."""
    facts, run = analysis.assumptions, analysis.privacy
    assumptions = {
        name: Assumed(doc.one_line(value))
        for name, value in members.items()
        if name not in _NOT_ASSUMED
    }
    norm, *box = _slack(facts.input_norm, facts.input_box)
    for name, slack in (("input_norm", (norm,)), ("input_box", tuple(box))):
        assumptions[name] = replace(assumptions[name], slack=slack)
    assumptions["batch"] = replace(assumptions["batch"], checked=facts.batch == "proved")
    if run is not None:
        assumptions["run"] = Assumed(doc.one_line({name: getattr(run, name) for name in _SAMPLING}))
    multiplier = facts.noise_multiplier if run is None else run.noise_multiplier
    return Statement(
        path=path,
        kind="analysis",
        sha256=analysis.model.sha256,
        structure=None,
        numbers=_numbers(analysis, multiplier, run),
        assumptions=assumptions,
    )


def _numbers(
    found: Certificate | Analysis,
    multiplier: float | None,
    privacy: PrivacyClaim | Account | None,
) -> Mapping[Place, Number | None]:
    """Return every number that is compared; ValueError for one that bounds nothing."""
    numbers: dict[Place, Number | None] = {
        ("network", "", name): getattr(found.network, name)
        for name in ("lipschitz", "grad_norm", "sensitivity")
    }
    numbers["network", "", _MULTIPLIER] = multiplier
    if privacy is not None:
        delta = privacy.delta if isinstance(privacy, PrivacyClaim) else repr(privacy.delta)
        numbers["privacy", "", "epsilon"] = privacy.epsilon
        numbers["privacy", "", "delta"] = Fraction(delta)
    for group in found.groups:
        for name in ("grad_norm", "sensitivity", _NOISE):
            numbers["group", group.name, name] = getattr(group, name)
    for parameter in found.parameters:
        if getattr(parameter, "trainable", True):
            numbers["parameter", parameter.name, "grad_norm"] = parameter.grad_norm
    for place, value in numbers.items():
        if value is not None and not 0 <= value <= (1 if place[2] == "delta" else math.inf):
            raise ValueError(f"{value!r} is not a bound")
    return numbers


def _slack(norm: float | None, box: tuple[float, float] | None) -> tuple[float, ...]:
    low, high = box or (-math.inf, math.inf)
    return math.inf if norm is None else norm, -low, high


@dataclass(frozen=True, slots=True)
class Change:
    """A number that differs between the sides; None: no bound there.

    change: what happened to it. regression: whether less is stated: a larger bound, a smaller noise
    multiplier, or none at all. More noise in a group is not a regression by itself, but its cause
    is one.
    """

    section: str
    name: str
    quantity: str
    change: str
    old: float | None
    new: float | None
    regression: bool


@dataclass(frozen=True, slots=True)
class AssumptionChange:
    """An assumption that differs between the sides; None: not assumed there.

    regression: whether more may be assumed than before, which is possible if no order is known.
    """

    id: str
    change: str
    old: Assumed | None
    new: Assumed | None
    regression: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two statements and what differs, written to JSON by its fields.

    regression: whether anything states less, or assumes more. tolerance: by what fraction a bound
    may grow. model: whether both are about one model. counts: bounds by what happened to them;
    noise is not a bound, but what a release needs or has.
    """

    regression: bool
    tolerance: float
    old: Statement
    new: Statement
    model: Literal["same", "saved-again", "other"]
    counts: Mapping[str, int]
    changes: tuple[Change, ...]
    assumptions: tuple[AssumptionChange, ...]


def compared(old: Statement, new: Statement, tolerance: float = 0.0) -> Comparison:
    """Return everything that differs between two statements; UsageError for different kinds."""
    if old.kind != new.kind:
        raise UsageError(
            f"compare: {old.path} is of the kind {old.kind!r}, {new.path} of {new.kind!r}; "
            "give two of one kind"
        )
    changes = tuple(_changes(old, new, Fraction(tolerance)))
    assumptions = tuple(_assumption_changes(old, new))
    is_saved_again = old.structure is not None and old.structure == new.structure
    model: Literal["saved-again", "other"] = "saved-again" if is_saved_again else "other"
    bounds = Counter(x.change for x in changes if x.quantity not in {_NOISE, _MULTIPLIER})
    return Comparison(
        regression=any(x.regression for x in changes) or any(x.regression for x in assumptions),
        tolerance=tolerance,
        old=old,
        new=new,
        model="same" if old.sha256 == new.sha256 else model,
        counts={kind: bounds[kind] for kind in ("grew", "shrank", "appeared", "disappeared")},
        changes=changes,
        assumptions=assumptions,
    )


def _changes(old: Statement, new: Statement, tolerance: Fraction) -> Iterator[Change]:
    for place in dict.fromkeys([*old.numbers, *new.numbers]):
        before, after = old.numbers.get(place), new.numbers.get(place)
        if before == after:
            continue
        if before is None:
            kind, is_worse = "appeared", False
        elif after is None:
            kind, is_worse = "disappeared", True
        else:
            kind = "grew" if after > before else "shrank"
            less, more = Fraction(before), Fraction(after)
            if place[2] == _MULTIPLIER:
                less, more = more * _AS_FOUND, less
            is_worse = more > less * (1 + tolerance)
        is_worse = is_worse and place[2] != _NOISE
        yield Change(*place, kind, _float(before), _float(after), is_worse)


def _assumption_changes(old: Statement, new: Statement) -> Iterator[AssumptionChange]:
    for name in dict.fromkeys([*old.assumptions, *new.assumptions]):
        was, now = old.assumptions.get(name), new.assumptions.get(name)
        if was != now:
            kind = "added" if was is None else "dropped" if now is None else "changed"
            yield AssumptionChange(name, kind, was, now, _assumes_more(was, now))


def _assumes_more(old: Assumed | None, new: Assumed | None) -> bool:
    if new is None or new.checked:
        return False
    if old is None or old.slack is None or new.slack is None:
        return True
    return old.checked or any(now < was for was, now in zip(old.slack, new.slack, strict=True))


def comparison_json(comparison: Comparison) -> str:
    """Return the document `lipcert.comparison/1` of a comparison."""
    return dump({"schema": "lipcert.comparison/1", **DOCUMENT.write(comparison)})


def comparison_document(comparison: Comparison) -> doc.Document:
    """Return a comparison as a document."""
    old, new = comparison.old, comparison.new
    tone = doc.Tone.BAD if comparison.regression else doc.Tone.GOOD
    facts = [("old", _source(old)), ("new", _source(new)), ("model", _MODELS[comparison.model])]
    counts = ", ".join(f"{count} {kind}" for kind, count in comparison.counts.items())
    verdict = "a regression" if comparison.regression else "no regression"
    answer = f"bounds: {counts}; assumptions: {len(comparison.assumptions)} changed; {verdict}"
    return doc.Document(
        "LipCert comparison",
        (doc.Answer(answer, tone),),
        sections=doc.sections_of(
            ("", doc.Statements.of(facts)),
            ("Numbers that changed", doc.tabled(_NUMBER_COLUMNS, comparison.changes)),
            (
                "Assumptions that changed",
                doc.Statements(tuple(map(_changed, comparison.assumptions))),
            ),
        ),
    )


def _source(statement: Statement) -> str:
    return f"{statement.path}, {statement.kind} of the model {statement.sha256[:12]}"


def _ends(change: Change) -> tuple[str, str]:
    """Return both numbers; with all digits, if rounding hid that they differ."""
    old, new = (NO_BOUND if x is None else at_most(x) for x in (change.old, change.new))
    return (repr(change.old), repr(change.new)) if old == new else (old, new)


def _growth(change: Change) -> str:
    if change.old and change.new is not None:
        return f"{100.0 * ((change.new - change.old) / change.old):+.3g}%"
    return change.change


def _changed(item: AssumptionChange) -> doc.Statement:
    """Return what was assumed, and what is assumed now."""
    ends = (f"{x.text}{' (checked)' * x.checked}" if x else "–" for x in (item.old, item.new))
    status = f"{item.change} (worse)" if item.regression else item.change
    tone = doc.Tone.BAD if item.regression else doc.Tone.PLAIN
    return doc.Statement(item.id, " → ".join(ends), status, tone)


_NUMBER_COLUMNS: Final = (
    doc.Column("", optional=True, cell=lambda item: "worse" * item.regression),
    doc.Column("where", least=12, most=10**6, cell=lambda x: f"{x.section} {x.name}".strip()),
    doc.Column("number", cell=lambda item: item.quantity),
    doc.Column("old", is_number=True, cell=lambda item: _ends(item)[0]),
    doc.Column("new", is_number=True, cell=lambda item: _ends(item)[1]),
    doc.Column("by", is_number=True, cell=_growth),
)


def _float(number: Number | None) -> float | None:
    return None if number is None else float(number)
