"""From bytes to a raw model: parse, check the structure, expand model-local functions.

What enters: the bytes of one ModelProto. What leaves: the raw model. Invariants: every value is
computed once and before it is read; every tensor is finite and complete; sizes are below `limits`;
no file is read but those that `container` and `external` open.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import ModelProto, defs

from lipcert.errors import ModelFileError, Refusal, UnsupportedModelError
from lipcert.importer.container import ModelBytes
from lipcert.importer.expansion import check_expansion, expanded
from lipcert.importer.external import embed_external_data
from lipcert.importer.raw import RawModel
from lipcert.importer.reader import GraphReader
from lipcert.importer.survey import distinct, operator_refusals


def open_model(path: Path, raw: ModelBytes) -> RawModel:
    """Check the bytes of a model file, and read its external data from its folder."""
    proto = ModelProto()
    try:
        proto.ParseFromString(raw.content)
    except DecodeError as error:
        raise _malformed(path, "is not an ONNX model, or is truncated") from error
    check_expansion(path, proto)
    if not _is_text(proto):
        raise _malformed(path, "has a name that is not UTF-8")
    _check_versions(path, proto)
    external = embed_external_data(proto, path.parent)
    proto = expanded(path, proto)
    opset = {item.domain or "ai.onnx": item.version for item in proto.opset_import}
    refusals: list[Refusal] = []
    graph = GraphReader(path, opset, refusals).graph(proto.graph)
    if refusals:
        found = (
            *refusals,
            *graph.faults.values(),
            *operator_refusals(graph, graph.outputs),
        )
        raise UnsupportedModelError(distinct(found))
    if not graph.outputs:
        raise _malformed(path, "has no output")
    producer = f"{proto.producer_name} {proto.producer_version}".strip()
    return RawModel(graph, opset, proto.ir_version, producer, str(path), raw.sha256, external)


def _malformed(path: Path, why: str) -> ModelFileError:
    return ModelFileError(f"{str(path)!r} {why}")


def _listed(value: Any) -> Iterable[Any]:
    """The items of a repeated field, or the one value of a singular field."""
    return [value] if isinstance(value, str | bytes | Message) else value


def _is_text(message: Message) -> bool:
    """Whether every string of a message is one; protobuf yields bytes where it is not UTF-8."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE and not all(map(_is_text, _listed(value))):
            return False
        if field.type == FieldDescriptor.TYPE_STRING and any(
            isinstance(item, bytes) for item in _listed(value)
        ):
            return False
    return True


def _check_versions(path: Path, proto: ModelProto) -> None:
    if not 1 <= proto.ir_version <= onnx.IR_VERSION:
        raise _malformed(
            path, f"has IR version {proto.ir_version}; up to {onnx.IR_VERSION} is supported"
        )
    if proto.training_info:
        reason = "the file holds a training algorithm"
        raise UnsupportedModelError((Refusal("LC011", "", "", reason, "export for inference"),))
    versions = {(item.domain or "ai.onnx", item.version) for item in proto.opset_import}
    if len({domain for domain, _ in versions}) < len(versions):
        raise _malformed(path, "imports two versions of one operator set")
    newest = defs.onnx_opset_version()
    for item in proto.opset_import:
        if item.domain in {"", "ai.onnx"} and not 1 <= item.version <= newest:
            reason = f"operator set {item.version} is not known (up to {newest})"
            remedy = "export with an older opset_version"
            raise UnsupportedModelError((Refusal("LC003", "", "", reason, remedy),))
