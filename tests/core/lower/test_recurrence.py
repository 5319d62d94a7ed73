"""RNN, GRU and LSTM of fixed length, beside onnxruntime, torch and gradients at worst inputs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import operands
from tests.core.adversary import found_above
from tests.core.lower.cases import agrees, listed, model, program

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
TIMES, INPUTS, SIZE = 4, 3, 2


def weights(kind: str, ways: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    width = GATES[kind] * SIZE
    shapes = {"w": (ways, width, INPUTS), "r": (ways, width, SIZE), "b": (ways, 2 * width)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def recurrent(kind: str, inputs: str, output: int = 0, **attributes):
    """The node between two transpositions, so that the batch comes first on either side."""
    names = ["states", "h", "c"][: 3 if kind == "LSTM" else 2]
    names[output] = "found"
    own = listed({"hidden_size": SIZE, **attributes})
    order = [2, 0, 1, 3] if output == 0 else [1, 0, 2]
    return f"""t = Transpose<perm=[1, 0, 2]>(x)  {", ".join(names)} = {kind}{own}({inputs})
        y = Transpose<perm={order}>(found)"""


@given(
    kind=st.sampled_from(sorted(GATES)),
    direction=st.sampled_from(["forward", "reverse", "bidirectional"]),
    biased=st.booleans(),
    late=st.integers(0, 1),
    output=st.integers(0, 2),
    others=st.sampled_from([(), ("HardSigmoid",), ("Relu", "Sigmoid", "Softsign")]),
    lengths=st.booleans(),
)
def test_every_cell_computes_what_onnxruntime_does(
    kind, direction, biased, late, output, others, lengths
) -> None:
    ways = 2 if direction == "bidirectional" else 1
    constants = weights(kind, ways)
    attributes = {"linear_before_reset": late} if kind == "GRU" else {}
    if others:
        functions = [*others, *FUNCTIONS[kind]][: len(FUNCTIONS[kind])]
        attributes["activations"] = functions * ways
    shape = ["N", TIMES, INPUTS]
    if lengths:
        shape, constants["n"] = [1, TIMES, INPUTS], [TIMES]
    inputs = f"t, w, r, {'b' if biased else ''}{', n' if lengths else ''}"
    output = min(output, 2 if kind == "LSTM" else 1)
    nodes = recurrent(kind, inputs, output, direction=direction, **attributes)
    proto = model(nodes, shape, constants)
    if lengths:
        own = numpy_helper.from_array(np.array([TIMES], np.int32), "n")
        next(item for item in proto.graph.initializer if item.name == "n").CopyFrom(own)
    found = agrees(proto)
    assert found.batch_proved


@pytest.mark.parametrize("kind", sorted(GATES))
def test_a_first_state_is_zero_or_a_tensor_or_data(kind: str) -> None:
    """Zeros of a batch of any size are left out; a tensor is one whose gradient is bounded."""
    rng = np.random.default_rng(1)
    constants = {**weights(kind, 2), "z": rng.standard_normal((2, 1, SIZE)), "o": 0.0}
    constants |= {"two": [2], "size": [SIZE], "at": [0], "v": rng.standard_normal((INPUTS, SIZE))}
    sizes = """n = Shape<end=1>(x)  s = Concat<axis=0>(two, n, size)  zeros = Expand(o, s)
        held = Expand(z, s)  first = Gather<axis=1>(x, at)  row = MatMul(first, v)
        rows = Concat<axis=1>(row, row)  own = Transpose<perm=[1, 0, 2]>(rows)"""
    found = {}
    for start in ("zeros", "held", "own"):
        inputs = f"t, w, r, b, , {start}" + (f", {start}" if kind == "LSTM" else "")
        nodes = f"{sizes}  {recurrent(kind, inputs, direction='bidirectional')}"
        found[start] = agrees(model(nodes, ["N", TIMES, INPUTS], constants))
    read = {name for step in found["held"].steps for x in operands(step.op) for name in x.sources}
    assert "z" in read
    assert found["zeros"].untracked == {"o"}
    assert len(found["zeros"].steps) < len(found["held"].steps)


def concatenated(kind: str, ways: int):
    """Weights as torch.export writes them: gates in another order, biases and ways side by side."""
    order = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 3, 1, 2]}[kind]
    ends = {f"n{k}": [SIZE * k] for k in range(5)}
    constants, nodes = {**ends, "zero": [0]}, []
    rng = np.random.default_rng(2)
    for way in range(ways):
        for name, shape in (("w", (INPUTS,)), ("r", (SIZE,)), ("f", ()), ("g", ())):
            own = f"{name}{way}"
            constants[own] = rng.standard_normal((GATES[kind] * SIZE, *shape))
            nodes += [f"{own}g{k} = Slice({own}, n{k}, n{k + 1}, zero)" for k in order]
            parts = ", ".join(f"{own}g{k}" for k in order)
            nodes.append(f"{own}g = Concat<axis=0>({parts})")
        nodes.append(f"b{way}g = Concat<axis=0>(f{way}g, g{way}g)")
    for name in "wrb":
        nodes += [f"{name}{way}_ = Unsqueeze({name}{way}g, zero)" for way in range(ways)]
        parts = ", ".join(f"{name}{way}_" for way in range(ways))
        nodes.append(f"{name} = Concat<axis=0>({parts})")
    return "  ".join(nodes), constants


@pytest.mark.parametrize("kind", sorted(GATES))
def test_weights_that_are_put_together_are_those_of_the_file(kind: str) -> None:
    """Every use of a tensor is linear, and does not enlarge a gradient."""
    ways = {"RNN": "forward", "GRU": "reverse", "LSTM": "bidirectional"}[kind]
    made, constants = concatenated(kind, 2 if ways == "bidirectional" else 1)
    nodes = f"{made}  {recurrent(kind, 't, w, r, b', direction=ways)}"
    found = agrees(model(nodes, ["N", TIMES, INPUTS], constants))
    gains = [x.sources for step in found.steps for x in operands(step.op) if x.sources]
    assert {name for own in gains for name in own} == {n for n in constants if n[0] in "wrfg"}
    assert all(len(own) == 1 and set(own.values()) == {1.0} for own in gains)


@pytest.mark.parametrize("twice", [False, True])
def test_a_tensor_that_stands_twice_is_not_one_that_is_moved(twice: bool) -> None:
    """Rows that overlap are two uses of some entries, of which the gradients add up."""
    constants = {"w": np.ones((3, 2)), "a": [0], "b": [1], "c": [2], "d": [3]}
    second = "b" if twice else "c"
    nodes = f"""first = Slice(w, a, c, a)  second = Slice(w, {second}, d, a)
        v = Concat<axis=0>(first, second)  m = Transpose<perm=[1, 0]>(v)  y = MatMul(x, m)"""
    step = agrees(model(nodes, ["N", 2], constants)).steps[-1]
    (operand,) = operands(step.op)
    assert operand.sources == {"w": np.inf if twice else 1.0}


def test_weights_times_a_number_that_may_be_zero_are_weights() -> None:
    """√2 less its float32 is positive, and 0 in float32 arithmetic: an interval from 0 holds it."""
    constants = {"v": np.ones((1, 2, 1)), "u": np.ones((1, 2, 2)), "r": np.eye(2)[None], "n": [1]}
    nodes = f"""a = ConstantOfShape<value=float[1]{{2.0}}>(n)  s = Sqrt(a)
        b = ConstantOfShape<value=float[1]{{{2.0**0.5}}}>(n)  c = Sub(s,
        b)  k = Relu(c)
        e = Mul(v, k)  f = Concat<axis=2>(e, u)"""
    nodes = f"{nodes}  {recurrent('RNN', 't, f, r', 1)}"
    found = agrees(model(nodes, ["N", TIMES, INPUTS], constants))
    assert "v" in {name for step in found.steps for x in operands(step.op) for name in x.sources}


REFUSED = {
    "layout": ({"layout": 1}, "t, w, r, b", "layout"),
    "clip": ({"clip": 1.0}, "t, w, r, b", "clip"),
    "coupled": ({"input_forget": 1}, "t, w, r, b", "coupled"),
    "peepholes": ({}, "t, w, r, b, , , , p", "peepholes"),
    "numbers of functions": ({"activation_alpha": [0.1]}, "t, w, r, b", "activation_alpha"),
    "function": ({"activations": ["Affine", "Tanh", "Tanh"]}, "t, w, r, b", "activations"),
    "short": ({}, "t, w, r, b, n", "end before the last step"),
    "other size": ({}, "t, r, r, b", "do not fit"),
    "batch in front": ({}, "x, w, r, b", "batch axis"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_changes_the_cell_is_refused(name: str) -> None:
    attributes, inputs, reason = REFUSED[name]
    constants = {**weights("LSTM", 1), "p": np.ones((1, 3 * SIZE)), "n": [TIMES - 1]}
    proto = model(recurrent("LSTM", inputs, **attributes), ["N", TIMES, INPUTS], constants)
    with pytest.raises(Unsupported, match=reason):
        program(proto)


def test_lengths_that_are_data_are_refused() -> None:
    constants = {**weights("GRU", 1), "axis": [1, 2]}
    nodes = f"""s = ReduceSum<keepdims=0>(x, axis)  n = Cast<to=6>(s)
        {recurrent("GRU", "t, w, r, b, n")}"""
    with pytest.raises(Unsupported):
        program(model(nodes, ["N", TIMES, INPUTS], constants))


def attacked(seed: int):
    """A classifier of the last state, or of all of them, with its weights as one tensor each."""
    rng = np.random.default_rng(seed)
    kind = sorted(GATES)[seed % 3]
    ways = int(rng.integers(1, 3))
    output = int(rng.integers(2))
    attributes = {"direction": "bidirectional" if ways == 2 else "forward"}
    attributes |= {"linear_before_reset": 1} if kind == "GRU" else {}
    width = ways * SIZE * (TIMES if output == 0 else 1)
    constants = {name: 1.5 * x for name, x in weights(kind, ways, seed).items()}
    constants |= {"sizes": [-1, width], "m": rng.standard_normal((width, 3))}
    nodes = recurrent(kind, "t, w, r, b", output, **attributes).replace("y = ", "rows = ")
    nodes += "  row = Reshape(rows, sizes)  y = MatMul(row, m)"
    return model(nodes, ["N", TIMES, INPUTS], constants)


@pytest.mark.sample(seed=2)
@pytest.mark.parametrize("seed", range(12))
def test_no_gradient_exceeds_its_bound(seed: int) -> None:
    found = found_above(seed, draw=attacked)
    assert found == []
