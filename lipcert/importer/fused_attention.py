"""The operator Attention, spelled out as products and a softmax.

What enters: an Attention node. What leaves: the name of the value that equals its first output.
Heads may share keys and values; masks must be constant. Caches and logit caps under a mask, whose
order differs between versions of the operator, are refused.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.program import Shape
from lipcert.importer.raw import Array, RawNode
from lipcert.importer.spelling import Speller

_MASK: Final = 3
_CACHE: Final = (4, 5)
_LENGTHS: Final = 6


def spell_attention(speller: Speller) -> str:
    """softmax(scale·QKᵀ + mask)·V over heads."""
    node = speller.node
    if any(node.input(position) for position in _CACHE):
        raise ValueError("it continues from cached keys and values")
    if node.input(_LENGTHS):
        raise ValueError("the number of its tokens is an input")
    if any(node.integer(f"{side}_window_size", -1) != -1 for side in ("left", "right")):
        raise ValueError("its window is not supported; write it as a constant mask")
    query, keys, values = (_with_heads(speller, position) for position in range(3))
    (batch, heads, tokens, width) = _shape(speller, 0)
    keys, values = _repeated(speller, keys, 1, heads), _repeated(speller, values, 2, heads)
    if "scale" not in node.attributes:  # 1/√width, exactly
        query, keys = _over_root(speller, query, keys, width)
    scores = speller.emit("MatMul", query, speller.transpose(keys, (0, 1, 3, 2)))
    if "scale" in node.attributes:
        scores = speller.emit("Mul", scores, _number(speller, node.real("scale", 1.0)))
    mask = _mask(speller, tokens, _shape(speller, 1)[2])
    cap = node.real("softcap", 0.0)
    if cap and mask is not None:
        raise ValueError("softcap together with a mask: versions disagree about their order")
    if cap:
        inner = speller.emit("Tanh", speller.emit("Div", scores, _number(speller, cap)))
        scores = speller.emit("Mul", inner, _number(speller, cap))
    if mask is not None:
        scores = speller.emit("Add", scores, speller.constant(mask.astype(speller.dtype)))
    weights = speller.emit("Softmax", scores, axis=-1)
    result = speller.emit("MatMul", weights, values)
    if len(speller.value(node.inputs[0]).shape) == 4:
        return result
    features = heads * _shape(speller, 2)[3]
    return speller.reshape(speller.transpose(result, (0, 2, 1, 3)), (batch, tokens, features))


def _over_root(speller: Speller, query: str, keys: str, width: int) -> tuple[str, str]:
    """Queries over √width; the keys instead where the queries do not depend on the data."""
    share = Fraction(1, width)
    fixed = [speller.is_constant(speller.node.inputs[position]) for position in range(2)]
    if all(fixed):  # a constant that run time computes, as all others
        return speller.emit("Div", query, _number(speller, math.sqrt(width))), keys
    if fixed[0]:
        return query, speller.root_multiple(keys, share)
    return speller.root_multiple(query, share), keys


def _number(speller: Speller, number: float) -> str:
    return speller.constant(np.asarray(number, speller.dtype))


def _heads(node: RawNode, position: int) -> int:
    return node.integer("q_num_heads" if position == 0 else "kv_num_heads", 1)


def _shape(speller: Speller, position: int) -> Shape:
    """[batch, heads, tokens, features] of an input."""
    shape = speller.value(speller.node.inputs[position]).shape
    if len(shape) == 4:
        return shape
    batch, tokens, features = shape
    heads = _heads(speller.node, position)
    if heads < 1 or features % heads:
        raise ValueError(f"{heads} heads do not divide {features} features")
    return batch, heads, tokens, features // heads


def _with_heads(speller: Speller, position: int) -> str:
    name = speller.node.inputs[position]
    if len(speller.value(name).shape) == 4:
        return name
    batch, heads, tokens, features = _shape(speller, position)
    split = speller.reshape(name, (batch, tokens, heads, features))
    return speller.transpose(split, (0, 2, 1, 3))


def _repeated(speller: Speller, name: str, position: int, heads: int) -> str:
    """Keys or values once for every head of the queries that shares them."""
    batch, own, tokens, features = _shape(speller, position)
    if own == heads:
        return name
    if heads % own:
        raise ValueError(f"{own} heads of keys do not divide {heads} heads of queries")
    single = speller.reshape(name, (batch, own, 1, tokens, features))
    target = np.asarray((batch, own, heads // own, tokens, features), dtype=np.int64)
    several = speller.emit("Expand", single, speller.constant(target))
    return speller.reshape(several, (batch, heads, tokens, features))


def _mask(speller: Speller, queries: int, keys: int) -> Array | None:
    """What is added to the scores: 0 or a number where a query sees a key, −∞ elsewhere."""
    node = speller.node
    total: Array | None = None
    if node.input(_MASK):
        given = speller.array(node.inputs[_MASK], "mask")
        total = np.where(given, 0.0, -np.inf) if given.dtype.kind == "b" else given
        if total.ndim < 2 or total.shape[-1] != keys:
            raise ValueError("its mask covers a part of the keys only")
    if node.integer("is_causal", 0):
        hidden = np.triu(np.ones((queries, keys), dtype=bool), 1)
        causal = np.where(hidden, -np.inf, 0.0)
        total = causal if total is None else total + causal
    return total
