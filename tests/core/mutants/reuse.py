"""One reading, one proof and one derivation for all mutants that do not touch what enters them.

Within `reused`, `check` asks functions that remember their answers by all that enters them: what a
mutant of a claim shares with the certificate is computed once. What a verdict compares is not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lipcert.core import check, clips, spending
from lipcert.core.certificate import Certificate, PrivacyClaim
from lipcert.core.ledger import Premises
from lipcert.core.ledger.layer_clipping import BackpropClipping
from lipcert.core.ledger.run import Run
from lipcert.core.norm_evidence import Engine, Evidence
from lipcert.core.program import Program
from lipcert.core.reader.records import Model

__all__ = ["Memory", "reused"]

Key = Callable[..., Hashable]
Memory = dict[Hashable, tuple[Any, Any]]


@contextmanager
def reused(memory: Memory) -> Iterator[None]:
    """For checks of mutants of one certificate; memory: what is known, empty at first."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, key in (
            (check, "read_model", _file),
            (check, "structural_digest", _model),
            (check, "lower", _output),
            (clips, "with_clips", _clipped),
            (check, "prove", _proof),
            (check, "derive", _derivation),
            (spending, "derived_epsilon", _run),
        ):
            patch.setattr(owner, name, _remembered(getattr(owner, name), key, memory))
        yield


def _remembered(function: Callable[..., Any], key: Key, memory: Memory) -> Callable[..., Any]:
    """Arguments are kept with the answer: an object that lives keeps its id to itself."""

    def asked(*arguments: Any) -> Any:
        known = key, key(*arguments)
        if known not in memory:
            memory[known] = arguments, function(*arguments)
        return memory[known][1]

    return asked


def _file(path: Path) -> Hashable:
    return path, path.read_bytes()


def _model(model: Model) -> Hashable:
    return id(model)


def _output(model: Model, output: str) -> Hashable:
    return id(model), output


def _clipped(program: Program, clip: BackpropClipping) -> Hashable:
    return id(program), clip


def _proof(certificate: Certificate, program: Program, engine: Engine) -> Hashable:
    claims = tuple(
        (claim.value, claim.operator_norm)
        for node in certificate.nodes
        for claim in node.claims
        if claim.operator_norm is not None
    )
    return id(program), id(engine), certificate.scope, claims, certificate.runs, certificate.chains


def _derivation(program: Program, premises: Premises, evidence: Evidence) -> Hashable:
    return id(program), premises, id(evidence)


def _run(claim: PrivacyClaim, run: Run, multiplier: float, relation: str) -> Hashable:
    return claim.delta, run, multiplier, relation
