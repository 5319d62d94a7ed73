"""Lower RNN, GRU and LSTM over a sequence of fixed length by writing out their time steps.

Each time step uses the weights of the file, so a weight is used once per step, and its gradient is
the sum over these uses. The contribution of the input at all times is one product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import ReadsAcrossError, Unsupported
from lipcert.core.lower.functions import activated
from lipcert.core.lower.moves import move, moved
from lipcert.core.lower.selection_ops import select
from lipcert.core.lower.spelling import apply, number, whole
from lipcert.core.lower.values import FIXED, Constant, Data, Value, only_data
from lipcert.core.reader.records import Model, Tensor

_FUNCTIONS: Final = {
    "RNN": ("Tanh",),
    "GRU": ("Sigmoid", "Tanh"),
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
}
_GATES: Final = {"RNN": 1, "GRU": 3, "LSTM": 4}
_PLAIN: Final = frozenset({"HardSigmoid", "Relu", "Sigmoid", "Softsign", "Tanh"})
"""Functions whose operators have the same defaults as in the cells."""
_WAYS: Final = {"forward": (1,), "reverse": (-1,), "bidirectional": (1, -1)}


def recurrent(call: Call) -> list[Value]:
    """Return all states, the last h and, for an LSTM, the last c.

    Hypotheses: every example has all time steps, on axis 0; the batch lies on axis 1.
    """
    kind, value = call.node.op_type, call.data(0)
    ways = _WAYS[call.text("direction", "forward")]
    if call.integer("layout", 0):
        raise Unsupported("layout 1 is not read; write sequences as [time, batch, features]")
    if kind == "LSTM" and (call.integer("input_forget", 0) or call.has(7)):
        raise Unsupported("coupled gates or peepholes; write the cell in other operators")
    if value.place is not None and value.place.axis != 1:
        raise ReadsAcrossError("its time steps lie on the batch axis (batch_first=True?)")
    times = value.shape[0]
    _check_lengths(call, times)
    each = len(_FUNCTIONS[kind])
    names = tuple(call.texts("activations") or _FUNCTIONS[kind] * len(ways))
    if len(names) != each * len(ways) or not _PLAIN.issuperset(names):
        raise Unsupported(f"its activations are not among {', '.join(sorted(_PLAIN))}")
    found = list[list[list[Value]]]()
    for at, way in enumerate(ways):
        cell = _Cell.of(call, value, at, names[each * at : each * (at + 1)])
        state, inputs, states = cell.start, cell.inputs(value), list[list[Value]]()
        for time in range(times)[::way]:
            made = cell.next(_at(call, inputs, time), state)
            state = made
            states.append(made)
        found.append(states)
    rows = (
        [states[::way][time][0] for states, way in zip(found, ways, strict=True)]
        for time in range(times)
    )
    last = zip(*(states[-1] for states in found), strict=True)
    return [_joined(call, [_joined(call, row) for row in rows]), *(_joined(call, x) for x in last)]


def _check_lengths(call: Call, times: int) -> None:
    """Refuse a batch in which some sequences end earlier."""
    if not call.has(4):
        return
    given = call.value(4)
    if isinstance(given, Data):
        raise Unsupported(
            "the lengths of sequences are data (pack_padded_sequence); pad to one length without it"
        )
    if (given.lo != times).any():
        raise Unsupported("its sequences end before the last step; cut them to one length")


def _at(call: Call, value: Value, place: int) -> Value:
    """Select one place on the first axis, and drop that axis."""
    return apply(call, "Gather", value, Constant.of(np.asarray(place)), axis=0)


def _joined(call: Call, values: Sequence[Value]) -> Value:
    """Join values along a new first axis."""
    wide = [apply(call, "Unsqueeze", value, whole(0)) for value in values]
    return apply(call, "Concat", *wide, axis=0) if len(wide) > 1 else wide[0]


def _shown(call: Call, value: Value) -> Value:
    """A part of weights beside others: of the one tensor of which some entries stand in it.

    Proof: acts move entries, put a 0 in places, or change signs, and all others make whole numbers
    real ones. So where they make whole zeros of ones, entries of the tensor do not matter.
    """

    def is_blank(term: Constant) -> bool:
        name, *others = term.sources
        tensor = call.sink.model.initializers.get(name)
        if others or tensor is None or term.acts is None or term.sources[name] == math.inf:
            return False
        shown = reduce(lambda own, act: act(own), term.acts, np.ones(tensor.dims, np.int64))
        return shown.dtype == np.int64 and not shown.any()

    terms = value.terms if isinstance(value, Constant) else ()
    kept = [term for term in terms if not (term.sources and is_blank(term))]
    return kept[0] if len(kept) == 1 else value


def _single(model: Model) -> Iterator[str]:
    """Yield the names of tensors of one number, in the file and in its nodes."""
    yield from (name for name, tensor in model.initializers.items() if tensor.size == 1)
    for node in model.nodes:
        held = (item.value for item in node.attributes.values())
        if any(isinstance(item, Tensor) and item.size == 1 for item in held):
            yield node.outputs[0]


def _begun(call: Call, value: Data, place: int, at: int) -> Value | None:
    """Return a state before the first step, for one direction; None for 0.

    One 0 that is repeated is a number; any other constant is added to zeros, so that gradients of
    what it is trained as are bounded.
    """
    if not call.has(place):
        return None
    given = call.value(place)
    if isinstance(given, Constant):
        if (given.place is None) != (value.place is None):
            raise Unsupported(FIXED)
        if given.uniform() == 0.0 and given.sources.keys() <= set(_single(call.sink.model)):
            call.sink.untracked.update(given.sources)
            return None
    start = _at(call, given, at)
    if isinstance(start, Data):
        return start
    row = only_data(_at(call, value, 0))
    zeros = moved(call, row, np.full(start.shape, -1), row.place)
    return apply(call, "Add", zeros, start)


@dataclass(frozen=True, slots=True)
class _Cell:
    """One direction: weights [inputs, gates] and [size, gates], biases, names of its functions.

    inner: the bias of the candidate of a GRU inside of its reset gate. start: h and, of an LSTM, c
    before the first step; None for 0.
    """

    call: Call
    names: Sequence[str]
    first: Value
    again: Value
    biases: Sequence[Value]
    inner: Value | None
    start: Sequence[Value | None]

    @classmethod
    def of(cls, call: Call, value: Data, at: int, names: Sequence[str]) -> _Cell:
        """Return the cell with the node's weights for this direction."""
        kind = call.node.op_type
        first, again = (
            _shown(call, apply(call, "Transpose", _at(call, call.constant(place), at)))
            for place in (1, 2)
        )
        size, width = again.shape
        if width != _GATES[kind] * size or call.integer("hidden_size", size) != size:
            raise Unsupported("its weights do not fit")
        is_late = kind == "GRU" and bool(call.integer("linear_before_reset", 0))
        biases = list[Value]()
        inner: Value | None = number(0.0) if is_late else None
        if call.has(3):
            both = _at(call, call.constant(3), at)
            halves = (select(call, both, 0, range(k, k + width)) for k in (0, width))
            biases = [_shown(call, half) for half in halves]
        if biases and is_late:
            inner = select(call, biases[1], 0, range(2 * size, width))
            kept = np.where(np.arange(width) < 2 * size, np.arange(width), -1)
            biases[1] = move(call, biases[1], kept, None)
        starts = [_begun(call, value, place, at) for place in ((5, 6) if kind == "LSTM" else (5,))]
        return cls(call, names, first, again, biases, inner, starts)

    @property
    def size(self) -> int:
        """The number of entries of a state."""
        return self.again.shape[0]

    def inputs(self, value: Value) -> Value:
        """Return what the input adds to the gates at all times."""
        found = apply(self.call, "MatMul", value, self.first)
        for bias in self.biases:
            found = apply(self.call, "Add", found, bias)
        return found

    def next(self, inputs: Value, state: Sequence[Value | None]) -> list[Value]:
        """Return the state one step later."""
        h, c = state[0], state[-1]
        match self.call.node.op_type:
            case "RNN":
                return self._rnn(inputs, h)
            case "GRU":
                return self._gru(inputs, h)
            case _:
                return self._lstm(inputs, h, c)

    def _f(self, which: int, value: Value) -> Value:
        return apply(self.call, self.names[which], value)

    def _times(self, first: Value, second: Value) -> Value:
        return apply(self.call, "Mul", first, second)

    def _plus(self, first: Value, second: Value) -> Value:
        return apply(self.call, "Add", first, second)

    def _gates(self, value: Value, *numbers: int) -> Value:
        """Select neighbouring gates."""
        return select(
            self.call, value, 1, range(self.size * numbers[0], self.size * (numbers[-1] + 1))
        )

    def _again(self, state: Value, *numbers: int) -> Value:
        """Return what a state adds to neighbouring gates."""
        return apply(self.call, "MatMul", state, self._gates(self.again, *numbers))

    def _rnn(self, inputs: Value, h: Value | None) -> list[Value]:
        return [self._f(0, inputs if h is None else self._plus(inputs, self._again(h, 0)))]

    def _lstm(self, inputs: Value, h: Value | None, c: Value | None) -> list[Value]:
        """c' = f·c + i·g(candidate) and h' = o·tanh(c'); the gates stand in the order i, o, f."""
        total = inputs if h is None else self._plus(inputs, self._again(h, 0, 3))
        gates = self._f(0, self._gates(total, 0, 2))
        i, o, f = (self._gates(gates, k) for k in range(3))
        kept = self._times(i, self._f(1, self._gates(total, 3)))
        if c is not None:
            kept = self._plus(self._times(f, c), kept)
        return [self._times(o, self._f(2, kept)), kept]

    def _gru(self, inputs: Value, h: Value | None) -> list[Value]:
        """h' = (1 − z)·n + z·h, with a reset of h before or behind the weights of n.

        Where n is a tanh, 0 ≤ z ≤ 1 and h begins with 0, h' lies between −1 and 1 as h does: a
        clip there changes nothing, and keeps what is known of it.
        """
        outer, candidate = self._gates(inputs, 0, 1), self._gates(inputs, 2)
        late = self.inner
        if h is not None:
            added = self._again(h, 0, 1 if late is None else 2)
            outer = self._plus(outer, self._gates(added, 0, 1))
            late = None if late is None else self._plus(self._gates(added, 2), late)
        gates = self._f(0, outer)
        z, r = self._gates(gates, 0), self._gates(gates, 1)
        if late is not None:
            candidate = self._plus(candidate, self._times(r, late))
        elif h is not None:
            candidate = self._plus(candidate, self._again(self._times(r, h), 2))
        share = apply(self.call, "Sub", number(1.0), z)
        new = self._times(share, self._f(1, candidate))
        if h is None:
            return [new]
        new = self._plus(new, self._times(z, h))
        if self.start == [None] and self.names in (("Sigmoid", "Tanh"), ("HardSigmoid", "Tanh")):
            new = activated(self.call, only_data(new), "clip", -1.0, 1.0)
        return [new]
