"""LoweredNetwork: a graph in torch, with its parameters in one dtype on one device.

What enters: a graph, and weights where they are not those of the file. What leaves: the output of
a batch, every node shown to a tap on the way. Invariants: every parameter exists once; parameters
do not require gradients; a value is let go once no later node reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from lipcert.audit.lowering.dispatch import function_of, obstacle
from lipcert.audit.lowering.operands import operand_tensor, replaced
from lipcert.audit.lowering.signature import Function, Tensors
from lipcert.errors import NoVerdictError, Refusal, UnsupportedModelError
from lipcert.graph.ir import Graph, Node
from lipcert.upper import FloatArray

Tap = Callable[[Node, tuple[Tensor, ...], Tensor], Tensor]
"""Sees a node, its inputs and its output; what it returns is taken for the output."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class LoweredNetwork:
    """A graph that evaluates batches [examples, *input_shape] in torch.

    parameters: θ by name, in its own shape; frozen as far as autograd is concerned.
    """

    graph: Graph
    parameters: Mapping[str, Tensor]
    dtype: torch.dtype
    device: torch.device
    _functions: Mapping[str, Function]
    _operands: Mapping[str, Tensors]
    _read_last: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(
        cls,
        graph: Graph,
        dtype: torch.dtype,
        device: torch.device,
        weights: Mapping[str, FloatArray] | None = None,
    ) -> Self:
        """The graph with the parameters of the file, or with `weights` in their place.

        Raises UnsupportedModelError naming every node without a lowering, NoVerdictError for
        weights that are not those of this graph.
        """
        _refuse_unknown(graph)
        parameters = {
            name: torch.tensor(array, dtype=dtype, device=device)
            for name, array in replaced(graph, weights).items()
        }
        return cls.sharing(graph, parameters, torch.empty((), dtype=dtype, device=device))

    @classmethod
    def sharing(cls, graph: Graph, parameters: Mapping[str, Tensor], like: Tensor) -> Self:
        """The graph on these very tensors: every parameter, contiguous in storage of its own.

        like: has their dtype and device. Operands that are plain views of a parameter follow it;
        those that are scaled or gathered are copies. Raises UnsupportedModelError as `of` does.
        """
        _refuse_unknown(graph)
        functions = {node.name: function_of(node, like) for node in graph.nodes}
        operands = {
            node.name: {
                slot: operand_tensor(operand, parameters, like)
                for slot, operand in node.operands.items()
            }
            for node in graph.nodes
        }
        last = _last_readers(graph)
        return cls(graph, parameters, like.dtype, like.device, functions, operands, last)

    def converted(self, dtype: torch.dtype) -> LoweredNetwork:
        """The same network, these very weights, in another dtype on the same device."""
        if dtype is self.dtype:
            return self
        weights = {
            name: parameter.to(torch.float64).cpu().numpy()
            for name, parameter in self.parameters.items()
        }
        return LoweredNetwork.of(self.graph, dtype, self.device, weights)

    def operands(self, node: Node) -> Mapping[str, Tensor]:
        """The operands of a node by slot, as `node.operands` has them."""
        return self._operands[node.name]

    def lowered(self, node: Node, inputs: Sequence[Tensor], operands: Tensors) -> Tensor:
        """One node on other tensors, and with other operands."""
        return self._functions[node.name](inputs, operands)

    def forward(self, x: Tensor, tap: Tap | None = None) -> Tensor:
        """The output for a batch [examples, *input_shape]; [examples, *output_shape]."""
        expected = self.graph.input_shape
        if x.dim() == 0 or tuple(x.shape[1:]) != expected:
            raise NoVerdictError(
                f"a batch of shape {tuple(x.shape)} does not fit the input "
                f"{self.graph.input_name!r} of the model: [examples, *{expected}]"
            )
        values = {self.graph.input_name: x}
        real = {part.name for part in self.graph.parts if part.ids is None}
        for node in self.graph.nodes:
            inputs = tuple(values[name] for name in node.inputs)
            output = self._functions[node.name](inputs, self._operands[node.name])
            if node.output in real:
                output = output.to(self.dtype)
            values[node.output] = output if tap is None else tap(node, inputs, output)
            for name in self._read_last[node.name]:
                del values[name]
            del inputs, output
        return values[self.graph.output_name]


def _last_readers(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """For each node, the values that nobody reads after it."""
    ends: dict[str, list[str]] = {node.name: [] for node in graph.nodes}
    seen = {graph.output_name}
    for node in reversed(graph.nodes):
        for name in dict.fromkeys((*node.inputs, node.output)):
            if name not in seen:
                seen.add(name)
                ends[node.name].append(name)
    return {name: tuple(values) for name, values in ends.items()}


def _refuse_unknown(graph: Graph) -> None:
    remedy = "the audit cannot replay this model; report the missing operation"
    refusals = tuple(
        Refusal("LC003", node.name, node.kind, reason, remedy)
        for node in graph.nodes
        if (reason := obstacle(node)) is not None
    )
    if refusals:
        raise UnsupportedModelError(refusals)
