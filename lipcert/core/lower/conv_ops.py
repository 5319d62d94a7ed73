"""Lower convolutions with constant kernels; compute the windows of convolutions and pools."""

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import Data, Value
from lipcert.core.program import Operand, Shape
from lipcert.core.window_kinds import Conv, Window


def images(call: Call) -> Data:
    """Return the first input: examples on axis 0, channels on axis 1, then positions."""
    value = call.data()
    if len(value.shape) < 2 or (value.place is not None and value.place.axis != 0):
        raise Unsupported("the batch does not lie on axis 0")
    return value


def norm_order(call: Call) -> int:
    """Return the p of a pool, which must be 1 or 2."""
    p = call.integer("p", 2)
    if p not in {1, 2}:
        raise Unsupported("only the norms 1 and 2 are supported")
    return p


def conv(call: Call) -> Value:
    """Lower Conv and ConvTranspose, for one image or several of each example."""
    value, weight = images(call), call.constant(1)
    transposed = call.node.op_type == "ConvTranspose"
    groups = call.integer("group", 1)
    channels, sizes, taps = value.shape[1], value.shape[2:], weight.shape[2:]
    declared = call.integers("kernel_shape")
    if declared is not None and tuple(declared) != taps:
        raise Unsupported("kernel_shape contradicts the weight")
    if len(sizes) == 0 or weight.place is not None:
        raise Unsupported("a convolution without positions, or with a kernel for each example")
    if transposed:
        from lipcert.core.lower.adjoint_windows import adjoint_windows  # noqa: PLC0415

        window, spatial = adjoint_windows(call, sizes, taps)
        inputs, outputs = weight.shape[0], weight.shape[1] * groups
    else:
        window, _ = windows(call, sizes, taps)
        spatial, inputs, outputs = window.outputs, weight.shape[1] * groups, weight.shape[0]
    if inputs != channels or groups < 1 or weight.shape[0] % groups:
        raise Unsupported("the weight does not fit the channels")
    bias: Operand | None = None
    if call.has(2):
        bias = call.constant(2).operand(1)
        if bias.shape != (outputs,):
            raise Unsupported("the bias does not fit the channels")
    op = Conv(weight.operand(len(weight.shape)), bias, window, groups, transposed)
    if value.shape[0] == 1:
        return call.step(op, value, shape=(1, outputs, *spatial), place=value.place)
    from lipcert.core.lower.stacks import of_several_images  # noqa: PLC0415  for such alone

    return of_several_images(call, op, value, weight, (outputs, *spatial))


def sizes_of(call: Call, name: str, rank: int, lowest: int) -> Shape:
    """Return an attribute that has one number for each axis."""
    given = call.integers(name)
    result = (max(lowest, 0),) * rank if given is None else tuple(given)
    if len(result) != rank or min(result, default=lowest) < lowest:
        raise Unsupported(f"{name} do not fit")
    return result


def pads_of(call: Call, rank: int) -> tuple[Shape, Shape]:
    """Return the padding before and behind each axis."""
    given = call.integers("pads")
    pads = (0,) * (2 * rank) if given is None else tuple(given)
    if len(pads) != 2 * rank or min(pads, default=0) < 0:
        raise Unsupported("pads are negative or do not fit")
    return pads[:rank], pads[rank:]


def windows(call: Call, sizes: Shape, taps: Shape) -> tuple[Window, Shape]:
    """Return the windows over these sizes, and the padding at the ends that the file states."""
    rank = len(sizes)
    if len(taps) != rank or min(taps, default=1) < 1:
        raise Unsupported("the kernel does not fit the input")
    strides, dilations = sizes_of(call, "strides", rank, 1), sizes_of(call, "dilations", rank, 1)
    begin, end = pads_of(call, rank)
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
