"""Lower products of two values in numpy's sense, one of which may be constant."""

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.entrywise import broadcast
from lipcert.core.lower.errors import ReadsAcrossError, Unsupported
from lipcert.core.lower.gemm import dense
from lipcert.core.lower.moves import indices, moved, permute
from lipcert.core.lower.values import FIXED, Constant, Data, Value, only_data
from lipcert.core.program import Place
from lipcert.core.token_kinds import MatMul


def _times_vector(call: Call, value: Data, weight: Constant) -> Data:
    """Multiply the last axis by a vector: a matrix of one row, whose axis of size 1 is dropped."""
    if weight.place is not None:
        raise Unsupported(FIXED)
    row = weight.rearranged(lambda entries: entries.reshape(1, -1), None)
    product = dense(call, value, row)
    return moved(call, product, indices(product.shape)[..., 0], product.place)


def _matrix(weight: Constant, rank: int) -> Constant:
    """Return a matrix without leading axes of size 1. rank: of the value that it multiplies."""
    if weight.place is not None:
        raise Unsupported(FIXED)
    if len(weight.shape) < 2 or len(weight.shape) > rank:
        raise Unsupported("a product with a constant vector, or with matrices of a higher rank")
    return weight.rearranged(lambda entries: entries.reshape(weight.shape[-2:]), None)


def matmul(call: Call) -> Value:
    """Lower MatMul; one factor may be constant, and the same for every example."""
    first, second = call.value(0), call.value(1)
    if isinstance(first, Data) and isinstance(second, Data):
        return _product(call, first, second)
    is_alike = len(first.shape) == len(second.shape) and first.shape[:1] == second.shape[:1]
    if first.place == second.place == Place(0) and is_alike:
        from lipcert.core.lower.stacks import repeated  # noqa: PLC0415  for such alone

        return repeated(call, first, second)
    left = isinstance(first, Constant)
    value, weight = call.data(int(left)), call.constant(int(not left))
    rank = len(value.shape)
    if any(size != 1 for size in weight.shape[:-2]):
        from lipcert.core.lower.stacks import stacked  # noqa: PLC0415  for such products only

        return stacked(call, value, weight, left=left)
    if not left and len(weight.shape) == 1:
        return _times_vector(call, value, weight)
    if not left:
        return dense(call, value, _matrix(weight, max(2, rank)).rearranged(np.transpose, None))
    if rank == 1 and value.place is None:
        return dense(call, value, _matrix(weight, 2))
    if rank < 2:
        raise Unsupported("a constant matrix times a vector of examples")
    swap = [*range(rank - 2), rank - 1, rank - 2]
    turned = only_data(permute(call, value, swap))
    return permute(call, dense(call, turned, _matrix(weight, rank)), swap)


def _product(call: Call, first: Data, second: Data) -> Data:
    """Multiply two values of the data; the batch lies on the same axis before the matrices."""
    if min(len(first.shape), len(second.shape)) < 2:
        raise Unsupported("a product of vectors")
    for value in (first, second):
        if value.place is not None and value.place.axis >= len(value.shape) - 2:
            raise ReadsAcrossError("a product of two values reads across the batch axis")
    stacks = [Data(value.name, value.shape[:-2], value.place) for value in (first, second)]
    stack, place = broadcast(stacks)
    if first.shape[-1] != second.shape[-2]:
        raise Unsupported("the sizes of a product do not fit")
    shape = (*stack, first.shape[-2], second.shape[-1])
    return call.step(MatMul(), first, second, shape=shape, place=place)
