"""Tensors that the exporter renamed, shared, copied or dropped, as their parameters again.

`with_bindings` returns the model with nodes that read initializers named after the parameters that
they hold. Invariant: a tensor gets the name of a parameter only where it holds that parameter's own
numbers, perhaps transposed or with further axes of size 1.

An optimiser stores equal tensors once, transposes weights, and drops a bias of zeros: the note of
the call says which parameters the node reads. Only calls whose ONNX nodes take them unchanged are
listed here. Where the file also stores the parameter under its own name, the numbers must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, final

import numpy as np

from lipcert.core.program import FloatArray, Shape
from lipcert.core.reader.records import Attribute, Model, Node, Tensor
from lipcert.importer.calls import Call, call_of
from lipcert.importer.computed import TensorView, numbers_of
from lipcert.importer.metadata import Provenance, rules_of

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
        "embedding": {"Gather": {0: 0}},
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


@final
@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A model that names its parameters, which of them that changed, and the tensors so used.

    scattered: those that the file holds a second time, or not at all.
    """

    model: Model
    names: frozenset[str] = frozenset()
    scattered: frozenset[str] = frozenset()


def with_bindings(
    model: Model,
    provenance: Provenance,
    views: Mapping[str, TensorView],
) -> Bound:
    """The model with the parameters that the noted calls read.

    views: constants that show an initializer.
    """
    if not provenance.signed:
        return Bound(model)
    work = _Work(model, provenance, views)
    for node in model.nodes:
        work.add(node, call_of(node), rules_of(node))
    if not work.names:
        return Bound(model)
    bound = replace(model, nodes=tuple(work.nodes), initializers=work.initializers)
    return Bound(bound, frozenset(work.names), frozenset(work.scattered))


@final
@dataclass(slots=True, eq=False)
class _Work:
    model: Model
    provenance: Provenance
    views: Mapping[str, TensorView]
    nodes: list[Node] = field(default_factory=list)
    initializers: dict[str, Tensor] = field(init=False)
    names: set[str] = field(default_factory=set)
    scattered: set[str] = field(default_factory=set)
    _taken: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.initializers = dict(self.model.initializers)
        self._taken = {name for node in self.model.nodes for name in node.outputs}
        self._taken.update(item.name for item in self.model.inputs)

    def add(self, node: Node, call: Call | None, rules: list[str]) -> None:
        """A node, with its tensors named after the parameters that they hold."""
        is_plain = all(rule.startswith(_DROPPED_BIAS) for rule in rules)
        if call is not None and is_plain:
            inputs = list(node.inputs)
            for position, placeholder in self._slots(node, call):
                name = self._bound(node, call, position, placeholder, dropped=bool(rules))
                if name is not None:
                    inputs += [""] * (position + 1 - len(inputs))
                    inputs[position] = name
            node = replace(node, inputs=tuple(inputs))
        self.nodes.append(node)

    def _slots(self, node: Node, call: Call) -> Iterator[tuple[int, str]]:
        """Input positions of the node, and the placeholders that stand there in the call."""
        constant = [
            place
            for place, name in enumerate(node.inputs)
            if name in self.views or name in self.model.initializers
        ]
        for argument, position in _SLOTS.get(call.name, {}).get(node.op_type, {}).items():
            written = call.arguments[argument] if argument < len(call.arguments) else ""
            if not written.startswith("%") or call.keywords:
                continue
            if position != _ONLY:
                yield position, written[1:]
            elif len(constant) == 1:
                yield constant[0], written[1:]

    def _shown(self, name: str) -> TensorView | None:
        """What a constant of real numbers shows."""
        tensor = self.model.initializers.get(name)
        if tensor is None:
            return self.views.get(name)
        return TensorView(name, 1.0, tensor.values()) if tensor.is_float else None

    def _bound(
        self, node: Node, call: Call, position: int, placeholder: str, *, dropped: bool
    ) -> str | None:
        """The name of what to read there; None where it needs none or may be something else."""
        found = self.provenance
        target = found.buffers.get(placeholder) or found.parameters.get(placeholder)
        written = node.inputs[position] if position < len(node.inputs) else ""
        if target is None or written == target or target in self._taken:
            return None
        given = self._shown(written) if written else self._dropped(node, position, dropped=dropped)
        if given is None or given.scale != 1.0 or given.origin == target:
            return None
        shape, perm = _own_shape(node, call, position, given.array)
        array = _arranged(given.array, shape, perm)
        own = self.initializers.get(target)
        if own is not None and not np.array_equal(own.values(), array):
            return None
        if own is None:
            self.initializers[target] = numbers_of(array)
        self.names.add(target)
        if target in found.stored or not written:
            self.scattered.add(target)
        return self._arranged(target, given.array.shape, shape, perm)

    def _arranged(self, target: str, shape: Shape, own: Shape, perm: tuple[int, ...]) -> str:
        """The name of the parameter as the node reads it."""
        if shape == own and perm == tuple(range(len(shape))):
            return target
        turned = len(perm) == len(shape) and perm != tuple(range(len(shape)))
        name = f"{target}@{'turned' if turned else 'x'.join(map(str, shape))}"
        if name not in self._taken:
            self._taken.add(name)
            if turned:
                kept = {"perm": Attribute("INTS", perm)}
                self.nodes.append(Node(name, "Transpose", "", (target,), (name,), kept))
            else:
                sizes = np.array(shape, "<i8")
                self.initializers[f"{name}/shape"] = Tensor("int64", sizes.shape, sizes.tobytes())
                inputs = (target, f"{name}/shape")
                self.nodes.append(Node(name, "Reshape", "", inputs, (name,), {}))
        return name

    def _dropped(self, node: Node, position: int, *, dropped: bool) -> TensorView | None:
        """A bias that an optimiser left out because it was zero."""
        weight = self._shown(node.inputs[1]) if len(node.inputs) > 1 else None
        if not dropped or position != 2 or weight is None:
            return None
        size = weight.array.shape[0]
        if node.op_type == "Gemm" and not _integer(node, "transB", 0):
            size = weight.array.shape[1]
        if node.op_type == "ConvTranspose":
            size = weight.array.shape[1] * _integer(node, "group", 1)
        return TensorView("", 1.0, np.zeros(size))


def _integer(node: Node, name: str, default: int) -> int:
    found = node.attributes.get(name)
    return found.value if found is not None and isinstance(found.value, int) else default


def _own_shape(
    node: Node, call: Call, position: int, array: FloatArray
) -> tuple[Shape, tuple[int, ...]]:
    """Shape of the parameter itself, and the permutation by which the node reads it."""
    axes = tuple(range(array.ndim))
    if call.name in _PER_CHANNEL and math.prod(array.shape) == max(array.shape, default=1):
        return (array.size,), (0,)
    is_gemm = node.op_type == "Gemm" and position == 1 and not _integer(node, "transB", 0)
    is_product = node.op_type == "MatMul" and position == 1 and array.ndim == 2
    if call.name == "linear" and (is_gemm or is_product):
        return array.shape[::-1], axes[::-1]
    return array.shape, axes


def _arranged(array: FloatArray, shape: Shape, perm: tuple[int, ...]) -> FloatArray:
    """The numbers in the shape of the parameter."""
    if len(perm) != array.ndim:
        return array.reshape(shape)
    return array.transpose(np.argsort(perm))
