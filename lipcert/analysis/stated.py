"""Stated bounds: what the lines of a certificate say of values, for those who read it."""

from __future__ import annotations

from lipcert.core.certificate import Certificate
from lipcert.core.lines.facts import FactLine
from lipcert.core.lines.proof import LOSS
from lipcert.core.lines.pulls import PullLine

Bounds = dict[str, float]


def stated_values(certificate: Certificate) -> tuple[Bounds, Bounds]:
    """By value: the least norm that a line states, and the norm of the cotangent of the loss."""
    norms: Bounds = {}
    cotangents: Bounds = {}
    for line in certificate.lines:
        if isinstance(line, FactLine) and line.bound is not None:
            norms[line.value] = min(norms.get(line.value, line.bound), line.bound)
        elif isinstance(line, PullLine) and line.of == LOSS and line.bound is not None:
            cotangents[line.value] = line.bound
    return norms, cotangents
