"""Softmax and LogSoftmax against torch."""

from __future__ import annotations

import torch

from lipcert.ops.softmax import LogSoftmax, Softmax
from tests.cases import Case


def case(op, shape, box=None, radius=4.0, attained=()) -> Case:
    log = isinstance(op, LogSoftmax)
    function = torch.log_softmax if log else torch.softmax
    axis = op.axis + 1 if op.axis >= 0 else op.axis
    name = f"{op.kind}_{'x'.join(map(str, shape))}_axis{op.axis}_{'ball' if box is None else box}"
    return Case(
        name=name,
        op=op,
        inputs=(shape,),
        reference=lambda inputs, _: function(inputs[0], dim=axis),
        box=box,
        radius=radius,
        attained=frozenset(attained),
    )


CASES = [
    case(Softmax(-1), (2,), radius=30.0, attained=("input:0", "output")),
    case(Softmax(-1), (5,), radius=30.0, attained=("output",)),
    case(Softmax(0), (3, 2)),
    case(Softmax(1), (2, 6), box=(-0.5, 0.5), radius=9.0),
    case(Softmax(-1), (1,)),
    case(LogSoftmax(-1), (4,), radius=40.0, attained=("input:0",)),
    case(LogSoftmax(0), (3, 2)),
    case(LogSoftmax(-1), (2, 5), box=(-1.0, 0.25), radius=9.0),
    case(LogSoftmax(-1), (10,), radius=1e-4, attained=("input:0", "output")),
    case(LogSoftmax(-1), (3, 1)),
]
