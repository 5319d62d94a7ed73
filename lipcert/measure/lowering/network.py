"""LoweredNetwork: a graph in torch, with its parameters in one dtype on one device.

Every operand is the tensor scale · θ[places] of a parameter θ, without a copy if the places form a
regular grid. Invariants: every parameter exists once; parameters do not require gradients; a value
is released once no later node reads it.

Every node is a function of tensors [examples, *shape] and its operands by role. A step that does
not reserve axis 0 of its values for the examples is applied to each example alone (`torch.vmap`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from lipcert.core import kinds, token_kinds, window_kinds
from lipcert.core import program as p
from lipcert.core.program import FloatArray
from lipcert.errors import NoVerdictError, Refusal, UnsupportedModelError
from lipcert.graph.ir import Graph, Node, Operand, PlaceArray, parameters_of
from lipcert.measure.lowering.functions import (
    FUNCTIONS,
    RANKS,
    Elementwise,
    Function,
    Tensors,
    activation,
    attention,
    batch_norm,
    clip,
    convolution,
    dense,
    elementwise,
    embedding,
    local_response,
    masking,
    matmul,
    normalize,
    pool,
    reduction,
)
from lipcert.measure.lowering.move import concat, move, separated, sort
from lipcert.text.numbers import first_of


def lowered(node: Node, inputs: Sequence[Tensor], operands: Tensors) -> Tensor:
    """Evaluate the node on tensors [examples, *shape]; operands by role, as in the node."""
    return function_of(node, inputs[0])(inputs, operands)


def function_of(node: Node, like: Tensor) -> Function:
    """Return the node as a function; like: has the dtype and device of its constants."""
    function = _function(node, like)
    if node.in_place:
        return function

    def one_by_one(inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
        rank = max(map(len, node.given))
        pairs = zip(inputs, node.given, strict=True)
        whole = [x.reshape(len(x), *[1] * (rank - len(shape)), *shape) for x, shape in pairs]
        found: Tensor = torch.vmap(lambda *parts: function(parts, tensors))(*whole)
        return found.reshape(inputs[0].shape[0], *node.shape)

    return one_by_one


def obstacle(node: Node) -> str | None:
    """Return why this node cannot be lowered although its kind can; None if it can."""
    match node.op:
        case p.Activation(name) if name not in FUNCTIONS:
            return f"{name} has no implementation in torch"
        case (
            window_kinds.Conv(window=window)
            | window_kinds.MaxPool(window)
            | window_kinds.AveragePool(window)
            | window_kinds.LpPool(window)
        ):
            if len(window.taps) not in RANKS:
                return f"torch has no windows over {len(window.taps)} spatial dimensions"
    return None


def _function(node: Node, like: Tensor) -> Function:
    match node.op:
        case p.Dense():
            return dense
        case kinds.Embedding():
            return embedding
        case kinds.Compare() | kinds.MaskedMean() as op:
            return masking(op, like)
        case window_kinds.Conv() as op:
            return convolution(op, node.geometry)
        case token_kinds.MatMul():
            return matmul
        case token_kinds.Attention() as op:
            return attention(op, like)
        case p.Activation() as op:
            return activation(op)
        case p.Move() as op:
            return move(op, node, like)
        case kinds.Concat(axis):
            return concat(axis)
        case kinds.Sort(axis):
            return sort(axis)
        case kinds.BatchNorm() as op:
            return batch_norm(op, like)
        case token_kinds.Normalize() as op:
            return normalize(op)
        case kinds.LocalResponse() as op:
            return local_response(op)
        case window_kinds.MaxPool() | window_kinds.AveragePool() | window_kinds.LpPool() as op:
            return pool(op, node.geometry, like)
        case kinds.InputClip() | kinds.CotangentClip() as op:
            return clip(op)
        case op if isinstance(op, Elementwise):
            return elementwise(op)
        case op:
            return reduction(op)


def replaced(graph: Graph, weights: Mapping[str, FloatArray] | None) -> Mapping[str, FloatArray]:
    """Return the graph's own parameters, with those in `weights` replaced.

    Raises:
        NoVerdictError: for names that the graph does not have, other shapes, numbers that are not
            finite, and a missing trainable parameter.
    """
    own = parameters_of(graph)
    if weights is None:
        return own
    if unknown := sorted(weights.keys() - own.keys()):
        raise NoVerdictError(
            f"weights: the model has no parameter {first_of([*map(repr, unknown)], 5)}; "
            f"it has {first_of([*map(repr, sorted(own))], 5)}: give the weights of this model"
        )
    trainable = {name for name, parameter in graph.parameters.items() if parameter.trainable}
    if missing := sorted(trainable - weights.keys()):
        listed = first_of([*map(repr, missing)], 5)
        raise NoVerdictError(f"weights: no numbers for the trained parameter {listed}")
    return {name: _checked(name, array, weights.get(name)) for name, array in own.items()}


def operand_tensor(operand: Operand, parameters: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """Return the operand as the op uses it; a constant of the architecture gets the dtype of
    `like`."""
    if operand.parameter is None:
        return torch.from_numpy(operand.array.copy()).to(like)
    whole = parameters[operand.parameter]
    view = _view(whole, operand)
    view = view if operand.scale == 1.0 else view * operand.scale
    return view if operand.plus is None else view + torch.from_numpy(operand.plus.copy()).to(view)


_STRIDES: Final[WeakKeyDictionary[Operand, tuple[int, ...] | None]] = WeakKeyDictionary()


def _view(whole: Tensor, operand: Operand) -> Tensor:
    places, shape = operand.places, operand.shape
    if places is None:  # reshaping adds a node to the history, also where nothing changes
        return whole if whole.shape == shape else whole.reshape(shape)
    if operand not in _STRIDES:
        _STRIDES[operand] = _strides(places)
    strides = _STRIDES[operand]
    if strides is not None:
        return torch.as_strided(whole, shape, strides, int(places.reshape(-1)[0]))
    index = torch.from_numpy(np.maximum(places, 0).astype(np.int64)).to(whole.device)
    gathered = whole.reshape(-1)[index]
    if np.min(places) >= 0:
        return gathered
    return torch.where(torch.from_numpy(places >= 0).to(whole.device), gathered, 0.0)


def _strides(places: PlaceArray) -> tuple[int, ...] | None:
    """Return the strides of places that form a regular grid without negative strides; otherwise
    None."""
    axes = separated(places.astype(np.int64))
    if axes is None or any(any(pads) for _, pads in axes):
        return None
    steps = tuple(int(way[1]) if len(way) > 1 else 0 for way, _ in axes)
    even = [np.arange(len(way)) * step for (way, _), step in zip(axes, steps, strict=True)]
    is_even = all(np.array_equal(way, own) for (way, _), own in zip(axes, even, strict=True))
    return steps if is_even and min(steps, default=0) >= 0 else None


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


Tap = Callable[[Node, tuple[Tensor, ...], Tensor], Tensor]
"""Receives a node, its inputs and its output; what it returns replaces the output."""


@dataclass(frozen=True, slots=True, eq=False)
class LoweredNetwork:
    """A graph that evaluates batches [examples, *input_shape] in torch.

    parameters: θ by name, in its own shape, without gradients.
    """

    graph: Graph
    parameters: Mapping[str, Tensor]
    dtype: torch.dtype
    device: torch.device
    _functions: Mapping[str, Function]
    _operands: Mapping[str, Tensors]
    _steps: tuple[_Step, ...]

    @classmethod
    def of(
        cls,
        graph: Graph,
        dtype: torch.dtype,
        device: torch.device,
        weights: Mapping[str, FloatArray] | None = None,
    ) -> Self:
        """Lower the graph with the parameters of the file, or with `weights` in their place.

        Raises:
            UnsupportedModelError: naming every node without a lowering.
            NoVerdictError: for weights that are not those of this graph.
        """
        _refuse_unknown(graph)
        parameters = {
            name: torch.tensor(array, dtype=dtype, device=device)
            for name, array in replaced(graph, weights).items()
        }
        return cls.sharing(graph, parameters, torch.empty((), dtype=dtype, device=device))

    @classmethod
    def sharing(cls, graph: Graph, parameters: Mapping[str, Tensor], like: Tensor) -> Self:
        """Lower the graph on these very tensors: every parameter, contiguous in storage of its own.

        Operands that are plain views of a parameter follow it; those that are scaled or gathered
        are copies.

        Args:
            like: has the dtype and device of the parameters.

        Raises:
            UnsupportedModelError: as `of` does.
        """
        _refuse_unknown(graph)
        functions = {node.name: function_of(node, like) for node in graph.nodes}
        steps = _steps_of(graph)
        return cls(graph, {}, like.dtype, like.device, functions, {}, steps).at(parameters)

    def at(self, parameters: Mapping[str, Tensor]) -> Self:
        """Return the same network on these tensors, as `sharing` does."""
        like = torch.empty((), dtype=self.dtype, device=self.device)
        operands = {
            node.name: {
                slot: operand_tensor(operand, parameters, like)
                for slot, operand in node.operands.items()
            }
            for node in self.graph.nodes
        }
        return replace(self, parameters=parameters, _operands=operands)

    def operands(self, node: Node) -> Mapping[str, Tensor]:
        """Return the operands of a node by slot, as in `node.operands`."""
        return self._operands[node.name]

    def lowered(self, node: Node, inputs: Sequence[Tensor], operands: Tensors) -> Tensor:
        """Evaluate one node on other tensors and with other operands."""
        return self._functions[node.name](inputs, operands)

    def forward(self, x: Tensor, tap: Tap | None = None) -> Tensor:
        """Return the output [examples, *output_shape] for a batch [examples, *input_shape].

        tap: sees every node, and may replace its output.
        """
        expected = self.graph.input_shape
        if x.dim() == 0 or tuple(x.shape[1:]) != expected:
            raise NoVerdictError(
                f"a batch of shape {tuple(x.shape)} does not fit the input "
                f"{self.graph.input_name!r} of the model: [examples, *{expected}]"
            )
        values = {self.graph.input_name: x}
        for node, name, read, written, is_real, last in self._steps:
            inputs = tuple([values[each] for each in read])
            output = self._functions[name](inputs, self._operands[name])
            if is_real:
                output = output.to(self.dtype)
            values[written] = output if tap is None else tap(node, inputs, output)
            for each in last:
                del values[each]
            del inputs, output
        return values[self.graph.output_name]


_Step: TypeAlias = tuple[Node, str, tuple[str, ...], str, bool, tuple[str, ...]]
"""A node: its name, what it reads and writes, whether that is a part of the input in real numbers,
and which values no later node reads."""


def _steps_of(graph: Graph) -> tuple[_Step, ...]:
    real = {part.name for part in graph.parts if part.ids is None}
    found: list[_Step] = []
    seen = {graph.output_name}
    for node in reversed(graph.nodes):
        last = tuple(x for x in dict.fromkeys((*node.inputs, node.output)) if x not in seen)
        seen.update(last)
        found.append((node, node.name, node.inputs, node.output, node.output in real, last))
    return tuple(reversed(found))


def _refuse_unknown(graph: Graph) -> None:
    remedy = "the audit cannot replay this model; report the missing operation"
    refusals = tuple(
        Refusal("LC003", node.name, node.kind, reason, remedy)
        for node in graph.nodes
        if (reason := obstacle(node)) is not None
    )
    if refusals:
        raise UnsupportedModelError(refusals)
