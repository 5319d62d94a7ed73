"""Windows of convolutions and pools, from the attributes of their nodes."""

from __future__ import annotations

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Shape, Window


def _sizes(call: Call, name: str, rank: int, lowest: int) -> Shape:
    given = call.integers(name)
    result = (max(lowest, 0),) * rank if given is None else tuple(given)
    if len(result) != rank or min(result, default=lowest) < lowest:
        raise Unsupported(f"{name} do not fit")
    return result


def _pads(call: Call, rank: int) -> tuple[Shape, Shape]:
    given = call.integers("pads")
    pads = (0,) * (2 * rank) if given is None else tuple(given)
    if len(pads) != 2 * rank or min(pads, default=0) < 0:
        raise Unsupported("pads are negative or do not fit")
    return pads[:rank], pads[rank:]


def windows(call: Call, sizes: Shape, taps: Shape) -> tuple[Window, Shape]:
    """The windows over these sizes, and the padding at the ends that the file asks for."""
    rank = len(sizes)
    if len(taps) != rank or min(taps, default=1) < 1:
        raise Unsupported("the kernel does not fit the input")
    strides, dilations = _sizes(call, "strides", rank, 1), _sizes(call, "dilations", rank, 1)
    begin, end = _pads(call, rank)
    mode, ceil = call.text("auto_pad", "NOTSET"), call.integer("ceil_mode", 0)
    reach = [dilation * (tap - 1) + 1 for tap, dilation in zip(taps, dilations, strict=True)]
    if mode in {"SAME_UPPER", "SAME_LOWER"}:
        if call.node.op_type != "Conv" and max(dilations, default=1) > 1:
            raise Unsupported("a dilated pool with automatic padding, which has two readings")
        total = [
            (-(-size // stride) - 1) * stride + span - size
            for size, stride, span in zip(sizes, strides, reach, strict=True)
        ]
        if min(total, default=0) < -1:  # onnxruntime cuts here, before the first window too
            raise Unsupported("automatic padding where windows leave entries out has two readings")
        total = [max(item, 0) for item in total]
        small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        begin, end = (small, large) if mode == "SAME_UPPER" else (large, small)
    elif mode == "VALID":
        begin = end = (0,) * rank
    elif mode != "NOTSET":
        raise Unsupported("auto_pad is not known")
    outputs = []
    for axis, size in enumerate(sizes):
        room = size + begin[axis] + end[axis] - reach[axis]
        if room < 0:
            raise Unsupported("a window is larger than the padded input")
        count = (-(-room // strides[axis]) if ceil else room // strides[axis]) + 1
        if ceil and (count - 1) * strides[axis] >= size + begin[axis]:
            count -= 1  # it would begin in the padding at the end
        outputs.append(count)
    return Window(taps, strides, dilations, begin, tuple(outputs)), end


def adjoint_windows(call: Call, sizes: Shape, taps: Shape) -> tuple[Window, Shape]:
    """Of a ConvTranspose from these sizes: the windows of the convolution back, and its sizes."""
    rank = len(sizes)
    if len(taps) != rank:
        raise Unsupported("the kernel does not fit the input")
    strides, dilations = _sizes(call, "strides", rank, 1), _sizes(call, "dilations", rank, 1)
    extra = _sizes(call, "output_padding", rank, 0)
    begin, end = _pads(call, rank)
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
