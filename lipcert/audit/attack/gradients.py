"""Squared norms of per-example gradients, as functions that autograd differentiates once more.

What enters: parameters, inputs [examples, *shape], a loss. What leaves: ‖∂loss/∂θ‖² by parameter
[examples]. Unlike the norm engine of the replay, which is made to be fast and tells how far it may
be off, these are functions of inputs, labels and weights whose slopes an ascent follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipcert.core.program import Dense
from lipcert.graph.ir import Graph, Node
from lipcert.measure.lowering.dispatch import function_of
from lipcert.measure.lowering.functions import Tensors
from lipcert.measure.lowering.network import operand_tensor
from lipcert.upper import ONE

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
