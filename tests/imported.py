"""Imported graphs as attacks need them: how every op sees the tensors of the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from onnx import ModelProto, numpy_helper
from torch import Tensor

from lipcert.errors import UnsupportedModelError
from lipcert.importer.load import load_model
from lipcert.ir import Graph
from lipcert.losses.factory import make_loss
from lipcert.operand import Operand
from tests.mirror import View
from tests.random_networks import Case, Domain

LOSSES: Mapping[str, Mapping[str, float]] = {
    "bce": {},
    "mse": {"label_norm": 1.0},
    "mae": {},
    "huber": {"label_norm": 1.0, "huber_delta": 0.5},
    "kr": {},
    "cosine": {"cosine_floor": 0.1},
}
"""losses of an output of any shape"""


def imported_case(proto: ModelProto, seed: int, folder: Path) -> Case | None:
    """The graph of a file, with a domain and a loss; None where the file is refused."""
    path = folder / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    try:
        graph = load_model(path, trusted=True).graph
    except UnsupportedModelError:
        return None
    name = sorted(LOSSES)[seed % len(LOSSES)]
    loss = make_loss(name, **LOSSES[name])
    domain = Domain(graph.input_shape, 1.5, (-1.0, 1.0) if seed % 2 else None)
    tensors = {item.name: numpy_helper.to_array(item) for item in proto.graph.initializer}
    weights = {name: tensors[name].astype(np.float64) for name in graph.parameters}
    return Case(graph, domain, loss, views_of(graph), weights)


def views_of(graph: Graph) -> dict[tuple[str, str], View]:
    """The view of each operand that is not the parameter itself."""
    return {
        (node.name, slot): _view(operand)
        for node in graph.nodes
        for slot, operand in node.op.operands().items()
        if operand.parameter is not None and _is_view(graph, operand)
    }


def _is_view(graph: Graph, operand: Operand) -> bool:
    own = graph.parameters[str(operand.parameter)].shape
    return operand.places is not None or operand.scale != 1.0 or operand.shape != own


def _view(operand: Operand) -> View:
    """array = scale · θ[places], and 0 where a place is −1."""
    places = operand.places
    if places is None:
        return lambda tensor: operand.scale * tensor.reshape(operand.shape)
    index = torch.from_numpy(np.asarray(places, np.int64))

    def view(tensor: Tensor) -> Tensor:
        with_zero = torch.cat([tensor.reshape(-1), tensor.new_zeros(1)])
        return operand.scale * with_zero[index]

    return view
