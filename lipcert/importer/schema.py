"""What the importer requires of a file beyond the core: valid ONNX nodes and finite numbers.

The core has a rule for each operator that it understands; of all others the definition of the
format says whether a node is well formed. Numbers that are not finite matter where an output
depends on them. −∞ is refused where it is used: the mask of an attention may hold it.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np
from onnx import defs

from lipcert.core.reader.records import Branch, Loop, Model, Node, Tensor, with_nested
from lipcert.errors import Refusal
from lipcert.importer.nodes import label
from lipcert.importer.operators import refusal_of


def format_refusals(model: Model) -> Iterator[Refusal]:
    """The nodes that contradict the definitions of their operators."""
    version = model.opset.get("", 0)
    for node in with_nested(model.nodes):
        fault = _fault(node, version) if version and not node.domain else ""
        if fault:
            yield refusal_of(node) or Refusal("LC016", label(node), node.op_type, fault)


def _fault(node: Node, version: int) -> str:
    """How a node contradicts the definition of its operator; "" where it does not."""
    try:
        schema = defs.get_schema(node.op_type, version, "")
    except defs.SchemaError:
        return ""
    single = defs.OpSchema.FormalParameterOption.Single
    required = sum(item.option == single for item in schema.inputs)
    given = node.inputs[:required]
    if len(given) < required or not all(given):
        return "a required input is missing"
    reads_more = any(isinstance(item.value, Branch | Loop) for item in node.attributes.values())
    most = len(node.inputs) if reads_more else schema.max_input
    if not schema.min_input <= len(node.inputs) <= most:
        return f"it has {len(node.inputs)} inputs"
    if not schema.min_output <= len(node.outputs) <= schema.max_output or not node.outputs[0]:
        return f"it has {len(node.outputs)} outputs, or no first one"
    for name, definition in schema.attributes.items():
        found = node.attributes.get(name)
        if found is not None and getattr(defs.OpSchema.AttrType, found.kind) != definition.type:
            return f"the attribute {name!r} has the wrong type"
        if found is None and definition.required:
            return f"the attribute {name!r} is missing"
    return ""


def number_refusals(model: Model, live: Set[str]) -> Iterator[Refusal]:
    """The stored tensors behind these values that do not hold numbers."""
    for name, tensor in model.initializers.items():
        if name in live:
            yield from _of_tensor(tensor, f"initializer {name!r}")
    for node in model.nodes:
        if not live.isdisjoint(node.outputs):
            for name, item in node.attributes.items():
                if isinstance(item.value, Tensor):
                    where = f"attribute {name!r} of node {label(node)!r}"
                    yield from _of_tensor(item.value, where)


def _of_tensor(tensor: Tensor, where: str) -> Iterator[Refusal]:
    if tensor.dtype == "unread":
        yield Refusal("LC016", "", "", f"{where}: its data type is not a plain number type")
    elif tensor.is_float and not (tensor.values() < np.inf).all():
        reason, remedy = "it holds NaN or infinite numbers", "retrain, or repair the file"
        yield Refusal("LC014", "", "", f"{where}: {reason}", remedy)
