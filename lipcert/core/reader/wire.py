"""Bytes that are one serialised message, and messages without unknown fields.

Protobuf merges what is concatenated and keeps what it does not know, so two programs may read
two models from the same bytes. Here a singular field of the model occurs once, and no message
that is interpreted has an unknown field.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx.onnx_ml_pb2 import ModelProto

from lipcert.core.reader.records import ModelReadError

_FIELDS: Final = ModelProto.DESCRIPTOR.fields_by_number


def check_single_model(content: bytes) -> None:
    """Raise `ModelReadError` unless the bytes are the fields of one ModelProto with a graph.

    `DecodeError` where they cannot be taken apart.
    """
    seen: set[int] = set()
    fields = UnknownFieldSet(Empty.FromString(content))  # of which every field is unknown, in order
    for field in (item.field_number for item in fields):
        if field not in _FIELDS:
            raise ModelReadError(f"this is not an ONNX model (field {field} is not known)")
        if field in seen and not _FIELDS[field].is_repeated:
            raise ModelReadError("the file holds several models one after another")
        seen.add(field)
    if ModelProto.GRAPH_FIELD_NUMBER not in seen:
        raise ModelReadError("this is not an ONNX model: it holds no graph")


def check_known(message: Message) -> None:
    """Raise `ModelReadError` if a message itself has a field that its type does not declare."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        kind = message.DESCRIPTOR.name
        raise ModelReadError(f"a {kind} has a field {unknown[0].field_number} that is not known")


def check_text(message: Message) -> None:
    """Raise `ModelReadError` unless every string is UTF-8; protobuf yields bytes for others."""
    for field, value in message.ListFields():
        items = value if field.is_repeated else [value]
        if field.type == FieldDescriptor.TYPE_STRING and not all(isinstance(x, str) for x in items):
            raise ModelReadError("the model holds a name that is not UTF-8")
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in items:
                check_text(item)
