"""Operands as tensors: views of the trained parameters, and the parameters behind operands.

What enters: a graph whose operands say where in which parameter θ their entries stand. What
leaves: θ's own numbers, and for each operand the tensor scale · θ[places], without a copy where
the places form a regular grid.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from lipcert.errors import NoVerdictError
from lipcert.graph.ir import Graph
from lipcert.graph.operand import Operand, PlaceArray
from lipcert.graph.viewed import parameters_of
from lipcert.upper import FloatArray


def replaced(graph: Graph, weights: Mapping[str, FloatArray] | None) -> Mapping[str, FloatArray]:
    """The graph's own parameters, those in `weights` replaced.

    Raises NoVerdictError for names that the graph does not know, other shapes, numbers that are
    not finite, and a trainable parameter that is missing.
    """
    own = parameters_of(graph)
    if weights is None:
        return own
    unknown = sorted(weights.keys() - own.keys())
    if unknown:
        raise NoVerdictError(
            f"weights: the model has no parameter {_listed(unknown)}; "
            f"it has {_listed(sorted(own))}: give the weights of this model"
        )
    trainable = {name for name, parameter in graph.parameters.items() if parameter.trainable}
    missing = sorted(trainable - weights.keys())
    if missing:
        raise NoVerdictError(f"weights: no numbers for the trained parameter {_listed(missing)}")
    return {name: _checked(name, array, weights.get(name)) for name, array in own.items()}


def operand_tensor(operand: Operand, parameters: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """The operand as the op uses it; a constant of the architecture in the dtype of `like`."""
    if operand.parameter is None:
        return torch.from_numpy(operand.array.copy()).to(like)
    whole = parameters[operand.parameter]
    view = _view(whole, operand.places, operand.shape)
    return view if operand.scale == 1.0 else view * operand.scale


def _view(whole: Tensor, places: PlaceArray | None, shape: tuple[int, ...]) -> Tensor:
    if places is None:
        return whole.reshape(shape)
    strides = _strides(places)
    if strides is not None:
        return torch.as_strided(whole, shape, strides, int(places.reshape(-1)[0]))
    index = torch.from_numpy(np.maximum(places, 0).astype(np.int64)).to(whole.device)
    gathered = whole.reshape(-1)[index]
    if np.min(places) >= 0:
        return gathered
    read = torch.from_numpy(places >= 0).to(whole.device)
    return torch.where(read, gathered, torch.zeros_like(gathered))


def _strides(places: PlaceArray) -> tuple[int, ...] | None:
    """The strides of places that form a regular grid, none of them negative; otherwise None."""
    if not places.size:
        return None
    first = int(places.reshape(-1)[0])
    steps = []
    for axis, length in enumerate(places.shape):
        second = tuple(int(axis == other and length > 1) for other in range(places.ndim))
        steps.append(int(places[second]) - first)
    if first < 0 or min(steps, default=0) < 0:
        return None
    grid = np.full((), first, dtype=np.int64)
    for length, step in zip(places.shape, steps, strict=True):
        grid = np.add.outer(grid, step * np.arange(length, dtype=np.int64))
    return tuple(steps) if np.array_equal(grid, places) else None


def _checked(name: str, own: FloatArray, given: FloatArray | None) -> FloatArray:
    if given is None:
        return own
    array = np.asarray(given, dtype=np.float64)
    if array.shape != own.shape:
        raise NoVerdictError(
            f"weights: {name!r} has shape {array.shape}, but the model's has {own.shape}"
        )
    if not np.all(np.isfinite(array)):
        raise NoVerdictError(f"weights: {name!r} holds NaN or infinity; repair the checkpoint")
    return array


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
