"""Completing: the file with the biases that an optimiser left out because they were zero.

A certificate is about the tensors of a file. An optimiser of `torch.onnx` drops a bias of zeros, as
that of an attention output is at first; it is trained all the same. In the completed file it is an
initializer of its own again, which the node reads in its place. Invariant: both files compute the
same: y + 0 is y in floating point, but for the sign of a zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
from onnx.onnx_ml_pb2 import ModelProto, TensorProto

from lipcert.importer.model import ImportedModel

_BIASED: Final = frozenset({"Gemm", "Conv", "ConvTranspose"})
"""operators whose third input is a bias, and may be left out"""


def completed(model: ImportedModel, names: Iterable[str]) -> bytes | None:
    """The file in which all of these parameters are initializers; None where it cannot be made.

    It cannot where a parameter is not a bias of zeros that the file leaves out wherever it is used,
    and where the file has numbers in other files.
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
