"""Rewriting: changes of what the code of a module does between its parts, by torch.fx.

What enters: a module, the values of the steps that are to be changed, and their changes. What
leaves: a copy whose code is written anew, with the same parts and parameters under the same names;
or the changes that it could not be given. Invariant: code is changed only where, on random inputs,
it computes the very values of the step that a change speaks of.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from lipcert.upper import FloatArray

AGREEMENT: Final = 1e-6
"""relative, of values in float64; numbers in code are float32 in the graph that it became"""
_WINDOWS: Final = ("input", "kernel_size", "stride", "padding", "ceil_mode")
_UNUSED: Final[Mapping[str, Any]] = {
    "dilation": (1, (1,), (1, 1), (1, 1, 1)),
    "return_indices": (False,),
}
"""what means have no counterpart of"""
_POOLS: Final[Mapping[Any, Callable[..., Tensor]]] = {
    functional.max_pool1d: functional.avg_pool1d,
    functional.max_pool2d: functional.avg_pool2d,
    functional.max_pool3d: functional.avg_pool3d,
}


@final
@dataclass(frozen=True, slots=True, eq=False)
class CodeEdit:
    """Of the call that computes `gave` from `read`, flat values at random examples; `gave` None: of
    the only call that reads it, whatever it computes.

    part: what takes its place, given the part that it calls, if any; None: it reads `read` times
    `share`.
    """

    read: FloatArray
    gave: FloatArray | None
    part: Callable[[nn.Module | None], nn.Module | Callable[..., Tensor] | None] | None = None
    share: float = 1.0


@final
@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """The code of a module, as a graph of calls, and the values of all of them, flat."""

    traced: fx.GraphModule
    values: Mapping[fx.Node, FloatArray]

    @classmethod
    def of(cls, module: nn.Module, inputs: Sequence[Tensor]) -> Code | None:
        """None for code that depends on values, or on the mode. module: of their type."""
        try:
            training, resting = (_traced(module.train(mode)) for mode in (True, False))
            if training.code != resting.code:
                return None
            values = _Values(resting)
            with torch.no_grad():
                values.run(*inputs)
        except Exception:  # noqa: BLE001  the module's own code runs, on what is no tensor
            return None
        return cls(resting, values.known)

    def holds(self, edit: CodeEdit) -> bool:
        """Whether the edit has a place, and something to put there."""
        place = self._place(edit)
        return place is not None and (edit.part is None or self._part(place, edit) is not None)

    def rewritten(
        self, module: nn.Module, edits: Sequence[CodeEdit], first: Sequence[nn.Module]
    ) -> fx.GraphModule:
        """A module with the parts of this one, which has the same code, and with edits that it
        holds. first: parts that every example passes before."""
        own: dict[fx.Node, fx.Node] = {}
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.traced.graph, own))
        result = fx.GraphModule(module, graph, type(module).__name__)
        for edit in edits:
            self._edit(result, own, edit)
        _put_first(result, first)
        result.graph.lint()
        result.recompile()
        return result

    def _place(self, edit: CodeEdit) -> fx.Node | None:
        """The only call that computes the values of an edit from what it reads."""
        found = [
            node
            for node in self.traced.graph.nodes
            if self._gives(node, edit) and self._read(node, edit) is not None
        ]
        return found[0] if len(found) == 1 else None

    def _gives(self, node: fx.Node, edit: CodeEdit) -> bool:
        value = self.values.get(node)
        if edit.gave is not None:
            return value is not None and are_equal(value, edit.gave)
        return value is None or not are_equal(value, edit.read)  # it does more than arrange them

    def _read(self, node: fx.Node, edit: CodeEdit) -> fx.Node | None:
        known = (item for item in node.all_input_nodes if item in self.values)
        return next((item for item in known if are_equal(self.values[item], edit.read)), None)

    def _part(self, place: fx.Node, edit: CodeEdit) -> nn.Module | Callable[..., Tensor] | None:
        if place.op == "call_module":
            old = self.traced.get_submodule(str(place.target))
            return None if edit.part is None else edit.part(old)
        if place.target in _POOLS:
            return _POOLS[place.target] if _is_plain(place) else None
        return None if edit.part is None else edit.part(None)

    def _edit(self, result: fx.GraphModule, own: dict[fx.Node, fx.Node], edit: CodeEdit) -> None:
        place = self._place(edit)
        read = None if place is None else self._read(place, edit)
        if place is None or read is None:
            raise ValueError("the code does not hold this edit")
        node, graph = own[place], result.graph
        part = None if edit.part is None else self._part(place, edit)
        if isinstance(part, nn.Module):
            with graph.inserting_after(node):
                own[place] = graph.call_module(_added(result, part), (own[read],))
            node.replace_all_uses_with(own[place])
            graph.erase_node(node)
        elif part is not None:
            kept: dict[str, Any] = {n: node.kwargs[n] for n in _WINDOWS if n in node.kwargs}
            node.target, node.kwargs = part, {**kept, "count_include_pad": False}
        else:
            with graph.inserting_before(node):
                scaled = graph.call_function(operator.mul, (own[read], edit.share))
            node.replace_input_with(own[read], scaled)


def _traced(module: nn.Module) -> fx.GraphModule:
    return fx.GraphModule(module, _Tracer().trace(module))


def _is_plain(place: fx.Node) -> bool:
    """Whether maxima over windows have means as their counterpart."""
    unused = (value in _UNUSED.get(name, (value,)) for name, value in place.kwargs.items())
    return len(place.args) < 5 and all(unused)


def _put_first(result: fx.GraphModule, parts: Sequence[nn.Module]) -> None:
    graph = result.graph
    given = next(node for node in graph.nodes if node.op == "placeholder")
    last = given
    for part in parts:
        readers = list(last.users)
        with graph.inserting_after(last):
            new = graph.call_module(_added(result, part), (last,))
        for reader in readers:
            reader.replace_input_with(last, new)
        last = new


def _added(result: fx.GraphModule, part: nn.Module) -> str:
    """The name of a part that the module did not have."""
    name, number = type(part).__name__.lower(), 1
    while hasattr(result, f"{name}_{number}"):
        number += 1
    result.add_submodule(f"{name}_{number}", part)
    return f"{name}_{number}"


@final
class _Tracer(fx.Tracer):
    """Layers of `lipcert.training.layers` are parts, as those of torch are."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether what happens within a part is its own affair."""
        own = type(m).__module__.startswith("lipcert.training.")
        return own or super().is_leaf_module(m, module_qualified_name)


@final
class _Values(fx.Interpreter):
    """Keeps what every call gives."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.known: dict[fx.Node, FloatArray] = {}

    def run_node(self, n: fx.Node) -> Any:
        """As it is, remembered."""
        found = super().run_node(n)
        if isinstance(found, Tensor) and n.op != "output":
            self.known[n] = flat(found)
        return found


def flat(tensor: Tensor) -> FloatArray:
    """The numbers of a tensor, in its order."""
    found: FloatArray = tensor.detach().double().cpu().numpy().reshape(-1).copy()
    return found


def are_equal(one: FloatArray, other: FloatArray) -> bool:
    """Whether these are the same values, up to rounding."""
    if one.shape != other.shape or not one.size:
        return False
    scale = max(float(np.max(np.abs(other))), np.finfo(np.float64).tiny)
    return bool(np.max(np.abs(one - other)) <= AGREEMENT * scale)
