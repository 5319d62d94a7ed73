"""NormEngine: the exact norm of every trained parameter's gradient, for every example of a batch.

What enters: a lowered network, a batch, and per-example losses of its output. What leaves:
`BatchNorms`. Invariants: nothing of size examples × parameters is kept; examples do not influence
each other; NaN and infinity in the tensors appear in the norms; each norm knows how far it may be
off, given the tensors that the network computed.

Only cotangents are needed. The weights are frozen, so autograd skips their gradients; it starts
at the first node with a trained operand. A hook on the output of each such node receives the
cotangent, combines it with the node's input, and lets both go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from lipcert.audit.arithmetic import exact_products
from lipcert.audit.gradient_norms.choice import shared_chooser
from lipcert.audit.gradient_norms.layout import channels_last, prefers_channels_last
from lipcert.audit.gradient_norms.plan import Plan
from lipcert.audit.gradient_norms.recording import Recording
from lipcert.audit.gradient_norms.squares import Squares
from lipcert.audit.lowering import LoweredNetwork
from lipcert.audit.measured import BatchNorms, Measured
from lipcert.graph.ir import Graph, Node
from lipcert.graph.moves import is_arrangement

MEMORY_LIMIT: Final = 2**26
"""bytes of scratch memory, on top of what a training step holds"""


@final
class NormEngine:
    """Measures batches; the process remembers which methods were fastest.

    watch_values: also measure every value, and every cotangent that reaches a trained parameter.
    watch_input: also the cotangent of the input, for which autograd must run to the very start.
    memory_limit: bytes of scratch memory; one example is always allowed. timed: choose between
    exact methods by timing them; otherwise by counting, so that a run repeats itself to the bit.
    defer: look only once per batch whether an example is known too loosely, and if so measure the
    batch again, from then on looking everywhere; by default on a GPU, which stops at every look.
    """

    def __init__(
        self,
        network: LoweredNetwork,
        *,
        watch_values: bool = True,
        watch_input: bool = False,
        memory_limit: int = MEMORY_LIMIT,
        timed: bool = True,
        defer: bool | None = None,
    ) -> None:
        self.network = network
        self._plan = Plan.of(network)
        self._chooser = shared_chooser(memory_limit, timed)
        self._watch_values = watch_values
        self._watch_input = watch_input
        self._defers = network.device.type != "cpu" if defer is None else defer
        self._rearranged = frozenset(
            node.name for node in network.graph.nodes if is_arrangement(node)
        )
        self._seen_later = frozenset(  # where it is needed channel by channel
            node.inputs[0]
            for node in network.graph.nodes
            if node.name in self._rearranged and node.output in self._plan.by_channel[0]
        )
        self._moved_on = _moved_on(network.graph, self._rearranged)
        self._channels_last = prefers_channels_last(network.graph, network.dtype, network.device)

    def measure(self, x: Tensor, losses_of: Callable[[Tensor], Tensor]) -> BatchNorms:
        """Norms of a batch [examples, *input_shape].

        losses_of: the per-example losses [examples] of the network's output; may keep no example
        from being independent of the others.
        """
        if not len(x):
            return self._nothing(Recording(self._plan, self._chooser, 0, x.device))
        if self._defers:
            doubts: list[Tensor] = []
            found = self._run(x, losses_of, doubts)
            if not doubts or not torch.stack(doubts).any():
                return found
            self._defers = False
        return self._run(x, losses_of, None)

    def _run(
        self, x: Tensor, losses_of: Callable[[Tensor], Tensor], doubts: list[Tensor] | None
    ) -> BatchNorms:
        """One pass forward and backward."""
        recording = Recording(self._plan, self._chooser, len(x), x.device, doubts)
        x = channels_last(x.detach()) if self._channels_last else x.detach()
        with torch.enable_grad():
            losses = losses_of(
                self.network.forward(self._watched(x, recording), self._tap(recording))
            )
            if losses.shape != (len(x),):
                raise ValueError(f"{tuple(losses.shape)} losses for {len(x)} examples")
            if losses.requires_grad:
                torch.autograd.backward([losses.sum()])
        with exact_products(x.device):
            recording.finish()
        values = recording.values if self._watch_values else {}
        cotangents = recording.cotangents if self._watch_values else {}
        families = _measured(recording.parameters, values, cotangents)
        return BatchNorms(losses.detach().double().cpu().numpy(), *families)

    def _watched(self, x: Tensor, recording: Recording) -> Tensor:
        """The input, measured."""
        name = self.network.graph.input_name
        if self._watch_values:
            with exact_products(x.device):
                recording.value(name, x)
        if self._watch_input:
            x = x.requires_grad_()
            _on_cotangent(x, self._hook(recording, name, None, None))
        return x

    def _tap(self, recording: Recording) -> Callable[[Node, tuple[Tensor, ...], Tensor], Tensor]:
        """Measures values, starts autograd where it is first needed, and hooks cotangents."""

        def tap(node: Node, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if any(output is given for given in inputs):
                output = output.view_as(output)  # a tensor of its own, so that it has its own hook
            plan = self._plan.nodes.get(node.name)
            if self._watch_values:
                self._see(recording, node, output)
            if plan is not None and not output.requires_grad:
                output = output.detach().requires_grad_()
            if output.requires_grad and (plan is not None or self._watch_values):
                value = inputs[0].detach() if plan is not None and plan.keeps_value else None
                _on_cotangent(output, self._hook(recording, node.output, node, value))
            return output

        return tap

    def _see(self, recording: Recording, node: Node, output: Tensor) -> None:
        if node.output in self._seen_later:
            return
        if node.name in self._rearranged and node.inputs[0] not in self._seen_later:
            recording.values[node.output] = recording.values[node.inputs[0]]
            return
        with exact_products(output.device):
            found = recording.value(node.output, output)
        if node.name in self._rearranged:
            recording.values[node.inputs[0]] = found

    def _hook(
        self, recording: Recording, name: str, node: Node | None, value: Tensor | None
    ) -> Callable[[Tensor], None]:
        """Combines a cotangent with the value of its node, and lets the value go."""
        held = [value]

        def hook(cotangent: Tensor) -> None:
            kept = held.pop()
            with exact_products(cotangent.device):
                known = recording.cotangents.get(self._moved_on.get(name, ""))
                if known is not None and name not in self._plan.by_channel[1]:
                    recording.cotangents[name] = known
                recording.cotangent(name, cotangent)
                plan = None if node is None else self._plan.nodes.get(node.name)
                if plan is not None:
                    recording.parameters_of(plan, kept, cotangent)

        return hook

    def _nothing(self, recording: Recording) -> BatchNorms:
        """The norms of no examples."""
        recording.finish()
        graph = self.network.graph
        none = Measured(np.zeros(0), np.zeros(0))
        values = [graph.input_name, *(node.output for node in graph.nodes)]
        return BatchNorms(
            np.zeros(0),
            dict.fromkeys(recording.parameters, none),
            dict.fromkeys(values if self._watch_values else (), none),
            {},
        )


def _moved_on(graph: Graph, rearranging: frozenset[str]) -> Mapping[str, str]:
    """Values that nothing reads but a node that rearranges them, and the output of that node.

    The cotangents of both have the same entries.
    """
    readers = Counter([graph.output_name, *(name for node in graph.nodes for name in node.inputs)])
    return {
        node.inputs[0]: node.output
        for node in graph.nodes
        if node.name in rearranging and readers[node.inputs[0]] == 1
    }


def _on_cotangent(tensor: Tensor, hook: Callable[[Tensor], None]) -> None:
    tensor.register_hook(hook)  # type: ignore[no-untyped-call]


def _measured(*families: Mapping[str, Squares]) -> list[Mapping[str, Measured]]:
    """All at once, so that a GPU is read once."""
    squares = [found for family in families for found in family.values()]
    if not squares:
        return [{} for _ in families]
    values = torch.stack([found.value for found in squares])
    errors = torch.stack([found.error for found in squares])
    together = Squares(values, errors).measured()
    rows = map(Measured, together.norm, together.error)
    return [{name: next(rows) for name in family} for family in families]
