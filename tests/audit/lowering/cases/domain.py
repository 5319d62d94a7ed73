"""Powers, exponentials and logarithms on boxes inside their domain, against torch."""

from __future__ import annotations

import torch

from lipcert.ops.activation import Activation
from lipcert.ops.functions import Exp, Exponential, Log, Power
from tests.audit.lowering.cases.case import Case


def case(function, reference, box) -> Case:
    return Case(
        name=f"{function}_{box}",
        op=Activation(function),
        inputs=((2, 3),),
        reference=lambda inputs, _: reference(inputs[0]),
        box=box,
    )


CASES = [
    case(Exp(), torch.exp, (-1.0, 2.0)),
    case(Exponential(0.5), lambda x: 0.5**x, (-2.0, 1.0)),
    case(Log(), torch.log, (0.25, 3.0)),
    case(Power(0.5), torch.sqrt, (0.25, 4.0)),
    case(Power(-1.0), torch.reciprocal, (0.5, 2.0)),
    case(Power(-2.0), lambda x: x**-2.0, (-3.0, -1.0)),
    case(Power(2.0), lambda x: x**2, (-3.0, 2.0)),
    case(Power(3.0), lambda x: x**3, (-1.0, 2.0)),
    case(Power(1.5), lambda x: x**1.5, (0.0, 2.0)),
    case(Power(0.0), lambda x: x**0, (-1.0, 2.0)),
]
