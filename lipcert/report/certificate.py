"""Certificates in reports: what `lipcert certify` prints, and a certificate and its check.

"Proved" is used only for what the checker accepted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from lipcert.analysis.records import stated_values
from lipcert.core.certificate import Assumption, Certificate, read_certificate
from lipcert.core.ledger.premises import Premises
from lipcert.core.lines.steps import StepFact
from lipcert.core.text import NOT_CHECKED, texts
from lipcert.core.verdict import Report, Verdict
from lipcert.diagnostics import CODES, Level
from lipcert.privacy.account import plan_of
from lipcert.privacy.plan import TrainingPlan
from lipcert.report import document as doc
from lipcert.report.analysis import SCOPES
from lipcert.report.ci import CiReport, gate_findings, gate_sentence
from lipcert.report.document import Finding
from lipcert.report.json import dump, written
from lipcert.settings.gates import GateOutcome, GateResult, worst_of
from lipcert.text.numbers import at_most

if TYPE_CHECKING:
    from lipcert.analysis.certificate import Issued

_NETWORK: Final = ("grad_norm", "sensitivity", "lipschitz")
_ASSUMED: Final = "LC208"
_VERDICTS: Final[Mapping[str, tuple[doc.Tone, str]]] = {
    "valid": (doc.Tone.GOOD, "valid: all claims are proved"),
    "conditional": (
        doc.Tone.OPEN,
        "conditional: assumptions are neither checked nor accepted",
    ),
    "unknown": (doc.Tone.OPEN, "unknown: the checker cannot decide"),
    "invalid": (doc.Tone.BAD, "invalid: a claim does not follow"),
}
_GROUPS: Final = (
    doc.Column("group", least=16, cell=lambda group: group.name),
    doc.Column("dimension", True, cell=lambda group: f"{group.dimension:,}"),
    doc.Column("G", True, cell=lambda group: group.grad_norm),
    doc.Column("Δ", True, cell=lambda group: group.sensitivity),
    doc.Column("noise std", True, cell=lambda group: group.noise_std),
)
_VALUES: Final = (
    doc.Column("value"),
    doc.Column("op"),
    doc.Column("‖value‖", True),
    doc.Column("‖cotangent‖", True),
)


def certification_document(issued: Issued, target: Path) -> doc.Document:
    """Return the answer first: where the certificate is, and what the checker says of it."""
    found = [item for item in issued.analysis.diagnostics if item.level is not Level.INFO]
    command = f"lipcert check {target} --model {issued.model_beside(target)}"
    bounds = [*_bounds(issued.certificate), *_completed(issued, target)]
    return doc.Document(
        "LipCert certification",
        (doc.Answer(f"{target}: written, and accepted by the checker", doc.Tone.SUBJECT),),
        sections=doc.sections_of(
            ("", doc.Statements.of(bounds)),
            ("Warnings", doc.Findings.of(found)),
            ("It holds if", _ledger(issued.report.assumptions)),
            ("", doc.Listing((f"Not checked: {NOT_CHECKED}.",))),
            ("", doc.Commands((("", command),))),
        ),
    )


def _completed(issued: Issued, target: Path) -> list[tuple[str, str]]:
    if issued.completed is None:
        return []
    given, whole = issued.analysis.model.path, issued.model_beside(target)
    said = f"{whole}, written beside it: {given} with the trained biases of zeros that it lacks"
    return [("the certificate is about", said)]


def _bounds(certificate: Certificate) -> list[tuple[str, str]]:
    network, claim = certificate.network, certificate.privacy
    rows = [("no gradient bound", "what is trained is not in the file (LC009)")]
    if network.grad_norm is not None:
        rows = [
            ("gradient of one example", f"at most {at_most(network.grad_norm)}"),
            ("sensitivity of a step", f"at most {at_most(network.sensitivity)}"),
        ]
    if network.lipschitz is not None:
        rows.append(("Lipschitz constant", f"at most {at_most(network.lipschitz)}"))
    if claim is not None:
        epsilon = f"{at_most(claim.epsilon)}  ({claim.status})"
        rows.append((f"ε at δ = {float(claim.delta):g}", epsilon))
    return rows


def certification_json(issued: Issued, target: Path) -> str:
    """Return the document `lipcert.certification/1` of a certificate."""
    network = issued.certificate.network
    return dump(
        {
            "schema": "lipcert.certification/1",
            "certificate": str(target),
            "model": str(issued.model_beside(target)),
            "sha256": issued.report.sha256,
            "verdict": issued.report.verdict.value,
            "open_assumptions": list(issued.report.open_assumptions),
            "network": {name: getattr(network, name) for name in _NETWORK},
            "diagnostics": written(issued.analysis.diagnostics),
            "costs": [],
        }
    )


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """What a certificate says of its run, by the names of `Account`."""

    epsilon: float
    delta: float
    noise_multiplier: float | None
    accountant: str
    plan: TrainingPlan | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """A certificate, the digest of its file, and the run for which it states an ε."""

    certificate: Certificate
    sha256: str
    run: ClaimedRun | None

    @classmethod
    def read(cls, data: bytes) -> Claimed:
        """Read it as strictly as the checker does; `CertificateFormatError` for anything else."""
        certificate = read_certificate(data)
        return cls(certificate, hashlib.sha256(data).hexdigest(), _run(certificate))


def _run(certificate: Certificate) -> ClaimedRun | None:
    claim, premises = certificate.privacy, Premises.read(certificate.assumptions)
    if claim is None:
        return None
    run, delta = premises.run, float(claim.delta)
    said = {"delta": delta, "neighbours": premises.relation}
    plan = None if run is None else plan_of({**asdict(run), **said, "sampling": run.scheme})
    sigma = certificate.network.noise_multiplier
    return ClaimedRun(claim.epsilon, delta, sigma, claim.accountant, plan)


def certificate_document(claimed: Claimed, most: int | None, *, is_checked: bool) -> doc.Document:
    """Return what a certificate claims; tables have at most `most` rows.

    is_checked: whether its check is shown, too; without it, the certificate promises nothing yet.
    """
    certificate = claimed.certificate
    scope = SCOPES.get(certificate.scope.kind, certificate.scope.kind)
    answers = [doc.Answer(f"The claims hold for {scope}.", doc.Tone.PLAIN)]
    if not is_checked:
        text = (
            "This report does not include a check of this certificate: `lipcert check` makes one."
        )
        answers.insert(0, doc.Answer(text, doc.Tone.OPEN))
    return doc.Document(
        "LipCert certificate",
        tuple(answers),
        sections=doc.sections_of(
            ("It holds if", _ledger(certificate.assumptions)),
            ("Claims", doc.Statements.of(_bounds(certificate))),
            ("Groups", doc.tabled(_GROUPS, certificate.groups, most)),
            ("Values", doc.table(_VALUES, list(claimed_values(certificate)), most)),
        ),
        word="CLAIMED",
    )


Bounded = tuple[str, str, float | None, float | None]
"""A value, what computes it, and the bounds of its norm and its cotangent's norm."""


def claimed_values(certificate: Certificate) -> Iterator[Bounded]:
    """Yield what the lines state about values, in the order of the network."""
    norms, cotangents = stated_values(certificate)
    rules = {line.value: line.step for line in certificate.lines if isinstance(line, StepFact)}
    for value in dict.fromkeys((*rules, *cotangents)):
        yield value, rules.get(value, "input"), norms.get(value), cotangents.get(value)


@dataclass(frozen=True, slots=True)
class CheckedAssumption:
    """An assumption as `lipcert check` reports it."""

    id: str
    status: str
    text: str
    open: bool


@dataclass(frozen=True, slots=True)
class CheckStep:
    """A step of a check, and whether it found nothing."""

    name: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Check:
    """The checker's result in a document. certificate: the digest of the file that it read."""

    verdict: Literal["valid", "conditional", "unknown", "invalid"]
    certificate: str
    reasons: tuple[str, ...]
    promise: tuple[str, ...]
    assumptions: tuple[CheckedAssumption, ...]
    steps: tuple[CheckStep, ...]


def check_document(check: Check) -> doc.Document:
    """Return the verdict, what is proved, and what was done."""
    tone, headline = _VERDICTS[check.verdict]
    sentences = (f"{headline.capitalize()}.", *check.promise)
    return doc.Document(
        "LipCert check",
        tuple(doc.Answer(text, tone) for text in sentences),
        sections=doc.sections_of(
            ("Why", doc.Listing(check.reasons)),
            ("What is assumed", doc.Statements(tuple(map(_checked, check.assumptions)))),
            (
                "What was done",
                doc.Statements.of((x.name, "yes" if x.ok else "no") for x in check.steps),
            ),
        ),
        word=check.verdict.upper(),
    )


def _ledger(assumptions: Sequence[Assumption]) -> doc.Statements:
    """Return assumptions, each with how it is known."""
    said = texts(assumptions)
    items = (CheckedAssumption(x.id, x.status, said[x.id], True) for x in assumptions)
    return doc.Statements(tuple(map(_checked, items)))


def _checked(item: CheckedAssumption) -> doc.Statement:
    status, tone = "to be accepted", doc.Tone.OPEN
    if item.status == "checked" or not item.open:
        status, tone = "checked" if item.status == "checked" else "accepted", doc.Tone.GOOD
    return doc.Statement(item.id, item.text, status, tone)


def check_ci(report: Report, certificate: Path, gates: Sequence[GateResult] = ()) -> CiReport:
    """Return the report of a check for CI systems; it holds if the verdict is VALID."""
    _, headline = _VERDICTS[report.verdict.value]
    over = [gate_sentence(item) for item in gates if item.outcome is not GateOutcome.HOLDS]
    is_within = worst_of(gates) is GateOutcome.HOLDS
    return CiReport(
        verb="check",
        file=str(certificate),
        headline="; ".join([headline, *over]),
        holds=report.verdict is Verdict.VALID and is_within,
        findings=(*_findings(report), *gate_findings(gates)),
        properties={"verdict": report.verdict.value, "certificate_sha256": report.sha256},
    )


def _findings(report: Report) -> Iterator[Finding]:
    _, headline = _VERDICTS[report.verdict.value]
    found = False
    for stage in report.stages:
        for reason in stage.reasons:
            found = True
            code = stage.code if stage.code in CODES else _ASSUMED
            yield Finding(code, Level.ERROR, "stage", stage.name, reason, quantity=reason)
    for name in report.open_assumptions:
        found = True
        text = f"assumption {name} is neither checked nor accepted"
        remedy = f"check it, then --accept-assumption {name}"
        yield Finding(_ASSUMED, Level.ERROR, "assumption", name, text, remedy)
    if report.verdict is not Verdict.VALID and not found:
        yield Finding(_ASSUMED, Level.ERROR, "certificate", "", headline)
