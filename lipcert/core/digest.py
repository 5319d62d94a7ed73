"""The structural digest of a model: the same for all files with the same computation.

Input: a `Model`. Output: a SHA-256 that stays the same when a model is saved again; when its nodes
are in another order of computation, or its initializers in any other order; when its tensors, nodes
or symbolic dimensions are renamed; when its numbers are stored elsewhere (raw, one by one, in
external files); or when texts for people are edited. It changes with anything that may change the
computation: an operator, an operand or their order, an attribute, a number by one ulp, a type, a
shape, an operator set, the order of graph inputs and outputs, which uses share one initializer.

Canonical form. Model inputs keep their order, initializers and nodes are sorted, and everything
is named by its position: the form lists the operator sets, the inputs (type, dimensions with
symbols numbered by first use, overridable initializers behind them), the initializers (type,
dimensions, bytes), the nodes (domain, operator, attributes by name, operands) and the operands
that are outputs. An operand is an input, an initializer or an output of a node, by its number.

Collisions. The model can be rebuilt from the listing except for names, order and texts: every part
is written with its kind and its length, in canonical JSON or packed numbers. So two models with
the same digest either have the same listing, and so are equal in that sense, or break SHA-256. This
does not depend on how nodes are sorted.

Invariance. Nodes are sorted by a key that does not depend on names or order: a digest of what they
compute (operator, attributes and digests of the operands), then of how it is used (digests of the
nodes that read it, and where). Nodes with the same key compute the same numbers for readers of
equal keys; their order in the file is kept, which can only make two digests of one computation
differ, never make those of two computations agree.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from lipcert.core.canonical import Json, write_canonical
from lipcert.core.reader.records import Attribute, Branch, Input, Loop, Model, Node, Tensor

_VERSION: Final = "lipcert-structure/1"
_Name = Callable[[str], Json]


def structural_digest(model: Model) -> str:
    """Return the SHA-256 of the canonical form of a model, in hexadecimal."""
    tensors = {name: _tensor(tensor) for name, tensor in model.initializers.items()}
    facts = [_facts(node) for node in model.nodes]
    node_keys, tensor_keys = _keys(model, tensors, facts)
    order = sorted(range(len(model.nodes)), key=node_keys.__getitem__)
    names = sorted(tensors, key=tensor_keys.__getitem__)
    operand: dict[str, Json] = {"": []}
    operand |= {item.name: ["input", index] for index, item in enumerate(model.inputs)}
    operand |= {name: ["initializer", index] for index, name in enumerate(names)}
    for position, index in enumerate(order):
        operand |= _outputs(model.nodes[index], ["node", position])
    parts: list[Json] = [
        _VERSION,
        {domain or "ai.onnx": version for domain, version in model.opset.items()},
        _inputs(model.inputs),
        [operand[name] for name in model.overridable],
        [tensors[name] for name in names],
        *(_described(facts[index], model.nodes[index], operand.__getitem__) for index in order),
        [operand[name] for name in model.outputs],
    ]
    return _hash([_hash(part) for part in parts])


def _keys(
    model: Model, tensors: Mapping[str, str], facts: list[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the keys that sort nodes (by index) and initializers (by name).

    They are digests of what is computed, forwards, then of how it is used, backwards.
    """
    values: dict[str, Json] = {"": [], **tensors}
    values |= {item.name: ["input", index] for index, item in enumerate(model.inputs)}
    computed: list[str] = []
    for node, fact in zip(model.nodes, facts, strict=True):
        computed.append(_hash(_described(fact, node, values.__getitem__)))
        values |= _outputs(node, [computed[-1]])
    uses: dict[str, list[str]] = {}
    for position, name in enumerate(model.outputs):
        uses.setdefault(name, []).append(_hash(["output", position]))
    nodes = [""] * len(model.nodes)
    for index in reversed(range(len(model.nodes))):
        node = model.nodes[index]
        read = [_bag(uses.get(name, ())) if name else "" for name in node.outputs]
        nodes[index] = computed[index] + _hash([computed[index], *read])
        for port, name in enumerate(node.inputs):
            uses.setdefault(name, []).append(_hash([nodes[index], port]))
    named = {name: digest + _bag(uses.get(name, ())) for name, digest in tensors.items()}
    return nodes, named


def _outputs(node: Node, label: list[Json]) -> dict[str, Json]:
    """Return labels for the outputs of a node, by name: the node's label and their number."""
    return {name: [*label, port] for port, name in enumerate(node.outputs) if name}


def _described(fact: str, node: Node, name: _Name) -> Json:
    """Describe a node by its operator, its operands, and which of its outputs have names."""
    operands: list[Json] = [name(item) for item in _stripped(node.inputs)]
    return [fact, operands, [bool(item) for item in _stripped(node.outputs)]]


def _stripped(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names without empty ones at the end, which mean nothing."""
    while names and not names[-1]:
        names = names[:-1]
    return names


def _facts(node: Node) -> str:
    """Return a digest of an operator and its attributes."""
    attributes: dict[str, Json] = {
        name: [attribute.kind, _payload(attribute, node.inputs)]
        for name, attribute in node.attributes.items()
    }
    return _hash([node.domain, node.op_type, attributes])


def _payload(attribute: Attribute, around: tuple[str, ...]) -> str:
    """Return a digest of a value: packed numbers, or texts each after its length (`kind` differs).

    A branch is described by its nodes in order; outer values are named by the inputs of the node.
    """
    value = attribute.value
    if isinstance(value, Branch):
        known: dict[str, Json] = {"": []}
        known |= {name: ["around", port] for port, name in enumerate(around)}
        parts: list[Json] = []
        for position, node in enumerate(value.nodes):
            parts.append(_described(_facts(node), node, known.__getitem__))
            known |= _outputs(node, ["node", position])
        return _hash([_hash(part) for part in [*parts, [known[name] for name in value.outputs]]])
    items = value if isinstance(value, tuple) else (value,)
    return hashlib.sha256(b"".join(_packed(item) for item in items)).hexdigest()


def _packed(item: object) -> bytes:
    match item:
        case Tensor():
            return _tensor(item).encode("ascii")
        case Loop():
            return item.content
        case bytes():
            return struct.pack("<Q", len(item)) + item
        case float():
            return struct.pack("<f", item)
        case _:
            return struct.pack("<q", item)


def _tensor(tensor: Tensor) -> str:
    digest = hashlib.sha256(write_canonical([tensor.dtype, *tensor.dims]) + b"\n")
    digest.update(tensor.content)
    return digest.hexdigest()


def _inputs(inputs: tuple[Input, ...]) -> Json:
    symbols: dict[str, str] = {"": "?"}
    result: list[Json] = []
    for item in inputs:
        dims: list[Json] = []
        for dim in item.dims or ():
            dims.append(dim if isinstance(dim, int) else symbols.setdefault(dim, f"{len(symbols)}"))
        result.append([item.dtype, item.dims is not None, dims])
    return result


def _bag(digests: Iterable[str]) -> str:
    """Return a digest of digests that does not depend on their order."""
    return hashlib.sha256("".join(sorted(digests)).encode("ascii")).hexdigest()


def _hash(value: Json) -> str:
    return hashlib.sha256(write_canonical(value)).hexdigest()
