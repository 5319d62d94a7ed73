"""Which tensors of a file are one parameter, where an exporter merged or copied them.

`separate_shared` returns the same model with one initializer per trained parameter, as far as the
file shows. The TorchScript exporter of torch, which leaves no signature, sets two traps:

1. It stores equal tensors once and gives the others by Identity nodes, whose outputs carry the
   names of the state_dict. Running statistics, which are not trained, get tensors of their own.
   Tensors whose entries are all the same number (the ones and zeros of untrained normalization
   layers) are taken for parameters of their own, and the report says so.
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

import numpy as np

from lipcert.core.reader.records import Attribute, Model, Node, Tensor
from lipcert.importer.metadata import Provenance, is_anonymous, statistic_owner

_STATE_NAME: Final = re.compile(r"^\w+(\.\w+)*$")
TURNED: Final = Attribute("INTS", (1, 0))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Separated:
    """The model with an initializer per parameter.

    added: names that were given to tensors of their own; tied: those that further copies show.
    """

    model: Model
    added: tuple[str, ...] = ()
    tied: frozenset[str] = frozenset()


def separate_shared(model: Model, provenance: Provenance) -> Separated:
    """Find the parameters behind merged and copied tensors."""
    if provenance.signed:
        return Separated(model)
    copies = _copies(model.initializers)
    tensors = {name: item for name, item in model.initializers.items() if name not in copies}
    nodes = list(copies.values())
    for node in model.nodes:
        shared = tensors.get(node.inputs[0]) if node.inputs else None
        is_second = shared is not None and _is_second_name(node, model.outputs)
        if (
            is_second
            and shared is not None
            and (
                statistic_owner(node.outputs[0]) or (provenance.is_torch and _is_one_number(shared))
            )
        ):
            tensors[node.outputs[0]] = shared
        else:
            nodes.append(node)
    added = tuple(name for name in tensors if name not in model.initializers)
    if not added and not copies:
        return Separated(model)
    result = replace(model, nodes=tuple(nodes), initializers=tensors)
    return Separated(result, added, frozenset(node.inputs[0] for node in copies.values()))


def _is_one_number(tensor: Tensor) -> bool:
    array = tensor.values()
    return bool(array.size) and bool((array == array.flat[0]).all())


def _is_second_name(node: Node, outputs: tuple[str, ...]) -> bool:
    if node.op_type != "Identity" or node.domain or len(node.outputs) != 1:
        return False
    name = node.outputs[0]
    is_name = _STATE_NAME.match(name) is not None and not is_anonymous(name)
    return is_name and name not in outputs


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Node]:
    """Tensors with made-up names → how they come from the first one of equal numbers.

    That one has a made-up name too, or it is a matrix. Matrices may be transposed copies.
    """
    first: dict[tuple[object, ...], str] = {}
    copies: dict[str, Node] = {}
    floats = {name: item for name, item in tensors.items() if item.is_float and item.size > 1}
    if not any(map(is_anonymous, floats)):
        return copies
    for name in sorted(floats, key=is_anonymous):
        tensor = floats[name]
        key = (tensor.dtype, tensor.dims, tensor.content)
        if is_anonymous(name):
            found = first.get(key)
            if found is not None:
                copies[name] = Node(name, "Identity", "", (found,), (name,), {})
                continue
            turned = first.get(_turned(tensor)) if len(tensor.dims) == 2 else None
            if turned is not None:
                perm = {"perm": TURNED}
                copies[name] = Node(name, "Transpose", "", (turned,), (name,), perm)
                continue
        elif len(tensor.dims) != 2:
            continue
        first.setdefault(key, name)
    return copies


def _turned(tensor: Tensor) -> tuple[object, ...]:
    """The key of the transposed matrix; bytes of its items move with them."""
    size = Tensor.item_size(tensor.dtype)
    items = np.frombuffer(tensor.content, f"V{size}").reshape(tensor.dims)
    return tensor.dtype, tensor.dims[::-1], items.T.tobytes()
