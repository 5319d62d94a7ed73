"""Composite operators, spelled out in others before anything else looks at them.

What enters: a node of such an operator. What leaves: nodes whose rules are known. Invariant: the
spelling computes the same function, so no rule of its own is needed for a composite operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final

import numpy as np

from lipcert.importer.constant import Constant
from lipcert.importer.einsum import spell_einsum
from lipcert.importer.fused_attention import spell_attention
from lipcert.importer.raw import Array, RawNode
from lipcert.importer.spelling import Speller, Spelling
from lipcert.importer.static_graph import Value

_MVN_EPSILON: Final = 1e-9
"""added to the standard deviation, by the definition of the operator"""


def is_composite(node: RawNode) -> bool:
    """Whether a node is to be spelled out."""
    return not node.domain and node.op_type in _SPELL


def spelled_out(
    node: RawNode,
    value: Callable[[str], Value],
    constants: Mapping[str, Constant],
    opset: int,
) -> Spelling:
    """The nodes that a composite node stands for; ValueError with the reason where none do."""
    speller = Speller(node, value, constants, opset)
    return speller.finish(_SPELL[node.op_type](speller))


def _lp_normalization(speller: Speller) -> str:
    """x/‖x‖ along one axis."""
    node = speller.node
    order = node.integer("p", 2)
    if order not in {1, 2}:
        raise ValueError(f"p = {order} is not defined")
    norm = speller.reduce(
        f"ReduceL{order}", node.inputs[0], [node.integer("axis", -1)], keepdims=True
    )
    return speller.emit("Div", node.inputs[0], norm)


def _mean_variance(speller: Speller) -> str:
    """(x − mean)/(√variance + ε), with √variance = ‖x − mean‖/√n."""
    node = speller.node
    x = node.inputs[0]
    shape = speller.value(x).shape
    axes = [axis % len(shape) for axis in node.integers("axes") or (0, 2, 3)]
    share = Fraction(1, math.prod(shape[axis] for axis in axes))
    centred = speller.emit("Sub", x, speller.reduce("ReduceMean", x, axes, keepdims=True))
    length = speller.reduce("ReduceL2", centred, axes, keepdims=True)
    deviation = speller.root_multiple(length, share)
    epsilon = speller.constant(np.asarray(_MVN_EPSILON, speller.dtype))
    return speller.emit("Div", centred, speller.emit("Add", deviation, epsilon))


def _gather_nd(speller: Speller) -> str:
    """Entries (or slices) at constant places: a Gather along the indexed axes, taken as one."""
    node = speller.node
    shape = speller.value(node.inputs[0]).shape
    places, batch = speller.array(node.inputs[1], "index"), node.integer("batch_dims", 0)
    own = _without_repetitions(places.astype(np.int64), batch)
    depth = own.shape[-1]
    sizes = shape[batch : batch + depth]
    if len(sizes) < depth or np.any(own < -np.asarray(sizes)) or np.any(own >= sizes):
        raise ValueError("an index is out of range")
    steps = [math.prod(sizes[axis + 1 :]) for axis in range(depth)]
    flat = (own % np.asarray(sizes)) @ np.asarray(steps, dtype=np.int64)
    merged = (*shape[:batch], math.prod(sizes), *shape[batch + depth :])
    data = speller.reshape(node.inputs[0], merged)
    return speller.emit("Gather", data, speller.constant(flat), axis=batch)


def _without_repetitions(places: Array, batch: int) -> Array:
    """Indices that are the same for all leading positions, once."""
    for _ in range(batch):
        if np.any(places != places[:1]):
            raise ValueError("its indices differ along a leading axis")
        places = places[0]
    return places


_SPELL: Final[Mapping[str, Callable[[Speller], str]]] = MappingProxyType(
    {
        "Attention": spell_attention,
        "Einsum": spell_einsum,
        "GatherND": _gather_nd,
        "LpNormalization": _lp_normalization,
        "MeanVarianceNormalization": _mean_variance,
    }
)
