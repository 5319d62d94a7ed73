"""NormEngine: the exact norm of every trained parameter's gradient, for every example of a batch.

Invariants: nothing of size examples × parameters is kept; examples do not influence each other; NaN
and infinity in the tensors appear in the norms; each norm has a bound of its error, given the
tensors that the network computed.

Only cotangents are needed. The weights are frozen, so autograd skips their gradients and starts at
the first node with a trained operand. A hook on the output of each such node receives the
cotangent; a `Recording` combines it with the node's input, which is then released, and adds up the
squares by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from lipcert.graph.ir import Graph, Node, is_arrangement
from lipcert.measure.arithmetic import exact_products
from lipcert.measure.gradient_norms.methods import Chooser, Pair
from lipcert.measure.gradient_norms.plan import (
    Contribution,
    NodePlan,
    Plan,
    arranged,
    channels_last,
    prefers_channels_last,
    shared_squares,
)
from lipcert.measure.gradient_norms.squares import Squares, dense, sum_of_squares, sums_of_squares
from lipcert.measure.lowering import LoweredNetwork, Tap
from lipcert.measure.measured import BatchNorms, Measured


class Recording:
    """The measurement of one batch in progress.

    later: squares whose errors are checked at the end of the batch; None if every operand is
    checked, and examples with too large an error are measured again, at once.
    """

    def __init__(
        self,
        plan: Plan,
        chooser: Chooser,
        examples: int,
        device: torch.device,
        looks: bool,
    ) -> None:
        self.values: dict[str, Squares] = {}
        self.cotangents: dict[str, Squares] = {}
        self.parameters: dict[str, Squares] = {}
        self._examples, self._device = examples, device
        self._waiting: dict[str, list[Contribution]] = {}
        self._plan = plan
        self._chooser = chooser
        self.later: list[Squares] | None = None if looks else []

    def begin(self, arrived: Sequence[tuple[NodePlan, Tensor | None, Tensor]]) -> None:
        """Compute the squares of all values and cotangents that gradient norms need, together."""
        read = {
            plan.node.inputs[0]: a for plan, a, b in arrived if a is not None and a.dtype is b.dtype
        }
        received = {plan.node.output: b for plan, _, b in arrived}
        found = iter(sums_of_squares([*map(wide_enough, (*read.values(), *received.values()))]))
        self.values.update(zip(read, found, strict=False))
        self.cotangents.update(zip(received, found, strict=False))

    def parameters_of(
        self, plan: NodePlan, value: Tensor | None, cotangent: Tensor
    ) -> Mapping[str, Tensor]:
        """Add the gradients of a node's operands; return those that were instantiated, by slot."""
        value, cotangent = arranged(plan.node, value, cotangent)
        pair = self._pair(plan, value, dense(cotangent))
        rows: dict[str, Tensor] = {}
        for item in plan.operands:
            name, scale = item.use.parameter, item.use.operand.scale
            if item.scatter is None:
                squares = self._chooser.squares(item.gradient, pair, self.later)
                if squares.rows is not None:
                    rows[item.use.slot] = squares.rows
                    squares = Squares(squares.value, squares.upper)
                self._add(name, squares.times(scale * scale))
            else:
                self._wait(name, Contribution(item.gradient, item.scatter, pair))
        return rows

    def caught(
        self, plan: NodePlan, value: Tensor | None, cotangent: Tensor, *, keeps: bool
    ) -> Caught:
        """Add the gradients of a node's operands, and return what the node read and received.

        The value is what the op read: products under autocast round it to their own dtype. keeps:
        return value and cotangent even if all gradients were instantiated.
        """
        rows = self.parameters_of(plan, value, cotangent)
        if len(rows) == len(plan.operands) and not keeps:
            return Caught(plan, None, None, rows)
        if value is not None:
            rounds = plan.rounds_value and cotangent.dtype.itemsize < value.dtype.itemsize
            value = wide_enough(value.to(cotangent.dtype) if rounds else value)
        return Caught(plan, value, wide_enough(cotangent), rows)

    def finish(self) -> None:
        """Finish parameters whose uses did not all receive a cotangent."""
        for parameter in list(self._waiting):
            self._settle(parameter)
        for parameter in self._plan.parameters.keys() - self.parameters.keys():
            self.parameters[parameter] = Squares.zeros(self._examples, self._device)

    def _pair(self, plan: NodePlan, value: Tensor | None, cotangent: Tensor) -> Pair:
        names = (plan.node.inputs[0], plan.node.output)
        b, b_squares = wide_enough(cotangent), known(self.cotangents, names[1], cotangent)
        if value is None:
            return Pair(b, b, b_squares, b_squares)
        if plan.rounds_value and cotangent.dtype.itemsize < value.dtype.itemsize:
            read = wide_enough(value.to(cotangent.dtype))
            return Pair(read, b, sum_of_squares(read), b_squares)
        a = wide_enough(value)
        if a.dtype is not b.dtype:
            return Pair.of(a.double(), b.double())
        return Pair(a, b, known(self.values, names[0], value), b_squares)

    def _add(self, parameter: str, squares: Squares) -> None:
        before = self.parameters.get(parameter)
        self.parameters[parameter] = squares if before is None else before.plus(squares)

    def _wait(self, parameter: str, contribution: Contribution) -> None:
        waiting = self._waiting.setdefault(parameter, [])
        waiting.append(contribution)
        if len(waiting) == len(self._plan.parameters[parameter].uses):
            self._settle(parameter)

    def _settle(self, parameter: str) -> None:
        found = self._waiting.pop(parameter)
        size = self._plan.parameters[parameter].size
        self._add(parameter, shared_squares(found, size, self._chooser.memory_limit))


def known(squares: dict[str, Squares], name: str, tensor: Tensor) -> Squares:
    """Return the squares of a value or of a cotangent, computed once."""
    if name not in squares:
        squares[name] = sum_of_squares(wide_enough(tensor))
    return squares[name]


def wide_enough(tensor: Tensor) -> Tensor:
    """Return the tensor in float32 or float64, into which 16-bit formats embed exactly."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


MEMORY_LIMIT: Final = 2**26
"""Bytes of scratch memory, in addition to those of a training step."""
_MORE: Final = {"cuda": 2**28}
"""The limit on devices where many small operations each cost a wait."""
_LOOSE: Final = 2.0**-7
"""Relative error above which a norm is too loose, if a batch is checked only once."""


Losses: TypeAlias = Callable[[Tensor], Tensor]
Reached: TypeAlias = tuple[NodePlan, Tensor | None, GradientEdge]
"""The plan of a node with trained operands, its input if it is needed, and the graph edge of its
output, by which autograd differentiates."""


@dataclass(frozen=True, slots=True, eq=False)
class Caught:
    """A node with trained operands that received a cotangent.

    value, cotangent: [examples, ...], float32 or float64, as the gradient norms used them; value is
    None if no gradient needs it, and both are None if `rows` has all gradients. rows: by slot,
    gradients that were instantiated for their norms: [examples, *operand].
    """

    plan: NodePlan
    value: Tensor | None
    cotangent: Tensor | None
    rows: Mapping[str, Tensor]

    @property
    def node(self) -> Node:
        """The node whose parameters are measured."""
        return self.plan.node

    @property
    def pair(self) -> tuple[Tensor | None, Tensor]:
        """Value and cotangent, if they were kept."""
        if self.cotangent is None:
            raise ValueError(f"node {self.node.name!r}: its cotangent was not kept")
        return self.value, self.cotangent


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """The result of a pass.

    squares: of ∂ℓ_i/∂θ by name of the trained parameter. caught: the nodes that received a
    cotangent.
    """

    squares: Mapping[str, Squares]
    caught: tuple[Caught, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """A forward pass.

    output: [examples, *output_shape], with its history. reached: in the order of the pass. losses:
    [examples], of the output, if they were computed already.
    """

    output: Tensor
    reached: list[Reached]
    losses: Tensor | None = None


class NormEngine:
    """Measures batches; repeating a run gives the same bits.

    watch_values: also measure every value, and every cotangent that reaches a trained parameter.
    memory_limit: bytes of scratch memory; one example is always allowed. defer: check only once per
    batch whether the error of an example is too large; if so, measure the batch again, and check
    every operand from then on. This is the default on a GPU, which stops at every check. keeps:
    `caught` keeps every value and cotangent.
    """

    def __init__(
        self,
        network: LoweredNetwork,
        *,
        watch_values: bool = True,
        memory_limit: int | None = None,
        defer: bool | None = None,
        keeps: bool = False,
    ) -> None:
        self.network = network
        self._keeps = keeps
        self.plan = Plan.of(network)
        usual = _MORE.get(network.device.type, MEMORY_LIMIT)
        self._chooser = Chooser(usual if memory_limit is None else memory_limit)
        self._watch_values = watch_values
        self._defers = network.device.type != "cpu" if defer is None else defer
        self._rearranged = frozenset(n.name for n in network.graph.nodes if is_arrangement(n))
        self._moved_on = _moved_on(network.graph, self._rearranged)
        first = next((n.name for n in network.graph.nodes if n.name not in self._rearranged), "")
        self._begins = first in self.plan.nodes and self.plan.nodes[first].rounds_value
        self._channels_last = prefers_channels_last(network.graph, network.dtype, network.device)

    def measure(self, x: Tensor, losses_of: Losses) -> BatchNorms:
        """Return the norms of a batch [examples, *input_shape].

        Args:
            losses_of: maps the network's output to the per-example losses [examples]; it must keep
                examples independent of each other.
        """
        recording = self._recording(x)
        if not len(x):
            return self._nothing(recording)
        x = self._laid_out(x)
        if self._watch_values:
            with exact_products(x.device):
                known(recording.values, self.network.graph.input_name, x)
        with torch.enable_grad():
            losses = losses_of(self.network.forward(x, self._tap(recording)))
            total = _total(losses, len(x))
            if total.requires_grad:
                torch.autograd.backward([total])
        with exact_products(x.device):
            recording.finish()
        if self._must_repeat(recording):
            return self.measure(x, losses_of)
        values = recording.values if self._watch_values else {}
        cotangents = recording.cotangents if self._watch_values else {}
        families = _measured(recording.parameters, values, cotangents)
        return BatchNorms(losses.detach().double().cpu().numpy(), *families)

    def begun(self, x: Tensor) -> Begun:
        """Run the forward pass of `caught`.

        If the first node that computes is a trained linear map, autograd's history begins at the
        input: beginning at the output of the map would keep that output until the pass ends.
        """
        reached: list[Reached] = []

        def keep(node: Node, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            plan = self.plan.nodes.get(node.name)
            if plan is None:
                return output
            output = _of_its_own(inputs, output)
            value = inputs[0].detach() if plan.keeps_value else None
            reached.append((plan, value, get_gradient_edge(output)))
            return output

        x = self._laid_out(x)
        with torch.enable_grad():
            output = self.network.forward(x.requires_grad_(self._begins), keep)
        return Begun(output, reached)

    def caught(self, x: Tensor, losses_of: Losses, begun: Begun | None = None) -> Passed:
        """Return what every trained node read and received, and the gradient norms of these very
        tensors.

        Gradients summed from these tensors are those that were measured, however the pass rounded.

        Args:
            x: at least one example.
            losses_of: as for `measure`.
            begun: a forward pass of x that has not been used yet.
        """
        begun = self.begun(x) if begun is None else begun
        with torch.enable_grad():
            losses = losses_of(begun.output) if begun.losses is None else begun.losses
            total = _total(losses, len(x))
        edges, recording = [edge for _, _, edge in begun.reached], self._recording(x)
        found = torch.autograd.grad(total, edges, allow_unused=True) if total.requires_grad else ()
        with exact_products(x.device):
            pairs = zip(begun.reached, found, strict=False)
            arrived = [(plan, value, own) for (plan, value, _), own in pairs if own is not None]
            begun.reached.clear()
            del found, pairs  # from here on, each goes when it is measured
            recording.begin(arrived)
            rest = range(len(arrived))
            caught = tuple(recording.caught(*arrived.pop(0), keeps=self._keeps) for _ in rest)
            recording.finish()
        if self._must_repeat(recording):
            return self.caught(x, losses_of)
        return Passed(recording.parameters, caught)

    def _recording(self, x: Tensor) -> Recording:
        return Recording(self.plan, self._chooser, len(x), x.device, not self._defers)

    def _must_repeat(self, recording: Recording) -> bool:
        """Whether the error of some example is too large; every operand is checked from then on."""
        found = recording.later
        if not found or not bool(_together(found).is_wide(_LOOSE).any()):
            return False
        self._defers = False
        return True

    def _laid_out(self, x: Tensor) -> Tensor:
        return channels_last(x.detach()) if self._channels_last else x.detach()

    def _tap(self, recording: Recording) -> Tap:
        """Return a tap that measures values, starts autograd where it is first needed, and hooks
        cotangents."""
        watches = self._watch_values

        def tap(node: Node, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            plan = self.plan.nodes.get(node.name)
            if watches:
                self._see(recording, node, output)
            if plan is not None or (watches and output.requires_grad):
                output = _of_its_own(inputs, output)
                held = [inputs[0].detach() if plan is not None and plan.keeps_value else None]
                output.register_hook(  # type: ignore[no-untyped-call]
                    lambda cotangent: self._arrives(recording, node, held.pop(), cotangent)
                )
            return output

        return tap

    def _see(self, recording: Recording, node: Node, output: Tensor) -> None:
        if node.name in self._rearranged:
            recording.values[node.output] = recording.values[node.inputs[0]]
            return
        with exact_products(output.device):
            known(recording.values, node.output, output)

    def _arrives(
        self, recording: Recording, node: Node, value: Tensor | None, cotangent: Tensor
    ) -> None:
        """Combine a cotangent with the value of its node, which is then released."""
        name, plan = node.output, self.plan.nodes.get(node.name)
        with exact_products(cotangent.device):
            same = recording.cotangents.get(self._moved_on.get(name, ""))
            if same is not None:
                recording.cotangents[name] = same
            known(recording.cotangents, name, cotangent)
            if plan is not None:
                recording.parameters_of(plan, value, cotangent)

    def _nothing(self, recording: Recording) -> BatchNorms:
        """Return the norms of an empty batch."""
        recording.finish()
        graph, none = self.network.graph, Measured(np.zeros(0), np.zeros(0))
        values = [graph.input_name, *(node.output for node in graph.nodes)]
        named = (recording.parameters, values if self._watch_values else (), ())
        return BatchNorms(np.zeros(0), *(dict.fromkeys(names, none) for names in named))


def _moved_on(graph: Graph, rearranging: frozenset[str]) -> Mapping[str, str]:
    """Map values that only a rearranging node reads to the output of that node.

    The cotangents of both have the same entries.
    """
    readers = Counter([graph.output_name, *(name for node in graph.nodes for name in node.inputs)])
    return {
        node.inputs[0]: node.output
        for node in graph.nodes
        if node.name in rearranging and readers[node.inputs[0]] == 1
    }


def _of_its_own(inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Return the output as a tensor that requires grad and is not one of the inputs."""
    if any(output is given for given in inputs):
        output = output.view_as(output)
    return output if output.requires_grad else output.detach().requires_grad_()


def _total(losses: Tensor, examples: int) -> Tensor:
    if losses.shape != (examples,):
        raise ValueError(f"{tuple(losses.shape)} losses for {examples} examples")
    return losses.sum()


def _measured(*families: Mapping[str, Squares]) -> list[Mapping[str, Measured]]:
    """Return the norms of all families, computed together, so that a GPU is read once."""
    squares = [found for family in families for found in family.values()]
    if not squares:
        return [{} for _ in families]
    together = _together(squares).measured()
    rows = map(Measured, together.norm, together.error)
    return [{name: next(rows) for name in family} for family in families]


def _together(found: list[Squares]) -> Squares:
    """Stack squares: [tensors, examples]."""
    values = torch.stack([item.value for item in found])
    return Squares(values, torch.stack([item.upper for item in found]))
