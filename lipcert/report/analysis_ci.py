"""An analysis as test cases and findings, for JUnit, SARIF and GitHub.

What enters: an analysis. What leaves: a `CiReport` with a case for the whole network and one for
each group and node. Invariant: what has no bound is an error, never a pass: it was not decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from lipcert.analysis.records import Analysis, GroupReport, NodeReport
from lipcert.diagnostics import Level
from lipcert.report.ci import Case, CiReport, Finding, Outcome, by_level
from lipcert.report.statements import promise

_NO_NODE: Final = "LC101"
_NO_GROUP: Final = "LC102"


def analysis_ci(analysis: Analysis) -> CiReport:
    """What CI systems show of an analysis."""
    holds = analysis.network.grad_norm is not None
    findings = [Finding.of(diagnostic) for diagnostic in analysis.diagnostics]
    if not holds and not any(finding.level is Level.ERROR for finding in findings):
        findings.append(Finding(_NO_GROUP, Level.ERROR, "model", "", promise(analysis)))
    return CiReport(
        verb="analyze",
        file=analysis.model.path,
        headline=promise(analysis),
        holds=holds,
        findings=by_level(findings),
        cases=(_network(analysis, holds), *_groups(analysis), *_nodes(analysis.nodes)),
        properties={
            "model_sha256": analysis.model.sha256,
            "scope": analysis.assumptions.scope,
            "loss": str(analysis.assumptions.loss.get("kind", "")),
            "grad_norm": repr(analysis.network.grad_norm),
            "sensitivity": repr(analysis.network.sensitivity),
        },
    )


def _network(analysis: Analysis, holds: bool) -> Case:
    if holds:
        return Case("network", "gradient bound", Outcome.PASSED)
    return Case("network", "gradient bound", Outcome.ERROR, promise(analysis), _NO_GROUP)


def _groups(analysis: Analysis) -> Iterator[Case]:
    bounds = {item.name: item.grad_norm for item in analysis.parameters}
    for group in analysis.groups:
        if group.grad_norm is not None:
            yield Case("groups", group.name, Outcome.PASSED)
        else:
            text = _missing(group, bounds)
            yield Case("groups", group.name, Outcome.ERROR, text, _NO_GROUP)


def _missing(group: GroupReport, bounds: Mapping[str, float | None]) -> str:
    lost = [name for name in group.parameters if bounds.get(name) is None]
    return f"no gradient bound of {', '.join(lost) or group.name}"


def _nodes(nodes: tuple[NodeReport, ...]) -> Iterator[Case]:
    for node in nodes:
        if node.output_norm is not None and node.cotangent_norm is not None:
            yield Case("nodes", node.name, Outcome.PASSED)
        elif node.reason:
            yield Case("nodes", node.name, Outcome.ERROR, node.reason, _NO_NODE)
        else:
            text = "no bound here, because of another node"
            yield Case("nodes", node.name, Outcome.SKIPPED, text, _NO_NODE)
