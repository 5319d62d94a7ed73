"""Tensors of types that are not read, kept as the file says them."""

from __future__ import annotations

from onnx.onnx_ml_pb2 import TensorProto

from lipcert.core.reader.records import ModelReadError, Tensor, shown


def unread_tensor(proto: TensorProto) -> Tensor:
    """What the file says of a tensor whose type is not read, but for its name."""
    if len(proto.external_data) or proto.data_location != TensorProto.DEFAULT:
        raise ModelReadError(
            f"tensor {shown(proto.name)}: its data type {proto.data_type} is not a plain number"
            " type, and its numbers are stored elsewhere",
            "LC016",
        )
    kept = TensorProto()
    kept.CopyFrom(proto)
    kept.ClearField("name")
    kept.ClearField("doc_string")
    content = kept.SerializeToString(deterministic=True)
    return Tensor("unread", (len(content),), content)
