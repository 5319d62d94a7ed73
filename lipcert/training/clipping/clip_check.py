"""Whether the clips of a live module are those of the graph that was bounded.

What enters: a module with its hooks, the graph with its clips, and which parameter is which. What
leaves: nothing, or a NoVerdictError that names a layer. Compared on random numbers, in float64
where the module allows it: what every clip sees on its way forward and backward, the output, and
all gradients.

A clip depends on what it is given and on nothing else. So where every clip of the module is given
what its counterpart in the graph is given, example by example, the two compute the same at all
other inputs too, also where a clip that happens to be idle here takes effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import torch
from torch import Tensor, nn

from lipcert.audit.recorded_names import Match
from lipcert.errors import NoVerdictError
from lipcert.graph.ir import Graph
from lipcert.training.clipping.backprop import hooked_layers
from lipcert.training.clipping.probe import Probe, Seen

_DIFFERENCE: Final = {torch.float64: 1e-5, torch.float32: 1e-2}
"""relative; a file rounds constants to float32, and float32 may turn a ReLU at its kink"""
_FAINT: Final = 1e-3
"""of the largest of its kind: what is shorter is compared with that"""


def check_clips(
    module: nn.Module,
    graph: Graph,
    matches: Mapping[str, Match],
    read: Callable[[object], Tensor | None] | None = None,
) -> None:
    """graph: as bounded, with its clips. matches: as `install_clips` had. read: as of a `Probe`."""
    layers = hooked_layers(module, graph, matches)
    why = ""
    for dtype, allowed in _DIFFERENCE.items():
        probe = Probe(module, graph, matches, layers, dtype, read=read)
        live = probe.of_module()
        if live is not None:
            _compare(live, probe.of_graph(), allowed)
            return
        why = probe.refused
    raise NoVerdictError(
        "clipping: the module cannot be evaluated with copies of its weights in float64 or "
        f"float32 ({why}), so nothing tells whether its clips stand where they were bounded"
    )


def _compare(live: Seen, bounded: Seen, allowed: float) -> None:
    for layer, found in live.inputs.items():
        if len(found) != 1 or layer not in live.cotangents:
            raise NoVerdictError(
                f"clipping: the layer {layer!r} is called {len(found)} times, and was bounded for "
                "one call: its clips do not act where its parameters do"
            )
        for expected in bounded.inputs[layer]:
            _require((layer, "reads"), found[0], expected, allowed, expected)
    longest = _longest(bounded.cotangents.values())
    for layer, cotangent in bounded.cotangents.items():
        _require((layer, "receives"), live.cotangents[layer], cotangent, allowed, longest)
    _require(("output", "returns"), live.output, bounded.output, allowed, bounded.output)
    longest = _longest(bounded.gradients.values())
    for name, gradient in bounded.gradients.items():
        _require((name, "has as its gradient"), live.gradients[name], gradient, allowed, longest)


def _require(
    what: tuple[str, str], found: Tensor, expected: Tensor, allowed: float, like: Tensor
) -> None:
    """That two tensors agree, relative to the second, or to a share of `like`."""
    if found.shape == expected.shape:
        scale = max(_length(expected), _FAINT * _length(like))
        if _length(found - expected) <= allowed * scale:
            return
    name, verb = what
    raise NoVerdictError(
        f"clipping: what {name!r} {verb} in the module {tuple(found.shape)} is not what it {verb} "
        f"in the network that was bounded {tuple(expected.shape)}, so the clips of the two differ; "
        "call each layer with the whole batch as first axis, once, and on nothing but tensors"
    )


def _longest(tensors: Iterable[Tensor]) -> Tensor:
    return max(tensors, key=_length)


def _length(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.double()))
