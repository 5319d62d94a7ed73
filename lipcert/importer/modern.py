"""Models of operator sets before 7, as onnxruntime can run them.

What enters: a model that onnxruntime is to run. What leaves: the same model as one of operator set
7, the first that onnxruntime knows whole, where each of its nodes means the same there. Invariant:
a node changes only by attributes that version 7 of its operator has no more and that the version
of the file fixes at what version 7 does.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from onnx import ModelProto, NodeProto, defs

_KNOWN: Final = 7
_INFERENCE: Final = ("is_test", 1)
_SIDES: Final = ("broadcast", 1)
_RULES: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        "BatchNormalization": _INFERENCE,
        "Dropout": _INFERENCE,
        "Gemm": _SIDES,
        **dict.fromkeys(["Add", "Div", "Mul", "Pow", "PRelu", "Sub"], _SIDES),
    }
)
"""op → the attribute that must have this value, or be absent where version 7 allows no other"""
_IDLE: Final = "consumed_inputs"
"""an attribute of version 1 of many operators, which says where memory is used again"""


def modernise(proto: ModelProto) -> None:
    """Raise the operator set to 7 where it is lower and every node allows it."""
    for item in proto.opset_import:
        if item.domain in {"", "ai.onnx"} and item.version < _KNOWN:
            nodes = proto.graph.node
            if all(_means_the_same(node, item.version) for node in nodes):
                for node in nodes:
                    _strip(node)
                item.version = _KNOWN


def _means_the_same(node: NodeProto, version: int) -> bool:
    given = {attribute.name: attribute.i for attribute in node.attribute}
    if node.op_type in _RULES:
        name, value = _RULES[node.op_type]
        is_required = (name, value) == _INFERENCE
        return "axis" not in given and given.get(name, 0 if is_required else value) == value
    if node.domain:
        return False
    try:
        old, new = (defs.get_schema(node.op_type, at, "") for at in (version, _KNOWN))
    except defs.SchemaError:
        return False
    if old.since_version == new.since_version:
        return True
    lost = set(old.attributes) - set(new.attributes)
    return lost <= {_IDLE} and len(old.inputs) == len(new.inputs)


def _strip(node: NodeProto) -> None:
    gone = {_IDLE, *_RULES.get(node.op_type, ())[:1]}
    kept = [attribute for attribute in node.attribute if attribute.name not in gone]
    del node.attribute[:]
    node.attribute.extend(kept)
