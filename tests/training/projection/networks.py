"""Graphs with one constrained op, projectors of them, and the true norms of their ops."""

import math
from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st

from lipcert.graph.geometry import Window
from lipcert.graph.ir import Graph, Node, graph_at
from lipcert.settings.settings import ConstraintSpec, Settings
from lipcert.training.projection import Projector
from tests.networks import chain
from tests.ops import Conv, ConvTranspose, Maker, evaluated, exact

CLIPLESS = "clipless"


def declared(kind: str = "spectral", radius: float = 1.0, mechanism: str = CLIPLESS) -> Settings:
    return Settings(
        constraint=ConstraintSpec(kind, radius),
        bias_norm=radius,
        mechanism=mechanism,
        input_norm=1.0,
    )


def graph_of(shape: tuple[int, ...], op: Maker) -> Graph:
    return chain(shape, op)


def floats(array: np.ndarray, dtype: torch.dtype = torch.float32):
    return torch.from_numpy(np.array(array, dtype=np.float64)).to(dtype)


def projector(graph: Graph, tensors, settings: Settings | None = None, **more: int) -> Projector:
    return Projector.of(graph, settings or declared(), tensors, **more)


def matrix_of(node: Node) -> np.ndarray:
    """The linear part as a matrix, entry by entry."""
    shape = node.given[0][1:]
    size = math.prod(shape)
    zero = evaluated(node, np.zeros((1, *shape)))
    images = evaluated(node, np.eye(size).reshape(size, *shape)) - zero
    return images.reshape(size, -1).T


def true_norm(graph: Graph, tensors) -> float:
    """Of the only node of a graph, at the present numbers."""
    at = graph_at(graph, {name: tensor.double().numpy() for name, tensor in tensors.items()})
    (node,) = at.nodes
    if "weight" in node.operands:
        weight = exact(node.operands["weight"])
        node = replace(node, step=replace(node.step, op=replace(node.op, weight=weight)))
    return float(np.linalg.norm(matrix_of(node), 2))


@st.composite
def windows(draw: st.DrawFn, largest: int = 7) -> Window:
    taps, stride = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    dilation = draw(st.integers(1, 3))
    begin, end = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    reach = dilation * (taps - 1) + 1
    size = draw(st.integers(max(1, reach - begin - end), max(largest, reach)))
    return Window(size, taps, stride, dilation, begin, end)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Maker, tuple, int, tuple]:
    """Kind, geometry, groups, and the shape of the kernel."""
    rank = draw(st.integers(1, 2))
    geometry = tuple(draw(windows(7 if rank == 2 else 24)) for _ in range(rank))
    groups = draw(st.integers(1, 3))
    outer, inner = draw(st.integers(1, 3)) * groups, draw(st.integers(1, 3))
    kind = draw(st.sampled_from([Conv, ConvTranspose]))
    return kind, geometry, groups, (outer, inner, *(window.taps for window in geometry))


def input_shape(kind: Maker, geometry: tuple, groups: int, kernel: tuple) -> tuple[int, ...]:
    """Of a convolution with a kernel of this shape."""
    if kind is Conv:
        return (kernel[1] * groups, *(window.size for window in geometry))
    return (kernel[0], *(window.outputs for window in geometry))
