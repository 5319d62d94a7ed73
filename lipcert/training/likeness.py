"""Likeness: the live module is, and stays, the network that was bounded.

What enters: the module with the hooks of the run, and the graph whose bounds set the noise. What
leaves: nothing, or an error that says what differs: outputs or gradients on random numbers, a
buffer that forward passes change, frozen numbers that are not those of the file. Invariant: a
module that was changed is compared anew before its next forward pass in training mode.

A backward pass that is not the derivative of the forward pass (a hook on a tensor, an autograd
function with a false backward) is bounded by nothing, and no file shows it: so gradients are
compared, not outputs alone. What a module does only at other numbers, only for other batch sizes,
or only from time to time, is not found.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final, final

import torch
from torch import Tensor, nn

from lipcert.audit.viewed import is_shown
from lipcert.errors import NoVerdictError, UsageError
from lipcert.ir import Graph
from lipcert.training.clipping.probe import Probe, Seen
from lipcert.training.network import TrainedNetwork

__all__ = ["Likeness", "require_gradients", "require_numbers"]

_ALLOWED: Final = {torch.float64: 1e-5, torch.float32: 1e-2}
"""relative; a file rounds constants to float32, and float32 may turn a ReLU at its kink"""
_FAINT: Final = 1e-3
"""of the longest gradient: what is shorter is compared with that"""
_ASCENT: Final = 2.0**-30
"""the loss gradient at the output, so short that clips of gradients are idle"""
_HOOKS: Final = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)
_PLAIN: Final = frozenset({bool, int, float, str})


@final
class Likeness:
    """Of one module to one graph, from `settle` on."""

    def __init__(self, network: TrainedNetwork, graph: Graph) -> None:
        self._network = network
        self._graph = graph
        self._known: list[object] = []

    def settle(self) -> None:
        """The module as it is now has been compared."""
        self._known = _structure(self._network.module)

    def require(self) -> None:
        """Compare the module again if hooks, submodules or attributes were changed."""
        present = _structure(self._network.module)
        if present != self._known:
            require_gradients(self._network, self._graph, training=False)
            self._known = present


def require_gradients(network: TrainedNetwork, graph: Graph, *, training: bool) -> None:
    """Output and gradients of the module are those of the graph.

    training: in training mode, in which there must be no hooks of the run yet.
    """
    hooked = [name for name, item in network.module.named_parameters() if item._backward_hooks]
    if hooked:
        raise UsageError(
            f"training: {hooked[0]} has a hook (register_hook) that may change its gradient, which "
            "is not noised yet; remove it"
        )
    gone = [m.recorded for m in network.matches.values() if network.live(m.recorded) is None]
    if gone:
        raise UsageError(
            f"training: the module has no {gone[0]} any more, which it had when make_private was "
            "called; change the module before that"
        )
    for dtype, allowed in _ALLOWED.items():
        probe = Probe(
            network.module, graph, network.matches, (), dtype, training=training, ascent=_ASCENT
        )
        live = probe.of_module()
        if live is not None:
            _refuse_changed(probe.changed_buffers())
            _compare(live, probe.of_graph(), allowed)
            return
    raise NoVerdictError(
        "training: the module cannot be evaluated with copies of its weights in float64 or "
        "float32, so nothing tells whether it is the network that was bounded"
    )


def require_numbers(network: TrainedNetwork, trained: Container[str]) -> None:
    """Live numbers that are not trained are those of the file: bounds hold for them alone.

    trained: by the module's names.
    """
    used = {
        operand.parameter for node in network.graph.nodes for operand in node.op.operands().values()
    }
    tensors = network.tensors()
    for name, match in network.matches.items():
        if match.recorded in trained or name not in used:
            continue
        if not is_shown(network.graph, name, tensors[name].double().cpu().numpy()):
            raise UsageError(
                f"training: {match.recorded} is not trained, and the model file "
                "that was bounded holds other numbers for it; load it into the module before "
                "make_private, or export the file anew"
            )


def _structure(module: nn.Module) -> list[object]:
    """What may be changed of a module besides its tensors."""
    found: list[object] = []
    for part in _parts(module):
        held = part.__dict__
        found += [
            bool(item._backward_hooks) for item in part._parameters.values() if item is not None
        ]
        found += (id(part), type(part), id(held.get("forward")))
        found += [tuple(held[kind]) for kind in _HOOKS if held[kind]]
        found += [
            (name, value)
            for name, value in held.items()
            if type(value) in _PLAIN and name != "training"
        ]
    return found


def _parts(module: nn.Module) -> Iterable[nn.Module]:
    """As module.modules(), without making up names, in every step."""
    found: dict[nn.Module, None] = {}
    waiting = [module]
    while waiting:
        part = waiting.pop()
        if part not in found:
            found[part] = None
            waiting += [item for item in part._modules.values() if item is not None]
    return found


def _refuse_changed(names: Iterable[str]) -> None:
    changed = list(names)
    if changed:
        raise UsageError(
            f"training: forward passes in training mode change the buffer {changed[0]}: statistics "
            "of private examples would be kept, and saved, without noise; keep no running "
            "statistics"
        )


def _compare(live: Seen, bounded: Seen, allowed: float) -> None:
    _require("output", live.output, bounded.output, allowed * _length(bounded.output))
    longest = max(map(_length, bounded.gradients.values()))
    for name, gradient in bounded.gradients.items():
        scale = max(_length(gradient), _FAINT * longest)
        _require(f"gradient of {name!r}", live.gradients[name], gradient, allowed * scale)


def _require(what: str, found: Tensor, expected: Tensor, allowed: float) -> None:
    if found.shape == expected.shape and _length(found - expected) <= allowed:
        return
    raise NoVerdictError(
        f"training: the {what} of the module is not that of the network that was bounded: the "
        "module does something else in training mode, draws random numbers, was changed, or has a "
        "hook or an autograd function whose backward pass is not the derivative of its forward pass"
    )


def _length(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.double()))
