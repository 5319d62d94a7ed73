"""Backpropagation clipping in a live module: hooks where the bounded graph has its clips.

What enters: a module, the graph that was bounded with its clips, and which parameter of the module
is which of the graph. What leaves: handles of hooks, by which every trained layer clips its
upstream cotangent and, where the graph does, its input, in training and in evaluation: the clips
are part of the network.
Invariant: a layer is a module that owns its parameters alone and is called once; whatever cannot
be mapped so is refused by name, and `check_clips` tells whether the mapping is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lipcert.audit.lowering import lowered
from lipcert.audit.recorded_names import Match
from lipcert.core.program import CotangentClip, InputClip
from lipcert.errors import UsageError
from lipcert.ir import Graph, Node

_REMEDY: Final = (
    "give every trained parameter to a torch layer of its own that the network calls once "
    "(nn.Linear, nn.Conv2d, …; for learned positions, and whatever else is added, "
    "lipcert.training.layers.AddBias), freeze it, or use another mechanism"
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class HookedLayer:
    """A trained layer: the submodule that is it, by name, and its clips in the graph.

    before: None where it reads its input as it is.
    """

    name: str
    before: Node | None
    after: Node


def install_clips(
    module: nn.Module, graph: Graph, matches: Mapping[str, Match]
) -> tuple[RemovableHandle, ...]:
    """Hooks of all layers; they stay until their handles are removed.

    graph: as bounded, with its clips. matches: by the graph's names, the module's parameters.
    Raises UsageError naming every parameter whose layer has no place for hooks.
    """
    handles: list[RemovableHandle] = []
    for layer in hooked_layers(module, graph, matches):
        submodule = module.get_submodule(layer.name)
        before = _Before(layer.name, layer.before)
        handles.append(submodule.register_forward_pre_hook(before))
        handles.append(submodule.register_forward_hook(_After(layer.name, layer.after)))
    return tuple(handles)


def hooked_layers(
    module: nn.Module, graph: Graph, matches: Mapping[str, Match]
) -> tuple[HookedLayer, ...]:
    """The layers that the clips of the graph surround. Raises UsageError as `install_clips`."""
    runs = list(_runs(graph))
    owners = [_owners(parameters, matches) for _, _, parameters in runs]
    counts = Counter(name for found in owners for name in found)
    shared = _shared(module)
    reasons: list[str] = []
    layers: list[HookedLayer] = []
    for (before, after, parameters), found in zip(runs, owners, strict=True):
        why = _obstacle(module, found, counts, shared)
        if why is None:
            layers.append(HookedLayer(found[0], before, after))
        else:
            reasons.append(f"{', '.join(repr(name) for name in parameters)}: {why}")
    if reasons:
        more = f"; and {len(reasons) - 5} more" if len(reasons) > 5 else ""
        raise UsageError(
            "backpropagation clipping cannot put its clips around the layers of "
            f"{'; '.join(dict.fromkeys(reasons[:5]))}{more}: {_REMEDY}"
        )
    return tuple(layers)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Before:
    """Sees to it that a layer reads one tensor, and clips that where there is a clip."""

    layer: str
    clip: Node | None

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Tensor]:
        if len(arguments) != 1 or not isinstance(arguments[0], Tensor):
            raise UsageError(
                f"backpropagation clipping: the layer {self.layer!r} ({type(module).__name__}) "
                "must be called with one tensor, and by position"
            )
        (given,) = arguments
        return (given if self.clip is None else lowered(self.clip, [given], {}),)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _After:
    """Clips the cotangent that reaches a layer."""

    layer: str
    clip: Node

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: object) -> Tensor:
        del arguments
        if not isinstance(output, Tensor):
            raise UsageError(
                f"backpropagation clipping: the layer {self.layer!r} ({type(module).__name__}) "
                f"returns {type(output).__name__}, not one tensor"
            )
        return lowered(self.clip, [output], {})


def _runs(graph: Graph) -> Iterator[tuple[Node | None, Node, tuple[str, ...]]]:
    """The clips around every layer of the graph, and the trained parameters between them.

    A layer is a path up to the clip of its cotangent. Below it, up to the clip of its input or,
    where it has none, to the next layer or fork, nothing else is trained: every trained layer ends
    in a clip.
    """
    producers = {node.output: node for node in graph.nodes}
    for after in graph.nodes:
        if not isinstance(after.op, CotangentClip):
            continue
        between: list[Node] = []
        node = producers.get(after.inputs[0])
        while node is not None and not isinstance(node.op, InputClip | CotangentClip):
            between.append(node)
            node = producers.get(node.inputs[0]) if len(node.inputs) == 1 else None
        before = node if node is not None and isinstance(node.op, InputClip) else None
        names = [
            use.parameter
            for inner in reversed(between)
            for use in inner.uses()
            if graph.parameters[use.parameter].trainable
        ]
        yield before, after, tuple(dict.fromkeys(names))


def _owners(parameters: tuple[str, ...], matches: Mapping[str, Match]) -> tuple[str, ...]:
    """The submodules that own these parameters; "" for what has no match, or is the root's."""
    recorded = [matches[name].recorded if name in matches else "" for name in parameters]
    return tuple(dict.fromkeys(name.rpartition(".")[0] for name in recorded))


def _obstacle(
    module: nn.Module, owners: tuple[str, ...], counts: Mapping[str, int], shared: frozenset[str]
) -> str | None:
    """Why these owners are no layer that can be hooked; None: they are."""
    if len(owners) != 1:
        return f"one layer of the network has parameters of {', '.join(map(repr, owners))}"
    (name,) = owners
    owner = module.get_submodule(name)
    kind = f"{name or 'the module itself'} ({type(owner).__name__})"
    if next(owner.children(), None) is not None:
        return f"{kind} owns it next to submodules, and uses it in code that no hook sees"
    if counts[name] > 1:
        return f"{kind} is used {counts[name]} times"
    if name in shared:
        return f"{kind} shares a parameter with another module"
    return None


def _shared(module: nn.Module) -> frozenset[str]:
    """Submodules that have a parameter under more than one name."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name.rpartition(".")[0])
    return frozenset(owner for owners in names.values() if len(owners) > 1 for owner in owners)
