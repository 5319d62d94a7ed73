"""Sums, means and centring over axes against torch."""

from __future__ import annotations

import torch

from tests.measure.lowering.cases.case import Case
from tests.ops import Centre, ReduceMean, ReduceSum


def case(kind, own, shape, box=None) -> Case:
    def reference(inputs, _):
        rank = inputs[0].dim() - 1
        axes = [axis % rank + 1 for axis in own]
        reduce = inputs[0].sum if kind is ReduceSum else inputs[0].mean
        return reduce(dim=axes, keepdim=True)

    return Case(
        name=f"{kind.__name__}_{'x'.join(map(str, shape))}_{own}_{box is not None}",
        op=kind(own),
        inputs=(shape,),
        reference=reference,
        box=box,
    )


def centre(axes, shape, box=None) -> Case:
    def reference(inputs, _):
        (x,) = inputs
        moved = x.movedim([axis + 1 for axis in axes], list(range(-len(axes), 0)))
        flat = moved.flatten(-len(axes))
        count = flat.shape[-1]
        ones = torch.ones(count, count, dtype=x.dtype)
        centred = (flat - flat @ ones / count).reshape(moved.shape)
        return centred.movedim(list(range(-len(axes), 0)), [axis + 1 for axis in axes])

    return Case(
        name=f"centre_{'x'.join(map(str, shape))}_{axes}_{box}",
        op=Centre(axes),
        inputs=(shape,),
        reference=reference,
        box=box,
    )


CASES = [
    case(ReduceSum, (1, 2), (3, 2, 4)),
    case(ReduceSum, (1,), (3, 5), box=(-0.5, 1.0)),
    case(ReduceMean, (0,), (6, 2)),
    case(ReduceMean, (1, 2), (3, 2, 2), box=(0.25, 0.75)),
    centre((0,), (6,)),
    centre((0, 2), (2, 3, 2), box=(0.25, 0.75)),
    centre((1,), (3, 4), box=(-0.5, 1.0)),
    centre((1,), (3, 1)),
]
