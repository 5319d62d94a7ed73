"""Unexplained: bounds of an analysis that are absent though all they follow from are there.

What enters: the records of an analysis and the findings so far. What leaves: a diagnostic for every
absent gradient norm, sensitivity, noise or Lipschitz constant of which none speaks yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lipcert.analysis.absence import Why
from lipcert.analysis.records import GroupReport, NetworkReport, ParameterReport
from lipcert.diagnostics import Diagnostic, Level

_OVERFLOW: Final = "exceeds the range of float64, though every bound that it is made of is finite"
_REMEDY: Final = (
    "declare a smaller input domain or constraints, or clip: --mechanism gradient-clipping"
)


def unexplained(
    parameters: Sequence[ParameterReport],
    groups: Sequence[GroupReport],
    network: NetworkReport,
    lipschitz: Why,
    found: Sequence[Diagnostic],
) -> Iterator[Diagnostic]:
    """What is still to be said of absent numbers. lipschitz: why there may be no constant."""
    if network.lipschitz is None and not any(item.code in {"LC101", "LC107"} for item in found):
        message = f"the network has no finite Lipschitz constant: {lipschitz.reason}"
        yield Diagnostic("LC101", Level.WARNING, "", message, lipschitz.remedy)
    missing = {item.name for item in parameters if item.grad_norm is None}
    for parameter in parameters:
        if parameter.group is not None and _is_lost(parameter.grad_norm, parameter.sensitivity):
            yield _overflow(f"parameter {parameter.name!r}: the sensitivity")
    for group in groups:
        if group.grad_norm is None and missing.isdisjoint(group.parameters):
            yield _overflow(f"group {group.name!r}: the joint gradient norm")
        if _is_lost(group.grad_norm, group.sensitivity):
            yield _overflow(f"group {group.name!r}: the sensitivity")
    if network.grad_norm is None and all(item.grad_norm is not None for item in groups):
        yield _overflow("network: the joint gradient norm")
    if any(item.sensitivity is None for item in groups):
        return
    if network.sensitivity is None:
        yield _overflow("network: the joint sensitivity")
    if any(item.noise_std is None for item in groups):
        yield _overflow("network: the noise, or its energy,")


def _is_lost(before: float | None, after: float | None) -> bool:
    return before is not None and after is None


def _overflow(what: str) -> Diagnostic:
    return Diagnostic("LC102", Level.WARNING, "", f"{what} {_OVERFLOW}", _REMEDY)
