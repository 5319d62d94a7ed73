"""Sums and means over axes against torch."""

from __future__ import annotations

from lipcert.ops.reduction import ReduceMean, ReduceSum
from tests.cases import Case


def case(op, shape, box=None) -> Case:
    def reference(inputs, _):
        rank = inputs[0].dim() - 1
        axes = [axis % rank + 1 for axis in op.axes]
        reduce = inputs[0].sum if isinstance(op, ReduceSum) else inputs[0].mean
        return reduce(dim=axes, keepdim=op.keepdims)

    return Case(
        name=f"{op.kind}_{'x'.join(map(str, shape))}_{op.axes}_{op.keepdims}_{box is not None}",
        op=op,
        inputs=(shape,),
        reference=reference,
        box=box,
        radius=2.0 if box is None else 9.0,
        attained=frozenset({"output", "input:0"}),
    )


CASES = [
    case(ReduceSum((1, 2)), (3, 2, 4)),
    case(ReduceSum((-1,), keepdims=True), (3, 5), box=(-0.5, 1.0)),
    case(ReduceMean((0,)), (6, 2)),
    case(ReduceMean((-2, -1), keepdims=True), (3, 2, 2), box=(0.25, 0.75)),
]
