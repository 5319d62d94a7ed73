"""Lower sequences of the parts of one value, from which later nodes take one by its position.

torch's exporter writes `chunk` and `split` this way, unless its optimiser runs.
"""

from itertools import accumulate, pairwise

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.layout_ops import normal_axes
from lipcert.core.lower.selection_ops import select
from lipcert.core.lower.values import Value


def cut(call: Call) -> list[Value]:
    """Lower SplitToSequence: parts of given lengths, of one length, or of length 1 each."""
    value = call.value(0)
    (axis,) = normal_axes([call.integer("axis", 0)], len(value.shape))
    size, keeps = value.shape[axis], call.integer("keepdims", 1)
    if not call.has(1):
        if not keeps:
            raise Unsupported("keepdims=0 is not supported; squeeze the parts instead")
        lengths = [1] * size
    elif call.constant(1).shape:
        lengths = call.whole(1)
    else:
        (chunk,) = call.whole(1)
        starts = range(0, size, chunk) if chunk > 0 else ()
        lengths = [min(chunk, size - start) for start in starts]
    if sum(lengths) != size or min(lengths, default=0) < 0:
        raise Unsupported("its parts do not make up the whole")
    ends = pairwise(accumulate(lengths, initial=0))
    call.sink.sequences[call.node.outputs[0]] = [
        select(call, value, axis, range(*between)) for between in ends
    ]
    return []


def _parts(call: Call) -> list[Value]:
    found = call.sink.sequences.get(call.node.inputs[0])
    if found is None:
        raise Unsupported("only the parts of a value cut by SplitToSequence are followed")
    return found


def part(call: Call) -> Value:
    """Lower SequenceAt: return the part at a constant position."""
    parts, (place,) = _parts(call), call.whole(1)
    if not -len(parts) <= place < len(parts):
        raise Unsupported("its position is out of range")
    return parts[place]
