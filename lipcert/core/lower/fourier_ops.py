"""Lower Fourier transforms as products with a matrix of cosines and sines.

The last axis holds real parts and, if there are any, imaginary parts.
"""

import numpy as np

from lipcert.core.enclosures import HALF_PI
from lipcert.core.interval import exact
from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.layout_ops import check_apart, normal_axes, same_order
from lipcert.core.lower.moves import arrange, permute
from lipcert.core.lower.spelling import apply, number
from lipcert.core.lower.values import Constant, Data, Value, check_size, only_data


def dft(call: Call) -> Value:
    """Lower DFT: Σ x_j·e^(∓2πi·jk/n) along an axis; the inverse has the factor 1/n."""
    value, inverse, half = call.data(), call.integer("inverse", 0), call.integer("onesided", 0)
    given = call.integer("axis", 1) if call.version < 20 else -2
    if call.has(2):
        (given,) = call.whole(2)
    (axis,) = normal_axes([given], len(value.shape))
    if call.has(1) and call.whole(1) != [value.shape[axis]]:
        raise Unsupported("it cuts its input or goes on with zeros; use Slice or Pad before it")
    return _transformed(call, value, axis, inverse=bool(inverse), half=bool(half))


def stft(call: Call) -> Value:
    """Lower STFT: DFT of frames of a signal [examples, entries, 1], multiplied by a window."""
    signal, (step,), half = call.data(), call.whole(1), call.integer("onesided", 1)
    given = call.constant(2) if call.has(2) else None
    (size,) = call.whole(3) if call.has(3) else (given.shape if given is not None else (0,))
    if len(signal.shape) != 3 or not 0 < size <= signal.shape[1] or step < 1:
        raise Unsupported("its frames do not fit its signal")
    starts = np.arange(0, signal.shape[1] - size + 1, step)
    check_size((len(starts), size))
    places = Constant.of(starts[:, None] + np.arange(size))
    frames = apply(call, "Gather", signal, places, axis=1)
    if given is not None:
        window = given.rearranged(lambda entries: entries.reshape(size, 1), None)
        frames = apply(call, "Mul", frames, window)
    return _transformed(call, only_data(frames), 2, inverse=False, half=bool(half))


def _transformed(call: Call, value: Data, axis: int, *, inverse: bool, half: bool) -> Value:
    """Return the transform as one product with a matrix on the entries of the axis and the last.

    half: omit the second half of the result, which is conjugate to the first.
    """
    last, (size, parts) = len(value.shape) - 1, (value.shape[axis], value.shape[-1])
    if axis == last or parts not in {1, 2} or (half and (inverse or parts == 2)):
        raise Unsupported("it reads other parts than real and imaginary ones of a whole axis")
    check_apart(value, (axis, last))
    order = [*(own for own in range(last) if own != axis), axis, last]
    count = size // 2 + 1 if half else size
    turned = permute(call, value, order)
    batch = [turned.place is not None and own == turned.place.axis for own in range(last + 1)]
    flat = same_order(call, turned, (*turned.shape[:-2], size * parts), batch[:-1])
    product = apply(call, "MatMul", flat, _matrix(call, size, count, parts, inverse=inverse))
    found = same_order(call, product, (*turned.shape[:-2], count, 2), batch)
    return permute(call, found, np.argsort(order).tolist())


def _matrix(call: Call, size: int, count: int, parts: int, *, inverse: bool) -> Value:
    """[size·parts, count·2]: x + iy becomes (x·cos θ + y·sin θ) + i(y·cos θ − x·sin θ).

    Sines are cosines of angles shifted by a quarter of a turn; the inverse turns backwards.
    """
    shape = check_size((size * parts, count * 2))
    turns = np.outer(np.arange(size), np.arange(count)) % size * (-4 if inverse else 4)
    places = (turns[:, None, :, None] + size * np.array([[[0, 1]], [[-1, 0]]])[:parts]) % (4 * size)
    angles = exact(np.arange(4.0 * size)) * exact(float(size)).reciprocal() * HALF_PI
    table = apply(call, "Cos", Constant(angles.lo, angles.hi))
    table = apply(call, "Div", table, number(float(size))) if inverse else table
    return arrange(call, table, lambda entries: entries[places].reshape(shape), None)
