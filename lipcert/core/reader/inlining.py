"""Inline calls of model-local functions, and give branches of If unique names.

An `Inliner` replaces a call by the nodes of the function, with new names for the names of the body.
Names in the branches of an If are replaced likewise; the outer names that the branches read are
appended to the inputs of the If, after its condition. Invariants: the result has at most
`MAX_NODES` nodes, `MAX_BYTES` bytes of tensors in them and `_MAX_NAMES` characters of new names;
tensors are shared.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from onnx.onnx_ml_pb2 import ModelProto

from lipcert.core.reader import MAX_BYTES, Folder
from lipcert.core.reader.model import check_order, operator_sets
from lipcert.core.reader.nested import read_functions
from lipcert.core.reader.records import (
    MAX_NODES,
    Attribute,
    Branch,
    Function,
    ModelReadError,
    Node,
    Reference,
    Tensor,
    shown,
    with_nested,
)

_MAX_NAMES: Final = 1 << 25
_MAX_DEPTH: Final = 100
_Names = dict[str, str]
_Given = Mapping[str, Attribute] | None


def resolved(
    proto: ModelProto, nodes: tuple[Node, ...], initializers: Mapping[str, Tensor], folder: Folder
) -> tuple[tuple[Node, ...], dict[str, Tensor]]:
    """Return the nodes of a model without calls, and its initializers with those of branches.

    Operators of ai.onnx.ml are translated to standard ones where a translation exists.
    """
    taken = {*initializers, *(info.name for info in (*proto.graph.input, *proto.graph.output))}
    taken.update(*(node.outputs for node in nodes))
    inliner = Inliner(dict(read_functions(proto, operator_sets(proto), folder)), taken)
    nodes = tuple(inliner.nodes(nodes, {}))
    found = {**initializers, **inliner.initializers}
    if all(node.domain != "ai.onnx.ml" for node in with_nested(nodes)):
        return nodes, found
    from lipcert.core.reader.scores import Translator  # noqa: PLC0415  for such models only

    translator = Translator(found, taken)
    return tuple(translator.nodes(nodes)), translator.initializers


class Inliner:
    """Inlines bodies and counts their size. initializers: those of branches, by new names."""

    def __init__(self, functions: Mapping[tuple[str, str], Function], taken: set[str]) -> None:
        self.initializers: dict[str, Tensor] = {}
        self._functions = functions
        self._taken = taken
        self._depth = self._count = self._bytes = self._bodies = self._length = 0

    def nodes(
        self, nodes: Iterable[Node], names: _Names, given: _Given = None, prefix: str = ""
    ) -> Iterator[Node]:
        """Yield the inlined nodes of a body.

        names: outer names by the names of the body; new ones are added as they occur. given: the
        attributes of the call, if this is the body of a function. prefix: of new names; "" for the
        graph itself, which keeps its names.
        """
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ModelReadError("functions or branches are nested too deeply, or without end")
        for node in nodes:
            attributes = dict(_resolved(node, given))
            self._count += 1
            self._bytes += sum(
                len(item.value.content)
                for item in attributes.values()
                if isinstance(item.value, Tensor)
            )
            if self._count > MAX_NODES or self._bytes > MAX_BYTES:
                reason = (
                    f"the model has more than {MAX_NODES} nodes, or too large ones, when inlined"
                )
                raise ModelReadError(reason, "LC002")
            made = replace(
                node,
                name=f"{prefix}{node.name}",
                inputs=tuple(self._known(name, names, prefix) for name in node.inputs),
                outputs=tuple(self._known(name, names, prefix) for name in node.outputs),
                attributes=attributes,
            )
            function = self._functions.get((node.domain, node.op_type))
            if function is not None:
                yield from self._called(made, function)
            elif any(isinstance(item.value, Branch) for item in attributes.values()):
                yield self._branched(made, names, given, prefix)
            else:
                yield made
        self._depth -= 1

    def _known(self, name: str, names: _Names, prefix: str) -> str:
        """Return the outer name of a value of a body; a new one if it has none yet."""
        if not name or not prefix:
            return name
        if name not in names:
            names[name] = self._fresh(f"{prefix}{name}")
        return names[name]

    def _fresh(self, name: str) -> str:
        while name in self._taken:
            name += "'"
        self._length += len(name)
        if self._length > _MAX_NAMES:
            raise ModelReadError("the names of inlined nodes are too long", "LC002")
        self._taken.add(name)
        return name

    def _prefix(self, label: str) -> str:
        self._bodies += 1
        return f"{label}.{self._bodies}/"

    def _called(self, node: Node, function: Function) -> Iterator[Node]:
        """Yield the body of the function in place of the call."""
        where = f"the call of {shown(node.op_type)}"
        if len(node.inputs) > len(function.inputs) or len(node.outputs) > len(function.outputs):
            raise ModelReadError(f"{where} has more inputs or outputs than the function")
        if not set(node.attributes) <= set(function.defaults):
            raise ModelReadError(f"{where} has an attribute that the function lacks")
        defaults = {name: item for name, item in function.defaults.items() if item is not None}
        names = dict.fromkeys(function.inputs, "") | dict(
            zip(function.inputs, node.inputs, strict=False)
        )
        prefix = self._prefix(node.op_type)
        for name, outer in zip(function.outputs, node.outputs, strict=False):
            if outer and name in function.inputs:
                yield Node(node.name, "Identity", "", (names[name],), (outer,), {})
            elif outer:
                names[name] = outer
        yield from self.nodes(function.nodes, names, {**defaults, **node.attributes}, prefix)

    def _branched(self, node: Node, names: _Names, given: _Given, prefix: str) -> Node:
        """Return the If with renamed branches; its inputs end with the outer names they read."""
        attributes = dict(node.attributes)
        captured: dict[str, None] = {}
        for key, item in sorted(node.attributes.items()):
            body = item.value
            if not isinstance(body, Branch):
                continue
            own = self._prefix(node.op_type)
            inner = [*body.initializers, *(name for item in body.nodes for name in item.outputs)]
            local = {name: self._fresh(f"{own}{name}") for name in dict.fromkeys(inner) if name}
            seen = _Scope(names if prefix else None, local)
            self.initializers |= {local[name]: item for name, item in body.initializers.items()}
            nodes = tuple(self.nodes(body.nodes, seen, given, own))
            outputs = tuple(self._known(name, seen, own) for name in body.outputs)
            made = {name for item in nodes for name in item.outputs}
            read = [*(name for item in nodes for name in item.inputs), *outputs]
            outside = dict.fromkeys(name for name in read if name and name not in made)
            check_order(nodes, set(outside), outputs)
            kept = Branch(nodes, outputs, {})
            attributes[key] = replace(item, value=kept)
            captured |= outside
        return replace(node, inputs=(*node.inputs, *captured), attributes=attributes)


class _Scope(dict[str, str]):
    """The names of a branch; other names are looked up around it (None: in the graph itself)."""

    def __init__(self, around: _Names | None, local: _Names) -> None:
        super().__init__(local)
        self._around = around

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or self._around is None or name in self._around

    def __missing__(self, name: str) -> str:
        return name if self._around is None else self._around[name]


def _resolved(node: Node, given: _Given) -> Iterator[tuple[str, Attribute]]:
    """Yield the attributes of a node, with references replaced by the attributes of the call."""
    for name, item in node.attributes.items():
        if not isinstance(item.value, Reference):
            yield name, item
        elif given is None:
            raise ModelReadError(f"the attribute {shown(name)} refers to a call outside of any")
        elif item.value.name in given:
            if given[item.value.name].kind != item.kind:
                raise ModelReadError(f"the attribute {shown(name)} is given with another type")
            yield name, given[item.value.name]
