"""Tensors that the exporter renamed, shared, copied or dropped, as their parameters again.

What enters: a node and the exporter's notes. What leaves: the node reading constants of new names,
and these constants. Invariant: a tensor gets the name of a parameter only where it holds that
parameter's own numbers, perhaps transposed or with further axes of size 1.

An optimiser stores equal tensors once, transposes weights, and drops a bias of zeros: the note of
the call says which parameters the node reads. Only calls whose ONNX nodes take them unchanged are
listed here. Where the file also stores the parameter under its own name, the numbers must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from lipcert.core.program import Shape
from lipcert.importer.calls import Call, call_of
from lipcert.importer.constant import Constant, Origin, View
from lipcert.importer.metadata import Provenance, rules_of
from lipcert.importer.raw import Array, RawNode

_ONLY: Final = -1
"""the one input that is constant"""
_DROPPED_BIAS: Final = "RemoveOptionalBias"
"""beginning of the names of rewrites that leave out a bias of zeros"""
_CONV: Final = MappingProxyType({"Conv": {1: 1, 2: 2}})
_CONV_TRANSPOSE: Final = MappingProxyType({"ConvTranspose": {1: 1, 2: 2}})
_BATCH_NORM: Final = MappingProxyType({"BatchNormalization": {1: 1, 2: 2, 3: 3, 4: 4}})
_PRODUCT: Final = MappingProxyType({"MatMul": {0: _ONLY, 1: _ONLY}})
_SLOTS: Final[Mapping[str, Mapping[str, Mapping[int, int]]]] = MappingProxyType(
    {
        "linear": {"MatMul": {1: 1}, "Gemm": {1: 1, 2: 2}, "Add": {2: _ONLY}},
        "addmm": {"Gemm": {0: 2, 2: 1}},
        **dict.fromkeys(["mm", "matmul"], _PRODUCT),
        **dict.fromkeys(["conv1d", "conv2d", "conv3d"], _CONV),
        **dict.fromkeys([f"conv_transpose{rank}d" for rank in (1, 2, 3)], _CONV_TRANSPOSE),
        **dict.fromkeys(["batch_norm", "_native_batch_norm_legit_no_training"], _BATCH_NORM),
        "instance_norm": {"InstanceNormalization": {1: 1, 2: 2}},
        "group_norm": {"GroupNormalization": {2: 1, 3: 2}, "Mul": {2: _ONLY}, "Add": {3: _ONLY}},
        "layer_norm": {"LayerNormalization": {2: 1, 3: 2}},
        "rms_norm": {"RMSNormalization": {2: 1}, "Mul": {2: _ONLY}},
        "prelu": {"PRelu": {1: 1}},
        "add": {"Add": {0: _ONLY, 1: _ONLY}},
        "sub": {"Sub": {0: _ONLY, 1: _ONLY}},
        "mul": {"Mul": {0: _ONLY, 1: _ONLY}},
        "div": {"Div": {1: 1}},
    }
)
"""call → ONNX op → {argument of the call: input of the node}"""
_PER_CHANNEL: Final = frozenset({"group_norm", "prelu"})
"""calls whose parameters are vectors that the node may read with further axes of size 1"""


class Binding(NamedTuple):
    """A constant that shows a parameter or buffer, and the name under which the node reads it.

    scattered: whether the file holds the parameter a second time, or not at all.
    """

    target: str
    name: str
    constant: Constant
    scattered: bool


def with_bindings(
    node: RawNode, provenance: Provenance, constants: Mapping[str, Constant]
) -> tuple[RawNode, tuple[Binding, ...]]:
    """The node with its tensors named after the parameters that they hold."""
    call = call_of(node)
    if call is None or not all(rule.startswith(_DROPPED_BIAS) for rule in rules_of(node)):
        return node, ()
    inputs = list(node.inputs)
    found: list[Binding] = []
    for slot in _slots(node, call, constants):
        binding = _bound(node, call, slot, provenance, constants)
        if binding is not None:
            position = slot[0]
            inputs += [""] * (position + 1 - len(inputs))
            inputs[position] = binding.name
            found.append(binding)
    return replace(node, inputs=tuple(inputs)), tuple(found)


def _slots(
    node: RawNode, call: Call, constants: Mapping[str, Constant]
) -> Iterator[tuple[int, str]]:
    """Input positions of the node, and the placeholders that stand there in the call."""
    constant = [place for place, name in enumerate(node.inputs) if name in constants]
    for argument, position in _SLOTS.get(call.name, {}).get(node.op_type, {}).items():
        written = call.arguments[argument] if argument < len(call.arguments) else ""
        if not written.startswith("%") or call.keywords:
            continue
        if position != _ONLY:
            yield position, written[1:]
        elif len(constant) == 1:
            yield constant[0], written[1:]


def _bound(
    node: RawNode,
    call: Call,
    slot: tuple[int, str],
    provenance: Provenance,
    constants: Mapping[str, Constant],
) -> Binding | None:
    """The binding of one input; None where it needs none or may be something else."""
    position, placeholder = slot
    is_buffer = placeholder in provenance.buffers
    target = provenance.buffers.get(placeholder) or provenance.parameters.get(placeholder)
    if target is None:
        return None
    given = constants.get(node.input(position))
    constant = _dropped(node, position, constants) if given is None else given
    if constant is None or constant.view is None or constant.view.scale != 1:
        return None
    if constant.view.origin.name == target or not constant.is_float:
        return None
    shape, perm = _own_shape(node, call, position, constant)
    own = constants.get(target) if target in provenance.stored else None
    if own is not None and not np.array_equal(own.array, _arranged(constant.array, shape, perm)):
        return None
    origin = Origin(target, shape, statistic=is_buffer, known=not is_buffer)
    view = View.whole(origin)
    index = view.index.transpose(perm).reshape(constant.shape)
    name = f"{node.input(position)}@{target}"
    shown = Constant(constant.array, replace(view, index=index))
    return Binding(target, name, shown, own is not None or given is None)


def _own_shape(
    node: RawNode, call: Call, position: int, constant: Constant
) -> tuple[Shape, tuple[int, ...]]:
    """Shape of the parameter itself, and the permutation by which the node reads it."""
    axes = tuple(range(constant.array.ndim))
    if call.name in _PER_CHANNEL and math.prod(constant.shape) == max(constant.shape, default=1):
        return (constant.array.size,), (0,)
    is_gemm = node.op_type == "Gemm" and position == 1 and not node.integer("transB", 0)
    is_product = node.op_type == "MatMul" and position == 1 and constant.array.ndim == 2
    if call.name == "linear" and (is_gemm or is_product):
        return constant.shape[::-1], axes[::-1]
    return constant.shape, axes


def _arranged(array: Array, shape: Shape, perm: tuple[int, ...]) -> Array:
    """The numbers in the shape of the parameter."""
    if len(perm) != array.ndim:
        return array.reshape(shape)
    return array.transpose(np.argsort(perm))


def _dropped(node: RawNode, position: int, constants: Mapping[str, Constant]) -> Constant | None:
    """A bias that an optimiser left out because it was zero."""
    weight = constants.get(node.input(1))
    is_dropped = any(rule.startswith(_DROPPED_BIAS) for rule in rules_of(node))
    if not is_dropped or position != 2 or node.input(2) or weight is None:
        return None
    size = weight.shape[0]
    if node.op_type == "Gemm" and not node.integer("transB", 0):
        size = weight.shape[1]
    if node.op_type == "ConvTranspose":
        size = weight.shape[1] * node.integer("group", 1)
    zeros = np.zeros(size, weight.array.dtype)
    return Constant(zeros, View.whole(Origin("", (size,), literal=True)))
