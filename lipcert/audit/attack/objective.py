"""The field in which an attack climbs: log-norms of gradients over examples, labels, weights.

Rows are examples with their labels; the field has ‖g‖ of every objective at every row, and the
slopes of one of them per row. Unlike the norm engine of the replay, which is made to be fast and
bounds its own error, `GradientSquares` computes norms as functions that autograd differentiates
once more. Everything outside is float64 numpy; a few rows at a time are evaluated, so that memory
stays bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipcert.audit.attack.labels import Labels
from lipcert.audit.bounds import Claims
from lipcert.core.program import Dense
from lipcert.graph.ir import Graph, Node
from lipcert.measure.losses import clipped_gradient, per_example_loss
from lipcert.measure.lowering.dispatch import function_of
from lipcert.measure.lowering.functions import Tensors
from lipcert.measure.lowering.network import LoweredNetwork, operand_tensor
from lipcert.upper import ONE, FloatArray

_Losses = Callable[[Tensor], Tensor]
_Gradients = Mapping[str, Tensor]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Use:
    """A node that uses trained parameters, evaluated."""

    node: Node
    inputs: tuple[Tensor, ...]
    output: Tensor


@final
class GradientSquares:
    """Evaluates a graph at any parameters."""

    def __init__(self, graph: Graph, like: Tensor) -> None:
        self._graph = graph
        self._like = like
        self._functions = {node.name: function_of(node, like) for node in graph.nodes}
        self._trained = {node.name: _trained(graph, node) for node in graph.nodes}

    def logits(self, parameters: Tensors, x: Tensor) -> Tensor:
        """The output of every example."""
        return self._forward(parameters, x)[1]

    def squares(
        self, parameters: Tensors, x: Tensor, losses_of: _Losses, *, differentiable: bool
    ) -> Mapping[str, Tensor]:
        """‖∂loss/∂θ‖² of every trained parameter that is used.  # [examples] each

        x must require its gradient. losses_of: from outputs to the loss of every example.
        """
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels cannot be differentiated twice
            uses, logits = self._forward(parameters, x)
            cotangents = torch.autograd.grad(
                losses_of(logits).sum(),
                [use.output for use in uses],
                create_graph=differentiable,
                allow_unused=True,
            )
        short: dict[str, Tensor] = {}
        whole: dict[str, Tensor] = {}
        for evaluated, cotangent in zip(uses, cotangents, strict=True):
            if cotangent is None:
                continue
            use = evaluated if differentiable else _detached(evaluated)
            upstream = cotangent if differentiable else cotangent.detach()
            name = self._product_weight(use)
            if name is not None:
                short[name] = _squares(use.inputs[0]) * _squares(upstream)
            for other, gradient in self._gradients(parameters, use, upstream, name).items():
                whole[other] = whole[other] + gradient if other in whole else gradient
        return {**short, **{name: _squares(gradient) for name, gradient in whole.items()}}

    def _forward(self, parameters: Tensors, x: Tensor) -> tuple[list[_Use], Tensor]:
        values, uses = {self._graph.input_name: x}, []
        for node in self._graph.nodes:
            inputs = tuple(values[name] for name in node.inputs)
            output = self._lowered(node, inputs, parameters)
            if self._trained[node.name] and not output.requires_grad:
                output = output.requires_grad_()  # rows of a table, which do not move with x
            values[node.output] = output
            if self._trained[node.name]:
                uses.append(_Use(node, inputs, output))
        return uses, values[self._graph.output_name]

    def _lowered(self, node: Node, inputs: tuple[Tensor, ...], parameters: Tensors) -> Tensor:
        operands = {
            slot: operand_tensor(operand, parameters, self._like)
            for slot, operand in node.operands.items()
        }
        return self._functions[node.name](inputs, operands)

    def _gradients(
        self, parameters: Tensors, use: _Use, cotangent: Tensor, known: str | None
    ) -> _Gradients:
        """∂loss/∂θ of every example through one use, by parameter.  # [examples, *shape] each"""
        names = [name for name in self._trained[use.node.name] if name != known]
        if not names:
            return {}

        def of_one(cotangent: Tensor, *inputs: Tensor) -> Mapping[str, Tensor]:
            batch = tuple(x.unsqueeze(0) for x in inputs)

            def output(moving: Tensors) -> Tensor:
                return self._lowered(use.node, batch, {**parameters, **moving})

            pull = vjp(output, {name: parameters[name] for name in names})[1]
            (gradients,) = pull(cotangent.unsqueeze(0))
            found: Mapping[str, Tensor] = gradients
            return found

        per_example: _Gradients = vmap(of_one)(cotangent, *use.inputs)
        return per_example

    def _product_weight(self, use: _Use) -> str | None:
        """The weight of a dense layer at one position, whose gradient is a product of vectors."""
        if not isinstance(use.node.op, Dense) or use.inputs[0].dim() != 2:
            return None
        weight = use.node.operands["weight"]
        name = weight.parameter
        if name is None:
            return None
        plain = (
            len(list(self._graph.uses(name))) == 1 and weight.gain == ONE and weight.scale == 1.0
        )
        if not plain or weight.array.size != self._graph.parameters[name].size:
            return None
        return name if name in self._trained[use.node.name] else None


def _trained(graph: Graph, node: Node) -> tuple[str, ...]:
    """The trained parameters that a node reads, each once."""
    names = dict.fromkeys(use.parameter for use in node.uses())
    return tuple(name for name in names if graph.parameters[name].trainable)


def _detached(use: _Use) -> _Use:
    return _Use(use.node, tuple(x.detach() for x in use.inputs), use.output.detach())


def _squares(x: Tensor) -> Tensor:
    """‖·‖² of every example."""
    return x.unsqueeze(-1).flatten(1).square().sum(dim=1)


NETWORK: Final = "network"
_Rows = npt.NDArray[np.int64]
_MEMORY: Final = 1 << 29
_COPIES: Final = 6
_MOST_ROWS: Final = 64


@final
@dataclass(frozen=True, slots=True, eq=False)
class Slopes:
    """The norm of every objective at some rows, and the slopes of the logarithm of one of them.

    norms: [objectives, rows]. x, labels: [rows, …]; the slopes of class numbers are 0.
    """

    norms: FloatArray
    x: FloatArray
    labels: FloatArray


@final
class Field:
    """Gradient norms of the claimed network at given weights.

    objectives: the groups of the claims, and all of them together where there are several.
    dtype: in which is climbed; what is found is judged elsewhere, with regard to rounding.
    """

    def __init__(
        self,
        claims: Claims,
        weights: Mapping[str, FloatArray] | None,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        graph = claims.engine.graph
        network = LoweredNetwork.of(graph, dtype, device, weights)
        self._loss = claims.engine.loss
        self._loss_clip = claims.settings.loss_clip
        self._like = torch.empty((), dtype=dtype, device=device)
        self._parameters = dict(network.parameters)
        self._squares = GradientSquares(graph, self._like)
        self._members = [group.parameters for group in claims.groups]
        if len(self._members) > 1:
            self._members.append(tuple(name for members in self._members for name in members))
        trained = sum(p.size for p in graph.parameters.values() if p.trainable)
        values = math.prod(graph.input_shape) + sum(math.prod(n.shape) for n in graph.nodes)
        self._rows = max(1, min(_MEMORY // (8 * _COPIES * (trained + values)), _MOST_ROWS))

    @property
    def objectives(self) -> int:
        """How many norms there are to climb."""
        return len(self._members)

    @property
    def weights(self) -> Mapping[str, FloatArray]:
        """The numbers of every parameter."""
        return {name: array.cpu().double().numpy() for name, array in self._parameters.items()}

    def at(self, weights: Mapping[str, FloatArray]) -> None:
        """Move to other weights; parameters that are not named stay."""
        for name, array in weights.items():
            self._parameters[name] = self._tensor(array)

    def logits(self, x: FloatArray) -> FloatArray:
        """The outputs of the network for these examples."""
        with torch.no_grad():
            parts = [
                self._squares.logits(self._parameters, self._tensor(x[rows])).cpu().double().numpy()
                for rows in self._chunks(len(x))
            ]
        return np.concatenate(parts)

    def norms(self, x: FloatArray, labels: Labels) -> FloatArray:
        """‖g‖ of every objective.  # [objectives, rows]"""
        parts = []
        for rows in self._chunks(len(x)):
            inputs = self._tensor(x[rows]).requires_grad_()
            squares = self._objective_squares(
                inputs, self._labels(labels[rows]), differentiable=False
            )
            parts.append(torch.sqrt(squares).detach().cpu().double().numpy())
        return np.concatenate(parts, axis=1)

    def slopes(self, x: FloatArray, labels: Labels, wanted: _Rows) -> Slopes:
        """wanted: which objective each row climbs."""
        return _joined([self._slopes(x[r], labels[r], wanted[r]) for r in self._chunks(len(x))])

    def weight_slopes(
        self, x: FloatArray, labels: Labels, wanted: int, names: tuple[str, ...]
    ) -> Mapping[str, FloatArray]:
        """The slopes of the logarithm of an objective at one row, by parameter."""
        moving = {name: self._parameters[name].clone().requires_grad_() for name in names}
        inputs = self._tensor(x[None]).requires_grad_()
        squares = self._objective_squares(
            inputs, self._labels(labels[None]), differentiable=True, moving=moving
        )
        found = torch.autograd.grad(
            _log(squares[wanted]).sum(), list(moving.values()), allow_unused=True
        )
        return {
            name: np.zeros(tuple(moving[name].shape)) if slope is None else _array(slope)
            for name, slope in zip(names, found, strict=True)
        }

    def _slopes(self, x: FloatArray, labels: Labels, wanted: _Rows) -> Slopes:
        inputs, targets = self._tensor(x).requires_grad_(), self._labels(labels)
        moves = targets.dtype.is_floating_point
        variables = [inputs, targets.requires_grad_()] if moves else [inputs]
        squares = self._objective_squares(inputs, targets, differentiable=True)
        chosen = squares[torch.from_numpy(wanted), torch.arange(len(x))]
        found: Sequence[Tensor | None] = [None] * len(variables)
        if chosen.requires_grad:  # rows of a table do not move with their numbers
            found = torch.autograd.grad(_log(chosen).sum(), variables, allow_unused=True)
        slopes = [None if slope is None else _array(slope) for slope in found]
        return Slopes(
            norms=torch.sqrt(squares).detach().cpu().double().numpy(),
            x=np.zeros_like(x) if slopes[0] is None else slopes[0],
            labels=np.zeros(labels.shape) if not moves or slopes[1] is None else slopes[1],
        )

    def _objective_squares(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        differentiable: bool,
        moving: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """[objectives, rows]"""

        def losses_of(logits: Tensor) -> Tensor:
            clip = self._loss_clip
            clipped = logits if clip is None else clipped_gradient(logits, clip)
            return per_example_loss(self._loss, clipped, targets)

        parameters = {**self._parameters, **(moving or {})}
        squares = self._squares.squares(
            parameters, inputs, losses_of, differentiable=differentiable
        )
        nothing = torch.zeros(len(inputs), dtype=self._like.dtype, device=self._like.device)
        return torch.stack(
            [
                sum((squares[name] for name in members if name in squares), start=nothing)
                for members in self._members
            ]
        )

    def _chunks(self, rows: int) -> list[slice]:
        return [slice(at, at + self._rows) for at in range(0, rows, self._rows)]

    def _tensor(self, array: FloatArray) -> Tensor:
        return torch.tensor(array, dtype=self._like.dtype, device=self._like.device)

    def _labels(self, labels: Labels) -> Tensor:
        labels_there = torch.tensor(labels, device=self._like.device)
        is_target = labels_there.dtype.is_floating_point
        return labels_there.to(self._like.dtype) if is_target else labels_there


def _log(squares: Tensor) -> Tensor:
    """log ‖·‖, with no slope where the norm is 0."""
    positive = squares > 0.0
    return torch.where(positive, 0.5 * torch.log(torch.where(positive, squares, 1.0)), 0.0)


def _array(slope: Tensor) -> FloatArray:
    return np.asarray(np.nan_to_num(slope.detach().cpu().double().numpy(), posinf=0.0, neginf=0.0))


def _joined(parts: list[Slopes]) -> Slopes:
    return Slopes(
        np.concatenate([part.norms for part in parts], axis=1),
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )
