"""What `lipcert certify` says: what was certified, and what it assumes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lipcert.core.promise import NOT_CHECKED
from lipcert.diagnostics import Level
from lipcert.report.json import diagnostic_list, dump
from lipcert.report.numbers import at_most
from lipcert.safe import safe

if TYPE_CHECKING:
    from lipcert.issue.certify import Issued


def certification_text(issued: Issued, target: Path) -> str:
    """The answer first: where the certificate is, and what the checker says of it."""
    certificate, report = issued.certificate, issued.report
    network = certificate.network
    lines = [f"{safe(str(target))}: written, and accepted by the checker", ""]
    if network.grad_norm is not None:
        lines.append(f"  gradient of one example  at most {at_most(network.grad_norm)}")
        lines.append(f"  sensitivity of a step    at most {at_most(network.sensitivity)}")
    else:
        lines.append("  no gradient bound: what is trained is not in the file (LC009)")
    if network.lipschitz is not None:
        lines.append(f"  Lipschitz constant       at most {at_most(network.lipschitz)}")
    if certificate.privacy is not None:
        claim = certificate.privacy
        lines.append(
            f"  ε at δ = {float(claim.delta):g}           {at_most(claim.epsilon)}"
            f"  ({claim.status})"
        )
    lines += [*_warnings(issued), "", "It holds if"]
    for item in report.assumptions:
        mark = "checked" if item.status == "checked" else "to be accepted"
        lines.append(f"  {item.id:13} {safe(item.text)} ({mark})")
    lines += ["", f"Not checked: {NOT_CHECKED}.", ""]
    lines.append(f"lipcert check {safe(str(target))} --model {safe(issued.analysis.model.path)}")
    return "\n".join(lines) + "\n"


def _warnings(issued: Issued) -> list[str]:
    """What the analysis warns of, with remedies."""
    found = [item for item in issued.analysis.diagnostics if item.level is not Level.INFO]
    lines = ["", "Warnings"] if found else []
    for item in dict.fromkeys(found):
        where = f"{safe(item.node)}: " if item.node else ""
        lines.append(f"  {item.code}  {where}{safe(item.message)}")
        if item.remedy:
            lines.append(f"         remedy: {safe(item.remedy)}")
    return lines


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
            "network": {
                "grad_norm": network.grad_norm,
                "sensitivity": network.sensitivity,
                "lipschitz": network.lipschitz,
            },
            "diagnostics": diagnostic_list(issued.analysis.diagnostics),
            "costs": [],
        }
    )
