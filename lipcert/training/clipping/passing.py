"""One pass forward and backward, which catches what every trained node read and received.

What enters: a batch, and per-example losses of the network's output. What leaves: for each node
with trained operands its value a and cotangent b, and the squared gradient norm of every trained
parameter. Invariant: the norms are those of the tensors that were caught, so that whoever sums
gradients from these same tensors sums what was measured, however the pass itself rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipcert.audit.arithmetic import Arithmetic
from lipcert.audit.gradient_norms import MEMORY_LIMIT
from lipcert.audit.gradient_norms.choice import shared_chooser
from lipcert.audit.gradient_norms.layout import channels_last, prefers_channels_last
from lipcert.audit.gradient_norms.plan import NodePlan, Plan
from lipcert.audit.gradient_norms.recording import Recording, wide_enough
from lipcert.audit.gradient_norms.squares import Squares
from lipcert.audit.lowering import LoweredNetwork
from lipcert.audit.precision import Precision
from lipcert.graph.ir import Node


@final
@dataclass(frozen=True, slots=True, eq=False)
class Caught:
    """A node with trained operands that received a cotangent.

    value, cotangent: [examples, ...], float32 or float64, as the gradient norms took them; no
    value where no gradient needs it.
    """

    plan: NodePlan
    value: Tensor | None
    cotangent: Tensor

    @property
    def node(self) -> Node:
        """The node."""
        return self.plan.node


@final
@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """losses: [examples]. squares: of ∂ℓ_i/∂θ by name of the trained parameter."""

    losses: Tensor
    squares: Mapping[str, Squares]
    caught: tuple[Caught, ...]


@final
class GradientPass:
    """Passes through one network.

    timed: choose among exact norms by timing them; otherwise by counting, a few per cent slower,
    so that a run repeats itself to the bit. waits: ask once for the whole batch whether some norm
    is known too loosely; by default on a GPU, which stops at every question.
    Methods and error bounds are those of the norm engine, which does not keep the tensors.
    """

    def __init__(
        self, network: LoweredNetwork, *, timed: bool = False, waits: bool | None = None
    ) -> None:
        self._plan = Plan.of(network)
        self._chooser = shared_chooser(MEMORY_LIMIT, timed)
        self._channels_last = prefers_channels_last(network.graph, network.dtype, network.device)
        self._waits = network.device.type != "cpu" if waits is None else waits

    def run(
        self, network: LoweredNetwork, x: Tensor, losses_of: Callable[[Tensor], Tensor]
    ) -> Passed:
        """x: [examples, *input_shape], one at least; examples stay apart in losses_of."""
        x = channels_last(x.detach()) if self._channels_last else x.detach()
        seen: list[tuple[NodePlan, Tensor | None, Tensor]] = []

        def tap(node: Node, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            plan = self._plan.nodes.get(node.name)
            if plan is None:
                return output
            if not output.requires_grad:
                output = output.detach().requires_grad_()
            value = inputs[0].detach() if plan.keeps_value else None
            seen.append((plan, value, output))
            return output

        with torch.enable_grad():
            losses = losses_of(network.forward(x, tap))
            cotangents = _cotangents(losses, [output for *_, output in seen])
        losses = losses.detach()
        caught = [
            (plan, _read(plan, value, cotangent), cotangent)
            for (plan, value, _), cotangent in zip(seen, cotangents, strict=True)
            if cotangent is not None
        ]
        with exact_arithmetic(network):
            squares = self._squares(losses, caught)
        return Passed(
            losses,
            squares,
            tuple(Caught(plan, value, wide_enough(cotangent)) for plan, value, cotangent in caught),
        )

    def _squares(
        self, losses: Tensor, caught: list[tuple[NodePlan, Tensor | None, Tensor]]
    ) -> Mapping[str, Squares]:
        """Of all trained parameters, measured again where that is needed."""
        doubts: list[Tensor] | None = [] if self._waits else None
        recording = Recording(self._plan, self._chooser, len(losses), losses.device, doubts)
        for plan, value, cotangent in caught:
            recording.parameters_of(plan, value, cotangent)
        recording.finish()
        if doubts and bool(torch.stack(doubts).any()):
            self._waits = False
            return self._squares(losses, caught)
        return recording.parameters


@contextmanager
def exact_arithmetic(network: LoweredNetwork) -> Iterator[None]:
    """No autograd, and products in the network's own dtype, whatever switches are set outside."""
    is_double = network.dtype is torch.float64
    precision = Precision.FLOAT64 if is_double else Precision.FLOAT32
    with Arithmetic(network.device, precision).active(), torch.no_grad():
        yield


def _cotangents(losses: Tensor, outputs: list[Tensor]) -> Sequence[Tensor | None]:
    """∂ℓ_i/∂output of every example; None where the losses do not depend on it."""
    if not losses.requires_grad:
        return [None] * len(outputs)
    return torch.autograd.grad(losses.sum(), outputs, allow_unused=True)


def _read(plan: NodePlan, value: Tensor | None, cotangent: Tensor | None) -> Tensor | None:
    """The value as the op read it: products under autocast round it to their own dtype."""
    if value is None or cotangent is None:
        return None
    if plan.rounds_value and cotangent.dtype.itemsize < value.dtype.itemsize:
        value = value.to(cotangent.dtype)
    return wide_enough(value)
