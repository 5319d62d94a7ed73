"""Backpropagation clipping in a live module: a hook wherever the bounded graph has a clip.

Given a module, the graph that was bounded with its clips, and the map between their parameters,
`install_clips` registers hooks by which every trained layer clips its upstream cotangent and, where
the graph does, its input. They act in training and in evaluation mode: the clips are part of the
network.

Invariant: a layer is a module that alone owns its parameters and is called once, or that shares an
embedding table with one other module, only one of the two reading rows of it. A network that does
not have this form is refused with the names of its parameters; `training.same_network`
verifies the mapping.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lipcert.audit.recorded import Match
from lipcert.core.kinds import CotangentClip, Embedding, InputClip
from lipcert.errors import UsageError
from lipcert.graph.ir import Graph, Node
from lipcert.measure.lowering import lowered

_REMEDY: Final = (
    "give every trained parameter to a torch layer of its own that the network calls once "
    "(nn.Linear, nn.Conv2d, …; for learned positions, and whatever else is added, "
    "lipcert.training.layers.AddBias), freeze it, or use another mechanism"
)


@dataclass(frozen=True, slots=True, eq=False)
class HookedLayer:
    """A trained layer: the name of its submodule, and its clips in the graph.

    before: the clip of its input; None if the input is not clipped.
    """

    name: str
    before: Node | None
    after: Node


def install_clips(
    module: nn.Module, graph: Graph, matches: Mapping[str, Match]
) -> tuple[RemovableHandle, ...]:
    """Install the hooks of all layers, and return their handles.

    Args:
        graph: the bounded graph, with its clips.
        matches: the module's parameters, by the graph's names.

    Raises:
        UsageError: with every parameter whose layer cannot be hooked.
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
    """Return the layers around which the graph has clips.

    Raises:
        UsageError: as `install_clips`.
    """
    runs = list(_layers(graph))
    names = _all_owners(module)
    owners = [
        tuple(dict.fromkeys(_owner(module, name, matches, names, is_table) for name in parameters))
        for _, _, parameters, is_table in runs
    ]
    counts = Counter(name for found in owners for name in found)
    shared = frozenset(
        name for own in names.values() if len(own) > 1 and not _is_pair(module, own) for name in own
    )
    reasons: list[str] = []
    layers: list[HookedLayer] = []
    for (before, after, parameters, is_table), found in zip(runs, owners, strict=True):
        why = _obstacle(module, found, counts, shared)
        if why is None and _reads_rows(module, found[0]) is not is_table:
            why = f"{found[0]} (Embedding) adds the same rows for every input"
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


@dataclass(frozen=True, slots=True, eq=False)
class _Before:
    """A pre-hook that requires one input tensor, and clips it if the layer has an input clip."""

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


@dataclass(frozen=True, slots=True, eq=False)
class _After:
    """A hook that clips the cotangent that reaches a layer."""

    layer: str
    clip: Node

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: object) -> Tensor:
        del arguments
        if not isinstance(output, Tensor):
            raise UsageError(
                f"backpropagation clipping: the layer {self.layer!r} ({type(module).__name__}) "
                f"returns {type(output).__name__}, not one tensor"
            )
        return lowered(self.clip, [output], {}).clone()  # code behind may write into it


CLIPS: Final = (_Before, _After)
"""The types of these hooks."""


def _layers(graph: Graph) -> Iterator[tuple[Node | None, Node, tuple[str, ...], bool]]:
    """For every layer of the graph, yield its clips, its trained parameters, and whether it reads
    rows of a table.

    A layer is a path that ends in the clip of its cotangent. It begins at the clip of its input or,
    if it has none, at the previous layer or fork. Nothing else on that path is trained, because
    every trained layer ends in a clip.
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
        is_table = any(isinstance(inner.op, Embedding) for inner in between)
        yield before, after, tuple(dict.fromkeys(names)), is_table


def _owner(
    module: nn.Module,
    parameter: str,
    matches: Mapping[str, Match],
    names: Mapping[str, tuple[str, ...]],
    is_table: bool,
) -> str:
    """Return the submodule that owns a parameter; "" if it has no match, or belongs to the root.

    is_table: whether rows of it are read, which decides between the two owners of a tied table.
    """
    recorded = matches[parameter].recorded if parameter in matches else ""
    owners = names.get(recorded, ())
    if _is_pair(module, owners):
        return next(own for own in owners if _reads_rows(module, own) is is_table)
    return recorded.rpartition(".")[0]


def _is_pair(module: nn.Module, owners: tuple[str, ...]) -> bool:
    """Whether exactly one of two owners reads rows of a table."""
    return sorted(_reads_rows(module, own) for own in owners) == [False, True]


def _reads_rows(module: nn.Module, owner: str) -> bool:
    return isinstance(module.get_submodule(owner), nn.Embedding)


def _obstacle(
    module: nn.Module, owners: tuple[str, ...], counts: Mapping[str, int], shared: frozenset[str]
) -> str | None:
    """Return why these owners are not one layer that can be hooked; None if they are."""
    if len(owners) != 1:
        return f"one layer of the network has parameters of {', '.join(map(repr, owners))}"
    (name,) = owners
    owner = module.get_submodule(name)
    kind = f"{name or 'the module itself'} ({type(owner).__name__})"
    if next(owner.children(), None) is not None:
        return f"{kind} owns it beside submodules, and uses it in code that hooks cannot observe"
    if counts[name] > 1:
        return f"{kind} is used {counts[name]} times"
    if name in shared:
        return f"{kind} shares a parameter with another module"
    return None


def _all_owners(module: nn.Module) -> Mapping[str, tuple[str, ...]]:
    """Return the submodules that own each parameter, for each of its names."""
    named = list(module.named_parameters(remove_duplicate=False))
    owners: dict[int, list[str]] = {}
    for name, parameter in named:
        owners.setdefault(id(parameter), []).append(name.rpartition(".")[0])
    return {name: tuple(owners[id(parameter)]) for name, parameter in named}
