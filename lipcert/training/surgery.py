"""Surgery: a copy of a module with the changes of a suggestion made to it, as far as that goes.

What enters: a module with the graph that it was imported as, and changes of that graph. What
leaves: the copy, a line for everything that was changed in it, and a line for everything that has
to be changed by hand. What is code and no part is written anew by `rewriting`, if it can be. The
module that is given is never touched. Invariant: a part is replaced only where, on random inputs,
it computes the very values of the step that the change speaks of, and is called once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from lipcert.core import program as p
from lipcert.gradient_stats.network import Network
from lipcert.graph.evaluate import evaluate_batch
from lipcert.graph.ir import Graph, Node
from lipcert.settings.settings import Settings
from lipcert.suggestions.edits import StepEdit, unscaled
from lipcert.suggestions.records import Change
from lipcert.training.clipping.probe import as_read, random_numbers
from lipcert.training.layers import (
    BoundedGroupNorm,
    BoundedLayerNorm,
    HalfResidual,
    InputClip,
    MaxMin,
    Residual,
    ScaledResidual,
    UnitGroupNorm,
    UnitLayerNorm,
)
from lipcert.training.network import TrainedNetwork
from lipcert.training.rewriting import Code, CodeEdit, are_equal, flat
from lipcert.upper import FloatArray

_NORMS: Final = (nn.GroupNorm, nn.LayerNorm, _BatchNorm)
_AT_REST: Final = (nn.Identity, nn.Dropout)
"""parts that change nothing outside of training"""
_BIASED: Final = (nn.Linear, _ConvNd)
_READERS: Final = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""whose code reads biases of their parts"""
_POOLS: Final = {
    nn.MaxPool1d: nn.AvgPool1d,
    nn.MaxPool2d: nn.AvgPool2d,
    nn.MaxPool3d: nn.AvgPool3d,
}


@final
@dataclass(frozen=True, slots=True, eq=False)
class Edited:
    """module: the copy. changes: one line for parts that changed alike. to_edit: what is left to do
    by hand.

    prepares: whether the module now does by itself what the changes do to its inputs.
    """

    module: nn.Module
    changes: tuple[str, ...]
    to_edit: tuple[str, ...]
    prepares: bool


def edited(
    network: TrainedNetwork, changes: Sequence[Change], before: Settings, settings: Settings
) -> Edited:
    """A copy of the module with these changes; parameters that the settings freeze need no
    gradient in it. settings: those that all changes together come to; before: without them."""
    surgery = _Surgery(network)
    for change in changes:
        surgery.plan(change, before)
    surgery.operate()
    surgery.freeze(settings)
    prepared = [change for change in changes if change.prepared is not None]
    return Edited(
        surgery.own,
        tuple(_gathered(surgery.done)),
        tuple(f"{change.change}: {change.how}" for change in surgery.left),
        prepares=bool(prepared) and not any(change in surgery.left for change in prepared),
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """What a part without parts of its own read and gave, flat."""

    name: str
    part: nn.Module
    read: FloatArray
    gave: FloatArray


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """How a change is made: parts in place of others, edits of code, and parts before all."""

    change: Change
    parts: list[tuple[_Call, nn.Module]] = field(default_factory=list)
    code: list[CodeEdit] = field(default_factory=list)
    first: list[nn.Module] = field(default_factory=list)


@final
class _Surgery:
    """Under way. own: the copy. done: parts, and what was done to each; left: changes to be made
    by hand."""

    def __init__(self, network: TrainedNetwork) -> None:
        self._network = network
        self._nodes: Mapping[str, Node] = {node.output: node for node in network.graph.nodes}
        x = random_numbers(network.graph, np.random.default_rng(0))
        self._x, self._read = x.numpy(), as_read(x, network.graph)
        self._whole = copy.deepcopy(network.module).double().cpu().eval()
        self._values = _values(network.graph, self._x)
        self._calls = _calls(self._whole, self._read)
        self.own = copy.deepcopy(network.module)
        self.done: list[tuple[str, str]] = []
        self.left: list[Change] = []
        self._plans: list[_Plan] = []

    def plan(self, change: Change, before: Settings) -> None:
        """Find the parts of a change, and what of it is code."""
        plan = _Plan(change)
        is_known = all(self._parameter(name) is not None for name in change.weights)
        for edit in change.edits:
            if not isinstance(edit, StepEdit):
                is_known = False
                continue
            for output, ops in edit.instead.items():
                self._instead(plan, self._nodes[output], ops)
            for place, ops in edit.before.items():
                share = _share(ops)
                if share is None or not isinstance(self._nodes[place[0]].op, p.Add):
                    is_known = False
                else:
                    self._shorten(plan, edit, place, share)
        if change.prepared is not None:
            is_one = not self._network.graph.parts
            part = _preparing(change, before, self._x) if is_one else None
            is_known = is_known and part is not None
            plan.first.extend([] if part is None else [part])
        if is_known:
            self._plans.append(plan)
        else:
            self.left.append(change)

    def operate(self) -> None:
        """Write code anew where that is needed and possible, then replace parts and numbers."""
        needed = any(plan.code or plan.first for plan in self._plans)
        code = Code.of(self._whole, self._read) if needed else None
        done: list[_Plan] = []
        for plan in self._plans:
            if not (plan.code or plan.first):
                done.append(plan)
            elif code is not None and all(map(code.holds, plan.code)):
                done.append(plan)
                self.done.append(("forward", plan.change.change))
            else:
                self.left.append(plan.change)
        edits = [edit for plan in done for edit in plan.code]
        first = [part for plan in done for part in plan.first]
        if code is not None and (edits or first):
            self.own = code.rewritten(self.own, edits, first)
        for plan in done:
            for call, new in plan.parts:
                self._replace(call, new)
            for name, array in plan.change.weights.items():
                self._set(name, array)

    def freeze(self, settings: Settings) -> None:
        """No gradient for what the settings do not train; no biases that are held at 0."""
        called = {call.name for call in self._calls if isinstance(call.part, _BIASED)}
        for name, match in self._network.matches.items():
            parameter = self._parameter(name)
            if parameter is None or settings.is_trained(name):
                continue
            owner, _, kind = match.recorded.rpartition(".")
            above = self.own.get_submodule(owner.rpartition(".")[0])
            is_zero = kind == "bias" and not bool(parameter.any())
            if is_zero and owner in called and not isinstance(above, _READERS):
                self.own.get_submodule(owner).register_parameter("bias", None)
                self.done.append((match.recorded, "removed, bias=False"))
            elif parameter.requires_grad:
                parameter.requires_grad_(False)
                at = " at 0" if is_zero else ""
                self.done.append((match.recorded, f"frozen{at}"))

    def _parameter(self, name: str) -> nn.Parameter | None:
        """Of the copy, by the name that the graph has for it; None where it has none any more."""
        match = self._network.matches.get(name)
        own = dict(self.own.named_parameters(remove_duplicate=False))
        return None if match is None else own.get(match.recorded)

    def _set(self, name: str, array: FloatArray) -> None:
        """Other numbers for a parameter, if the copy still has it."""
        match, parameter = self._network.matches[name], self._parameter(name)
        if parameter is None:
            return
        numbers = torch.from_numpy(np.ascontiguousarray(array.T if match.transposed else array))
        with torch.no_grad():
            parameter.copy_(numbers.reshape(parameter.shape))
        if parameter.any():
            self.done.append((match.recorded, "other numbers"))

    def _instead(self, plan: _Plan, node: Node, ops: tuple[p.Op, ...]) -> None:
        """Another part for the one that alone computes a step, or normalises as it does."""
        if isinstance(node.op, p.Attention):
            self._flatten(plan, node, ops)
            return
        read, gave = self._values[node.inputs[0]], self._values[node.output]
        norms = isinstance(node.op, p.Normalize | p.BatchNorm)
        found = [
            call
            for call in self._calls
            if isinstance(call.part, _NORMS) == norms
            and are_equal(call.read, read)
            and (norms or are_equal(call.gave, gave))
            and not isinstance(call.part, _AT_REST)
        ]
        call = self._alone(found)
        new = None if call is None else _part(call.part, node, ops)
        if call is not None and new is not None:
            plan.parts.append((call, new))
        else:
            gave = found[0].gave if norms and len(found) == 1 else gave
            plan.code.append(CodeEdit(read, gave, lambda old: _part(old, node, ops)))

    def _flatten(self, plan: _Plan, node: Node, ops: tuple[p.Op, ...]) -> None:
        """Other scores of attention, by shorter queries."""
        (op,) = ops
        if isinstance(op, p.Attention) and isinstance(node.op, p.Attention):
            reader, index = unscaled(node, 0, self._nodes)
            queries = self._values[reader.inputs[index]]
            plan.code.append(CodeEdit(queries, None, share=op.scale / node.op.scale))

    def _alone(self, found: Sequence[_Call]) -> _Call | None:
        """The only one of several, if its part is called but once."""
        if len(found) != 1:
            return None
        times = sum(call.part is found[0].part for call in self._calls)
        return found[0] if times == 1 else None

    def _shorten(self, plan: _Plan, edit: StepEdit, place: tuple[str, int], share: float) -> None:
        """A `Residual` becomes another one; elsewhere what a sum reads is scaled."""
        output, index = place
        read, gave = self._values[self._nodes[output].inputs[index]], self._values[output]
        sums = [c for c in self._calls if type(c.part) is Residual and are_equal(c.gave, gave)]
        call = self._alone(sums)
        if call is None:
            plan.code.append(CodeEdit(read, gave, share=share))
            return
        branch = cast("Residual", self.own.get_submodule(call.name)).branch
        if (output, 1 - index) not in edit.before:
            plan.parts.append((call, ScaledResidual(branch, 0.5 / share)))
        elif index == 0:
            plan.parts.append((call, HalfResidual(branch)))

    def _replace(self, call: _Call, new: nn.Module) -> None:
        old = self.own.get_submodule(call.name)
        like = next(iter(old.parameters()), None)
        new.to(None if like is None else like.device)
        new.train(old.training)
        above, _, name = call.name.rpartition(".")
        if not call.name:
            self.own = new
        else:
            owner = self.own.get_submodule(above)
            owner._modules[name] = new
            if isinstance(owner, nn.TransformerEncoderLayer):
                owner.activation_relu_or_gelu = 0  # its fast path knows none of these parts
        self.done.append((call.name or "the module itself", f"{_named(old)} → {_named(new)}"))


@final
class Minus(nn.Module):
    """x − number."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        """Shifted."""
        return x - self.number

    def extra_repr(self) -> str:
        """The number."""
        return f"{self.number:g}"


def _gathered(done: Sequence[tuple[str, str]]) -> Iterator[str]:
    """A line for all parts to which the same was done; for each place in the code its own."""
    places: dict[str, list[str]] = {}
    for name, what in done:
        places.setdefault(what, []).append(name)
    for what, names in places.items():
        yield f"{', '.join(names)}: {what}"


def _preparing(change: Change, before: Settings, x: FloatArray) -> nn.Module | None:
    """A part that does to inputs what a change does; None: none that is known does."""
    box, radius = change.settings.get("input_box"), change.settings.get("input_norm")
    part: nn.Module | None = None
    if isinstance(box, tuple) and before.effective_input_box is not None:
        part = Minus(before.effective_input_box[0] - box[0])
    elif isinstance(radius, float):
        part = InputClip(radius)
    if part is None or change.prepared is None:
        return None
    found = flat(part(torch.from_numpy(x)))
    return part if are_equal(found, change.prepared(x).reshape(-1)) else None


def _part(old: nn.Module | None, node: Node, ops: tuple[p.Op, ...]) -> nn.Module | None:
    """What computes `ops` in the place of a part; None: no part that is known does."""
    match ops:
        case ():
            return nn.Identity()
        case (p.AveragePool(),):
            return _averaging(old)
        case (p.Activation("relu", _),):
            return nn.ReLU()
        case (p.Move(), p.Sort(axis), p.Move()) if axis > 0 and node.in_place:
            return MaxMin(axis)
        case (p.Normalize(epsilon=epsilon), p.Scale()):
            return _unit(old) if epsilon > 0.0 else None
        case (p.Centre(), p.DivideByNorm(floor=floor)):
            return _bounded(old, floor)
        case (p.Move(sources), p.Centre(), p.DivideByNorm(floor=floor), p.Move()):
            if isinstance(old, _BatchNorm):
                return BoundedGroupNorm(sources.shape[1], old.num_features, floor)
    return None


def _unit(old: nn.Module | None) -> nn.Module | None:
    match old:
        case nn.LayerNorm():
            return UnitLayerNorm(tuple(old.normalized_shape))
        case nn.GroupNorm():
            return UnitGroupNorm(old.num_groups, old.num_channels)
    return None


def _bounded(old: nn.Module | None, floor: float) -> nn.Module | None:
    match old:
        case nn.LayerNorm():
            return BoundedLayerNorm(tuple(old.normalized_shape), floor)
        case nn.GroupNorm():
            return BoundedGroupNorm(old.num_groups, old.num_channels, floor)
    return None


def _averaging(old: Any) -> nn.Module | None:
    kind: Callable[..., nn.Module] | None = _POOLS.get(type(old))
    if kind is None or old.dilation not in {1, (1,), (1, 1), (1, 1, 1)}:
        return None
    return kind(old.kernel_size, old.stride, old.padding, old.ceil_mode, count_include_pad=False)


def _share(ops: tuple[p.Op, ...]) -> float | None:
    """The number by which steps before another one scale."""
    match ops:
        case (p.Scale(factor),) if factor.lo.size == 1:
            return float(factor.lo.item())
    return None


def _values(graph: Graph, x: FloatArray) -> Mapping[str, FloatArray]:
    """Of all steps at these examples, flat."""
    program = Network.of(graph).program
    found = evaluate_batch(program, x.reshape(len(x), *program.shapes[program.input]))
    return {name: np.asarray(value, np.float64).reshape(-1) for name, value in found.items()}


def _calls(module: nn.Module, inputs: Sequence[Tensor]) -> Sequence[_Call]:
    """What all parts read and give at these examples."""
    calls: list[_Call] = []
    names = {part: name for name, part in module.named_modules()}

    def note(part: nn.Module, given: tuple[Any, ...], output: object) -> None:
        del given  # which a part may have worked in
        read = kept.pop(part, None)
        if read is not None and isinstance(output, Tensor):
            calls.append(_Call(names[part], part, read, flat(output)))

    kept: dict[nn.Module, FloatArray] = {}

    def keep(part: nn.Module, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], Tensor):
            kept[part] = flat(given[0])

    own = [part for part in names if not list(part.children()) or isinstance(part, Residual)]
    handles = [part.register_forward_pre_hook(keep) for part in own]
    handles += [part.register_forward_hook(note) for part in own]
    with torch.enable_grad():  # without gradients, torch's encoders do not call their parts
        module.requires_grad_(True)(*inputs)
    for handle in handles:
        handle.remove()
    return calls


def _named(part: nn.Module) -> str:
    """A part as it prints itself, in a line."""
    return " ".join(repr(part).split()) if not list(part.children()) else type(part).__name__
