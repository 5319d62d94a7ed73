"""Activations spelled with comparisons: the same steps as their operators, or a refusal."""

import itertools

import numpy as np
import onnxruntime as ort
import pytest

from lipcert.core.kinds import PRelu
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.operators import JUMPS
from lipcert.graph.evaluate import evaluate
from tests.core.lower.cases import kinds, model, node, program

SHAPE = ["N", 6]
ALPHA, GAMMA = float(np.float32(1.6732632)), float(np.float32(1.0507010))
POINTS = np.array(
    [-40.0, -3.0, -1.0, -1e-3, -1e-30, 0.0, 1e-30, 1e-3, 0.5, 1.0, 3.0, 30.0], np.float32
)
CONSTANTS = {
    "zero": 0.0, "one": 1.0, "half": 0.5, "minus": -1.0, "two": 2.0, "three": 3.0, "six": 6.0,
    "low": -3.0, "alpha": ALPHA, "gamma": GAMMA, "slope": 0.01, "third": 0.3, "beta": 2.0,
    "twenty": 20.0, "slopes": np.linspace(0.1, 0.9, 6), "single": np.full(1, 0.25),
    "tiny": 1e-7,
}  # fmt: skip


def expm1(of="x", to="e"):
    return [node("Exp", of, f"{to}0"), node("Sub", f"{to}0 one", to)]


def masks(comparison, x="x", t="zero"):
    """The masks m of above and n of the rest, as numbers, in the spellings of exporters."""
    above = comparison.startswith("Greater")
    first, second = ("m", "n") if above else ("n", "m")
    yield [node(comparison, f"{x} {t}", "c"), node("Not", "c", "d"),
           node("Cast", "c", first, to=1), node("Cast", "d", second, to=1)]  # fmt: skip
    yield [node(comparison, f"{x} {t}", "c"), node("Cast", "c", first, to=1),
           node("Sub", f"one {first}", second)]  # fmt: skip
    yield [node(comparison, f"{x} {t}", "c"), node("Cast", "c", "i", to=6),
           node("Cast", "i", first, to=1), node("Sub", f"one {first}", second)]  # fmt: skip
    opposite = {"Greater": "Less", "Less": "Greater", "GreaterOrEqual": "LessOrEqual",
                "LessOrEqual": "GreaterOrEqual"}[comparison]  # fmt: skip
    yield [node(opposite, f"{t} {x}", "c"), node("Not", "c", "d"),
           node("Cast", "c", first, to=1), node("Cast", "d", second, to=1)]  # fmt: skip


def joined(above, below):
    """m·above + n·below, also with the sum the other way round."""
    yield [node("Mul", f"m {above}", "p"), node("Mul", f"{below} n", "q"), node("Add", "p q")]
    yield [node("Mul", f"{above} m", "p"), node("Mul", f"n {below}", "q"), node("Sum", "q p")]


def chosen(above, below):
    yield [node("Greater", "x zero", "c"), node("Where", f"c {above} {below}")]
    yield [node("LessOrEqual", "x zero", "c"), node("Where", f"c {below} {above}")]


SPELT = {
    # name: (nodes before, above, below, operator, its constants and attributes)
    "relu": ([], "x", "zero", "Relu", "", {}),
    "leaky": ([node("Mul", "x slope", "a")], "x", "a", "LeakyRelu", "",
              {"alpha": float(np.float32(0.01))}),
    "elu": ([*expm1(), node("Mul", "alpha e", "a")], "x", "a", "Elu", "", {"alpha": ALPHA}),
    "elu of 1": (expm1(), "x", "e", "Elu", "", {"alpha": 1.0}),
    "selu": (
        [*expm1(), node("Mul", "e alpha", "a0"), node("Mul", "a0 gamma", "a"),
         node("Mul", "gamma x", "g")],
        "g", "a", "Selu", "", {"alpha": ALPHA, "gamma": GAMMA}),
    "celu": (
        [node("Div", "x two", "h"), *expm1("h"), node("Mul", "two e", "a")],
        "x", "a", "Celu", "", {"alpha": 2.0}),
    "elu of a minimum": (
        [node("Min", "x zero", "h"), *expm1("h"), node("Mul", "e alpha", "a")],
        "x", "a", "Elu", "", {"alpha": ALPHA}),
    "absolute value": ([node("Neg", "x", "a")], "x", "a", "Abs", "", {}),
    "negative part": ([], "zero", "x", "Min", "zero", {}),
    "prelu": ([node("Mul", "x slopes", "a")], "x", "a", "PRelu", "slopes", {}),
    "prelu of one": ([node("Mul", "single x", "a")], "x", "a", "PRelu", "single", {}),
}  # fmt: skip
CASES = [
    pytest.param(name, [*before, *tail], id=f"{name}-{number}")
    for name, (before, above, below, *_) in SPELT.items()
    for number, tail in enumerate(
        [
            *([*head, *rest] for comparison in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
              for head in masks(comparison) for rest in joined(above, below)),
            *chosen(above, below),
        ]
    )
]  # fmt: skip


def numbers(nodes):
    used = {name for item in nodes for name in item.input}
    return {name: value for name, value in CONSTANTS.items() if name in used}


def same_numbers(proto, found):
    """Beside onnxruntime, at numbers on both sides of every kink, and on it."""
    session = ort.InferenceSession(proto.SerializeToString())
    for points in (POINTS[:6], POINTS[6:], POINTS[3:9]):
        (expected,) = session.run(None, {"x": points[None]})
        ours = evaluate(found, points[None])[found.output]
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def steps(found):
    return [(step.op, step.shape) for step in found.steps]


@pytest.mark.parametrize(("name", "nodes"), CASES[::5])
def test_the_steps_are_those_of_the_operator(name, nodes):
    operator, constants, attributes = SPELT[name][3:]
    proto = model(nodes, SHAPE, numbers(nodes))
    found = program(proto)
    same_numbers(proto, found)
    plain = [node(operator, f"x {constants}".strip(), **attributes)]
    expected = program(model(plain, SHAPE, numbers(plain)))
    assert kinds(found) == kinds(expected)
    if operator != "PRelu":
        assert repr(steps(found)) == repr(steps(expected))
    assert {"part", "step", "constant"} >= set(found.covered[:-1])


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "nodes"), CASES)
def test_every_spelling(name, nodes):
    test_the_steps_are_those_of_the_operator(name, nodes)


def two(low, high, inside="x", below="minus", above="one"):
    """Three pieces, chosen by two comparisons."""
    return [
        node("Greater", f"x {high}", "c"), node("Less", f"x {low}", "d"),
        node("Where", f"c {above} {inside}", "w"), node("Where", f"d {below} w"),
    ]  # fmt: skip


def swish(inside):
    return [
        node("Add", "x three", "s"), node("Mul", "x s", "p"), *inside,
        node("Greater", "x three", "c"), node("Less", "x low", "d"),
        node("Where", "c x h", "w"), node("Where", "d zero w"),
    ]  # fmt: skip


def guarded(otherwise):
    """A softplus that is left for another value where x is large."""
    return [
        node("Mul", "x beta", "u"), node("Softplus", "u", "s0"), node("Div", "s0 beta", "s"),
        node("Greater", "u twenty", "c"), node("Where", f"c {otherwise} s"),
    ]  # fmt: skip


OTHERS = {
    # name: (nodes, functions among the steps)
    "hardtanh": (two("minus", "one"), {"clip"}),
    "hardtanh with masks": (
        [node("Abs", "x", "a"), node("LessOrEqual", "a one", "c"), node("Not", "c", "d"),
         node("Cast", "c", "m", to=1), node("Cast", "d", "n", to=1), node("Sign", "x", "s"),
         node("Mul", "x m", "p"), node("Mul", "s n", "q"), node("Add", "p q")], {"clip"}),
    "soft threshold": (
        [node("Abs", "x", "a"), node("Greater", "a half", "c"), node("Cast", "c", "m", to=1),
         node("Sign", "x", "s"), node("Mul", "half s", "h"), node("Sub", "x h", "d"),
         node("Mul", "d m")], {"soft_threshold"}),
    "hard swish": (swish([node("Div", "p six", "h")]), {"hard_swish"}),
    "kink at a half": (
        [node("Sub", "x half", "u"), node("Greater", "u zero", "c"), node("Cast", "c", "m", to=1),
         node("Mul", "u m", "p"), node("Add", "p half")], {"relu"}),
    "elu of another slope": (
        [node("Mul", "x third", "h"), *expm1("h"), *next(masks("Greater")),
         *next(joined("x", "e"))], {"elu"}),
    "elu of a scaled value": (
        [node("Mul", "x two", "h"), node("Greater", "h zero", "c"), *expm1("h"),
         node("Where", "c h e")], {"elu"}),
    "celu of half the slope": (
        [node("Mul", "x half", "h"), *expm1("h"), node("Greater", "x zero", "c"),
         node("Where", "c h e")], {"celu"}),
    "celu of twice the slope": (
        [node("Mul", "x two", "h"), *expm1("h"), node("Greater", "x zero", "c"),
         node("Where", "c h e")], {"celu"}),
    "negative elu": (
        [node("Neg", "x", "g"), *expm1("g"), node("Neg", "e", "a"),
         node("Less", "x zero", "c"), node("Where", "c x a")], {"selu"}),
    "exponential of the negative part": (
        [*expm1(), node("Less", "x zero", "c"), node("Cast", "c", "m", to=1), node("Mul", "e m")],
        {"exp", "clip"}),
    "softplus": (
        [node("Softplus", "x", "s"), node("Greater", "x twenty", "c"),
         node("Cast", "c", "m", to=1), node("Sub", "one m", "n"), node("Mul", "m x", "p"),
         node("Mul", "n s", "q"), node("Add", "p q")], {"softplus"}),
    "softplus of a double": (
        [node("Mul", "x beta", "h"), node("Softplus", "h", "s0"), node("Div", "s0 beta", "s"),
         node("Greater", "h twenty", "c"), node("Cast", "c", "m", to=1), node("Sub", "one m", "n"),
         node("Mul", "m x", "p"), node("Mul", "n s", "q"), node("Add", "p q")],
        {"softplus"}),
    "the larger one": (
        [node("Neg", "x", "u"), node("Greater", "x u", "c"), node("Where", "c x u")], {}),
    "the smaller one": (
        [node("Neg", "x", "u"), node("Less", "x u", "c"), node("Where", "c x u")], {}),
    "three slopes": (
        [node("Mul", "x slope", "a"), node("Mul", "x two", "d0"), node("Sub", "d0 one", "d"),
         node("Greater", "x one", "c"), node("Less", "x zero", "l"), node("Where", "l a x", "w"),
         node("Where", "c d w")], {"clip"}),
    "Huber's function": (
        [node("Abs", "x", "m"), node("LessOrEqual", "m one", "c"), node("Mul", "x x", "q0"),
         node("Mul", "q0 half", "q"), node("Sub", "m half", "l"), node("Where", "c q l")],
        {"clip"}),
    "threshold": ([node("Greater", "x half", "c"), node("Where", "c x half")], {"clip"}),
    "limit": ([node("Less", "half x", "c"), node("Where", "c half x")], {"clip"}),
    "shifted": (
        [node("Sub", "x half", "u"), node("GreaterOrEqual", "u two", "c"),
         node("Where", "c u two")], {"clip"}),
    "relu of a product with 0": (
        [node("Mul", "x zero", "o"), node("Greater", "x zero", "c"), node("Where", "c x o")],
        {"relu"}),
    "signed magnitude": (
        [node("Sign", "x", "s"), node("Abs", "x", "a"), node("Relu", "a", "r"),
         node("Mul", "r s", "p"), node("Tanh", "p")], {"tanh"}),
    "guard against no number": (
        [node("Softmax", "x", "p"), node("IsNaN", "p", "n"), node("Where", "n zero p")], {}),
    "softplus of a choice": (guarded("x"), {"softplus"}),
    "zeros like x": (
        [node("Shape", "x", "s"), node("ConstantOfShape", "s", "z"), node("Less", "x z", "c"),
         node("Where", "c z x")], {"clip"}),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions(name):
    nodes, functions = OTHERS[name]
    proto = model(nodes, SHAPE, numbers(nodes))
    found = program(proto)
    same_numbers(proto, found)
    used = {step.op.name for step in found.steps if hasattr(step.op, "name")}
    assert used >= set(functions)


def nearly(above="x", below="a", comparison="Greater", t="zero", before=()):
    return [*before, *next(masks(comparison, t=t)), *next(joined(above, below))]


ELU = [*expm1(), node("Mul", "alpha e", "a")]
LONGER = [node("Unsqueeze", "x axis", "u"), node("Greater", "u zero", "c"),
          node("Cast", "c", "m", to=1)]  # fmt: skip
JUMPING = {
    "elu, another threshold": nearly(t="tiny", before=ELU),
    "elu, another number taken away": nearly(
        before=[node("Exp", "x", "e0"), node("Sub", "e0 gamma", "a")]),
    "elu of a shifted value": nearly(
        before=[node("Add", "x tiny", "h"), *expm1("h"), node("Mul", "alpha e", "a")]),
    "elu on the wrong side": nearly("a", "one", before=ELU),
    "leaky, another threshold": nearly(t="tiny", before=[node("Mul", "x slope", "a")]),
    "leaky with an offset": nearly(
        before=[node("Mul", "x slope", "h"), node("Add", "h tiny", "a")]),
    "prelu, another threshold": nearly(t="tiny", before=[node("Mul", "x slopes", "a")]),
    "a step": [node("Greater", "x zero", "c"), node("Cast", "c", to=1)],
    "both masks include 0": [
        node("GreaterOrEqual", "x zero", "c"), node("LessOrEqual", "x zero", "d"),
        node("Cast", "c", "m", to=1), node("Cast", "d", "n", to=1), node("Exp", "x", "e"),
        node("Mul", "m one", "p"), node("Mul", "n e", "q"), node("Add", "p q")],
    "hardtanh, another limit": two("minus", "half"),
    "hardtanh without its corners": [
        node("Less", "x one", "c"), node("Greater", "x minus", "d"), node("And", "c d", "b"),
        node("Cast", "b", "m", to=1), node("Mul", "x m", "p"), node("Greater", "x one", "g"),
        node("Less", "x minus", "l"), node("Cast", "g", "gn", to=1), node("Cast", "l", "ln", to=1),
        node("Sub", "gn ln", "s"), node("Add", "p s")],
    "hard swish of another slope": swish([node("Mul", "p third", "h")]),
    "square of signs": [node("Sign", "x", "s"), node("Mul", "s s")],
    "softplus that misses a point": [
        node("Softplus", "x", "s"), node("Greater", "x twenty", "c"), node("Less", "x twenty", "d"),
        node("Cast", "c", "m", to=1), node("Cast", "d", "n", to=1), node("Mul", "m x", "p"),
        node("Mul", "n s", "q"), node("Add", "p q")],
    "an early softplus": [
        node("Softplus", "x", "s"), node("Greater", "x three", "c"), node("Cast", "c", "m", to=1),
        node("Sub", "one m", "n"), node("Mul", "m x", "p"), node("Mul", "n s", "q"),
        node("Add", "p q")],
    "whole numbers": [
        node("Greater", "x zero", "c"), node("Cast", "x", "i", to=6), node("Cast", "i", "f", to=1),
        node("Where", "c x f")],
    "softplus of something else": [node("Neg", "x", "q"), *guarded("q")],
    "soft threshold, another offset": [
        node("Abs", "x", "a"), node("Greater", "a half", "c"), node("Cast", "c", "m", to=1),
        node("Sign", "x", "s"), node("Mul", "third s", "h"), node("Sub", "x h", "d"),
        node("Mul", "d m")],
    "a negative threshold": [
        node("Abs", "x", "a"), node("Greater", "a minus", "c"), node("Sign", "x", "s"),
        node("Mul", "s minus", "h"), node("Sub", "x h", "d"), node("Where", "c d zero")],
    "another limit": [node("Greater", "x half", "c"), node("Where", "c x zero")],
    "a step beside a guard": [
        node("Greater", "x zero", "c"), node("Where", "c x zero", "r"),
        node("Cast", "c", "f", to=1), node("Add", "r f")],
    "a larger guard": [node("IsNaN", "x", "n"), node("Where", "n wide x")],
    "shrink that jumps": [node("Shrink", "x", lambd=0.5)],
    "larger numbers": [
        *expm1(), node("Greater", "x wide", "c"), node("Cast", "c", "m", to=1), node("Mul", "x m")],
    "larger values that cancel": [
        *LONGER, node("Concat", "u u", "s", axis=1), node("Mul", "m s", "p"),
        node("Neg", "p", "q"), node("Add", "p q", "r"), node("Add", "r u")],
    "larger constants that cancel": [
        *LONGER, node("Mul", "m big", "p"), node("Neg", "p", "q"), node("Add", "p q", "r"),
        node("Add", "r u")],
    "the larger one of others": [
        node("Neg", "x", "u"), node("Greater", "x u", "c"), node("Where", "c x e"),
        node("Exp", "x", "e")],
}  # fmt: skip


LARGE = {"wide": np.zeros((1, 1, 1)), "big": np.ones((1, 2, 6)), "axis": [1]}


@pytest.mark.parametrize("name", JUMPING)
def test_what_nearly_is_one_is_refused(name):
    nodes = JUMPING[name]
    used = {name for item in nodes for name in item.input}
    constants = numbers(nodes) | {name: LARGE[name] for name in LARGE.keys() & used}
    with pytest.raises(Unsupported):
        program(model(sorted_by_use(nodes), SHAPE, constants))


def sorted_by_use(nodes):
    """Nodes in an order of computation."""
    made, left, found = {*CONSTANTS, *LARGE, "x"}, list(nodes), []
    while left:
        item = next(item for item in left if made.issuperset(item.input))
        left.remove(item)
        found.append(item)
        made.update(item.output)
    return found


TURNED = [node("Transpose", "x", "t", perm=[1, 0]), node("Mul", "t zero", "z")]
TABLES = {
    "of a choice": [*TURNED, node("Greater", "x zero", "c"), node("Where", "c x z")],
    "of a product": [*TURNED, node("Greater", "x zero", "c"), node("Cast", "c", "m", to=1),
                     node("Mul", "x m", "p"), node("Add", "p z")],
    "of a guard": [*TURNED, node("IsNaN", "x", "n"), node("Where", "n z x")],
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_all_pairs_of_examples_is_no_function_of_one(name):
    nodes = TABLES[name]
    with pytest.raises(Unsupported):
        program(model(nodes, ["N", 1], numbers(nodes)))


def test_the_message_still_names_the_comparison():
    with pytest.raises(Unsupported, match="Greater_c") as refused:
        program(
            model(
                JUMPING["elu, another threshold"], SHAPE, numbers(JUMPING["elu, another threshold"])
            )
        )
    assert JUMPS in str(refused.value)


def test_slopes_remain_parameters_and_other_numbers_do_not():
    before, above, below, *_ = SPELT["prelu of one"]
    nodes = [*before, *next(chosen(above, below))]
    found = program(model(nodes, SHAPE, numbers(nodes)))
    assert found.steps[-1].op.slope.sources == {"single": 1.0}
    assert "single" not in found.untracked
    nodes = [*ELU, *next(chosen("x", "a"))]
    assert program(model(nodes, SHAPE, numbers(nodes))).untracked >= {"alpha", "zero", "one"}


def test_a_slope_that_is_a_threshold_too_is_no_slope():
    """With the number 0 in both places a PRelu would not know of the second one."""
    nodes = [node("Mul", "x w", "a"), node("Greater", "x w", "c"), node("Where", "c x a")]
    found = program(model(nodes, SHAPE, {"w": np.zeros(1)}))
    assert "w" in found.untracked
    assert not any(isinstance(step.op, PRelu) for step in found.steps)


RANDOM = 20
MEANING = {
    "Greater": np.greater, "LessOrEqual": np.less_equal, "Not": np.logical_not, "Mul": np.multiply,
    "Add": np.add, "Sub": np.subtract, "Where": np.where, "Exp": np.exp, "Sign": np.sign,
    "Neg": np.negative, "Min": np.minimum, "Cast": lambda a: np.asarray(a, dtype=np.float64),
    "Relu": lambda a: np.maximum(a, 0.0),
}  # fmt: skip


def meant(nodes, x):
    """What the nodes compute in float64."""
    values = {name: np.float64(np.float32(value)) for name, value in CONSTANTS.items()
              if np.ndim(value) == 0} | {"x": x}  # fmt: skip
    for item in nodes:
        values[item.output[0]] = MEANING[item.op_type](*(values[name] for name in item.input))
    return values["y"]


def random_function(rng):
    """Nodes that combine lines and exponentials behind comparisons at random."""
    nodes, reals, truths = [], ["x", "one", "zero", "half", "slope"], []
    fresh = (f"v{number}" for number in itertools.count())
    for _ in range(int(rng.integers(3, 12))):
        kind = rng.choice(["Greater", "LessOrEqual", "Cast", "Not", "Mul", "Add", "Sub", "Where",
                           "Exp", "Relu", "Sign", "Neg", "Min"])  # fmt: skip
        first, second = rng.choice(reals, 2)
        to = next(fresh)
        if kind in {"Greater", "LessOrEqual"}:
            nodes.append(node(kind, f"{first} {second}", to))
            truths.append(to)
        elif kind in {"Cast", "Not", "Where"} and truths:
            flag = rng.choice(truths)
            if kind == "Not":
                nodes.append(node(kind, flag, to))
                truths.append(to)
                continue
            made = (
                node("Cast", flag, to, to=1)
                if kind == "Cast"
                else node(kind, f"{flag} {first} {second}", to)
            )
            nodes.append(made)
            reals += [to, to]
        elif kind in {"Mul", "Add", "Sub", "Min"}:
            nodes.append(node(kind, f"{first} {second}", to))
            reals += [to, to]
        elif kind in {"Exp", "Relu", "Sign", "Neg"}:
            nodes.append(node(kind, first, to))
            reals += [to, to]
    nodes.append(node("Add", f"{reals[-1]} x"))
    return nodes


def test_random_functions_are_read_as_onnxruntime_reads_them_or_refused():
    """Every function that is accepted is the one of the file, at and around the kinks too."""
    rng = np.random.default_rng(5)
    accepted = 0
    kinks = [0.01, np.float32(0.01), 2.0, -0.5, -0.01, 0.25, 1.5, 0.505, 0.49]
    for _ in range(RANDOM):
        nodes = random_function(rng)
        proto = model(nodes, SHAPE, numbers(nodes))
        try:
            found = program(proto)
        except Unsupported:
            continue
        for x in [*POINTS[1:11], *kinks]:
            row = np.full((1, 6), np.float64(x))
            with np.errstate(over="ignore"):
                expected = np.broadcast_to(meant(nodes, row), row.shape)
            if np.abs(expected).max() < 1e6:
                ours = evaluate(found, row)[found.output]
                np.testing.assert_allclose(ours, expected, rtol=1e-7, atol=1e-7)
        accepted += any(item.op_type in {"Greater", "LessOrEqual", "Sign"} for item in nodes)
    assert accepted > 0


@pytest.mark.nightly
def test_many_random_functions(monkeypatch):
    monkeypatch.setattr("tests.core.lower.test_pieces.RANDOM", 4000)
    test_random_functions_are_read_as_onnxruntime_reads_them_or_refused()
