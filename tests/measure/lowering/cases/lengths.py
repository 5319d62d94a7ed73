"""Norms over axes, division by them, quotients, log-sum-exp and LRN against torch."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.measure.lowering.cases.case import Case
from tests.ops import DivideByNorm, Lrn, Quotient, ReduceLogSumExp, ReduceNorm


def norm(p, axes, shape, box=None) -> Case:
    def reference(inputs, _):
        return torch.linalg.vector_norm(inputs[0], p, dim=[axis + 1 for axis in axes], keepdim=True)

    return Case(
        name=f"reduce_l{p}_{axes}_{box}",
        op=ReduceNorm(p, axes),
        inputs=(shape,),
        reference=reference,
        box=box,
    )


def divide_by_norm(axes, radius, floor, shape, box=None) -> Case:
    def reference(inputs, _):
        (x,) = inputs
        norms = torch.linalg.vector_norm(x, dim=[axis + 1 for axis in axes], keepdim=True)
        return x * torch.minimum(radius / norms, torch.full_like(norms, 1 / floor))

    return Case(
        name=f"divide_by_norm_{axes}_{radius}_{floor}_{box}",
        op=DivideByNorm(axes, radius, floor),
        inputs=(shape,),
        reference=reference,
        box=box,
    )


def log_sum_exp(axes, shape) -> Case:
    def reference(inputs, _):
        return torch.logsumexp(inputs[0], [axis + 1 for axis in axes], keepdim=True)

    return Case(
        name=f"log_sum_exp_{axes}",
        op=ReduceLogSumExp(axes),
        inputs=(shape,),
        reference=reference,
    )


def quotient(shapes, box) -> Case:
    def reference(inputs, _):
        a, b = inputs
        rank = max(a.dim(), b.dim())
        a, b = (x.reshape(len(x), *[1] * (rank - x.dim()), *x.shape[1:]) for x in (a, b))
        return a / b

    return Case(
        name=f"quotient_{shapes}_{box}",
        op=Quotient(),
        inputs=shapes,
        reference=reference,
        box=box,
    )


def lrn(size, strength, power, bias, shape) -> Case:
    def reference(inputs, _):
        (x,) = inputs
        around = (size - 1) // 2
        squares = functional.pad((x**2).movedim(1, -1), (around, around))
        local = squares.unfold(-1, size, 1).sum(-1).movedim(-1, 1)
        return x / (bias + strength / size * local) ** power

    op = Lrn(size, strength, power, bias)
    return Case(name=f"lrn_{size}_{shape}", op=op, inputs=(shape,), reference=reference)


CASES = [
    norm(2, (0, 1), (3, 4)),
    norm(2, (1,), (3, 4), box=(0.25, 1.0)),
    norm(1, (1,), (3, 4)),
    norm(1, (0,), (3, 2), box=(-1.0, 0.5)),
    divide_by_norm((0,), 1.0, 0.5, (5,)),
    divide_by_norm((1,), 3.0, 0.5, (3, 4)),
    divide_by_norm((0, 2), 0.7, 1.0, (2, 3, 2)),
    divide_by_norm((1,), 2.0, 0.1, (2, 4), box=(0.0, 1.0)),
    log_sum_exp((0,), (5,)),
    log_sum_exp((0, 1), (2, 3)),
    quotient(((2, 3), (2, 3)), (0.5, 2.0)),
    quotient(((2, 3), (3,)), (-3.0, -1.0)),
    quotient(((3,), (2, 1)), (0.25, 1.0)),
    lrn(3, 2.0, 0.75, 1.0, (5, 2)),
    lrn(1, 0.5, 2.0, 0.5, (6,)),
    lrn(5, 1e-4, 0.75, 2.0, (3, 2, 2)),
]
