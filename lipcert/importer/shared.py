"""Which tensors of a file are one parameter, where an exporter merged or copied them.

What enters: a raw model. What leaves: the same model with one tensor per trained parameter, as far
as the file tells. Two traps of the TorchScript exporter of torch, which leaves no signature:

1. It stores equal tensors once and gives the others by Identity nodes, whose outputs carry the
   names of the state_dict. Tensors whose entries are all the same number (the ones and zeros of
   untrained normalization layers) are taken for parameters of their own, and the report says so.
   Other equal tensors stay tied: from a scripted module one parameter with two names is written
   in the same way, and tying never makes a bound smaller.
2. It stores transposed copies under made-up names, for each use one. Copies of equal numbers may
   come from one parameter that is used twice, and so may a copy and a matrix that has a name: they
   are tied, which never makes a bound smaller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, final

from lipcert.importer.metadata import Provenance, is_anonymous
from lipcert.importer.raw import Array, RawModel, RawNode

_PRODUCER: Final = "pytorch"
_STATE_NAME: Final = re.compile(r"^\w+(\.\w+)*$")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Separated:
    """The model with an initializer per parameter.

    added: names that were given to tensors of their own; tied: those that further copies show.
    """

    model: RawModel
    added: tuple[str, ...] = ()
    tied: frozenset[str] = frozenset()


def separate_shared(model: RawModel, provenance: Provenance) -> Separated:
    """Find the parameters behind merged and copied tensors."""
    graph = model.graph
    if provenance.signed:
        return Separated(model)
    copies = _copies(graph.tensors)
    tensors = {name: array for name, array in graph.tensors.items() if name not in copies}
    nodes = list(copies.values())
    is_torch = model.producer.startswith(_PRODUCER)
    for node in graph.nodes:
        shared = tensors.get(node.inputs[0]) if node.inputs else None
        is_initial = is_torch and shared is not None and _is_one_number(shared)
        if is_initial and _is_second_name(node, graph.outputs):
            tensors[node.outputs[0]] = tensors[node.inputs[0]]
        else:
            nodes.append(node)
    added = tuple(name for name in tensors if name not in graph.tensors)
    result = replace(model, graph=replace(graph, nodes=tuple(nodes), tensors=tensors))
    return Separated(result, added, frozenset(node.inputs[0] for node in copies.values()))


def _is_one_number(array: Array) -> bool:
    return bool(array.size) and bool((array == array.flat[0]).all())


def _is_second_name(node: RawNode, outputs: tuple[str, ...]) -> bool:
    if node.op_type != "Identity" or node.domain or len(node.outputs) != 1:
        return False
    name = node.outputs[0]
    is_name = _STATE_NAME.match(name) is not None and not is_anonymous(name)
    return is_name and name not in outputs


def _copies(tensors: Mapping[str, Array]) -> dict[str, RawNode]:
    """Tensors with made-up names → how they come from the first one of equal numbers.

    That one has a made-up name too, or it is a matrix. Matrices may be transposed copies.
    """
    first: dict[tuple[object, ...], str] = {}
    copies: dict[str, RawNode] = {}
    floats = {
        n: array for n, array in tensors.items() if array.dtype.kind == "f" and array.size > 1
    }
    for name in sorted(floats, key=is_anonymous):
        array = floats[name]
        if is_anonymous(name):
            found, turned = first.get(_key(array)), first.get(_key(array.T))
            if found is not None:
                copies[name] = RawNode("Identity", "", 1, name, (found,), (name,), {})
                continue
            if turned is not None and array.ndim == 2:
                perm = {"perm": (1, 0)}
                copies[name] = RawNode("Transpose", "", 1, name, (turned,), (name,), perm)
                continue
        elif array.ndim != 2:
            continue
        first.setdefault(_key(array), name)
    return copies


def _key(array: Array) -> tuple[object, ...]:
    return array.dtype, array.shape, array.tobytes()
