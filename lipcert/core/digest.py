"""The structural digest of a model: the same for all files with the same computation.

Input: a `Model`. Output: a SHA-256 that stays the same when a model is saved again; when its
initializers are in any other order; when its tensors, nodes or symbolic dimensions are renamed;
when its numbers are stored elsewhere (raw, one by one, in external files); or when texts for people
are edited. It changes with anything that may change the computation: an operator, an operand or
their order, an attribute, a number by one ulp, a type, a shape, an operator set, the order of graph
inputs and outputs, which uses share one initializer; and with the order of the nodes.

Canonical form. Every name is replaced by the number of its first use: of graph inputs, then node by
node of operands, branches and results, and at last of the graph outputs. The form lists the
operator sets, the inputs (type, dimensions with symbols numbered by first use, overridable
initializers behind them), the nodes (domain, operator, attributes by name, operands, results), the
outputs, and the initializers by number (type, dimensions, bytes; 0 for those that nothing reads).

Collisions. The model can be rebuilt from the listing except for names and texts: every part is
written with its kind and its length, in canonical JSON or packed numbers. So two models with the
same digest either have the same listing, and so are equal in that sense, or break SHA-256.
"""

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

from lipcert.core.canonical import Json, write_canonical
from lipcert.core.reader.records import AttributeValue, Branch, Input, Loop, Model, Node, Tensor

_VERSION: Final = "lipcert-structure/2"


def structural_digest(model: Model) -> str:
    """Return the SHA-256 of the canonical form of a model, in hexadecimal."""
    numbers = _Numbers()
    parts: list[Json] = [
        _VERSION,
        {domain or "ai.onnx": version for domain, version in model.opset.items()},
        _inputs(model.inputs),
        numbers.of(item.name for item in model.inputs),
        numbers.of(model.overridable),
        *map(numbers.listed, model.nodes),
        numbers.of(model.outputs),
    ]
    held = ((numbers.known.get(name, 0), item) for name, item in model.initializers.items())
    parts += [[number, digest] for number, digest in sorted((n, _tensor(t)) for n, t in held)]
    return _hash([_hash(part) for part in parts])


class _Numbers:
    """The numbers of names, in the order of their first use; 0 for an operand that is left out."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {"": 0}

    def of(self, names: Iterable[str]) -> list[Json]:
        """Return the numbers of names."""
        return [self.known.setdefault(name, len(self.known)) for name in names]

    def listed(self, node: Node) -> list[Json]:
        """Return what a node computes, by which numbers, and all its results: Split counts them.

        Operands that are left out at the end mean nothing.
        """
        operands, given = self.of(node.inputs), sorted(node.attributes.items())
        while operands and not operands[-1]:
            operands.pop()
        attributes: Json = {name: [item.kind, self._payload(item.value)] for name, item in given}
        return [node.domain, node.op_type, attributes, operands, self.of(node.outputs)]

    def _payload(self, value: AttributeValue) -> str:
        if isinstance(value, Branch):
            return _hash([*(_hash(self.listed(x)) for x in value.nodes), self.of(value.outputs)])
        items = value if isinstance(value, tuple) else (value,)
        return hashlib.sha256(b"".join(map(_packed, items))).hexdigest()


def _packed(item: object) -> bytes:
    """Pack an item of an attribute; its kind is listed apart."""
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
    """List types and dimensions, symbols by the number of their first use."""
    symbols: dict[str, str] = {"": "?"}
    result: list[Json] = []
    for item in inputs:
        dims: list[Json] = []
        for dim in item.dims or ():
            dims.append(dim if isinstance(dim, int) else symbols.setdefault(dim, f"{len(symbols)}"))
        result.append([item.dtype, item.dims is not None, dims])
    return result


def _hash(value: Json) -> str:
    return hashlib.sha256(write_canonical(value)).hexdigest()
