"""Dense layers."""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torch.nn.functional import linear

from lipcert.graph.operand import Operand
from tests.measure.lowering.cases.case import Case
from tests.ops import Dense

RNG = np.random.default_rng(11)


def reference(x: list[Tensor], constants: dict[str, Tensor]) -> Tensor:
    return linear(x[0], constants["weight"], constants.get("bias"))


def dense(name, out, shape, bias=True, scale=1.0, **options) -> Case:
    weight = Operand(scale * RNG.normal(size=(out, shape[-1])), "weight")
    shift = Operand(RNG.normal(size=out), "bias") if bias else None
    return Case(name, Dense(weight, shift), (shape,), reference, **options)


CASES: list[Case] = [
    dense("dense", 5, (7,)),
    dense("dense without bias", 5, (7,), bias=False),
    dense("dense one row", 1, (6,)),
    dense("dense one column", 4, (1,)),
    dense("dense zero weight", 3, (4,), scale=0.0),
    dense("dense tokens", 4, (3, 5)),
    dense("dense in a box", 5, (6,), box=(0.0, 1.0)),
    dense("dense in an offset box", 5, (6,), box=(0.75, 1.0)),
    dense("dense tokens in a box", 4, (2, 3, 5), box=(-0.25, 0.5)),
]
