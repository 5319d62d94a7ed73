"""Compute the windows of transposed convolutions from the attributes of their nodes."""

from lipcert.core.lower.call import Call
from lipcert.core.lower.conv_ops import pads_of, sizes_of
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Shape
from lipcert.core.window_kinds import Window


def adjoint_windows(call: Call, sizes: Shape, taps: Shape) -> tuple[Window, Shape]:
    """Return the windows of the convolution that a ConvTranspose transposes, and output sizes.

    sizes: those of the input of the ConvTranspose.
    """
    rank = len(sizes)
    if len(taps) != rank:
        raise Unsupported("the kernel does not fit the input")
    strides, dilations = sizes_of(call, "strides", rank, 1), sizes_of(call, "dilations", rank, 1)
    extra = sizes_of(call, "output_padding", rank, 0)
    begin, end = pads_of(call, rank)
    mode, wanted = call.text("auto_pad", "NOTSET"), call.integers("output_shape")
    full = [
        strides[axis] * (sizes[axis] - 1) + extra[axis] + dilations[axis] * (taps[axis] - 1) + 1
        for axis in range(rank)
    ]
    if mode == "VALID" and wanted is None:
        begin = end = (0,) * rank
    elif mode in {"SAME_UPPER", "SAME_LOWER"} or (wanted is not None and mode == "NOTSET"):
        sought = [a * b for a, b in zip(sizes, strides, strict=True)] if wanted is None else wanted
        total = [size - target for size, target in zip(full, sought, strict=True)]
        if min(total, default=0) < 0:
            raise Unsupported("the output that it asks for is larger than what it computes")
        small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        begin, end = (small, large) if mode == "SAME_UPPER" else (large, small)
    elif mode != "NOTSET":
        raise Unsupported("automatic padding of a transposed convolution; export with pads")
    if any(item >= stride for item, stride in zip(extra, strides, strict=True)):
        raise Unsupported("output_padding is not smaller than the stride")
    outputs = tuple(full[axis] - begin[axis] - end[axis] for axis in range(rank))
    if min(outputs, default=1) < 1:
        raise Unsupported("the output is empty")
    return Window(taps, strides, dilations, begin, sizes), outputs
