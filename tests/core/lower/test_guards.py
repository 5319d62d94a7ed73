"""Functions that jump inside of continuous ones, and sequences of parts, beside onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from lipcert.core.lower.errors import Unsupported
from tests.core.lower.cases import agrees, kinds, model, node, program
from tests.core.models import read

COMPARISONS = ["Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
SHAPE = ["N", 6]


def choice(comparison, above, below, *, swapped=False):
    """Where(x > t, above, below), or its mirror image."""
    is_above = comparison.startswith("Greater") != swapped
    branches = f"c {above} {below}" if is_above else f"c {below} {above}"
    return [node(comparison, "t x" if swapped else "x t", "c"), node("Where", branches)]


def soft(offset):
    return [node("Abs", "x", "a"), node("Greater", "a t", "c"), node("Sign", "x", "s"),
            node("Mul", f"s {offset}", "m"), node("Sub", "x m", "d"),
            node("Where", "c d z")]  # fmt: skip


def softplus(x="x"):
    return [node("Mul", "x b", "u"), node("Softplus", "u", "s"), node("Div", "s b", "p"),
            node("Greater", "u t", "c"), node("Where", f"c {x} p")]  # fmt: skip


SIGNED = [node("Sign", "x", "s"), node("Abs", "x", "a")]
KNOWN = {
    # name: (nodes, constants, a function among the steps)
    **{
        f"relu {comparison} {swapped}": (
            choice(comparison, "x", "z", swapped=swapped), {"t": 0.0, "z": 0.0}, "relu")
        for comparison in COMPARISONS for swapped in (False, True)
    },
    "relu of a product with 0": (
        [node("Mul", "x z", "o"), *choice("Greater", "x", "o")], {"t": 0.0, "z": 0.0}, "relu"),
    "minimum": (choice("Greater", "z", "x"), {"t": 0.0, "z": 0.0}, "clip"),
    "threshold": (choice("Greater", "x", "z"), {"t": 0.25, "z": 0.25}, "clip"),
    "limit": (choice("Less", "z", "x"), {"t": 0.25, "z": 0.25}, "clip"),
    "shifted": (
        [node("Sub", "x s", "u"), *choice("GreaterOrEqual", "u", "z")],
        {"s": 0.5, "t": 0.75, "z": 0.25}, "clip"),
    "soft threshold": (soft("t"), {"t": 0.5, "z": 0.0}, "soft_threshold"),
    "softplus": (softplus(), {"b": 2.0, "t": 20.0}, "softplus"),
    "signed magnitude": (
        [*SIGNED, node("Relu", "a", "r"), node("Mul", "r s", "p"), node("Tanh", "p")], {}, "tanh"),
    "guard against no number": (
        [node("Softmax", "x", "p"), node("IsNaN", "p", "n"), node("Where", "n z p")],
        {"z": 0.0}, "Softmax"),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_agrees_with_onnxruntime(name, tmp_path):
    nodes, constants, kind = KNOWN[name]
    proto = model(nodes, SHAPE, constants)
    found = agrees(proto)
    assert kind in kinds(found)
    assert "constant" not in found.covered
    assert len(found.covered) == len(read(proto, tmp_path).nodes)


REFUSED = {
    "another limit": (choice("Greater", "x", "z"), {"t": 0.5, "z": 0.0}),
    "an early softplus": (softplus(), {"b": 2.0, "t": 1.0}),
    "softplus of something else": ([node("Neg", "x", "q"), *softplus("q")], {"b": 2.0, "t": 20.0}),
    "another offset": (soft("o"), {"t": 0.5, "o": 0.25, "z": 0.0}),
    "a negative threshold": (soft("t"), {"t": -0.5, "z": 0.0}),
    "a square of signs": ([SIGNED[0], node("Mul", "s s")], {}),
    "a step beside a guard": (
        [node("Greater", "x t", "c"), node("Where", "c x t", "r"), node("Cast", "c", "f", to=1),
         node("Add", "r f")], {"t": 0.0}),
    "a larger number": (choice("Greater", "x", "z"), {"t": 0.0, "z": np.zeros((1, 1, 1))}),
    "a larger guard": (
        [node("IsNaN", "x", "n"), node("Where", "n z x")], {"z": np.zeros((2, 1, 1))}),
    "shrink that jumps": ([node("Shrink", "x", lambd=0.5)], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_jump_is_refused(name):
    nodes, constants = REFUSED[name]
    with pytest.raises(Unsupported):
        program(model(nodes, SHAPE, constants))


def test_the_message_names_the_node_that_jumps():
    with pytest.raises(Unsupported, match=r"Greater_c.*jumps"):
        program(model([node("Greater", "x t", "c"), node("Cast", "c", to=1)], SHAPE, {"t": 0.0}))


def test_a_number_of_a_guard_is_no_parameter(tmp_path):
    proto = model(choice("Greater", "x", "z"), SHAPE, {"t": 0.0, "z": 0.0})
    assert program(proto).untracked >= {"t", "z"}


# sequences ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [None, 2, 4, [1, 2, 3]])
def test_parts_of_a_value(lengths):
    inputs = "x" if lengths is None else "x l"
    nodes = [
        node("SplitToSequence", inputs, "s", axis=1),
        node("SequenceAt", "s one", "a"),
        node("SequenceAt", "s last", "b"),
        node("Concat", "b a", axis=1),
    ]
    constants = {"one": 0, "last": -1} | ({} if lengths is None else {"l": lengths})
    assert agrees(model(nodes, SHAPE, constants)).batch_proved


def test_parts_of_a_batch_are_refused():
    nodes = [node("SplitToSequence", "x", "s", axis=0), node("SequenceAt", "s i")]
    with pytest.raises(Unsupported):
        program(model(nodes, SHAPE, {"i": 0}))
