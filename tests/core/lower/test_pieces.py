"""Activations spelled with comparisons: the same steps as their operators, or a refusal."""

import numpy as np
import onnxruntime as ort
import pytest

from lipcert.core.kinds import PRelu
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.operators import JUMPS
from lipcert.graph.evaluate import evaluate
from tests.core.lower.cases import kinds, model, nodes_of, program, used

SHAPE = ["N", 6]
ALPHA, GAMMA = float(np.float32(1.6732632)), float(np.float32(1.0507010))
POINTS = np.array(
    [-40.0, -3.0, -1.0, -1e-3, -1e-30, 0.0, 1e-30, 1e-3, 0.5, 1.0, 3.0, 30.0], np.float32
)
CONSTANTS = {
    "zero": 0.0, "one": 1.0, "half": 0.5, "minus": -1.0, "two": 2.0, "three": 3.0, "six": 6.0,
    "low": -3.0, "alpha": ALPHA, "gamma": GAMMA, "slope": 0.01, "third": 0.3, "beta": 2.0,
    "twenty": 20.0, "slopes": np.linspace(0.1, 0.9, 6), "single": np.full(1, 0.25),
    "tiny": 1e-7, "wide": np.zeros((1, 1, 1)), "big": np.ones((1, 2, 6)), "axis": [1],
}  # fmt: skip


def expm1(of="x", to="e"):
    return f"{to}0 = Exp({of})  {to} = Sub({to}0, one)"


def masks(comparison, x="x", t="zero"):
    """The masks m of above and n of the rest, as numbers, in the spellings of exporters."""
    above = comparison.startswith("Greater")
    first, second = ("m", "n") if above else ("n", "m")
    yield f"""c = {comparison}({x}, {t})  d = Not(c)  {first} = Cast<to=1>(c)
        {second} = Cast<to=1>(d)"""  # fmt: skip
    yield f"c = {comparison}({x}, {t})  {first} = Cast<to=1>(c)  {second} = Sub(one, {first})"
    yield f"""c = {comparison}({x}, {t})  i = Cast<to=6>(c)  {first} = Cast<to=1>(i)
        {second} = Sub(one, {first})"""  # fmt: skip
    opposite = {"Greater": "Less", "Less": "Greater", "GreaterOrEqual": "LessOrEqual",
                "LessOrEqual": "GreaterOrEqual"}[comparison]  # fmt: skip
    yield f"""c = {opposite}({t}, {x})  d = Not(c)  {first} = Cast<to=1>(c)
        {second} = Cast<to=1>(d)"""  # fmt: skip


def joined(above, below):
    """m·above + n·below, also with the sum the other way round."""
    yield f"p = Mul(m, {above})  q = Mul({below}, n)  y = Add(p, q)"
    yield f"p = Mul({above}, m)  q = Mul(n, {below})  y = Sum(q, p)"


def chosen(above, below):
    yield f"c = Greater(x, zero)  y = Where(c, {above}, {below})"
    yield f"c = LessOrEqual(x, zero)  y = Where(c, {below}, {above})"


SPELT = {
    # name: (nodes before, above, below, operator)
    "relu": ("", "x", "zero", "y = Relu(x)"),
    "leaky": ("a = Mul(x, slope)", "x", "a", "y = LeakyRelu<alpha=0.01>(x)"),
    "elu": (f"{expm1()}  a = Mul(alpha, e)", "x", "a", f"y = Elu<alpha={ALPHA}>(x)"),
    "elu of 1": (expm1(), "x", "e", "y = Elu<alpha=1.0>(x)"),
    "selu": (f"{expm1()}  a0 = Mul(e, alpha)  a = Mul(a0, gamma)  g = Mul(gamma, x)", "g", "a",
        f"y = Selu<alpha={ALPHA}, gamma={GAMMA}>(x)"),
    "celu": (f"h = Div(x, two)  {expm1('h')}  a = Mul(two, e)", "x", "a",
        "y = Celu<alpha=2.0>(x)"),
    "elu of a minimum": (f"h = Min(x, zero)  {expm1('h')}  a = Mul(e, alpha)", "x", "a",
        f"y = Elu<alpha={ALPHA}>(x)"),
    "absolute value": ("a = Neg(x)", "x", "a", "y = Abs(x)"),
    "negative part": ("", "zero", "x", "y = Min(x, zero)"),
    "prelu": ("a = Mul(x, slopes)", "x", "a", "y = PRelu(x, slopes)"),
    "prelu of one": ("a = Mul(single, x)", "x", "a", "y = PRelu(x, single)"),
}  # fmt: skip
CASES = [
    pytest.param(name, f"{before}  {tail}", id=f"{name}-{number}")
    for name, (before, above, below, *_) in SPELT.items()
    for number, tail in enumerate(
        [
            *(f"{head}  {rest}" for comparison in ("Greater", "GreaterOrEqual", "Less",
            "LessOrEqual")
              for head in masks(comparison) for rest in joined(above, below)),
            *chosen(above, below),
        ]
    )
]  # fmt: skip


def written(nodes, shape=SHAPE):
    return model(nodes, shape, used(nodes, CONSTANTS))


def same_numbers(proto, found):
    """Beside onnxruntime, at numbers on both sides of every kink, and on it."""
    session = ort.InferenceSession(proto.SerializeToString())
    for points in (POINTS[:6], POINTS[6:], POINTS[3:9]):
        (expected,) = session.run(None, {"x": points[None]})
        ours = evaluate(found, points[None])[found.output]
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def steps(found):
    return [(step.op, step.shape) for step in found.steps]


@pytest.mark.sample(75)
@pytest.mark.parametrize(("name", "nodes"), CASES)
def test_the_steps_are_those_of_the_operator(name, nodes):
    plain = SPELT[name][3]
    proto = written(nodes)
    found = program(proto)
    same_numbers(proto, found)
    expected = program(written(plain))
    assert kinds(found) == kinds(expected)
    if "PRelu" not in plain:
        assert repr(steps(found)) == repr(steps(expected))
    assert {"part", "step", "constant"} >= set(found.covered[:-1])


def two(low, high, inside="x", below="minus", above="one"):
    """Three pieces, chosen by two comparisons."""
    return f"""c = Greater(x, {high})  d = Less(x, {low})  w = Where(c, {above}, {inside})
        y = Where(d, {below}, w)"""


def swish(inside):
    return f"""s = Add(x, three)  p = Mul(x, s)  {inside}  c = Greater(x, three)  d = Less(x, low)
        w = Where(c, x, h)  y = Where(d, zero, w)"""


def guarded(otherwise):
    """A softplus that is left for another value where x is large."""
    return f"""u = Mul(x, beta)  s0 = Softplus(u)  s = Div(s0, beta)  c = Greater(u, twenty)
        y = Where(c, {otherwise}, s)"""


OTHERS = {
    # name: (nodes, functions among the steps)
    "hardtanh": (two("minus", "one"), {"clip"}),
    "hardtanh with masks": ("""a = Abs(x)  c = LessOrEqual(a, one)  d = Not(c)  m = Cast<to=1>(c)
        n = Cast<to=1>(d)  s = Sign(x)  p = Mul(x, m)  q = Mul(s, n)  y = Add(p, q)""", {"clip"}),
    "soft threshold": ("""a = Abs(x)  c = Greater(a, half)  m = Cast<to=1>(c)  s = Sign(x)
        h = Mul(half, s)  d = Sub(x, h)  y = Mul(d, m)""", {"soft_threshold"}),
    "hard swish": (swish("h = Div(p, six)"), {"hard_swish"}),
    "kink at a half": ("""u = Sub(x, half)  c = Greater(u, zero)  m = Cast<to=1>(c)  p = Mul(u, m)
        y = Add(p, half)""", {"relu"}),
    "elu of another slope": (f"""h = Mul(x, third)  {expm1('h')}  {next(masks('Greater'))}
        {next(joined('x', 'e'))}""", {"elu"}),
    "elu of a scaled value": (f"""h = Mul(x, two)  c = Greater(h, zero)  {expm1('h')}
        y = Where(c, h, e)""", {"elu"}),
    "celu of half the slope": (f"""h = Mul(x, half)  {expm1('h')}  c = Greater(x, zero)
        y = Where(c, h, e)""", {"celu"}),
    "celu of twice the slope": (f"""h = Mul(x, two)  {expm1('h')}  c = Greater(x, zero)
        y = Where(c, h, e)""", {"celu"}),
    "negative elu": (f"g = Neg(x)  {expm1('g')}  a = Neg(e)  c = Less(x, zero)  y = Where(c, x, a)",
        {"selu"}),
    "exponential of the negative part": (f"""{expm1()}  c = Less(x, zero)  m = Cast<to=1>(c)
        y = Mul(e, m)""", {"exp", "clip"}),
    "softplus": ("""s = Softplus(x)  c = Greater(x, twenty)  m = Cast<to=1>(c)  n = Sub(one, m)
        p = Mul(m, x)  q = Mul(n, s)  y = Add(p, q)""", {"softplus"}),
    "softplus of a double": ("""h = Mul(x, beta)  s0 = Softplus(h)  s = Div(s0, beta)
        c = Greater(h, twenty)  m = Cast<to=1>(c)  n = Sub(one, m)  p = Mul(m, x)  q = Mul(n, s)
        y = Add(p, q)""", {"softplus"}),
    "the larger one": ("u = Neg(x)  c = Greater(x, u)  y = Where(c, x, u)", {}),
    "the smaller one": ("u = Neg(x)  c = Less(x, u)  y = Where(c, x, u)", {}),
    "three slopes": ("""a = Mul(x, slope)  d0 = Mul(x, two)  d = Sub(d0, one)  c = Greater(x, one)
        l = Less(x, zero)  w = Where(l, a, x)  y = Where(c, d, w)""", {"clip"}),
    "Huber's function": ("""m = Abs(x)  c = LessOrEqual(m, one)  q0 = Mul(x, x)  q = Mul(q0, half)
        l = Sub(m, half)  y = Where(c, q, l)""", {"clip"}),
    "threshold": ("c = Greater(x, half)  y = Where(c, x, half)", {"clip"}),
    "limit": ("c = Less(half, x)  y = Where(c, half, x)", {"clip"}),
    "shifted": ("u = Sub(x, half)  c = GreaterOrEqual(u, two)  y = Where(c, u, two)", {"clip"}),
    "relu of a product with 0": ("o = Mul(x, zero)  c = Greater(x, zero)  y = Where(c, x, o)",
        {"relu"}),
    "signed magnitude": ("s = Sign(x)  a = Abs(x)  r = Relu(a)  p = Mul(r, s)  y = Tanh(p)",
        {"tanh"}),
    "guard against no number": ("p = Softmax(x)  n = IsNaN(p)  y = Where(n, zero, p)", {}),
    "softplus of a choice": (guarded("x"), {"softplus"}),
    "zeros like x": ("s = Shape(x)  z = ConstantOfShape(s)  c = Less(x, z)  y = Where(c, z, x)",
        {"clip"}),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions(name):
    nodes, functions = OTHERS[name]
    proto = written(nodes)
    found = program(proto)
    same_numbers(proto, found)
    used = {step.op.name for step in found.steps if hasattr(step.op, "name")}
    assert used >= set(functions)


def nearly(above="x", below="a", t="zero", before=""):
    return f"{before}  {next(masks('Greater', t=t))}  {next(joined(above, below))}"


ELU = f"{expm1()}  a = Mul(alpha, e)"
LONGER = "u = Unsqueeze(x, axis)  c = Greater(u, zero)  m = Cast<to=1>(c)"
JUMPING = {
    "elu, another threshold": nearly(t="tiny", before=ELU),
    "elu, another number taken away": nearly(
        before="e0 = Exp(x)  a = Sub(e0, gamma)"),
    "elu of a shifted value": nearly(
        before=f"h = Add(x, tiny)  {expm1('h')}  a = Mul(alpha, e)"),
    "elu on the wrong side": nearly("a", "one", before=ELU),
    "leaky, another threshold": nearly(t="tiny", before="a = Mul(x, slope)"),
    "leaky with an offset": nearly(
        before="h = Mul(x, slope)  a = Add(h, tiny)"),
    "prelu, another threshold": nearly(t="tiny", before="a = Mul(x, slopes)"),
    "a step": "c = Greater(x, zero)  y = Cast<to=1>(c)",
    "both masks include 0": """c = GreaterOrEqual(x, zero)  d = LessOrEqual(x, zero)
        m = Cast<to=1>(c)  n = Cast<to=1>(d)  e = Exp(x)  p = Mul(m, one)  q = Mul(n, e)
        y = Add(p, q)""",
    "hardtanh, another limit": two("minus", "half"),
    "hardtanh without its corners": """c = Less(x, one)  d = Greater(x, minus)  b = And(c, d)
        m = Cast<to=1>(b)  p = Mul(x, m)  g = Greater(x, one)  l = Less(x, minus)
        gn = Cast<to=1>(g)  ln = Cast<to=1>(l)  s = Sub(gn, ln)  y = Add(p, s)""",
    "hard swish of another slope": swish("h = Mul(p, third)"),
    "square of signs": "s = Sign(x)  y = Mul(s, s)",
    "softplus that misses a point": """s = Softplus(x)  c = Greater(x, twenty)  d = Less(x, twenty)
        m = Cast<to=1>(c)  n = Cast<to=1>(d)  p = Mul(m, x)  q = Mul(n, s)  y = Add(p, q)""",
    "an early softplus": """s = Softplus(x)  c = Greater(x, three)  m = Cast<to=1>(c)
        n = Sub(one, m)  p = Mul(m, x)  q = Mul(n, s)  y = Add(p, q)""",
    "whole numbers": """c = Greater(x, zero)  i = Cast<to=6>(x)  f = Cast<to=1>(i)
        y = Where(c, x, f)""",
    "softplus of something else": f"q = Neg(x)  {guarded('q')}",
    "soft threshold, another offset": """a = Abs(x)  c = Greater(a, half)  m = Cast<to=1>(c)
        s = Sign(x)  h = Mul(third, s)  d = Sub(x, h)  y = Mul(d, m)""",
    "a negative threshold": """a = Abs(x)  c = Greater(a, minus)  s = Sign(x)  h = Mul(s, minus)
        d = Sub(x, h)  y = Where(c, d, zero)""",
    "another limit": "c = Greater(x, half)  y = Where(c, x, zero)",
    "a step beside a guard": """c = Greater(x, zero)  r = Where(c, x, zero)  f = Cast<to=1>(c)
        y = Add(r, f)""",
    "a larger guard": "n = IsNaN(x)  y = Where(n, wide, x)",
    "shrink that jumps": "y = Shrink<lambd=0.5>(x)",
    "larger numbers": f"{expm1()}  c = Greater(x, wide)  m = Cast<to=1>(c)  y = Mul(x, m)",
    "larger values that cancel": f"""{LONGER}  s = Concat<axis=1>(u, u)  p = Mul(m, s)  q = Neg(p)
        r = Add(p, q)  y = Add(r, u)""",
    "larger constants that cancel": f"""{LONGER}  p = Mul(m, big)  q = Neg(p)  r = Add(p, q)
        y = Add(r, u)""",
    "the larger one of others": "u = Neg(x)  c = Greater(x, u)  e = Exp(x)  y = Where(c, x, e)",
}  # fmt: skip


@pytest.mark.parametrize("name", JUMPING)
def test_what_nearly_is_one_is_refused(name):
    with pytest.raises(Unsupported):
        program(written(JUMPING[name]))


TURNED = "t = Transpose<perm=[1, 0]>(x)  z = Mul(t, zero)"
TABLES = {
    "of a choice": f"{TURNED}  c = Greater(x, zero)  y = Where(c, x, z)",
    "of a product": f"""{TURNED}  c = Greater(x, zero)  m = Cast<to=1>(c)  p = Mul(x, m)
        y = Add(p, z)""",
    "of a guard": f"{TURNED}  n = IsNaN(x)  y = Where(n, z, x)",
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_all_pairs_of_examples_is_no_function_of_one(name):
    with pytest.raises(Unsupported):
        program(written(TABLES[name], ["N", 1]))


def test_the_message_still_names_the_comparison():
    with pytest.raises(Unsupported, match="Greater_c") as refused:
        program(written(JUMPING["elu, another threshold"]))
    assert JUMPS in str(refused.value)


def test_slopes_remain_parameters_and_other_numbers_do_not():
    before, above, below, *_ = SPELT["prelu of one"]
    found = program(written(f"{before}  {next(chosen(above, below))}"))
    assert found.steps[-1].op.slope.sources == {"single": 1.0}
    assert "single" not in found.untracked
    nodes = f"{ELU}  {next(chosen('x', 'a'))}"
    assert program(written(nodes)).untracked >= {"alpha", "zero", "one"}


def test_a_slope_that_is_a_threshold_too_is_no_slope():
    """With the number 0 in both places a PRelu would not know of the second one."""
    nodes = "a = Mul(x, w)  c = Greater(x, w)  y = Where(c, x, a)"
    found = program(model(nodes, SHAPE, {"w": np.zeros(1)}))
    assert "w" in found.untracked
    assert not any(isinstance(step.op, PRelu) for step in found.steps)


MEANING = {
    # name: (function, truth values and numbers that it reads)
    "Greater": (np.greater, 0, 2), "LessOrEqual": (np.less_equal, 0, 2), "Mul": (np.multiply, 0, 2),
    "Not": (np.logical_not, 1, 0), "Cast": (np.float64, 1, 0), "Where": (np.where, 1, 2),
    "Add": (np.add, 0, 2), "Sub": (np.subtract, 0, 2), "Min": (np.minimum, 0, 2),
    "Exp": (np.exp, 0, 1), "Sign": (np.sign, 0, 1), "Neg": (np.negative, 0, 1),
    "Relu": (lambda a: np.maximum(a, 0.0), 0, 1),
}  # fmt: skip


def meant(nodes, x):
    """What the nodes compute in float64."""
    values = {name: np.float64(np.float32(value)) for name, value in CONSTANTS.items()
              if np.ndim(value) == 0} | {"x": x}  # fmt: skip
    for item in nodes:
        values[item.output[0]] = MEANING[item.op_type][0](*(values[name] for name in item.input))
    return values["y"]


def random_function(rng):
    """Nodes that combine lines and exponentials behind comparisons at random."""
    nodes, reals, truths = [], ["x", "one", "zero", "half", "slope"], []
    for number in range(int(rng.integers(3, 12))):
        kind = rng.choice([*MEANING])
        _, flags, others = MEANING[kind]
        if flags and not truths:
            continue
        inputs = [*rng.choice(truths or [""], flags), *rng.choice(reals, others)]
        more = "<to=1>" if kind == "Cast" else ""
        nodes.append(f"v{number} = {kind}{more}({', '.join(inputs)})")
        made = truths if kind in {"Greater", "LessOrEqual", "Not"} else reals
        made += [f"v{number}"] * 2
    return nodes_of(f"{'  '.join(nodes)}  y = Add({reals[-1]}, x)")


@pytest.mark.parametrize("count", [20, pytest.param(4000, marks=pytest.mark.nightly)])
def test_random_functions_are_read_as_onnxruntime_reads_them_or_refused(count):
    """Every function that is accepted is the one of the file, at and around the kinks too."""
    rng = np.random.default_rng(5)
    accepted = 0
    kinks = [0.01, np.float32(0.01), 2.0, -0.5, -0.01, 0.25, 1.5, 0.505, 0.49]
    for _ in range(count):
        nodes = random_function(rng)
        proto = written(nodes)
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
