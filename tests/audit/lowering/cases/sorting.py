"""Sorting."""

from __future__ import annotations

from lipcert.ops.shape import Sort
from tests.audit.lowering.cases.case import Case


def sort(name, axis, descending, shape, **options) -> Case:
    return Case(
        name,
        Sort(axis, descending),
        (shape,),
        lambda x, _: x[0].sort(dim=axis + 1, descending=descending).values,
        **options,
    )


CASES: list[Case] = [
    sort("sort", 0, False, (6,)),
    sort("sort descending", 1, True, (2, 4, 3)),
    sort("sort in a box", 1, False, (3, 4), box=(-0.5, 1.0)),
    sort("sort of one", 0, True, (1, 3)),
]
