"""Softmax and LogSoftmax against torch."""

from __future__ import annotations

import torch

from tests.measure.lowering.cases.case import Case
from tests.ops import LogSoftmax, Softmax


def case(kind, axis, shape, box=None) -> Case:
    function = torch.log_softmax if kind is LogSoftmax else torch.softmax
    where = f"{'x'.join(map(str, shape))}_axis{axis}_{'ball' if box is None else box}"
    return Case(
        name=f"{kind.__name__}_{where}",
        op=kind(axis),
        inputs=(shape,),
        reference=lambda inputs, _: function(inputs[0], dim=axis + 1 if axis >= 0 else axis),
        box=box,
    )


CASES = [
    case(Softmax, -1, (2,)),
    case(Softmax, -1, (5,)),
    case(Softmax, 0, (3, 2)),
    case(Softmax, 1, (2, 6), box=(-0.5, 0.5)),
    case(Softmax, -1, (1,)),
    case(LogSoftmax, -1, (4,)),
    case(LogSoftmax, 0, (3, 2)),
    case(LogSoftmax, -1, (2, 5), box=(-1.0, 0.25)),
    case(LogSoftmax, -1, (10,)),
    case(LogSoftmax, -1, (3, 1)),
]
