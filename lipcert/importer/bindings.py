"""Bindings: give tensors that the exporter renamed, shared, copied or dropped their parameters.

`with_bindings` returns the model with nodes that read initializers named after the parameters that
they hold. Invariant: a tensor gets the name of a parameter only if it holds that parameter's own
numbers, perhaps transposed or with further axes of size 1.

An optimiser stores equal tensors once, transposes weights, and drops a bias of zeros. The note of
the call says which parameters the node reads. Only calls whose ONNX nodes take them unchanged are
listed here. Where the file also stores the parameter under its own name, the numbers must be equal.

`separate_shared` returns the same model with one initializer per trained parameter, as far as the
file shows which tensors an exporter merged or copied. The TorchScript exporter of torch, which
writes no signature, does both:

1. It stores equal tensors once and gives the others by Identity nodes, whose outputs carry the
   names of the state_dict. Running statistics, which are not trained, get tensors of their own.
   Tensors whose entries are all the same number (the ones and zeros of untrained normalization
   layers) are taken for parameters of their own, and the report says so.
   Other equal tensors stay tied: from a scripted module one parameter with two names is written
   in the same way, and tying never makes a bound smaller.
2. It stores transposed copies under made-up names, one for each use. Copies of equal numbers may
   come from one parameter that is used twice, and so may a copy and a matrix that has a name: they
   are tied, which never makes a bound smaller.

`completed` returns the file with the biases that an optimiser left out because they were zero. A
certificate is about the tensors of a file. The optimiser of `torch.onnx` drops a bias of zeros,
such as the initial bias of an attention output, although it is trained. In the completed file it is
an initializer again, which the node reads. Invariant: both files compute the same: y + 0 is y in
floating point, except for the sign of a zero.

`with_stored` restores the parameters of recurrent layers. An LSTM or GRU node has the gates in
another order than torch, the directions of a layer in one tensor, and both biases in one. The
optimiser of onnxscript computes these tensors, and notes from which parameters. It stores
the parameters again, and adds nodes that join them as before. Invariant: both models compute the
same, bit for bit.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
from onnx.onnx_ml_pb2 import ModelProto, TensorProto

from lipcert.core.coverage import tensors as stored_tensors
from lipcert.core.program import FloatArray, Shape
from lipcert.core.reader.records import Attribute, Model, Node, Tensor
from lipcert.importer.computed import TensorView, numbers_of
from lipcert.importer.metadata import (
    Provenance,
    is_anonymous,
    is_literal,
    read_provenance,
    rules_of,
    statistic_owner,
)
from lipcert.importer.model import ImportedModel
from lipcert.importer.nodes import Call, call_of, names_in, output_names
from lipcert.importer.origins import is_uniform, moved

_STATE_NAME: Final = re.compile(r"^\w+(\.\w+)*$")
TURNED: Final = Attribute("INTS", (1, 0))


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A model with one initializer for each parameter, and the names that were given for that.

    scattered: those of which the file holds no tensor of their own: that it holds twice, or not at
    all, or that stand for merged copies.
    """

    model: Model
    names: Collection[str] = ()
    scattered: frozenset[str] = frozenset()


def separate_shared(model: Model, provenance: Provenance) -> Bound:
    """Find the parameters behind merged and copied tensors."""
    if provenance.signed:
        return Bound(model)
    copies = _copies(model.initializers)
    tensors = {name: item for name, item in model.initializers.items() if name not in copies}
    nodes = list(copies.values())
    for node in model.nodes:
        shared = tensors.get(node.inputs[0]) if node.inputs else None
        is_second = shared is not None and _is_second_name(node, model.outputs)
        if (
            is_second
            and shared is not None
            and (statistic_owner(node.outputs[0]) or (provenance.is_torch and is_uniform(shared)))
        ):
            tensors[node.outputs[0]] = shared
        else:
            nodes.append(node)
    added = tuple(name for name in tensors if name not in model.initializers)
    if not added and not copies:
        return Bound(model)
    result = replace(model, nodes=tuple(nodes), initializers=tensors)
    return Bound(result, added, frozenset(node.inputs[0] for node in copies.values()))


def _is_second_name(node: Node, outputs: tuple[str, ...]) -> bool:
    if node.op_type != "Identity" or node.domain or len(node.outputs) != 1:
        return False
    name = node.outputs[0]
    is_name = _STATE_NAME.match(name) is not None and not is_anonymous(name)
    return is_name and name not in outputs


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Node]:
    """Map tensors with made-up names to nodes that compute them from the first equal tensor.

    The first one has a made-up name too, or is a matrix. Matrices may be transposed copies.
    """
    first: dict[tuple[object, ...], str] = {}
    copies: dict[str, Node] = {}
    floats = {name: item for name, item in tensors.items() if item.is_float and item.size > 1}
    if not any(map(is_anonymous, floats)):
        return copies
    for name in sorted(floats, key=is_anonymous):
        tensor = floats[name]
        key = (tensor.dtype, tensor.dims, tensor.content)
        if is_anonymous(name):
            found = first.get(key)
            if found is not None:
                copies[name] = Node(name, "Identity", "", (found,), (name,), {})
                continue
            turned = first.get(_transposed_key(tensor)) if len(tensor.dims) == 2 else None
            if turned is not None:
                perm = {"perm": TURNED}
                copies[name] = Node(name, "Transpose", "", (turned,), (name,), perm)
                continue
        elif len(tensor.dims) != 2:
            continue
        first.setdefault(key, name)
    return copies


def _transposed_key(tensor: Tensor) -> tuple[object, ...]:
    """Return the key of the transposed matrix; the bytes of each item stay together."""
    size = Tensor.item_size(tensor.dtype)
    items = np.frombuffer(tensor.content, f"V{size}").reshape(tensor.dims)
    return tensor.dtype, tensor.dims[::-1], items.T.tobytes()


_ONLY: Final = -1
"""Stands for the position of the only constant input."""
_DROPPED_BIAS: Final = "RemoveOptionalBias"
"""Prefix of the names of rewrites that leave out a bias of zeros."""
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
"""call → ONNX operator → {argument of the call: input of the node}"""
_PER_CHANNEL: Final = frozenset({"group_norm", "prelu"})
"""Calls whose parameters are vectors that the node may read with further axes of size 1."""


def with_bindings(
    model: Model,
    provenance: Provenance,
    views: Mapping[str, TensorView],
) -> Bound:
    """Return the model with the parameters that the noted calls read.

    views: constants that are views of an initializer.
    """
    if not provenance.signed:
        return Bound(model)
    work = _Binder(model, provenance, views)
    for node in model.nodes:
        work.add(node, call_of(node), rules_of(node))
    if not work.names:
        return Bound(model)
    bound = replace(model, nodes=tuple(work.nodes), initializers=work.initializers)
    return Bound(bound, frozenset(work.names), frozenset(work.scattered))


@dataclass(slots=True, eq=False)
class _Binder:
    model: Model
    provenance: Provenance
    views: Mapping[str, TensorView]
    nodes: list[Node] = field(default_factory=list)
    initializers: dict[str, Tensor] = field(init=False)
    names: set[str] = field(default_factory=set)
    scattered: set[str] = field(default_factory=set)
    _moved: Mapping[str, str] = field(init=False)
    _taken: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.initializers = dict(self.model.initializers)
        self._moved = moved(self.provenance, self.model.initializers)
        self._taken = {name for node in self.model.nodes for name in node.outputs}
        self._taken.update(item.name for item in self.model.inputs)

    def add(self, node: Node, call: Call | None, rules: list[str]) -> None:
        """Add a node, with its tensors named after the parameters that they hold."""
        is_plain = all(rule.startswith(_DROPPED_BIAS) for rule in rules)
        if call is not None and is_plain:
            shown = self._moved.keys() & set(call.tensors)
            inputs = [self._moved[item] if item in shown else item for item in node.inputs]
            for tensor in shown.intersection(node.inputs):
                self.initializers[self._moved[tensor]] = self.model.initializers[tensor]
                self.names.add(self._moved[tensor])
            node = replace(node, inputs=tuple(inputs))
            for position, placeholder in self._slots(node, call):
                name = self._bound(node, call, position, placeholder, dropped=bool(rules))
                if name is not None:
                    inputs += [""] * (position + 1 - len(inputs))
                    inputs[position] = name
            node = replace(node, inputs=tuple(inputs))
        self.nodes.append(node)

    def _slots(self, node: Node, call: Call) -> Iterator[tuple[int, str]]:
        """Yield input positions of the node, with the placeholders at their place in the call."""
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

    def _view(self, name: str) -> TensorView | None:
        """Return a float constant as a view of an initializer, if it is one."""
        tensor = self.model.initializers.get(name)
        if tensor is None:
            return self.views.get(name)
        return TensorView(name, 1.0, tensor.values()) if tensor.is_float else None

    def _bound(
        self, node: Node, call: Call, position: int, placeholder: str, *, dropped: bool
    ) -> str | None:
        """Return the name to read at an input; None to keep it, as it needs none or is unclear."""
        found = self.provenance
        target = found.buffers.get(placeholder) or found.parameters.get(placeholder)
        written = node.inputs[position] if position < len(node.inputs) else ""
        if target is None or written == target or target in self._taken:
            return None
        given = self._view(written) if written else self._dropped(node, position, dropped=dropped)
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
        """Return the name of the parameter in the shape that the node reads; add a node for it."""
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
        """Return a bias of zeros that an optimiser left out, if it did."""
        weight = self._view(node.inputs[1]) if len(node.inputs) > 1 else None
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
    """Return the parameter's own shape, and the permutation with which the node reads it."""
    axes = tuple(range(array.ndim))
    if call.name in _PER_CHANNEL and math.prod(array.shape) == max(array.shape, default=1):
        return (array.size,), (0,)
    is_gemm = node.op_type == "Gemm" and position == 1 and not _integer(node, "transB", 0)
    is_product = node.op_type == "MatMul" and position == 1 and array.ndim == 2
    if call.name == "linear" and (is_gemm or is_product):
        return array.shape[::-1], axes[::-1]
    return array.shape, axes


def _arranged(array: FloatArray, shape: Shape, perm: tuple[int, ...]) -> FloatArray:
    """Return the numbers in the shape of the parameter."""
    if len(perm) != array.ndim:
        return array.reshape(shape)
    return array.transpose(np.argsort(perm))


_BIASED: Final = frozenset({"Gemm", "Conv", "ConvTranspose"})
"""Operators whose third input is a bias that may be left out."""


def completed(model: ImportedModel, names: Iterable[str]) -> bytes | None:
    """Return the file with all of these parameters as initializers; None if that is impossible.

    It is possible only if each parameter is a bias of zeros that the file leaves out wherever it is
    used, and if the file has no external data.
    """
    if model.external:
        return None
    proto = ModelProto.FromString(Path(model.path).read_bytes())
    graph = proto.graph
    nodes = {node.output[0]: node for node in graph.node if len(node.output) == 1}
    known = {value for node in graph.node for value in (*node.input, *node.output)}
    known |= {item.name for item in (*graph.initializer, *graph.input)}
    types = {item.name: item.data_type for item in graph.initializer}
    for name in names:
        uses = list(model.graph.uses(name))
        if name in known or not uses:
            return None
        for use in uses:
            node, array = nodes.get(use.node.output), use.operand.array
            is_vector = array.shape == model.graph.parameters[name].shape and array.ndim == 1
            is_zero = use.slot == "bias" and is_vector and not np.any(array)
            if node is None or node.domain or node.op_type not in _BIASED or not is_zero:
                return None
            if len(node.input) != 2 or types.get(node.input[1]) != TensorProto.FLOAT:
                return None
            node.input.append(name)
        (size,) = model.graph.parameters[name].shape
        zeros = bytes(4 * size)
        graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=[size], raw_data=zeros)
    found: bytes = proto.SerializeToString(deterministic=True)
    return found


_GATES: Final = MappingProxyType({"GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2)})
"""Operator → the position in torch of each gate of the node."""
_JOINED: Final = MappingProxyType({1: (0,), 2: (1,), 3: (2, 3)})
"""Input of the node → positions, among the parameters of one direction, of what it joins."""


def with_stored(file: Model) -> Model:
    """Return the model with one initializer for each tensor of a Constant node, but for literals,
    and for each parameter of recurrent layers, where the notes list them all."""
    notes, tensors, stored = read_provenance(file), dict(file.initializers), stored_tensors(file)
    known = {*tensors, *(name for node in file.nodes for name in node.outputs)}
    nodes = list[Node]()
    for node in file.nodes:
        name = node.outputs[0]
        if name in stored and stored[name].is_float and not is_literal(name, stored[name].size):
            tensors[name] = stored[name]
            continue
        inputs = list(node.inputs)
        for position, written in enumerate(inputs):
            names = _joined(node, position, written, notes)
            whole, given = f"{output_names(node)[0]}@{position}", file.initializers.get(written)
            if given is None or not names or any(name.startswith(whole) for name in known):
                continue
            gates = _GATES[node.op_type]
            if given.size % (len(names) * len(gates)) or 0 in given.dims:
                continue
            order, held = _split_gates(given, len(names), gates)
            pairs = dict(zip(names, held, strict=True))
            if any(tensors.get(name, tensor) != tensor for name, tensor in pairs.items()):
                continue
            tensors |= {**pairs, f"{whole}.order": order}
            tensors[f"{whole}.shape"] = _integers(np.array(given.dims, "<i8"))
            parts = [f"{whole}.{number}" for number in range(len(names))]
            for part, name in zip(parts, names, strict=True):
                nodes.append(_node_like(node, part, "Gather", name, f"{whole}.order"))
            nodes.append(_node_like(node, f"{whole}.parts", "Concat", *parts))
            shaped = _node_like(node, whole, "Reshape", f"{whole}.parts", f"{whole}.shape")
            nodes.append(replace(shaped, attributes={}))
            inputs[position] = whole
        nodes.append(replace(node, inputs=tuple(inputs)))
    return replace(file, nodes=tuple(nodes), initializers=tensors)


def _joined(node: Node, position: int, written: str, notes: Provenance) -> Sequence[str]:
    """Return the parameters of a recurrent call that are joined in one input of its node.

    The call lists those of all layers and directions.
    """
    call = call_of(node)
    if node.op_type not in _GATES or position not in _JOINED or call is None:
        return ()
    if call.name != node.op_type.lower() or len(call.arguments) < 4:
        return ()
    each, sources = 4 if call.arguments[3] == "True" else 2, notes.sources(written)
    listed = [notes.parameters.get(name, "") for name in names_in(call.arguments[2])]
    own = [name for at, name in enumerate(listed) if at % each in _JOINED[position]]
    names = [name for name in own if name in sources]
    return names if sorted(names) == sorted(sources) else ()


def _split_gates(tensor: Tensor, count: int, gates: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
    """Return the order in which rows are read, and the parameters; bits are only moved."""
    items = np.frombuffer(tensor.content, f"V{Tensor.item_size(tensor.dtype)}")
    items = items.reshape(count, len(gates), -1, *tensor.dims[2:])
    size = items.shape[2]
    order = np.arange(len(gates) * size, dtype="<i8").reshape(len(gates), size)[[*gates]]
    own = items[:, np.argsort(gates)].reshape(count, order.size, *tensor.dims[2:])
    return _integers(order.reshape(-1)), [
        Tensor(tensor.dtype, part.shape, part.tobytes()) for part in own
    ]


def _integers(numbers: npt.NDArray[np.int64]) -> Tensor:
    return Tensor("int64", numbers.shape, numbers.tobytes())


def _node_like(node: Node, name: str, kind: str, *inputs: str) -> Node:
    """Return a node along axis 0 with the notes of another node."""
    axis = {"axis": Attribute("INT", 0)}
    return replace(node, name=name, op_type=kind, inputs=inputs, outputs=(name,), attributes=axis)
