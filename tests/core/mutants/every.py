"""All mutants of a case."""

import itertools
import random
from typing import Protocol, TypeVar

from tests.core.mutants.assumptions import assumption_mutants, premise_mutants
from tests.core.mutants.claims import claim_mutants
from tests.core.mutants.files import file_mutants
from tests.core.mutants.lines import bound_mutants, line_mutants
from tests.core.mutants.structure import structure_mutants
from tests.core.mutants.text import member_mutants
from tests.core.mutants.witnesses import witness_mutants


class _Kind(Protocol):
    @property
    def kind(self) -> str: ...


KindT = TypeVar("KindT", bound=_Kind)


def spread(items, most: int, seed: object) -> list[KindT]:
    """So many: by turns one of each kind, which are drawn by the seed."""
    kinds: dict[str, list[KindT]] = {}
    for item in items:
        kinds.setdefault(item.kind, []).append(item)
    rng = random.Random(f"{seed}")
    rows = [rng.sample(row, len(row)) for row in kinds.values()]
    rng.shuffle(rows)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*rows))
    return list(itertools.islice((item for item in turns if item is not None), most))


def every_mutant(case, folder):
    """Of the certificate, and of the model file."""
    yield from certificate_mutants(case)
    yield from file_mutants(case, folder)


def certificate_mutants(case):
    """Claims, lines, structure, assumptions, witnesses, text."""
    yield from claim_mutants(case)
    yield from bound_mutants(case)
    yield from line_mutants(case)
    yield from structure_mutants(case)
    yield from premise_mutants(case)
    yield from assumption_mutants(case)
    yield from witness_mutants(case)
    yield from member_mutants(case)
