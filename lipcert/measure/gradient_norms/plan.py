"""Plan: what must be measured at each node, determined once for a network.

An op whose operands are not known here is refused, never skipped. How the uses of a parameter
combine is decided from their `places` alone, never from names:

Let use k read array_k = scale_k · θ[places_k]. The chain rule gives ∂loss/∂θ = Σ_k scale_k ·
(∂loss/∂array_k, each entry put back to its place). If no place is read twice, by one use or by two,
the terms have disjoint supports and each is a rearrangement, so ‖∂loss/∂θ‖² = Σ_k
scale_k²‖∂loss/∂array_k‖². Otherwise (tied weights, repeated or padded views) the gradients are
added up in θ, in float64, a few examples at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from lipcert.core.kinds import BatchNorm, Embedding, PRelu
from lipcert.core.program import Dense, FloatArray, Shape
from lipcert.core.token_kinds import Normalize, Scale, Shift
from lipcert.core.window_kinds import Conv
from lipcert.errors import NoVerdictError
from lipcert.graph.evaluate import member
from lipcert.graph.ir import Graph, Node, Use
from lipcert.measure.gradient_norms.methods import OperandGradient, Pair
from lipcert.measure.gradient_norms.operands import (
    BiasGradient,
    DenseWeight,
    DivisorGradient,
    KernelGradient,
    NormalizedGradient,
    ScaleGradient,
    SlopeGradient,
    TableGradient,
)
from lipcert.measure.gradient_norms.squares import OUTWARD, Squares, gamma, sum_of_squares, widened
from lipcert.measure.lowering import LoweredNetwork


@dataclass(frozen=True, slots=True, eq=False)
class ParameterUses:
    """A trained parameter, its uses, and whether these are disjoint rearrangements."""

    name: str
    size: int
    uses: tuple[Use, ...]
    disjoint: bool


def uses_of(graph: Graph) -> Mapping[str, ParameterUses]:
    """Return all trained parameters of a graph, including those that no operand reads.

    Raises:
        NoVerdictError: if the file computes numbers from a parameter (`Graph.check_shown`).
    """
    graph.check_shown()
    found: dict[str, list[Use]] = {
        name: [] for name, parameter in graph.parameters.items() if parameter.trainable
    }
    for use in graph.trained_uses():
        found[use.parameter].append(use)
    return {
        name: ParameterUses(name, size, tuple(uses), _disjoint(uses, size))
        for name, uses in found.items()
        for size in (graph.parameters[name].size,)
    }


def _disjoint(uses: list[Use], size: int) -> bool:
    if len(uses) == 1 and uses[0].operand.places is None:
        return True
    counts = np.zeros(size + 1, dtype=np.int64)
    for use in uses:
        np.add.at(counts, use.places, 1)
    return bool(counts[-1] == 0 and _largest(counts) <= 1)


def _largest(counts: FloatArray | np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    return int(np.max(counts, initial=0))


_Read = TypeVar("_Read", Tensor, Tensor | None)


def arranged(node: Node, value: _Read, cotangent: Tensor) -> tuple[_Read, Tensor]:
    """Return input and cotangent of a node, arranged as the gradients of its operands expect.

    That is [examples, *shape] with the axes of the program, except an axis 0 that holds the
    examples; the input of a BatchNorm has its channels first.
    """
    if node.in_place:
        return value, cotangent
    read = None if value is None else _placed(node, value, node.given[0])
    return read, _placed(node, cotangent, node.step.shape)


def _placed(node: Node, tensor: Tensor, shape: Shape) -> Tensor:
    whole = tensor.reshape(len(tensor), *shape)
    return whole.swapaxes(1, 2) if isinstance(node.op, BatchNorm) else whole


def operand_gradient(node: Node, slot: str, tensors: Mapping[str, Tensor]) -> OperandGradient:
    """Return the gradient of the operand in `slot`, for tensors that are `arranged`.

    tensors: the node's operands in torch.
    """
    operand = node.operands[slot]
    first = 1 if node.in_place else 0
    rank = len(node.step.shape) - first
    match node.op, slot:
        case Dense(), "weight":
            return DenseWeight()
        case Embedding(), "weight":
            return TableGradient(operand.shape[0])
        case Conv(groups=groups, transposed=transposed), "weight":
            return KernelGradient(node.geometry, groups, transposed)
        case ((Conv() | BatchNorm()), "bias"):
            return BiasGradient((*operand.shape, *[1] * (rank - 1)))
        case Dense(), "bias":
            return BiasGradient((*[1] * (rank - 1), *operand.shape))
        case ((Shift() | Scale()), "bias"):
            return BiasGradient(operand.shape[first:])
        case Scale(), "scale":
            return ScaleGradient(operand.shape[first:])
        case Scale(), "divisor":
            return DivisorGradient(operand.shape[first:], tensors["divisor"])
        case PRelu(), "slope":
            return SlopeGradient(operand.shape[first:])
        case BatchNorm(mean=mean, inverse=inverse), "scale":
            device = tensors["scale"].device
            numbers = (torch.tensor(member(item), device=device) for item in (mean, inverse))
            return NormalizedGradient((*operand.shape, *[1] * (rank - 1)), *numbers)
        case _:
            raise NoVerdictError(
                f"node {node.name!r} ({node.kind}): no per-example gradient of its {slot} is "
                "known, so this model cannot be audited; report the missing operation"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Scatter:
    """θ ← θ + scale · entries, the entry at `entries[i]` being added at `places[i]`.

    repeats: how often the most frequent place occurs.
    """

    entries: Tensor
    places: Tensor
    scale: float
    repeats: int

    @classmethod
    def of(cls, use: Use, device: torch.device) -> Scatter:
        """Return the adjoint of the view of this use."""
        read = np.flatnonzero(use.places >= 0)
        places = use.places[read].astype(np.int64)
        repeats = int(np.max(np.bincount(places), initial=0)) if places.size else 0
        return cls(
            torch.from_numpy(read).to(device),
            torch.from_numpy(places).to(device),
            use.operand.scale,
            repeats,
        )

    @property
    def stretch(self) -> float:
        """An upper bound of the norm of the map."""
        return abs(self.scale) * sqrt(self.repeats) * OUTWARD


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """The contribution of one use to the gradient of its parameter."""

    gradient: OperandGradient
    scatter: Scatter
    pair: Pair


def shared_squares(found: Sequence[Contribution], size: int, memory_limit: int) -> Squares:
    """Return ‖Σ_k P_k g_k‖², P_k the scatter of use k and g_k the gradient of its operand.

    Proof: an entry of the sum has at most N = Σ repeats terms, scaled and added in float64: off by
    γ_{N+1} Σ|terms|, and ‖Σ|terms|‖ ≤ Σ_k ‖P_k‖‖g_k‖; g_k is off by its own distance.
    """
    examples = len(found[0].pair)
    scratch = 8 * size + max(use.gradient.gradient_scratch(use.pair) * 2 for use in found)
    chunk = max(1, memory_limit // scratch)
    parts = [
        _chunk_squares([(use, use.pair.part(i, i + chunk).double()) for use in found], size)
        for i in range(0, examples, chunk)
    ]
    return Squares.joined(parts)


def _chunk_squares(uses: Sequence[tuple[Contribution, Pair]], size: int) -> Squares:
    first = uses[0][1].b
    total = first.new_zeros(len(first), size)  # float64 [examples, parameter]
    distance = first.new_zeros(len(first))
    terms = gamma(sum(use.scatter.repeats for use, _ in uses) + 2, torch.float64)
    for use, pair in uses:
        gradients = use.gradient.gradients(pair)
        flat = gradients.gradient.double().reshape(len(first), -1)
        scatter = use.scatter
        total.index_add_(1, scatter.places, flat[:, scatter.entries], alpha=scatter.scale)
        reach = sum_of_squares(flat).upper.sqrt()
        distance = distance + (gradients.distance + reach * terms) * scatter.stretch
    return widened(sum_of_squares(total), distance * OUTWARD)


@dataclass(frozen=True, slots=True, eq=False)
class OperandPlan:
    """A trained operand and its gradient.

    scatter: where the entries go in the parameter; only for parameters whose uses overlap.
    """

    use: Use
    gradient: OperandGradient
    scatter: Scatter | None


@dataclass(frozen=True, slots=True, eq=False)
class NodePlan:
    """The trained operands of one node.

    keeps_value: whether a gradient needs the node's input. rounds_value: whether the op itself
    rounds its input to the dtype of its output, as products do under autocast.
    """

    node: Node
    operands: tuple[OperandPlan, ...]
    keeps_value: bool
    rounds_value: bool


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The plan of a measurement: what to measure at nodes and at parameters, by name."""

    nodes: Mapping[str, NodePlan]
    parameters: Mapping[str, ParameterUses]

    @classmethod
    def of(cls, network: LoweredNetwork) -> Plan:
        """Return the plan of a network.

        Raises:
            NoVerdictError: for an operand whose gradient is not known.
        """
        parameters = uses_of(network.graph)
        nodes: dict[str, Node] = {}
        operands: dict[str, list[OperandPlan]] = {}
        for parameter in parameters.values():
            for use in parameter.uses:
                gradient = operand_gradient(use.node, use.slot, network.operands(use.node))
                scatter = None if parameter.disjoint else Scatter.of(use, network.device)
                plan = OperandPlan(use, gradient, scatter)
                nodes[use.node.name] = use.node
                operands.setdefault(use.node.name, []).append(plan)
        plans = {name: _node_plan(nodes[name], tuple(found)) for name, found in operands.items()}
        return cls(plans, parameters)


def _node_plan(node: Node, operands: tuple[OperandPlan, ...]) -> NodePlan:
    return NodePlan(
        node,
        operands,
        keeps_value=any(plan.gradient.needs_value for plan in operands),
        rounds_value=isinstance(node.op, Dense | Conv),
    )


_PRODUCTS_PER_ENTRY: Final = 500


def channels_last(images: Tensor) -> Tensor:
    """Return images with channels last, in strides as well, where a single channel would allow
    either."""
    pixels = images.permute(0, 2, 3, 1).contiguous()
    _, rows, columns, channels = pixels.shape
    line = columns * channels
    return pixels.as_strided(images.shape, (rows * line, 1, line, channels))


def prefers_channels_last(graph: Graph, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether torch works faster on images with channels last.

    On a CPU its convolutions in float32 do, its normalisations of groups do not: what counts is how
    many products the convolutions have for each entry that is normalised. A convolution of one
    channel with windows in a single column, and a stride along the rows that is not 1, reads beyond
    its input in that layout (torch 2.13).
    """
    if device.type != "cpu" or dtype is not torch.float32 or len(graph.input_shape) != 3:
        return False
    products = normalised = 0
    for node in graph.nodes:
        match node.op:
            case Conv(weight=weight, transposed=False) as op if len(node.shape) == 3:
                if weight.shape[1] == 1 and node.shape[2] == 1 and op.window.strides[1] > 1:
                    return False
                products += prod(node.shape) * prod(weight.shape[1:])
            case Normalize():
                normalised += prod(node.shape)
    return products > _PRODUCTS_PER_ENTRY * normalised
