"""Sorting."""

from __future__ import annotations

from tests.measure.lowering.cases.case import Case
from tests.ops import Sort


def sort(name, axis, shape, **options) -> Case:
    return Case(name, Sort(axis), (shape,), lambda x, _: x[0].sort(dim=axis + 1).values, **options)


CASES: list[Case] = [
    sort("sort", 0, (6,)),
    sort("sort an axis in the middle", 1, (2, 4, 3)),
    sort("sort pairs", 1, (3, 2)),
    sort("sort in a box", 1, (3, 4), box=(-0.5, 1.0)),
    sort("sort of one", 0, (1, 3)),
]
