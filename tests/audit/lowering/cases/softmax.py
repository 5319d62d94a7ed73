"""Softmax and LogSoftmax against torch."""

from __future__ import annotations

import torch

from lipcert.ops.softmax import LogSoftmax, Softmax
from tests.audit.lowering.cases.case import Case


def case(op, shape, box=None) -> Case:
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
    )


CASES = [
    case(Softmax(-1), (2,)),
    case(Softmax(-1), (5,)),
    case(Softmax(0), (3, 2)),
    case(Softmax(1), (2, 6), box=(-0.5, 0.5)),
    case(Softmax(-1), (1,)),
    case(LogSoftmax(-1), (4,)),
    case(LogSoftmax(0), (3, 2)),
    case(LogSoftmax(-1), (2, 5), box=(-1.0, 0.25)),
    case(LogSoftmax(-1), (10,)),
    case(LogSoftmax(-1), (3, 1)),
]
