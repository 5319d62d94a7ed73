"""ONNX nodes in torch at double precision, by the words of the ONNX operators: an oracle.

It shares no code with the importer or the checker, and knows no step but nodes.
"""

import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F
from onnx import ModelProto, NodeProto, helper, numpy_helper

Tensor = torch.Tensor


def stored(proto: ModelProto) -> dict[str, Tensor]:
    """The initializers; floats as double."""
    found = {}
    for item in proto.graph.initializer:
        found[item.name] = _floating(torch.from_numpy(numpy_helper.to_array(item).copy()))
    return found


def _floating(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def compute(proto: ModelProto, x: Tensor, tensors) -> dict[str, Tensor]:
    """Every value of a graph."""
    values = {**tensors, proto.graph.input[0].name: x}
    for node in proto.graph.node:
        values.update(zip(node.output, apply(node, values), strict=False))
    return values


def apply(node: NodeProto, values) -> tuple[Tensor, ...]:
    """The outputs of one node."""
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    inputs = [values[name] if name else None for name in node.input]
    found = OPS[node.op_type](attributes, *inputs)
    return found if isinstance(found, tuple) else (found,)


def patches(x: Tensor, taps: list[int], a, fill: float) -> tuple[Tensor, Tensor, list[int]]:
    """[N, C, *outputs, taps]; which of them read the input; how many outputs each axis has."""
    sizes, rank = list(x.shape[2:]), len(taps)
    strides, dilations = a.get("strides", [1] * rank), a.get("dilations", [1] * rank)
    pads = a.get("pads", [0] * (2 * rank))
    indices, inside, outputs = [], [], []
    for i, size in enumerate(sizes):
        room = size + pads[i] + pads[rank + i] - dilations[i] * (taps[i] - 1) - 1
        count = room // strides[i] + 1
        if a.get("ceil_mode", 0):
            count = -(-room // strides[i]) + 1
            count -= (count - 1) * strides[i] >= size + pads[i]
        at = torch.arange(count)[:, None] * strides[i] - pads[i]
        at = at + torch.arange(taps[i]) * dilations[i]
        indices.append(at.clamp(0, size - 1))
        inside.append((at >= 0) & (at < size))
        outputs.append(count)
    y, mask = x, torch.ones((1, 1, *sizes), dtype=torch.bool)
    for i in range(rank):  # each axis becomes (outputs, taps), the taps moved to the end
        y = y[(slice(None),) * (2 + i) + (indices[i],)].movedim(3 + i, -1)
        mask = mask[(slice(None),) * (2 + i) + (indices[i],)].movedim(3 + i, -1)
        shape = [1] * mask.ndim
        shape[2 + i], shape[-1] = inside[i].shape
        mask = mask & inside[i].reshape(shape)
    y = torch.where(mask, y, torch.full((), fill, dtype=y.dtype))
    return y.flatten(-rank), mask.expand(1, 1, *mask.shape[2:]).flatten(-rank), outputs


def _conv(a, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    groups, taps = a.get("group", 1), list(w.shape[2:])
    found, _, outputs = patches(x, taps, a, 0.0)
    parts = found.reshape(len(x), groups, -1, *outputs, math.prod(taps))
    kernel = w.reshape(groups, -1, w.shape[1], math.prod(taps))
    spots = "uvw"[: len(outputs)]
    y = torch.einsum(f"ngi{spots}t,goit->ngo{spots}", parts, kernel)
    y = y.reshape(len(x), -1, *outputs)
    return y if b is None else y + _channels(b, y)


def _conv_transpose(a, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    rank = w.ndim - 2
    f = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    strides, dilations = a.get("strides", [1] * rank), a.get("dilations", [1] * rank)
    full = f(x, w, None, strides, 0, 0, a.get("group", 1), dilations)
    pads, more = a.get("pads", [0] * (2 * rank)), a.get("output_padding", [0] * rank)
    edges = [(-pads[i], more[i] - pads[rank + i]) for i in reversed(range(rank))]
    y = F.pad(full, list(itertools.chain(*edges)))
    return y if b is None else y + _channels(b, y)


def _attention(a, *tokens: Tensor) -> Tensor:
    """Of [N, tokens, features], without a mask."""
    q, k, v = (x.unflatten(2, (a["q_num_heads"], -1)).transpose(1, 2) for x in tokens)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _channels(vector: Tensor, like: Tensor) -> Tensor:
    return vector.reshape(1, -1, *[1] * (like.ndim - 2))


def _gemm(a, x: Tensor, w: Tensor, c: Tensor | None = None) -> Tensor:
    left = x.T if a.get("transA") else x
    right = w.T if a.get("transB") else w
    y = a.get("alpha", 1.0) * (left @ right)
    return y if c is None else y + a.get("beta", 1.0) * c


def _batch_norm(
    a, x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    inverse = 1.0 / torch.sqrt(variance + a.get("epsilon", 1e-5))
    moved = (x - _channels(mean, x)) * _channels(inverse, x)
    return moved * _channels(scale, x) + _channels(shift, x)


def _layer_norm(a, x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
    y = _standard(x, list(range(a.get("axis", -1) % x.ndim, x.ndim)), a.get("epsilon", 1e-5))
    return y * scale if shift is None else y * scale + shift


def _standard(x: Tensor, axes: list[int], epsilon: float) -> Tensor:
    moved = x - x.mean(axes, keepdim=True)
    return moved / torch.sqrt((moved**2).mean(axes, keepdim=True) + epsilon)


def _instance_norm(a, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    y = _standard(x, list(range(2, x.ndim)), a.get("epsilon", 1e-5))
    return y * _channels(scale, x) + _channels(shift, x)


def _group_norm(a, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    blocks = x.reshape(len(x), a["num_groups"], -1)
    y = _standard(blocks, [2], a.get("epsilon", 1e-5)).reshape(x.shape)
    return y * _channels(scale, x) + _channels(shift, x)


def _max_pool(a, x: Tensor) -> Tensor:
    return patches(x, a["kernel_shape"], a, -math.inf)[0].amax(-1)


def _average_pool(a, x: Tensor) -> Tensor:
    found, inside, _ = patches(x, a["kernel_shape"], a, 0.0)
    if a.get("count_include_pad", 0):
        return found.sum(-1) / math.prod(a["kernel_shape"])
    return found.sum(-1) / inside.sum(-1)


def _lp_pool(a, x: Tensor) -> Tensor:
    return _length(patches(x, a["kernel_shape"], a, 0.0)[0], [-1], a.get("p", 2), keep=False)


def _length(x: Tensor, axes: list[int], p: int, *, keep: bool) -> Tensor:
    if p == 1:
        return x.abs().sum(axes, keepdim=keep)
    return torch.linalg.vector_norm(x, 2, axes, keepdim=keep)


def _reduced(function):
    def reduce(a, x: Tensor, axes: Tensor | None = None) -> Tensor:
        everything = a.get("axes", list(range(x.ndim)))
        chosen = everything if axes is None else axes.tolist()
        return function(x, chosen, bool(a.get("keepdims", 1)))

    return reduce


def _pad(a, x: Tensor, pads: Tensor, number: Tensor | None = None) -> Tensor:
    mode = a.get("mode", b"constant").decode()
    count = x.ndim
    for axis in range(count):
        before, after, size = int(pads[axis]), int(pads[count + axis]), x.shape[axis]
        at = torch.arange(-before, size + after)
        outside = (at < 0) | (at >= size)
        if mode == "reflect":
            at = (size - 1) - ((size - 1) - at.abs()).abs()
        elif mode == "wrap":
            at %= size
        x = x.index_select(axis, at.clamp(0, size - 1))
        if mode == "constant":
            shape = [-1 if i == axis else 1 for i in range(count)]
            fill = torch.zeros((), dtype=x.dtype) if number is None else number.reshape(())
            x = torch.where(outside.reshape(shape), fill, x)
    return x


def _slice(a, x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor, steps: Tensor) -> Tensor:
    del a
    for start, end, axis, step in zip(
        *map(Tensor.tolist, (starts, ends, axes, steps)), strict=True
    ):
        x = (
            x.index_select(axis, torch.arange(x.shape[axis])[start:end:step])
            if step > 0
            else (x.index_select(axis, torch.tensor(list(range(x.shape[axis]))[start:end:step])))
        )
    return x


def _reshape(a, x: Tensor, shape: Tensor) -> Tensor:
    del a
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(shape.tolist())])


def _split(a, x: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
    return x.split(sizes.tolist(), a.get("axis", 0))


def _gather(a, x: Tensor, indices: Tensor) -> Tensor:
    axis = a.get("axis", 0) % x.ndim
    return x[(slice(None),) * axis + (indices,)]


def _prelu(a, x: Tensor, slope: Tensor) -> Tensor:
    del a
    return torch.where(x >= 0, x, slope * x)


def _clip(a, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    del a
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _flatten(a, x: Tensor) -> Tensor:
    axis = a.get("axis", 1)
    return x.reshape(math.prod(x.shape[:axis]), -1)


def _depth_to_space(a, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = a["blocksize"]
    if a.get("mode", b"DCR") == b"DCR":
        y = x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(n, c // b**2, h * b, w * b)


def _elementwise(function):
    return lambda _, x: function(x)


def _selu(a, x: Tensor) -> Tensor:
    alpha, gamma = (
        a.get("alpha", 1.67326319217681884765625),
        a.get("gamma", 1.05070102214813232421875),
    )
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0)))


def _quick(x: Tensor) -> Tensor:
    return x * torch.tanh(F.softplus(x))


def _unsqueeze(_, x: Tensor, axes: Tensor) -> Tensor:
    places = {int(axis) % (x.ndim + len(axes)) for axis in axes}
    for axis in sorted(places):
        x = x.unsqueeze(axis)
    return x


def _squeeze(_, x: Tensor, axes: Tensor | None = None) -> Tensor:
    if axes is None:
        return x.squeeze()
    places = {int(axis) % x.ndim for axis in axes}
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in places])


def _cumulative_sum(a, x: Tensor, axis: Tensor) -> Tensor:
    along = int(axis)
    source = x.flip(along) if a.get("reverse", 0) else x
    found = source.cumsum(along) - (source if a.get("exclusive", 0) else 0)
    return found.flip(along) if a.get("reverse", 0) else found


def _largest(a, x: Tensor) -> Tensor:
    """The first place of the largest number, or the last."""
    axis = a.get("axis", 0) % x.ndim
    numbers = x.numpy()
    if a.get("select_last_index", 0):
        found = x.shape[axis] - 1 - np.flip(numbers, axis).argmax(axis)
    else:
        found = numbers.argmax(axis)
    places = torch.from_numpy(np.asarray(found))
    return places.unsqueeze(axis) if a.get("keepdims", 1) else places


def _gather_nd(a, x: Tensor, at: Tensor) -> Tensor:
    leading = [torch.arange(len(x)).reshape(-1, *(1,) * (at.ndim - 2))] * a.get("batch_dims", 0)
    return x[(*leading, *at.unbind(-1))]


def _lp_normalization(a, x: Tensor) -> Tensor:
    axis, p = a.get("axis", -1), a.get("p", 2)
    length = _length(x, [axis], p, keep=True)
    return x / torch.where(length == 0.0, torch.inf, length)


CASTS = {1: torch.float64, 6: torch.int32, 7: torch.int64, 9: torch.bool}


def _recurrent(order: list[int], layer):
    """A recurrent layer of torch, whose gates stand in this order of those of ONNX."""

    def op(a, x: Tensor, w: Tensor, r: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        def turned(tensor: Tensor) -> Tensor:
            return torch.cat([tensor.chunk(len(order))[k] for k in order])

        weights = [turned(own) for at in range(len(w)) for own in (w[at], r[at], *b[at].chunk(2))]
        ways, size = len(w), r.shape[-1]
        zeros = x.new_zeros(ways, x.shape[1], size)
        start = (zeros, zeros) if len(order) == 4 else zeros
        states, *last = layer(x, start, weights, True, 1, 0.0, False, ways == 2, False)
        return (states.unflatten(-1, (ways, size)).transpose(1, 2), *last)

    return op


OPS = {
    "RNN": _recurrent([0], torch._VF.rnn_tanh),
    "GRU": _recurrent([1, 0, 2], torch._VF.gru),
    "LSTM": _recurrent([0, 2, 3, 1], torch._VF.lstm),
    "Add": lambda _, x, y: x + y,
    "Sub": lambda _, x, y: x - y,
    "Mul": lambda _, x, y: x * y,
    "Div": lambda _, x, y: x / y,
    "Sum": lambda _, *xs: sum(xs),
    "Max": lambda _, x, y: torch.maximum(x, y),
    "Min": lambda _, x, y: torch.minimum(x, y),
    "Pow": lambda _, x, y: x**y,
    "MatMul": lambda _, x, y: x @ y,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "BatchNormalization": _batch_norm,
    "Attention": _attention,
    "LayerNormalization": _layer_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": lambda _, x: x.mean(list(range(2, x.ndim)), keepdim=True),
    "GlobalMaxPool": lambda _, x: x.amax(list(range(2, x.ndim)), keepdim=True),
    "ReduceSum": _reduced(lambda x, axes, keep: x.sum(axes, keepdim=keep)),
    "ReduceMean": _reduced(lambda x, axes, keep: x.mean(axes, keepdim=keep)),
    "ReduceMax": _reduced(lambda x, axes, keep: x.amax(axes, keepdim=keep)),
    "ReduceMin": _reduced(lambda x, axes, keep: x.amin(axes, keepdim=keep)),
    "ReduceL1": _reduced(lambda x, axes, keep: _length(x, axes, 1, keep=keep)),
    "ReduceL2": _reduced(lambda x, axes, keep: _length(x, axes, 2, keep=keep)),
    "ReduceSumSquare": _reduced(lambda x, axes, keep: (x**2).sum(axes, keepdim=keep)),
    "Softmax": lambda a, x: x.softmax(a.get("axis", -1)),
    "LogSoftmax": lambda a, x: x.log_softmax(a.get("axis", -1)),
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": lambda a, x: x.permute(a.get("perm", list(reversed(range(x.ndim))))),
    "Slice": _slice,
    "Gather": _gather,
    "CastLike": lambda _, x, like: x.to(like.dtype),
    "GatherElements": lambda a, x, at: torch.take_along_dim(x, at % x.shape[a["axis"]], a["axis"]),
    "GatherND": _gather_nd,
    "ArgMax": _largest,
    "ArgMin": lambda a, x: _largest(a, -x),
    "Range": lambda _, start, stop, step: torch.arange(int(start), int(stop), int(step)),
    "Shape": lambda a, x: torch.tensor(x.shape[a.get("start", 0) : a.get("end", x.ndim)]),
    "Constant": lambda a: _floating(torch.from_numpy(numpy_helper.to_array(a["value"]).copy())),
    "Equal": lambda _, x, y: x == y,
    "Greater": lambda _, x, y: x > y,
    "GreaterOrEqual": lambda _, x, y: x >= y,
    "Less": lambda _, x, y: x < y,
    "LessOrEqual": lambda _, x, y: x <= y,
    "Not": lambda _, x: ~x,
    "And": lambda _, x, y: x & y,
    "Or": lambda _, x, y: x | y,
    "Cast": lambda a, x: x.to(CASTS[a["to"]]),
    "Where": lambda _, c, x, y: torch.where(c, x, y),
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Einsum": lambda a, *xs: torch.einsum(a["equation"].decode(), *xs),
    "CumSum": _cumulative_sum,
    "Mean": lambda _, *xs: sum(xs) / len(xs),
    "LpNormalization": _lp_normalization,
    "ReduceLogSumExp": _reduced(lambda x, axes, keep: x.logsumexp(axes, keepdim=keep)),
    "Concat": lambda a, *xs: torch.cat(xs, a["axis"]),
    "Split": _split,
    "Pad": _pad,
    "Expand": lambda _, x, shape: x * torch.ones(shape.tolist(), dtype=x.dtype),
    "Tile": lambda _, x, repeats: x.repeat(repeats.tolist()),
    "DepthToSpace": _depth_to_space,
    "PRelu": _prelu,
    "Clip": _clip,
    "Identity": lambda _, x: x,
    "Neg": lambda _, x: -x,
    "Abs": _elementwise(torch.abs),
    "Relu": _elementwise(torch.relu),
    "Sqrt": _elementwise(torch.sqrt),
    "Exp": _elementwise(torch.exp),
    "Log": _elementwise(torch.log),
    "Reciprocal": _elementwise(torch.reciprocal),
    "LeakyRelu": lambda a, x: torch.where(x >= 0, x, a.get("alpha", 0.01) * x),
    "Elu": lambda a, x: torch.where(x > 0, x, a.get("alpha", 1.0) * torch.expm1(x.clamp(max=0))),
    "Celu": lambda a, x: F.celu(x, a.get("alpha", 1.0)),
    "Selu": _selu,
    "HardSigmoid": lambda a, x: (a.get("alpha", 0.2) * x + a.get("beta", 0.5)).clamp(0, 1),
    "HardSwish": _elementwise(lambda x: x * (x / 6 + 0.5).clamp(0, 1)),
    "Sigmoid": _elementwise(torch.sigmoid),
    "Tanh": _elementwise(torch.tanh),
    "Atan": _elementwise(torch.atan),
    "Softplus": _elementwise(lambda x: F.softplus(x, threshold=60)),
    "Softsign": _elementwise(F.softsign),
    "Erf": _elementwise(torch.erf),
    "Sin": _elementwise(torch.sin),
    "Cos": _elementwise(torch.cos),
    "Mish": _elementwise(_quick),
    "Gelu": lambda a, x: F.gelu(x, approximate=a.get("approximate", b"none").decode()),
}
