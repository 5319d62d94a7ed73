"""Elementwise maps by a tensor."""

from __future__ import annotations

import numpy as np

from lipcert.graph.operand import Operand
from tests.measure.lowering.cases.case import Case
from tests.ops import Divide, Scale, Shift

RNG = np.random.default_rng(13)


def scale(name, operand, shape, **options) -> Case:
    op = Scale(Operand(operand, "scale"))
    return Case(name, op, (shape,), lambda x, c: x[0] * c["scale"], **options)


def affine(name, factor, term, shape) -> Case:
    op = Scale(Operand(factor, "scale"), Operand(term, "bias"))
    return Case(name, op, (shape,), lambda x, c: x[0] * c["scale"] + c["bias"])


def divide(name, operand, shape, **options) -> Case:
    op = Divide(Operand(operand, "divisor"))
    return Case(name, op, (shape,), lambda x, c: x[0] / c["divisor"], **options)


def shift(name, operand, shape, **options) -> Case:
    op = Shift(Operand(operand, "bias"))
    return Case(name, op, (shape,), lambda x, c: x[0] + c["bias"], **options)


AWAY_FROM_ZERO = np.array([[-0.5], [2.0], [0.75]])

CASES: list[Case] = [
    scale("scale by channel", RNG.normal(size=(3, 1, 1)), (3, 2, 4)),
    scale("scale by entry", RNG.normal(size=(2, 3)), (2, 3)),
    scale("scale by one number", np.array(-1.5), (2, 3)),
    scale("scale the last axis", RNG.normal(size=4), (3, 4)),
    scale("scale in a box", RNG.normal(size=(3, 1)), (3, 4), box=(-0.5, 1.0)),
    scale("scale by zero", np.zeros((3, 1)), (3, 2)),
    affine("affine by channel", *RNG.normal(size=(2, 3, 1, 1)), (3, 2, 4)),
    affine("affine of rows", RNG.normal(size=4), RNG.normal(size=(3, 1)), (3, 4)),
    divide("divide by channel", AWAY_FROM_ZERO, (3, 4)),
    divide("divide in a box", AWAY_FROM_ZERO, (3, 4), box=(0.0, 1.0)),
    divide("divide by one number", np.array(0.1), (5,)),
    shift("shift by channel", RNG.normal(size=(3, 1, 1)), (3, 4, 2)),
    shift("shift by entry", RNG.normal(size=(2, 3)), (2, 3)),
    shift("shift in a box", RNG.normal(size=(1, 4)), (3, 4), box=(0.0, 1.0)),
]
