"""Origins: which trained parameters a stored tensor may be computed from, according to the notes.

`unseen` returns the tensors of which not every use is visible, because an exporter computed others
from them or left out a call that read them. Their gradients have no bound.

torch.export notes the call that each node was made from, with the names of what the call reads. The
optimiser of onnxscript notes, for each tensor that it computes, all names that went into it, also
through other such tensors. Four rules follow; a tensor that none of them settles may be anything.

1. A noted tensor is computed from the parameters among its names, and from no others. If it is read
   by a call that reads neither these nor the result of a removed call, it is a literal of that
   call, of the same numbers.
2. If a file has such notes, a tensor without one is a literal of the code.
3. If it has none, a tensor that may be the result of a call may come from any parameter; another
   one only from those that the call of its node reads, and from none if it is one number.
4. A call of which neither a node nor a tensor is left was merged with another one of equal inputs,
   or did not change these numbers, such as a product by 1. Equal tensors were merged, so it may
   have read a parameter that is not stored, or has the numbers of another tensor, or is all one
   number. If its reader reads a tensor that belongs to neither, this may be its result: it may come
   from anything, or, if the call does not change numbers, from a parameter that has these numbers.

The TorchScript exporter leaves no notes. It computes with constants, and gives the results made-up
names. So do moved copies of a parameter that is no longer stored, such as the weight of a linear
layer. A tensor with such a name is the copy of a parameter if its node belongs to a module of which
this parameter, and nothing else, is missing. Otherwise it may come from anything. Exporters before
torch 1.13 do not say which module a node belongs to; there all tensors of layers are taken for such
copies, and the report says so (LC023). Tools that rewrite files of torch.export may drop its notes;
then tensors with the names of results of calls may come from anything.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from lipcert.core.lower.operators import COMPARISONS
from lipcert.core.reader.records import Node, Tensor
from lipcert.importer.metadata import LAYERS, Provenance, is_anonymous, is_folded
from lipcert.importer.nodes import FX_NODE, Call, NotedNode, call_of, label, output_names

_NUMBER: Final = re.compile(r"_\d+$")
"""The suffix that distinguishes the results of several calls of one kind."""
_ONCE: Final = re.compile(
    "alias|clone|contiguous|detach_?|flatten|lift_fresh_copy|permute|reshape|select|slice|split|"
    "split_with_sizes|squeeze|to|_to_copy|transpose|type_as|unflatten|unsqueeze|view"
)
"""Calls that move numbers, none of them to several places."""
_ROWS: Final = re.compile("embedding")
_INNER: Final = re.compile("val")
"""Values that the nodes of one call compute for each other."""
_SAME: Final = re.compile(f"{_ONCE.pattern}|dropout|expand|expand_as|stack")
"""Calls that do not change numbers."""
_ALONE: Final = re.compile(
    f"{_SAME.pattern}|abs|amax|avg_pool[12]d|celu|elu|exp|gelu|hard(sigmoid|swish|tanh)|leaky_relu|"
    "log|log_softmax|logsumexp|max_pool[12]d|mean|mish|neg|reciprocal|relu|rsqrt|selu|sigmoid|silu|"
    "softmax|softplus|softsign|sqrt|sum|tanh"
)
"""Calls that read one tensor."""
_MADE: Final = re.compile("arange|full|ones|scalar_tensor(_default)?|sym_size_int|zeros")
"""Calls that read no tensor, or only its sizes."""
_ITEM: Final = re.compile("getitem")
"""One of several results of a call, for which no node is made."""
_OF_SIZES: Final = re.compile(r"operator\.(?!getitem$)\w+")
"""Calls of Python's operators, which torch.export notes for sizes alone: those of tensors are calls
of torch. Of the arithmetic behind a size of −1 a shared whole number may be all that is left."""
_MOVED: Final = frozenset({"Add", "Mul", "PRelu"})
"""Operators that read vectors of normalizations and activations with further axes of size 1."""
RECURRENT: Final = frozenset({"GRU", "LSTM", "RNN"})
_COPYING: Final = frozenset({"Cast", "Identity"})
"""Operators that read tensors of narrow numbers, or of equal numbers that are stored once."""
_FIXED: Final = COMPARISONS | {"DequantizeLinear", "Equal", "QuantizeLinear", "Resize", "Upsample"}
"""Operators whose constants are sizes, even if they are fractions, or scales of whole numbers, or
limits of a comparison, through which no gradient goes."""


@dataclass(slots=True, eq=False)
class _Group:
    """The nodes of one call, and the float tensors that they read."""

    call: Call
    tensors: set[str] = field(default_factory=set)


def unseen(
    notes: Provenance, stored: Mapping[str, Tensor], readers: Sequence[NotedNode]
) -> frozenset[str]:
    """Return the tensors of which not every use is visible, and those computed from them.

    None of a file without notes, of which `computed_by_tools` knows. readers: all nodes that the
    outputs are computed from.
    """
    floats = {name: tensor for name, tensor in stored.items() if tensor.is_float}
    if not notes.signed:
        return frozenset()
    everything = notes.targets | floats.keys() - notes.listed
    results = {name for item in readers for name in output_names(item.node)}
    calls = [call for item in readers if (call := call_of(item.node)) is not None]
    there = {*moved(notes, floats), *(stored.keys() - floats.keys())}
    known = results.union(notes.inputs, (call.result for call in calls), there)
    found: set[str] = set()
    for item in readers:
        if call_of(item.node) is None:
            found |= _computed(notes, item.tensors & floats.keys())
    for group in _groups(readers, floats):
        if not group.tensors and _OF_SIZES.fullmatch(group.call.name):
            continue
        lost = [
            name for name in group.call.tensors if name not in known and _may_read(name, floats)
        ]
        read = notes.read_by(group.call) & notes.targets
        found |= _computed(notes, group.tensors, read if not lost else None)
        if not notes.folded and _is_unknown(notes, group, lost, floats):
            return everything
        if not notes.folded:
            own = {name for name in group.tensors - notes.listed if not is_uniform(floats[name])}
            found |= own | (read if own else set())
        others = _strangers(notes, group, lost)
        named = group.tensors.union(*(notes.folded.get(name, ()) for name in group.tensors))
        gone = [name for name in lost if name not in named]
        if others and not all(_is(_SAME, name) for name in gone):
            return everything
        if not all(_is(_ALONE, name) for name in gone):
            found |= _mergeable(notes, floats)
        if gone:
            found |= {name for other in others for name in _moved(notes, floats, other)}
    return frozenset(found)


def moved(notes: Provenance, stored: Mapping[str, Tensor]) -> Mapping[str, str]:
    """Map tensors to the parameter whose entries they hold, each entry at most once.

    The parameter stands nowhere else. So its gradient is that by the tensor, with zeros for the
    entries left out. This holds by rule 1 if everything else that went into the tensor are moves,
    row look-ups, and numbers that are not trained; rows of a table that differ are different rows,
    if nothing moved them afterwards.
    """
    made = {
        name: notes.sources(name)
        for name in notes.folded.keys() & stored.keys()
        if stored[name].is_float and name not in notes.listed
    }
    uses = Counter(source for sources in made.values() for source in sources)
    found = {}
    for name, sources in made.items():
        own = next(iter(sources), "")
        others = {name, *notes.folded[name]} - {own, *notes.parameters, *notes.buffers.values()}
        kinds = (_ONCE, _ROWS, _MADE, _INNER)
        is_result = _is(_ONCE, name) or _is(_ROWS, name)
        is_alone = is_result and len(sources) == 1 == uses[own] and own not in notes.stored
        if not is_alone or not all(any(_is(kind, other) for kind in kinds) for other in others):
            continue
        rows = stored[name].values().reshape(-1, (stored[name].dims or (1,))[-1])
        looked_up = {other for other in (name, *others) if _is(_ROWS, other)}
        are_apart = looked_up == {name} and len(np.unique(rows, axis=0)) == len(rows)
        if not looked_up or are_apart:
            found[name] = own
    return found


def _computed(
    notes: Provenance, names: Iterable[str], read: frozenset[str] | None = None
) -> set[str]:
    """Return the tensors that were computed from parameters, and those parameters.

    read: the parameters that their call reads; its own tensors then come from these alone. A tensor
    that was computed from others belongs to another call, which had the same numbers.
    """
    found: set[str] = set()
    for name in names:
        sources = notes.sources(name)
        if sources and (read is None or read):
            found |= {name, *sources, *(read or ())}
    return found


def _may_read(result: str, floats: Mapping[str, Tensor]) -> bool:
    """Whether a result without a node may be computed from anything.

    A number of the code that was merged with an equal one is not.
    """
    return not _is(_ITEM, result) and (result in floats or not _is(_MADE, result))


def _groups(readers: Iterable[NotedNode], floats: Mapping[str, Tensor]) -> Iterable[_Group]:
    groups: dict[str, _Group] = {}
    for item in readers:
        call = call_of(item.node)
        if call is not None:
            group = groups.setdefault(item.node.metadata[FX_NODE], _Group(call))
            group.tensors |= item.tensors & floats.keys()
    return groups.values()


def _is_unknown(
    notes: Provenance, group: _Group, lost: Sequence[str], floats: Mapping[str, Tensor]
) -> bool:
    """Whether the group may read the result of a call that is not noted."""
    own = group.tensors - notes.listed
    if not all(_is(_MADE, name) for name in own.intersection(lost)):
        return True
    gone, others = set(lost) - own, own.difference(lost)
    is_same = all(_is(_SAME, name) for name in gone)
    return any(not is_same or not is_uniform(floats[name]) for name in others if gone)


def _strangers(notes: Provenance, group: _Group, lost: Sequence[str]) -> set[str]:
    """Return the tensors of a group that belong neither to its call, nor to its lost results."""
    read = notes.read_by(group.call)
    return {
        name
        for name in group.tensors
        if (name not in read if name in notes.listed else name in notes.folded)
        and not {name, *notes.folded.get(name, ())}.intersection(lost)
    }


def _mergeable(notes: Provenance, floats: Mapping[str, Tensor]) -> set[str]:
    """Return the parameters that an optimiser may have merged with others, or left out."""
    counts = Counter(tensor.values().tobytes() for tensor in floats.values())
    return {
        name
        for name in notes.targets
        if name not in notes.stored
        or name not in floats
        or is_uniform(floats[name])
        or counts[floats[name].values().tobytes()] > 1
    }


def _moved(notes: Provenance, floats: Mapping[str, Tensor], other: str) -> set[str]:
    """Return the parameters whose numbers, moved, may be those of another tensor."""
    numbers = floats[other].values()
    return {
        name
        for name in notes.targets
        if name not in floats or np.isin(numbers, floats[name].values()).all()
    }


def is_uniform(tensor: Tensor) -> bool:
    """Whether all entries are the same number."""
    values = tensor.values()
    return bool((values == values.reshape(-1)[:1]).all())


def _is(kinds: re.Pattern[str], result: str) -> bool:
    """Whether this is the name of the result of a call of these kinds."""
    return kinds.fullmatch(_NUMBER.sub("", result)) is not None


def computed_by_tools(
    notes: Provenance, stored: Mapping[str, Tensor], readers: Iterable[NotedNode]
) -> frozenset[str]:
    """Return the tensors of a file without notes that may be computed from any parameter."""
    plain = {name for name, item in stored.items() if item.is_float and not notes.signed}
    names, found = {name: name for name in plain}, set[str]()
    for item in readers:
        read = {given: names[given] for given in item.node.inputs if given in names}
        if item.node.op_type in _COPYING:
            names.update((item.node.outputs[0], name) for name in read.values())
            continue
        found |= (item.tensors & plain).union(read.values()) if is_folded(item.node) else set()
        for given, name in read.items() if item.node.op_type not in _FIXED else ():
            may_move = is_anonymous(name) or name.startswith("/")
            is_copy = may_move and _is_copy(notes, item.node, given, stored[name])
            if notes.is_made_up(name, label(item.node)) and not is_copy:
                found.add(name)
    return frozenset(found)


def _is_copy(notes: Provenance, node: Node, given: str, tensor: Tensor) -> bool:
    """Whether a tensor can only be a parameter, moved, of the module that a node belongs to.

    For a recurrent layer it holds the entries of several parameters, one after another.
    """
    is_matrix = node.op_type == "MatMul" and len(tensor.dims) == 2
    is_matrix |= node.op_type in RECURRENT and given in node.inputs[1:4]
    if "/" not in node.name or not notes.is_torch:  # old exporters do not name modules
        return is_matrix or node.op_type in LAYERS
    module = module_of(node.name, notes.stored)
    own = {name[len(module) + 1 :] for name in notes.stored if name.startswith(f"{module}.")}
    if not module or not (is_matrix or node.op_type in _MOVED):
        return False
    if is_matrix and own:  # a layer of which only the bias is left
        halves = [name for name in own if "." not in name]
        alone = [name.endswith("bias") and f"{name[:-4]}weight" not in own for name in halves]
        return bool(halves) and all(alone)
    is_vector = len(tensor.dims) > 1 and tensor.size == max(tensor.dims)
    return not own and (is_matrix or is_vector)


def module_of(node: str, stored: Iterable[str]) -> str:
    """Return the module of a node such as /blocks/blocks.0/fc_1/MatMul, a second call of fc."""
    parts: list[str] = []
    for part in node.split("/")[1:-1]:
        if parts and part.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(part)
    module = node.partition("/")[0] + ".".join(parts)
    again = _NUMBER.sub("", module)
    is_known = any(name.startswith(f"{module}.") for name in stored)
    is_again = any(name.startswith(f"{again}.") for name in stored)
    return again if is_again and not is_known else module
