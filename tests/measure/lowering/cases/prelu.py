"""PRelu against its torch definition."""

from __future__ import annotations

import numpy as np
import torch

from lipcert.graph.operand import Operand
from tests.measure.lowering.cases.case import Case
from tests.ops import PRelu


def prelu_case(name: str, slope, shape, box=None) -> Case:
    return Case(
        name=f"prelu_{name}",
        op=PRelu(Operand(np.array(slope, dtype=float), "slope")),
        inputs=(shape,),
        reference=lambda inputs, operands: torch.where(
            inputs[0] >= 0, inputs[0], operands["slope"] * inputs[0]
        ),
        box=box,
    )


CASES = [
    prelu_case("shared", [0.25], (3, 2, 2)),
    prelu_case("per_channel", [[[0.25]], [[-1.75]], [[0.0]]], (3, 2, 2)),
    prelu_case("per_entry", [[0.5, -0.5, 2.0]], (1, 3)),
    prelu_case("bounded", [[[3.0]], [[0.5]]], (2, 2, 3), box=(-0.25, 1.0)),
    prelu_case("positive", [[[3.0]], [[0.5]]], (2, 2, 3), box=(0.125, 0.75)),
]
