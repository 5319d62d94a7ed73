"""Rearrangements."""

from __future__ import annotations

from torch.nn import functional

from lipcert.ops.shape import Expand, Pad, PadMode, Reshape, Select, Tile, Transpose
from tests.audit.lowering.cases.case import Case

MODES = {
    PadMode.CONSTANT: "constant",
    PadMode.REFLECT: "reflect",
    PadMode.EDGE: "replicate",
    PadMode.WRAP: "circular",
}


def rearrange(name, op, shape, reference, **options) -> list[Case]:
    """The case at any inputs, and in a box."""
    on_ball = Case(name, op, (shape,), lambda x, _: reference(x[0]), **options)
    in_box = Case(f"{name} in a box", op, (shape,), lambda x, _: reference(x[0]), (-0.25, 1.0))
    return [on_ball, in_box]


def pad(name, op, shape) -> list[Case]:
    """torch pads the last axes, given last axis first; the first axis of the case is a channel."""
    widths = [w for pair in zip(op.begin[:0:-1], op.end[:0:-1], strict=True) for w in pair]
    if op.mode is PadMode.CONSTANT:
        return rearrange(name, op, shape, lambda x: functional.pad(x, widths, value=op.value))
    return rearrange(name, op, shape, lambda x: functional.pad(x, widths, mode=MODES[op.mode]))


CASES: list[Case] = [
    *rearrange("reshape", Reshape((6, 2)), (3, 4), lambda x: x.reshape(-1, 6, 2)),
    *rearrange("flatten", Reshape((8,)), (2, 2, 2), lambda x: x.flatten(1)),
    *rearrange("transpose", Transpose((2, 0, 1)), (2, 3, 4), lambda x: x.permute(0, 3, 1, 2)),
    *rearrange("slice", Select(1, (3, 1)), (2, 4), lambda x: x[:, :, [3, 1]]),
    *rearrange("gather", Select(0, (2, 0, 2, 2)), (3, 2), lambda x: x[:, [2, 0, 2, 2]]),
    *rearrange("expand", Expand((2, 3, 4)), (3, 1), lambda x: x[:, None].expand(-1, 2, 3, 4)),
    *rearrange("tile", Tile((2, 3)), (2, 2), lambda x: x.repeat(1, 2, 3)),
    *pad("pad zeros", Pad((0, 1, 2), (0, 0, 1)), (2, 2, 3)),
    *pad("pad ones", Pad((0, 1), (0, 2), PadMode.CONSTANT, -1.0), (2, 3)),
    *pad("pad reflect", Pad((0, 1, 1), (0, 1, 1), PadMode.REFLECT), (1, 4, 4)),
    *pad("pad reflect on both sides", Pad((0, 2), (0, 2), PadMode.REFLECT), (1, 3)),
    *pad("pad edge", Pad((0, 2, 0), (0, 1, 3), PadMode.EDGE), (2, 3, 2)),
    *pad("pad wrap", Pad((0, 1, 2), (0, 2, 2), PadMode.WRAP), (1, 3, 4)),
]
