"""Small graphs built by hand, and their bounds through the files that say the same."""

import dataclasses
import itertools

import numpy as np

from lipcert.analysis.bounded import Bounded, bounded
from lipcert.errors import ModelFileError, UnsupportedModelError
from lipcert.graph.ir import Graph, Operand, Parameter
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.core.random_models import random_model
from tests.ops import Maker, Normalize, Scale, Shape, moved, named, written_shape
from tests.written import file_of, model_of

Step = tuple[str, Maker, tuple[str, ...]]


def reshaped(*shape: int) -> Maker:
    return moved(lambda own: own.reshape(shape))


def transposed(*perm: int) -> Maker:
    return moved(lambda own: own.transpose(perm))


def padded(begin: Shape, end: Shape, mode: str = "constant") -> Maker:
    """With zeros, or as numpy calls it."""
    widths = tuple(zip(begin, end, strict=True))
    zeros = {"constant_values": -1} if mode == "constant" else {}
    return moved(lambda own: np.pad(own, widths, mode, **zeros) if widths else own)


def trained(name: str, array: np.ndarray) -> Operand:
    return Operand(np.asarray(array, dtype=np.float64), name)


def by_channel(operand: Operand, shape: Shape) -> Operand:
    """[channels], placed as a value [channels, ...] of this shape needs it."""
    return dataclasses.replace(operand, array=operand.array.reshape(-1, *[1] * (len(shape) - 1)))


def group_norm(
    shape: Shape, groups: int, epsilon: float, scale: Operand | None, bias: Operand | None = None
) -> list[Maker]:
    """Over groups of channels of a value [channels, ...]; scale and bias: [channels]."""
    split = (groups, shape[0] // groups, *shape[1:])
    axes = tuple(range(1, len(split)))
    ops = [reshaped(*split), Normalize(axes, epsilon, centred=True), reshaped(*shape)]
    if scale is None:
        return ops
    own = None if bias is None else by_channel(bias, shape)
    return [*ops, Scale(by_channel(scale, shape), own)]


def dag(input_shape: tuple[int, ...], steps: list[Step]) -> Graph:
    """Each step: (output name, op, input names); the input of the graph is called "x"."""
    shapes = {"x": input_shape}
    nodes, parameters = [], {}
    for output, maker, inputs in steps:
        node = named(maker(*(shapes[name] for name in inputs)), inputs, output)
        shapes[output] = node.shape
        nodes.append(node)
        for operand in node.operands.values():
            if operand.parameter is not None:
                shape = written_shape(operand)
                parameters[operand.parameter] = Parameter(operand.parameter, shape)
    return Graph("x", input_shape, steps[-1][0], tuple(nodes), parameters)


def chain(input_shape: tuple[int, ...], *ops: Maker) -> Graph:
    names = ["x", *(f"v{i}" for i in range(len(ops)))]
    return dag(
        input_shape,
        [
            (after, op, (before,))
            for (before, after), op in zip(itertools.pairwise(names), ops, strict=True)
        ],
    )


def proved(graph: Graph, loss_norm: float = 1.0, **settings: object) -> Bounded:
    """Bounds of the file that says what a graph says.

    loss_norm: of ∂loss/∂logits, by a clip of what is otherwise far larger; a loss of the settings
    takes its place.
    """
    if "loss" not in settings:
        settings |= {"loss": "mse", "label_norm": 1e9, "loss_clip": loss_norm}
    return bounded(model_of(graph), Settings(**settings))


def orthogonal(size: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]


def random_graph(seed: int) -> Graph | None:
    """Of a random file: branches, every kind of layer, tied, shared and computed weights.

    None of a file that onnxruntime does not know, or that is refused.
    """
    try:
        return load_model(file_of(random_model(seed)), trusted=True, as_exported=True).graph
    except (ModelFileError, UnsupportedModelError):
        return None
