"""Graphs with one constrained op, projectors of them, and the true norms of their ops."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from lipcert.audit.viewed import graph_at
from lipcert.geometry import Window
from lipcert.ir import Graph
from lipcert.ops.base import Op
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.settings import ConstraintSpec, Settings
from lipcert.training.projection import Projector
from tests.networks import chain

CLIPLESS = "clipless"


def declared(kind: str = "spectral", radius: float = 1.0, mechanism: str = CLIPLESS) -> Settings:
    return Settings(
        constraint=ConstraintSpec(kind, radius),
        bias_norm=radius,
        mechanism=mechanism,
        input_norm=1.0,
    )


def graph_of(shape: tuple[int, ...], op: Op) -> Graph:
    return chain(shape, op)


def floats(array: np.ndarray, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float64)).to(dtype)


def projector(
    graph: Graph, tensors: dict[str, Tensor], settings: Settings | None = None, **more: int
) -> Projector:
    return Projector.of(graph, settings or declared(), tensors, **more)


def matrix_of(op: Op, shape: tuple[int, ...]) -> np.ndarray:
    """The linear part as a matrix, entry by entry."""
    size = math.prod(shape)
    zero = op.evaluate(np.zeros((1, *shape)))
    images = op.evaluate(np.eye(size).reshape(size, *shape)) - zero
    return images.reshape(size, -1).T


def true_norm(graph: Graph, tensors: dict[str, Tensor]) -> float:
    """Of the only op of a graph, at the present numbers."""
    at = graph_at(graph, {name: tensor.double().numpy() for name, tensor in tensors.items()})
    (node,) = at.nodes
    return float(np.linalg.norm(matrix_of(node.op, graph.input_shape), 2))


@st.composite
def windows(draw: st.DrawFn, largest: int = 7) -> Window:
    taps, stride = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    dilation = draw(st.integers(1, 3))
    begin, end = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    reach = dilation * (taps - 1) + 1
    size = draw(st.integers(max(1, reach - begin - end), max(largest, reach)))
    return Window(size, taps, stride, dilation, begin, end)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[type[Conv] | type[ConvTranspose], tuple, int, tuple]:
    """Kind, geometry, groups, and the shape of the kernel."""
    rank = draw(st.integers(1, 2))
    geometry = tuple(draw(windows(7 if rank == 2 else 24)) for _ in range(rank))
    groups = draw(st.integers(1, 3))
    outer, inner = draw(st.integers(1, 3)) * groups, draw(st.integers(1, 3))
    kind = draw(st.sampled_from([Conv, ConvTranspose]))
    return kind, geometry, groups, (outer, inner, *(window.taps for window in geometry))


def input_shape(op: Conv | ConvTranspose) -> tuple[int, ...]:
    if isinstance(op, Conv):
        return (op.weight.shape[1] * op.groups, *(window.size for window in op.geometry))
    return (op.weight.shape[0], *(window.outputs for window in op.geometry))
