"""The steps of a program as functions in torch, except moves, which have their own file.

A `Function` takes the values that a step reads and its operands by role, and returns one tensor.
Invariants: examples never interact; nothing is written in place, and no input is returned; no
operation depends on the numbers in a tensor, so that autograd and `torch.func.vmap` can transform
every function. Under convolutions and pools x is [examples, channels, *sizes], a kernel as in ONNX;
padding that torch's kernels cannot express or refuse (unequal ends, more than half a window) is
added, or cut away, explicitly.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from inspect import signature
from operator import mul, truediv
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import Function as AutogradFunction
from torch.autograd.function import FunctionCtx

from lipcert.core import kinds, token_kinds, window_kinds
from lipcert.core import program as p
from lipcert.core.kinds import (
    BatchNorm,
    Compare,
    CotangentClip,
    Divide,
    InputClip,
    LocalResponse,
    MaskedMean,
    PRelu,
)
from lipcert.core.program import Activation, FloatArray
from lipcert.core.token_kinds import Add, Attention, Multiply, Normalize, Scale, Shift
from lipcert.core.window_kinds import AveragePool, Conv, LpPool, MaxPool
from lipcert.graph.evaluate import member
from lipcert.graph.geometry import Geometry, Window

if TYPE_CHECKING:
    functional = torch.nn.functional
else:  # as they were at import: what replaces torch's functions in a run changes no pass
    functional = SimpleNamespace(**vars(torch.nn.functional))

Tensors = Mapping[str, Tensor]
Function = Callable[[Sequence[Tensor], Tensors], Tensor]


def of_one_rank(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Add unit axes after the first, so that all values have as many axes."""
    rank = max(x.dim() for x in inputs)
    return [
        x if x.dim() == rank else x.reshape(x.shape[0], *[1] * (rank - x.dim()), *x.shape[1:])
        for x in inputs
    ]


def clip(op: InputClip | CotangentClip) -> Function:
    """Return the step in torch; a clip by channel reads [examples, channels, ...]."""
    if isinstance(op, InputClip):
        return lambda x, _: clipped(x[0], op.radius)
    return lambda x, _: with_clipped_cotangent(x[0], op.radius, by_channel=op.by_channel)


def with_clipped_cotangent(x: Tensor, radius: float, *, by_channel: bool = False) -> Tensor:
    """Return x with a clipped backward pass: the cotangent g of each example becomes g·min(1,
    radius/|g|)."""
    if math.isinf(radius):
        return x.view_as(x)
    return _ClippedCotangent.apply(x, radius, by_channel)  # type: ignore[no-any-return, no-untyped-call]


def clipped(x: Tensor, radius: float, *, by_channel: bool = False) -> Tensor:
    """Return x·min(1, radius/|x|) for each example; NaN where the norm is NaN."""
    exact = torch.promote_types(x.dtype, torch.float32)  # norms overflow in half precision
    wide = x.unsqueeze(-1)
    if by_channel and x.dim() > 2:  # ten times faster than torch's norm of order 1
        wide = wide.abs().sum(tuple(range(2, wide.dim())), dtype=exact)
    lengths = torch.linalg.vector_norm(wide, dim=tuple(range(1, wide.dim())), dtype=exact)
    factors = radius / torch.clamp(lengths, min=radius)
    return (x * factors.reshape(-1, *[1] * (x.dim() - 1))).to(x.dtype)


class _ClippedCotangent(AutogradFunction):
    """The identity with a clipped backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, radius: float, by_channel: bool) -> Tensor:
        """Return x as a new tensor."""
        del radius, by_channel
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, float, bool], output: Tensor) -> None:
        """Store the radius and the norm."""
        del output
        ctx.clip = inputs[1:]  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: FunctionCtx, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        """Return the cotangent, clipped to the radius."""
        radius, by_channel = ctx.clip  # type: ignore[attr-defined]
        return clipped(cotangents[0], radius, by_channel=by_channel), None, None


# else torch derives the signature anew in every call
_ClippedCotangent.forward.__signature__ = signature(_ClippedCotangent.forward)  # type: ignore[attr-defined]


Elementwise: Final = Scale | Shift | PRelu | Multiply | Divide | Add


def elementwise(op: Scale | Shift | PRelu | Multiply | Divide | Add) -> Function:
    """Return the entrywise step in torch, by its kind."""
    match op:
        case Scale():
            return _scaled
        case Shift():
            return lambda x, tensors: x[0] + tensors["bias"]
        case PRelu():
            return lambda x, tensors: torch.where(x[0] > 0.0, x[0], tensors["slope"] * x[0])
        case Multiply():
            return lambda x, _: reduce(mul, of_one_rank(x))
        case Divide():
            return lambda x, _: reduce(truediv, of_one_rank(x))
        case Add(signs):
            return partial(_sum, signs)


def _scaled(x: Sequence[Tensor], tensors: Tensors) -> Tensor:
    if "divisor" in tensors:
        return x[0] / tensors["divisor"]
    if "bias" in tensors:
        return torch.addcmul(tensors["bias"], x[0], tensors["scale"])
    return x[0] * tensors["scale"]


def _sum(signs: Sequence[int], x: Sequence[Tensor], _: Tensors) -> Tensor:
    first, *others = of_one_rank(x)
    # always a new tensor: a value and the input of its node have their own cotangents
    result = first.view_as(first) if signs[0] == 1 else signs[0] * first
    for sign, term in zip(signs[1:], others, strict=True):
        result = torch.add(result, term, alpha=sign)
    return result


SOFTPLUS_GUARD: Final = 40.0
"""Above this, ln(1 + e^x) and x are the same number even in float64."""


def _gelu_tanh(x: Tensor, slope: float | None = None, cubic: float = 0.0) -> Tensor:
    if slope is None:
        return functional.gelu(x, approximate="tanh")
    return x * torch.sigmoid(2.0 * slope * (x + cubic * x**3))


def _celu(x: Tensor, alpha: float) -> Tensor:
    # torch's own celu rounds 1/alpha to float32 in its gradient, even in float64
    return alpha * functional.elu(x / alpha)


def _hard_swish(x: Tensor) -> Tensor:
    # torch's own hardswish rounds 1/6 to float32 on a GPU, even in float64
    return x * torch.clamp(x / 6.0 + 0.5, 0.0, 1.0)


FUNCTIONS: Final[Mapping[str, Callable[..., Tensor]]] = MappingProxyType(
    {
        "relu": torch.relu,
        "leaky_relu": functional.leaky_relu,
        "abs": torch.abs,
        "clip": torch.clamp,
        "hard_sigmoid": lambda x, slope, offset: torch.clamp(slope * x + offset, 0.0, 1.0),
        "hard_swish": _hard_swish,
        "elu": functional.elu,
        "selu": lambda x, alpha, gain: gain * functional.elu(x, alpha),
        "celu": _celu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "atan": torch.atan,
        "softplus": lambda x: functional.softplus(x, threshold=SOFTPLUS_GUARD),
        "softsign": functional.softsign,
        "erf": torch.erf,
        "sin": torch.sin,
        "cos": torch.cos,
        "gelu": functional.gelu,
        "gelu_tanh": _gelu_tanh,
        "silu": functional.silu,
        "quick_gelu": lambda x, alpha: x * torch.sigmoid(alpha * x),
        "mish": functional.mish,
        "exp": torch.exp,
        "log": torch.log,
        "sqrt": torch.sqrt,
        "reciprocal": torch.reciprocal,
        "power": torch.pow,
        "soft_threshold": functional.softshrink,
    }
)
"""By the names of `core.program.Activation`; its numbers are the arguments after x."""


def activation(op: Activation) -> Function:
    """Return the function with its numbers bound."""
    function = FUNCTIONS[op.name]
    return lambda x, _: function(x[0], *op.numbers)


def masking(op: Compare | MaskedMean, like: Tensor) -> Function:
    """Return a comparison, or a mean over a mask."""
    if isinstance(op, MaskedMean):
        return lambda x, _: _mean(op, x[0], x[1])
    limits = torch.tensor(op.limits, dtype=torch.float64, device=like.device)

    def compared(x: Sequence[Tensor], _: Tensors) -> Tensor:
        return (x[0] > limits if op.above else x[0] == limits).to(like.dtype)

    return compared


def _mean(op: MaskedMean, x: Tensor, mask: Tensor) -> Tensor:
    if not op.axes:
        return x * mask / mask.clamp(min=op.floor)
    mask = mask.expand_as(x)
    total, count = ((part).sum(op.axes, keepdim=True) for part in (x * mask, mask))
    return total / count.clamp(min=op.floor)


def normalize(op: Normalize) -> Function:
    """Return a normalisation; over the last axes, torch's own functions compute it."""

    def normalized(inputs: Sequence[Tensor], _: Tensors) -> Tensor:
        (x,), axes = inputs, op.axes
        if axes == tuple(range(x.dim()))[-len(axes) :]:
            norm = functional.layer_norm if op.centred else functional.rms_norm
            found: Tensor = norm(x, x.shape[-len(axes) :], eps=op.epsilon)
            return found
        if op.centred:
            x = x - x.mean(axes, keepdim=True)
        return x * torch.rsqrt((x * x).mean(axes, keepdim=True) + op.epsilon)

    return normalized


def batch_norm(op: BatchNorm, like: Tensor) -> Function:
    """Return a normalisation by the mean and the deviation of the program."""
    variance = torch.tensor(member(op.inverse) ** -2.0).to(like)

    def normalized(x: Sequence[Tensor], tensors: Tensors) -> Tensor:
        return functional.batch_norm(
            x[0],
            tensors["mean"],
            variance,
            tensors["scale"],
            tensors["bias"],
            training=False,
            eps=0.0,
        )

    return normalized


def local_response(op: LocalResponse) -> Function:
    """Return a normalisation by means over the channels around each."""

    def divided(inputs: Sequence[Tensor], _: Tensors) -> Tensor:
        (x,) = inputs
        around = (op.size - 1) // 2
        squares = (x * x).unsqueeze(-1).flatten(2).unsqueeze(1)  # [examples, 1, channels, rest]
        padded = functional.pad(squares, [0, 0, around, op.size - 1 - around])
        means = functional.avg_pool2d(padded, (op.size, 1), stride=1).reshape(x.shape)
        return x / (op.floor + op.strength * means) ** op.power

    return divided


def dense(x: Sequence[Tensor], tensors: Tensors) -> Tensor:
    """Compute `Dense`: y = x·Wᵀ + bias."""
    return functional.linear(x[0], tensors["weight"], tensors.get("bias"))


def embedding(x: Sequence[Tensor], tensors: Tensors) -> Tensor:
    """Compute `Embedding`; NaN for numbers without a row in the table."""
    table, numbers = tensors["weight"], x[0].long()
    found = functional.embedding(numbers % len(table), table)
    known = (numbers >= -len(table)) & (numbers < len(table))
    return found.masked_fill(~known.unsqueeze(-1), torch.nan)


def matmul(x: Sequence[Tensor], _: Tensors) -> Tensor:
    """Compute `MatMul`: y = a·b of two activations."""
    a, b = of_one_rank(x)
    return a @ b


def attention(op: Attention, like: Tensor) -> Function:
    """Return `Attention` under the mask of the op."""
    mask = None if op.mask is None else torch.tensor(member(op.mask)).to(like)

    def attended(x: Sequence[Tensor], _: Tensors) -> Tensor:
        q, k, v, *hidden = x
        if hidden:
            return _with_hidden_scores(op, mask, of_one_rank(x))
        if q.dim() == 4:  # one axis of heads: the layout of the fused kernels
            return functional.scaled_dot_product_attention(
                q, k.transpose(-2, -1), v, attn_mask=mask, scale=op.scale
            )
        scores = op.scale * (q @ k)
        if mask is not None:
            scores = scores + mask
        return torch.softmax(scores, dim=-1) @ v

    return attended


def _with_hidden_scores(op: Attention, mask: Tensor | None, x: Sequence[Tensor]) -> Tensor:
    """Compute attention with scores hidden by a value; 0 for a query that sees nothing, as in
    torch."""
    q, k, v, hidden = x
    scores = op.scale * (q @ k)
    if mask is not None:
        scores = scores + mask
    scores = scores.masked_fill(hidden == 1.0, torch.finfo(scores.dtype).min)
    return (torch.softmax(scores, dim=-1) * (hidden == 0.0)) @ v


def reduction(op: p.Op) -> Function:
    """Return the step in torch; raise TypeError for other kinds of steps."""
    if isinstance(op, kinds.DivideByNorm):
        share, floor = member(op.share).item(), member(op.floor).item()
        return lambda x, _: _divided(x[0], op, share, floor)
    return lambda x, _: _along(x[0], op)


def _along(x: Tensor, op: p.Op) -> Tensor:
    match op:
        case token_kinds.ReduceSum(axes, mean):
            reduce = x.mean if mean else x.sum
            return reduce(axes, keepdim=True) if axes else x.view_as(x)
        case kinds.ReduceMax():
            return _extreme(x, op)
        case kinds.ReduceNorm():
            return _norm(x, op)
        case kinds.ReduceLogSumExp(axes):
            return torch.logsumexp(x, axes, keepdim=True) if axes else x.view_as(x)
        case kinds.Centre(axes):
            return x - x.mean(axes, keepdim=True)
        case token_kinds.Softmax(axis, logarithm):
            return (torch.log_softmax if logarithm else torch.softmax)(x, dim=axis)
    raise TypeError(f"{type(op).__name__} has no implementation in torch")


def _divided(x: Tensor, op: kinds.DivideByNorm, share: float, floor: float) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=op.axes, keepdim=True) * share
    both = torch.stack([norms, torch.full_like(norms, floor)])
    divisor: Tensor = torch.linalg.vector_norm(both, ord=op.p, dim=0)
    return x / divisor.where(divisor > 0.0, 1.0)


def _norm(x: Tensor, op: kinds.ReduceNorm) -> Tensor:
    if not op.axes:
        return torch.abs(x)
    if op.floor:
        powers = torch.abs(x) if op.p == 1 else x * x
        summed = powers.sum(op.axes, keepdim=True) + op.floor
        return summed if op.p == 1 else torch.sqrt(summed)
    norms: Tensor = torch.linalg.vector_norm(x, ord=op.p, dim=op.axes, keepdim=True)
    return norms


def _extreme(x: Tensor, op: kinds.ReduceMax) -> Tensor:
    """Return the extreme entry; its cotangent goes to one of the extreme entries, as in pooling."""
    for axis in sorted(op.axes, reverse=True):
        x = (torch.min if op.minimum else torch.max)(x, dim=axis, keepdim=True).values
    return x.view_as(x)


_FORWARD: Final = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED: Final = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
RANKS: Final = frozenset(_FORWARD)
"""Numbers of axes for which torch has windows."""


def convolution(op: Conv, geometry: Geometry) -> Function:
    """Return the convolution in torch.

    geometry: of the windows, from x to y, or from y to x if the convolution is transposed.
    """
    return (_transposed if op.transposed else _forward)(op, geometry)


def shared_pads(geometry: Geometry) -> tuple[int, ...] | None:
    """Return one pad per dimension if equal padding at both ends gives the same windows; otherwise
    None."""
    pads = []
    for window in geometry:
        room = window.size + 2 * window.pad_begin - _reach(window)
        if room < 0 or room // window.stride + 1 != window.outputs:
            return None
        pads.append(window.pad_begin)
    return tuple(pads)


def pad_widths(geometry: Geometry) -> list[int]:
    """Return the pads in the order of `functional.pad`: last dimension first."""
    return [pad for w in reversed(geometry) for pad in (w.pad_begin, w.pad_end)]


def _forward(op: Conv, geometry: Geometry) -> Function:
    pads, run = shared_pads(geometry), _FORWARD[len(geometry)]

    def convolved(inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
        x = inputs[0] if pads is not None else functional.pad(inputs[0], pad_widths(geometry))
        return run(
            x,
            tensors["weight"],
            tensors.get("bias"),
            stride=op.window.strides,
            padding=pads or (0,) * len(geometry),
            dilation=op.window.dilations,
            groups=op.groups,
        )

    return convolved


def _transposed(op: Conv, geometry: Geometry) -> Function:
    symmetric = all(w.pad_begin == w.pad_end for w in geometry)
    pads = tuple(w.pad_begin if symmetric else 0 for w in geometry)
    run, beyond = _TRANSPOSED[len(geometry)], tuple(map(_unread, geometry))

    def convolved(inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
        padded = run(
            inputs[0],
            tensors["weight"],
            tensors.get("bias"),
            stride=op.window.strides,
            padding=pads,
            output_padding=beyond,
            groups=op.groups,
            dilation=op.window.dilations,
        )
        for axis, window in enumerate(() if symmetric else geometry, start=2):
            padded = padded.narrow(axis, window.pad_begin, window.size)
        return padded

    return convolved


def _reach(window: Window) -> int:
    """Return the positions from the first to the last tap of a window, both included."""
    return window.dilation * (window.taps - 1) + 1


def _unread(window: Window) -> int:
    """Return the number of padded positions after the last window: fewer than the stride."""
    covered = (window.outputs - 1) * window.stride + _reach(window)
    return window.size + window.pad_begin + window.pad_end - covered


_MAXIMUM: Final = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE: Final = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def pool(op: MaxPool | AveragePool | LpPool, geometry: Geometry, like: Tensor) -> Function:
    """Return the pooling step in torch, by its kind."""
    match op:
        case MaxPool():
            return lambda x, _: _maximum(x[0], op.window, geometry)
        case LpPool():
            return lambda x, _: _power_sums(x[0], op, geometry)
    correction = None if op.counts_padding else _correction(geometry)
    if correction is None:
        return lambda x, _: _window_means(x[0], op.window, geometry)
    factor = torch.tensor(correction).to(like)
    return lambda x, _: _window_means(x[0], op.window, geometry) * factor


def _maximum(x: Tensor, window: window_kinds.Window, geometry: Geometry) -> Tensor:
    x, pads = _padded(x, geometry, -math.inf)
    pooled: Tensor = _MAXIMUM[len(geometry)](
        x,
        window.taps,
        stride=window.strides,
        padding=pads,
        dilation=window.dilations,
    )
    return pooled


def _correction(geometry: Geometry) -> FloatArray | None:
    """Return taps over positions inside the input, for every window; None if that is always 1."""
    correction = np.ones(())
    for window in geometry:
        inside = np.asarray(window.reads(), np.float64)
        correction = np.multiply.outer(correction, window.taps / inside)
    return None if np.all(correction == 1.0) else correction


def _power_sums(x: Tensor, op: LpPool, geometry: Geometry) -> Tensor:
    powers = torch.abs(x) if op.p == 1 else torch.abs(x) ** op.p
    sums = _window_means(powers, op.window, geometry) * math.prod(op.window.taps)
    if op.p == 1:
        return sums
    # the root has no finite slope at 0, the norm has: 0 is one of its derivatives there
    positive = sums > 0.0
    roots = torch.where(positive, sums, torch.ones_like(sums)) ** (1.0 / op.p)
    return torch.where(positive, roots, torch.zeros_like(roots))


def _window_means(x: Tensor, window: window_kinds.Window, geometry: Geometry) -> Tensor:
    """Return the sum of every window, padding counting as 0, divided by its number of taps."""
    short = x.dtype.itemsize < 4  # torch averages volumes in whole precision only
    if max(window.dilations) > 1 or (short and len(geometry) == 3):
        return _convolved_means(x, window, geometry)
    x, pads = _padded(x, geometry, 0.0)
    average = _AVERAGE[len(geometry)]
    means: Tensor = average(x, window.taps, stride=window.strides, padding=pads)
    return means


def _convolved_means(x: Tensor, window: window_kinds.Window, geometry: Geometry) -> Tensor:
    channels = x.shape[1]
    kernel = x.new_full((channels, 1, *window.taps), 1.0 / math.prod(window.taps))
    return _FORWARD[len(geometry)](
        functional.pad(x, pad_widths(geometry)),
        kernel,
        stride=window.strides,
        dilation=window.dilations,
        groups=channels,
    )


def _padded(x: Tensor, geometry: Geometry, value: float) -> tuple[Tensor, tuple[int, ...]]:
    """Return x, and the pads that torch's kernel adds.

    It accepts at most half a window of them, and some kernels want no window to be wider than x.
    """
    pads = shared_pads(geometry)
    if pads is not None and all(
        2 * pad <= window.taps <= window.size for pad, window in zip(pads, geometry, strict=True)
    ):
        return x, pads
    return functional.pad(x, pad_widths(geometry), value=value), (0,) * len(geometry)
