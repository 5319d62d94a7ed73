"""Lower pools over windows."""

from dataclasses import replace

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.conv_ops import images, norm_order, windows
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.moves import indices, moved
from lipcert.core.lower.values import Data, Value, check_size
from lipcert.core.program import Op, Shape
from lipcert.core.window_kinds import AveragePool, LpPool, MaxPool, Window


def pool(call: Call) -> Value:
    """Lower a pool over windows of each channel."""
    value = images(call)
    sizes = value.shape[2:]
    window, end = windows(call, sizes, tuple(call.integers("kernel_shape") or ()))
    _check_covered(window, sizes)
    op: Op
    match call.node.op_type:
        case "MaxPool":
            call.integer("storage_order", 0)
            op = MaxPool(window)
        case "AveragePool":
            counts = bool(call.integer("count_include_pad", 0))
            if counts and not _ends_within(window, sizes, end):
                value, window = _padded(call, value, window, end)
                counts = False
            op = AveragePool(window, counts)
        case _:
            op = LpPool(window, norm_order(call))
    return call.step(op, value, shape=(*value.shape[:2], *window.outputs), place=value.place)


def _padded(call: Call, value: Data, window: Window, end: Shape) -> tuple[Data, Window]:
    """Return the value with its padding as zeros, so that only entries beyond that do not count."""
    widths = [(0, 0), (0, 0), *zip(window.before, end, strict=True)]
    check_size(tuple(size + sum(pad) for size, pad in zip(value.shape, widths, strict=True)))
    index = np.pad(indices(value.shape), widths, constant_values=-1)
    return moved(call, value, index, value.place), replace(window, before=(0,) * len(end))


def _check_covered(window: Window, sizes: Shape) -> None:
    """Refuse a pool with a window that lies entirely in the padding."""
    for axis, size in enumerate(sizes):
        check_size((window.outputs[axis], window.taps[axis]))
        if (window.reads(axis, size) < 0).all(axis=1).any():
            raise Unsupported("a window has no position inside of the input")


def _ends_within(window: Window, sizes: Shape, end: Shape) -> bool:
    """Whether no window reaches beyond the padding at the end."""
    return all(
        (window.outputs[axis] - 1) * window.strides[axis]
        + (window.taps[axis] - 1) * window.dilations[axis]
        - window.before[axis]
        < size + end[axis]
        for axis, size in enumerate(sizes)
    )
