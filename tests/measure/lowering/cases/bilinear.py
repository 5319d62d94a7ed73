"""Products of two values."""

from __future__ import annotations

from tests.measure.lowering.cases.case import Case
from tests.ops import MatMul, Multiply


def ranked(x):
    rank = max(y.dim() for y in x)
    return [y.reshape(len(y), *[1] * (rank - y.dim()), *y.shape[1:]) for y in x]


def multiply(name, shapes, **options) -> Case:
    def reference(x, constants):
        a, b = ranked(x)
        return a * b

    return Case(name, Multiply(), shapes, reference, **options)


def matmul(name, shapes, **options) -> Case:
    def reference(x, constants):
        a, b = ranked(x)
        return a @ b

    return Case(name, MatMul(), shapes, reference, **options)


CASES: list[Case] = [
    multiply("multiply", ((5,), (5,))),
    multiply("multiply in a box", ((2, 3), (2, 3)), box=(-0.5, 1.0)),
    multiply("multiply by a channel gate", ((3, 2, 2), (3, 1, 1)), box=(0.0, 1.0)),
    multiply("multiply by a row", ((3, 4), (4,))),
    multiply("multiply outer", ((3, 1), (4,))),
    matmul("matmul", ((2, 3), (3, 4))),
    matmul("matmul in a box", ((2, 3), (3, 2)), box=(-0.25, 1.0)),
    matmul("matmul heads", ((2, 3, 2), (2, 2, 4))),
    matmul("matmul shared left", ((3, 2), (2, 2, 4)), box=(0.0, 0.5)),
    matmul("matmul shared right", ((2, 3, 2), (2, 4))),
    matmul("matmul outer batches", ((2, 1, 2, 2), (1, 3, 2, 2))),
]
