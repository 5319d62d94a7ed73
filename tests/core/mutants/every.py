"""All mutants of a case."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.core.mutants.assumptions import assumption_mutants, premise_mutants
from tests.core.mutants.claims import claim_mutants
from tests.core.mutants.files import file_mutants
from tests.core.mutants.networks import Case
from tests.core.mutants.record import Mutant
from tests.core.mutants.structure import structure_mutants
from tests.core.mutants.text import byte_mutants, member_mutants
from tests.core.mutants.witnesses import witness_mutants

__all__ = ["certificate_mutants", "every_mutant"]


def every_mutant(case: Case, folder: Path) -> Iterator[Mutant]:
    """Of the certificate, and of the model file."""
    yield from certificate_mutants(case)
    yield from file_mutants(case, folder)


def certificate_mutants(case: Case) -> Iterator[Mutant]:
    """Claims, structure, assumptions, witnesses, text."""
    yield from claim_mutants(case)
    yield from structure_mutants(case)
    yield from premise_mutants(case)
    yield from assumption_mutants(case)
    yield from witness_mutants(case)
    yield from byte_mutants(case)
    yield from member_mutants(case)
