"""Sums and concatenations."""

from __future__ import annotations

import torch

from tests.measure.lowering.cases.case import Case
from tests.ops import Add, Concat


def add(name, coefficients, shapes, **options) -> Case:
    def reference(x, constants):
        rank = max(map(len, shapes))
        terms = [
            c * y.reshape(len(y), *[1] * (rank + 1 - y.dim()), *y.shape[1:])
            for c, y in zip(coefficients, x, strict=True)
        ]
        return sum(terms[1:], terms[0])

    return Case(name, Add(coefficients), shapes, reference, **options)


def concat(name, axis, shapes, **options) -> Case:
    def reference(x, constants):
        return torch.cat(x, dim=axis + 1)

    return Case(name, Concat(axis), shapes, reference, **options)


CASES: list[Case] = [
    add("add", (1, 1), ((2, 3), (2, 3))),
    add("subtract", (1, -1), ((4,), (4,))),
    add("sum of three", (1, 1, 1), ((2, 2),) * 3),
    add("add one term", (-1,), ((3,),)),
    add("add a broadcast row", (1, -1), ((3, 4), (4,))),
    add("add outer", (1, -1), ((3, 1), (1, 4))),
    add("add in a box", (1, -1), ((3, 2), (2,)), box=(0.25, 1.0)),
    concat("concat", 0, ((2, 3), (1, 3))),
    concat("concat inner axis", 1, ((2, 1, 2), (2, 3, 2), (2, 2, 2))),
    concat("concat in a box", 0, ((2,), (3,)), box=(-0.5, 1.0)),
]
