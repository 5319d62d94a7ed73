"""Small graphs built by hand, and their bounds through the files that say the same."""

from __future__ import annotations

import itertools

import numpy as np

from lipcert.analysis.bounded import Bounded, bounded
from lipcert.ir import Graph, Node, Parameter
from lipcert.operand import Operand
from lipcert.ops.base import Op
from lipcert.settings import Settings
from tests.written import model_of

Step = tuple[str, Op, tuple[str, ...]]


def trained(name: str, array: np.ndarray) -> Operand:
    return Operand(np.asarray(array, dtype=np.float64), name)


def dag(input_shape: tuple[int, ...], steps: list[Step]) -> Graph:
    """Each step: (output name, op, input names); the input of the graph is called "x"."""
    shapes = {"x": input_shape}
    nodes, parameters = [], {}
    for output, op, inputs in steps:
        shapes[output] = op.output_shape([shapes[name] for name in inputs])
        nodes.append(Node(f"{output}_node", op, inputs, output, shapes[output]))
        for operand in op.operands().values():
            if operand.parameter is not None:
                parameters[operand.parameter] = Parameter(operand.parameter, operand.shape)
    return Graph("x", input_shape, steps[-1][0], tuple(nodes), parameters)


def chain(input_shape: tuple[int, ...], *ops: Op) -> Graph:
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
