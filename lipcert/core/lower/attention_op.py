"""Write the operator Attention as products and a softmax.

Heads may share keys and values; masks have to be constant. Caches are refused, and so is a cap of
the scores together with a mask, as their order differs between versions of the operator.
"""

from typing import Final

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.moves import permute
from lipcert.core.lower.spelling import apply, inverse_root, number, whole
from lipcert.core.lower.values import Constant, Value

_MASK: Final = 3


def attention(call: Call) -> Value:
    """Lower Attention: softmax(scale·QKᵀ + mask)·V over heads."""
    if any(call.has(position) for position in (4, 5, 6)):
        raise Unsupported("it continues from a cache, or its number of tokens is an input")
    for side in ("left", "right"):
        if call.integer(f"{side}_window_size", -1) != -1:
            raise Unsupported("its window is not supported; write it as a constant mask")
    call.integer("qk_matmul_output_mode", 0), call.integer("softmax_precision", 1)
    heads, own = call.integer("q_num_heads", 1), call.integer("kv_num_heads", 1)
    is_flat = len(call.value(0).shape) == 3
    query, keys, values = (
        _with_heads(call, call.value(position), heads if position == 0 else own)
        for position in range(3)
    )
    keys, values = (_repeated(call, value, query.shape[1]) for value in (keys, values))
    scores = apply(call, "MatMul", query, permute(call, keys, [0, 1, 3, 2]))
    factor = number(call.real("scale", 1.0)) if call.given("scale") else None
    scores = apply(call, "Mul", scores, factor or inverse_root(query.shape[3]))
    mask, cap = _mask(call, query.shape[2], keys.shape[2]), call.real("softcap", 0.0)
    if cap and mask is not None:
        raise Unsupported("a cap together with a mask, whose order versions disagree about")
    if cap:
        curve = apply(call, "Tanh", apply(call, "Div", scores, number(cap)))
        scores = apply(call, "Mul", curve, number(cap))
    if mask is not None:
        scores = apply(call, "Add", scores, mask)
    result = apply(call, "MatMul", apply(call, "Softmax", scores, axis=-1), values)
    if not is_flat:
        return result
    joined = whole(0, 0, result.shape[1] * result.shape[3])
    return apply(call, "Reshape", permute(call, result, [0, 2, 1, 3]), joined)


def _with_heads(call: Call, value: Value, heads: int) -> Value:
    """Return the value with axes [batch, heads, tokens, features]."""
    if len(value.shape) == 4:
        return value
    if len(value.shape) != 3 or heads < 1 or value.shape[2] % heads:
        raise Unsupported("its heads do not divide its features")
    split = apply(call, "Reshape", value, whole(0, 0, heads, value.shape[2] // heads))
    return permute(call, split, [0, 2, 1, 3])


def _repeated(call: Call, value: Value, heads: int) -> Value:
    """Repeat keys or values for every head of the queries that shares them."""
    own = value.shape[1]
    if own == heads:
        return value
    if heads % own:
        raise Unsupported("the heads of its keys do not divide those of its queries")
    places = np.repeat(range(own), heads // own).tolist()
    return apply(call, "Gather", value, whole(*places), axis=1)


def _mask(call: Call, queries: int, keys: int) -> Constant | None:
    """Return the mask to add to scores: finite where a query sees a key, −∞ elsewhere."""
    given = call.constant(_MASK) if call.has(_MASK) else None
    if given is not None:
        given.check_fixed()
        if len(given.shape) < 2 or given.shape[-1] != keys:
            raise Unsupported("its mask covers a part of the keys only")
        if not given.is_float:
            given = Constant.of(np.where(given.lo, 0.0, -np.inf), given.place)
    if not call.integer("is_causal", 0):
        return given
    later = np.triu(np.ones((queries, keys), dtype=bool), 1)
    zero, never = Constant.of(np.zeros((1, 1))), Constant.of(np.full((1, 1), -np.inf))
    found = apply(call, "Where", Constant.of(later), never, given or zero)
    return found if isinstance(found, Constant) else None
