"""What `lipcert certify` says: what was certified, and what it assumes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from lipcert.core.promise import NOT_CHECKED
from lipcert.diagnostics import Level
from lipcert.report import document as doc
from lipcert.report.document import diagnostics_told
from lipcert.report.json import diagnostic_list, dump
from lipcert.report.numbers import at_most

if TYPE_CHECKING:
    from lipcert.analysis.certificate import Issued

_NETWORK: Final = ("grad_norm", "sensitivity", "lipschitz")


def certification_document(issued: Issued, target: Path) -> doc.Document:
    """The answer first: where the certificate is, and what the checker says of it."""
    found = [item for item in issued.analysis.diagnostics if item.level is not Level.INFO]
    assumed = tuple(
        doc.Statement(
            item.id, item.text, "checked" if item.status == "checked" else "to be accepted"
        )
        for item in issued.report.assumptions
    )
    command = f"lipcert check {target} --model {issued.analysis.model.path}"
    return doc.Document(
        "LipCert certification",
        (doc.Answer(f"{target}: written, and accepted by the checker", doc.Tone.SUBJECT),),
        sections=doc.sections_of(
            doc.Section("", (doc.Statements.of(_bounds(issued)),)),
            doc.Section("Warnings", (doc.Findings(diagnostics_told(found)),)),
            doc.Section("It holds if", (doc.Statements(assumed),)),
            doc.Section("", (doc.Listing((f"Not checked: {NOT_CHECKED}.",)),)),
            doc.Section("", (doc.Commands((("", command),)),)),
        ),
    )


def _bounds(issued: Issued) -> list[tuple[str, str]]:
    network, claim = issued.certificate.network, issued.certificate.privacy
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
    """`lipcert.certification/1`."""
    network = issued.certificate.network
    return dump(
        {
            "schema": "lipcert.certification/1",
            "certificate": str(target),
            "sha256": issued.report.sha256,
            "verdict": issued.report.verdict.value,
            "open_assumptions": list(issued.report.open_assumptions),
            "network": {name: getattr(network, name) for name in _NETWORK},
            "diagnostics": diagnostic_list(issued.analysis.diagnostics),
            "costs": [],
        }
    )
