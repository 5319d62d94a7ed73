"""Masks computed from ids: means and attention over what they show, against autograd."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto

from lipcert.core.certificate import ScopeClaim
from lipcert.core.kinds import MaskedMean
from lipcert.core.lower.errors import Unsupported
from lipcert.core.token_kinds import Attention
from tests.core.adversary import found_above
from tests.core.lower.cases import agrees, model, program, used
from tests.core.onnx_torch import stored
from tests.core.test_embeddings import bounds, gradients, of_numbers

T = TensorProto
POSITIONS, ROWS, WIDTH = 4, 5, 3
MASKS = {
    "not equal": "e = Equal(x, k)  m = Not(e)",
    "twice not": "e = Equal(x, k)  a = Not(e)  b = Not(a)  m = Not(b)",
    "greater": "m = Greater(x, k)",
    "at least": "m = GreaterOrEqual(x, k)",
    "less": "m = Less(x, k)",
    "turned": "r = Cast<to=1>(x)  m = LessOrEqual(unit, r)",
    "cast": "m = Cast<to=9>(x)",
    "and": "a = Greater(x, k)  b = Less(x, high)  m = And(a, b)",
    "or": "a = Greater(x, k)  b = Less(x, low)  m = Or(a, b)",
    "and a constant": "a = Greater(x, k)  m = And(odd, a)",
    "or a constant": "a = Greater(x, k)  m = Or(a, odd)",
    "unlike its neighbour": "z = Gather<axis=1>(x, turned)  e = Equal(x, z)  m = Not(e)",
    "larger than its neighbour": "z = Gather<axis=1>(x, turned)  m = Less(z, x)",
    "of products": "xx = Mul(x, x)  dx = Sub(xx, x)  m = Cast<to=9>(dx)",
    "of several, one after another": """a = Less(x, high)  size = Shape(x)  b = Expand(odd, size)
        z = Greater(x, k)  abz = Concat<axis=1>(a, b, z)  m = Gather<axis=1>(abz, crossed)""",
    "the first always": """o_ = CastLike(k1, x)  size = Shape(x)  z = Expand(o_, size)
        zx = Concat<axis=1>(z, x)  c_ = Gather<axis=1>(zx, behind)  m = Cast<to=9>(c_)""",
    "numbers behind ones": """r = Cast<to=1>(x)  size = Shape(x)  z = Expand(unit, size)
        zr = Concat<axis=1>(z, r)  c_ = Gather<axis=1>(zr, behind)  m = Cast<to=9>(c_)""",
    "equal as numbers": """b = Greater(x, k)  r = Cast<to=1>(b)  c_ = Sub(unit, r)
        m = Equal(c_, zero)""",
    "of its own row": """e = Equal(x, k)  size = Shape<start=0, end=1>(x)  n_ = Squeeze(size)
        r = Range(start, n_, k1)  r1 = Unsqueeze(r, last)  both = Max(r1, places)
        sizes = Shape(both)  r2 = Expand(r1, sizes)  p2 = Expand(places, sizes)
        r3 = Unsqueeze(r2, last)  p3 = Unsqueeze(p2, last)  at = Concat<axis=-1>(r3, p3)
        m = GatherND(e, at)""",
    "of its own part of all": """e = Equal(x, k)  size = Shape<start=0, end=1>(x)
        n_ = Squeeze(size)  r = Range(start, n_, k1)  r0 = Mul(r, long)  r1 = Unsqueeze(r0, last)
        at = Add(r1, places)  f_ = Flatten<axis=2>(e)  g_ = Reshape(f_, last)
        m = Gather(g_, at)""",
}  # fmt: skip
"""a truth value m of each position, from ids x"""
COUNT = "c = ReduceSum<keepdims=0>(u"
COUNTED = """i = Cast<to=6>(m)  c = CumSum(i, k1)  d = Mul(c, i)  l = Cast<to=7>(d)
    l_ = CastLike(l, x)  r_ = Add(l_, k1)"""
LAST = "j = Cast<to=7>(m)  p_ = Mul(counted, j)  g = ArgMax<axis=-1, keepdims=0>(p_)"
NUMBERED = "all = Shape<start=0, end=1>(x)  all_ = Squeeze(all)  o = Range(start, all_, k1)"
USES = {
    "mean": """f = Cast<to=1>(m)  u = Unsqueeze(f, last)  s = Mul(t_x, u)
        n = ReduceSum<keepdims=0>(s, one)  c = ReduceSum<keepdims=0>(u, one)  d = Clip(c, floor)
        h = Div(n, d)""",
    "mean of whole counts": """u = Unsqueeze(m, last)  s = Where(u, t_x, zero)
        n = ReduceSum<keepdims=0>(s, one)  i = Cast<to=7>(m)  c = ReduceSum<keepdims=1>(i, one)
        d = Max(c, k1)  g = Cast<to=1>(d)  h = Div(n, g)""",
    "other rows": """u = Unsqueeze(m, last)  s = Where(u, t_x, row)
        h = ReduceMean<axes=[1], keepdims=0>(s)""",
    "hidden":
        """k_ = Transpose<perm=[0, 2, 1]>(t_x)  s = MatMul(t_x, k_)  f = Where(m, zero, never)
        u = Unsqueeze(f, one)  q = Add(s, u)  p = Softmax(q)  v = MatMul(p, t_x)
        h = ReduceMean<axes=[1], keepdims=0>(v)""",
    "counted positions": f"""{COUNTED}  q_r = Gather(tp, r_)  s = Add(t_x, q_r)
        h = ReduceMean<axes=[1], keepdims=0>(s)""",
    "added positions": """i = Cast<to=7>(m)  xi = Mul(x, i)  c = CumSum(xi, k1)  e_ = Equal(c, k)
        l = Cast<to=7>(e_)  q_r = Gather(tp, l)  s = Add(t_x, q_r)
        h = ReduceMean<axes=[1], keepdims=0>(s)""",
    "last shown": f"""{LAST}  {NUMBERED}  o1 = Unsqueeze(o, last)  g1 = Unsqueeze(g, last)
        here = Concat<axis=-1>(o1, g1)  h = GatherND(t_x, here)""",
    "last shown of all": f"""{LAST}  {NUMBERED}  o0 = Mul(o, long)  here = Add(g, o0)
        f1 = Flatten<axis=2>(t_x)  h = Gather(f1, here)""",
    "last shown of its row": f"""{LAST}  here = Unsqueeze(g, last)
        h = GatherND<batch_dims=1>(t_x, here)""",
    "last counted": """i = Cast<to=7>(m)  c = ReduceSum<keepdims=1>(i, one)  g = Sub(c, k1)
        g1 = Unsqueeze(g, last)  here = Expand(g1, wide)  h_ = GatherElements<axis=1>(t_x, here)
        h = Squeeze(h_, one)""",
    "some": """i = Cast<to=7>(m)  c = CumSum(i, k1)  g = Sub(c, k1)  g1 = Unsqueeze(g, last)
        here = Expand(g1, wider)  h_ = GatherElements<axis=1>(t_x, here)
        h = ReduceMean<axes=[1], keepdims=0>(h_)""",
    "ends": f"""g = ArgMax<axis=1>(x)  g0 = ArgMin<axis=1, select_last_index=1>(x)
        i = Cast<to=7>(m)  g1 = ArgMax<axis=1, select_last_index=1>(i)  {NUMBERED}
        g2 = Concat<axis=1>(g, g0, g1)  o1 = Unsqueeze(o, last)  most = Max(o1, g2)
        shape_ = Shape(most)  o2 = Expand(o1, shape_)  o3 = Unsqueeze(o2, last)
        g3 = Expand(g2, shape_)  g4 = Unsqueeze(g3, last)  here = Concat<axis=2>(o3, g4)
        h_ = GatherND(t_x, here)  h = ReduceMean<axes=[1], keepdims=0>(h_)""",
    "one type for all": """size_ = Shape<start=0, end=1>(x)  both_ = Concat<axis=0>(size_, four)
        y_ = Expand(types, both_)  i = Cast<to=7>(m)  y_i = GatherElements<axis=1>(y_, i)
        q_0 = Gather(tp, y_i)  q_1 = Gather(tp, y_)  q_2 = Gather(tp, i)
        s = Sum(t_x, q_0, q_1, q_2)  h = ReduceMean<axes=[1], keepdims=0>(s)""",
    "nearly hidden": """k_ = Transpose<perm=[0, 2, 1]>(t_x)  s = MatMul(t_x, k_)
        u = Unsqueeze(m, one)  q = Where(u, s, far)  p = Softmax(q)  v = MatMul(p, t_x)
        h = ReduceMean<axes=[1], keepdims=0>(v)""",
}  # fmt: skip
"""from the mask m and the rows t_x of a table to h [N, width]"""


def network(mask: str, use: str, rng: np.random.Generator, ids: str = "x") -> ModelProto:
    """Rows of a table, what a mask makes of them, and a matrix."""
    nodes = f"{mask}  t_x = Gather(t, {ids})  {use}  y = MatMul(h, w)"
    constants = {
        "t": rng.standard_normal((ROWS, WIDTH)) * rng.uniform(0.2, 3.0),
        "w": rng.standard_normal((WIDTH, 2)),
        "row": rng.standard_normal(WIDTH),
        "k": np.int64(rng.integers(-1, 2)), "low": np.int64(1), "high": np.int64(3),
        "k1": np.int64(1), "one": [1], "last": [-1],
        "zero": np.float32(0.0), "unit": np.float32(1.0),
        "floor": np.float32(rng.choice([1e-9, 1.0])), "never": np.float32(-np.inf),
        "far": np.float32(-1e9), "start": np.int64(0), "odd": np.arange(POSITIONS) % 2 > 0,
        "places": [[3, 0, 2, 1]], "long": np.int64(POSITIONS), "four": [POSITIONS],
        "types": np.ones((1, POSITIONS), int),
        "tp": rng.standard_normal((POSITIONS + 2, WIDTH)), "turned": [1, 2, 3, 0],
        "crossed": [9, 0, 5, 2], "behind": [0, 5, 6, 7],
        "counted": np.arange(POSITIONS), "wide": [1, 1, WIDTH], "wider": [1, 1, WIDTH],
        "huge": np.int64(2**60), "ever": np.float32(np.inf), "t4": np.ones((4, WIDTH)),
        "two": np.int64(2), "half": np.float32(0.5), "shorter": np.int64(3), "minus": np.int64(-1),
        "many": np.arange(4)[None], "t1": np.ones((1, WIDTH)), "w3": np.ones(WIDTH),
        "k41": np.zeros((4, 1), np.int64), "first": [0], "second": [2],
        "nevers": np.full((1, POSITIONS, 1), -np.inf),
    }  # fmt: skip
    return of_numbers(model(nodes, ["N", POSITIONS], used(nodes, constants)))


@given(
    seed=st.integers(0, 2**31),
    mask=st.sampled_from(sorted(MASKS)),
    use=st.sampled_from(sorted(USES)),
)
def test_no_ids_exceed_a_bound(seed: int, mask: str, use: str) -> None:
    """Ids drawn, ids that are all equal, and so examples of padding alone."""
    rng = np.random.default_rng(seed)
    proto = network(MASKS[mask], USES[use], rng)
    weights = {name: w for name, w in stored(proto).items() if name in {"t", "w", "row", "tp"}}
    trained = tuple(sorted(weights))
    limit = bounds(proto, ScopeClaim("point", trained, ()), None, "cross-entropy")
    assert all(np.isfinite(list(limit.values())))
    drawn = rng.integers(-ROWS, ROWS, size=(3, POSITIONS))
    alike = np.repeat(rng.integers(-ROWS, ROWS, size=(3, 1)), POSITIONS, axis=1)
    for x in np.concatenate([drawn, alike]):
        for label in range(2):
            for name, norm in gradients(proto, x, label, "cross-entropy", weights).items():
                hidden = use == "hidden" and np.isnan(norm)  # of an example of padding alone
                assert hidden or norm <= limit[name] * (1 + 1e-9), (name, x)


@pytest.mark.sample(45)  # all uses, each with other masks
@pytest.mark.parametrize("use", sorted(USES))
@pytest.mark.parametrize("mask", sorted(MASKS))
def test_masks_are_read_as_onnxruntime_reads_them(mask: str, use: str) -> None:
    """Through the program that is bounded, for ids of every kind, alone and side by side."""
    proto = network(MASKS[mask], USES[use], np.random.default_rng(1))
    ids = np.random.default_rng(3).integers(-ROWS, ROWS, size=(12, 1, POSITIONS))
    assert agrees(proto, examples=[*ids]).batch_proved


def test_a_constant_takes_the_type_of_ids_only_where_it_is_int64() -> None:
    """In int8 the size of a batch of 200 is -56, and 100 + 100 is, too."""
    proto = network(MASKS["the first always"], USES["mean"], np.random.default_rng(1))
    assert program(proto).steps
    proto.graph.input[0].type.tensor_type.elem_type = T.INT8
    with pytest.raises(Unsupported, match="not int64"):
        program(proto)


def test_a_mean_over_what_is_shown_is_attained_by_one_token() -> None:
    """Not √T or T times as large, as from a sum over T tokens and a count of at least 1."""
    for use in ("mean", "mean of whole counts"):
        proto = network(MASKS["not equal"], USES[use], np.random.default_rng(0))
        found = program(proto)
        assert any(isinstance(step.op, MaskedMean) for step in found.steps)
        weights = {name: w for name, w in stored(proto).items() if name in {"t", "w"}}
        limit = bounds(proto, ScopeClaim("point", ("t", "w"), ()), None, "mae")
        row = int(weights["t"].norm(dim=1).argmax())
        others = int(stored(proto)["k"])
        x = np.full(POSITIONS, others)
        x[0] = row if row != others else row - ROWS
        norms = gradients(proto, x, 0, "mae", weights)
        assert norms["w"] == pytest.approx(limit["w"], rel=1e-6)


def test_a_mean_by_another_mask_is_a_quotient() -> None:
    """Of three tokens, divided by a count of others: no mean, and as large as their sum."""
    other = "e2 = Equal(x, high)  f2 = Cast<to=1>(e2)  u2 = Unsqueeze(f2, last)"
    for counted in (other, "u2 = Slice(u, first, second, one)"):
        use = USES["mean"].replace(COUNT, f"{counted}  {COUNT}2")
        proto = network(MASKS["not equal"], use, np.random.default_rng(0))
        assert not any(isinstance(step.op, MaskedMean) for step in program(proto).steps)


FEATURE, SUM = "m = Gather<axis=2>(x, first)", "ReduceSum<keepdims=0>"


def weighted(seed: int, gate: str = "", count: str = f"d = {SUM}(m, one)") -> ModelProto:
    """Means of tokens by weights that are computed from them, or by one of their own features."""
    rng = np.random.default_rng(seed)
    wide, kinds = int(rng.choice([1, WIDTH])), ["Sigmoid", "Softplus", "Exp"]
    if not gate and rng.random() < 0.5:  # else the weights of all tokens may be 0
        count, kinds = f"c = {SUM}(m, one)  d = Max(c, floor)", ["Sigmoid", "Softplus", "Relu"]
    gate = gate or str(rng.choice([FEATURE, *(f"g = MatMul(x, u)  m = {k}(g)" for k in kinds)]))
    nodes = f"{gate}  h = MatMul(x, w)  s = Mul(h, m)  n = {SUM}(s, one)  {count}  y = Div(n, d)"
    u, w = rng.standard_normal((WIDTH, wide)), rng.standard_normal((WIDTH, WIDTH))
    constants = {"u": u, "w": w, "one": [1], "first": [0], "floor": np.float32(rng.uniform(0, 5))}
    return model(nodes, ["N", POSITIONS, WIDTH], used(nodes, constants))


@given(seed=st.integers(0, 2**31))
def test_no_weighted_mean_exceeds_a_bound(seed: int) -> None:
    """Of weights that are trained, too: by ascent of examples and weights."""
    assert any(isinstance(step.op, MaskedMean) for step in program(weighted(seed)).steps)
    assert found_above(seed, draw=weighted) == []
    assert agrees(weighted(seed)).batch_proved


def test_a_mean_by_weights_of_the_input_has_a_gradient_but_no_slope() -> None:
    """Its weights may be as small as they like, and the mean still is one."""
    proto, scope = weighted(0, FEATURE), ScopeClaim("point", ("w",), ())
    x = np.ones((POSITIONS, WIDTH)) * (np.arange(POSITIONS) == 0)[:, None]
    found = gradients(proto, x, 0, "mae", {"w": stored(proto)["w"]})["w"]
    assert found == pytest.approx(bounds(proto, scope, (0.0, 1.0), "mae")["w"], rel=1e-9)
    assert bounds(proto, scope, (-1.0, 1.0), "mae")["w"] == math.inf


def test_ids_of_a_narrower_type_are_others_than_the_ids() -> None:
    """As int32, 2³² is 0: no mean counts one of them and adds up the other."""
    cast = "i = Cast<to=6>(x)"
    own = f"{cast}  {MASKS['not equal']}"
    assert program(network(own, USES["mean"], np.random.default_rng(0), "i")).ids == ROWS
    own = f"{cast}  z = Cast<to=7>(i)  e0 = Equal(z, k)  m0 = Not(e0)  {MASKS['not equal']}"
    for counted, is_mean in (("m", True), ("m0", False)):
        other = f"u0 = Cast<to=1>({counted})  u2 = Unsqueeze(u0, last)"
        use = USES["mean"].replace(COUNT, f"{other}  {COUNT}2")
        steps = program(network(own, use, np.random.default_rng(0))).steps
        assert any(isinstance(step.op, MaskedMean) for step in steps) == is_mean
    refused(f"{cast}  r = Cast<to=1>(i)  m = Greater(r, zero)", USES["mean"], "i")


def rows(changed: str) -> str:
    """The mask of its own row by other numbers r0 of the examples."""
    own = MASKS["of its own row"].replace("Unsqueeze(r,", "Unsqueeze(r0,")
    return own.replace("r1 = ", f"{changed}  r1 = ")


SCORES = """k_ = Transpose<perm=[0, 2, 1]>(t_x)  s = MatMul(t_x, k_)  u = Unsqueeze(m, one)
    q = Where(u, never, s)  p = Softmax(q)"""
MEAN = "h = ReduceMean<axes=[1], keepdims=0>(v)"
GUARD = f"n = IsNaN(p)  g = Where(n, zero, p)  v = MatMul(g, t_x)  {MEAN}"
"""of an example of padding alone no token is seen, and its output is 0"""
REFUSED = {
    "another number where nothing is seen": (MASKS["less"],
        f"{SCORES}  n = IsNaN(p)  g = Where(n, far, p)  v = MatMul(g, t_x)  {MEAN}"),
    "a number for the output of nothing": (MASKS["less"],
        f"{SCORES}  a = MatMul(p, t_x)  n = IsNaN(a)  v = Where(n, zero, a)  {MEAN}"),
    "a threshold behind an output of nothing": (MASKS["less"],
        f"{SCORES}  a = MatMul(p, t_x)  n = Greater(a, far)  v = Where(n, a, far)  {MEAN}"),
    "a mask that repeats the scores": ("x_ = Unsqueeze(x, one)  m = Less(x_, k41)",
        f"""b = ReduceMean<axes=[1], keepdims=1>(t_x)  k_ = Transpose<perm=[0, 2, 1]>(t_x)
        s = MatMul(b, k_)  q = Where(m, never, s)  p = Softmax(q)  v = MatMul(p, t_x)  {MEAN}"""),
    "infinities that repeat the scores": ("m = Less(x, k)",
        f"""b = ReduceMean<axes=[1], keepdims=1>(t_x)  k_ = Transpose<perm=[0, 2, 1]>(t_x)
        s = MatMul(b, k_)  u = Unsqueeze(m, one)  q = Where(u, nevers, s)  p = Softmax(q)
        v = MatMul(p, t_x)  {MEAN}"""),
    "quotients of ids that a constant chooses": (MASKS["greater"],
        """i = Where(odd, x, k)  a = Gather<axis=1>(i, first)  b = Gather<axis=1>(i, last)
        c = Div(a, b)  f = Cast<to=1>(c)  h = MatMul(f, t1)"""),
    "means of ids that a constant chooses": (MASKS["greater"],
        """x32 = Cast<to=6>(x)  i = Where(odd, x32, x32)  c = ReduceMean<axes=[1]>(i)
        f = Cast<to=1>(c)  h = MatMul(f, t1)"""),
    "truth values that a constant chooses": (MASKS["not equal"],
        "o = Where(odd, m, e)  f = Cast<to=1>(o)  h = MatMul(f, t4)"),
    "what hides, chosen by a constant": (MASKS["greater"],
        USES["hidden"].replace("u = Unsqueeze(f,", "g = Where(odd, f, zero)  u = Unsqueeze(g,")),
    "the larger of a count and an id": (MASKS["greater"],
        """i = Cast<to=7>(m)  c = ReduceSum<keepdims=1>(i, one)  d = Max(c, x)  f = Cast<to=1>(d)
        h = MatMul(f, t4)"""),
    "a number of the type of narrower ids": ("""x_ = Cast<to=6>(x)  l = CastLike(k1, x_)
        l_ = Cast<to=7>(l)  m = Greater(x, l_)""", USES["mean"]),
    "parts of numbers": ("r = Cast<to=1>(x)  h2 = Mul(r, half)  m = Equal(h2, zero)", USES["mean"]),
    "limits between numbers": ("r = Cast<to=1>(x)  m = Equal(r, half)", USES["mean"]),
    "products of numbers": ("r = Cast<to=1>(x)  rr = Mul(r, r)  m = Cast<to=9>(rr)", USES["mean"]),
    "a sum as a number": (MASKS["greater"], "c = Mul(x, x)  f = Cast<to=1>(c)  h = MatMul(f, t4)"),
    "the largest of reals": (MASKS["greater"],
        """at = ArgMax<axis=2, keepdims=1>(t_x)  h_ = Gather(t, at)
        h = ReduceMean<axes=[1, 2], keepdims=0>(h_)"""),
    "tokens by a count that may be -1, of another example then": (MASKS["greater"],
        USES["last shown of all"].replace(LAST, """i = Cast<to=7>(m)
        c = ReduceSum<keepdims=0>(i, one)  g = Sub(c, k1)""")),
    "tokens of parts that are shorter": (MASKS["greater"],
        USES["last shown of all"].replace("o, long", "o, shorter")),
    "tokens of every second example": (MASKS["greater"],
        USES["last shown"].replace("all_, k1", "all_, two")),
    "tokens of the example that a number names": (MASKS["greater"],
        USES["last shown"].replace("(o1, g1)", "(g1, o1)")),
    "entries of the examples that a number names": (MASKS["greater"],
        """i = Cast<to=7>(m)  g = Unsqueeze(i, last)  here = Expand(g, wide)
        h_ = GatherElements<axis=0>(t_x, here)  h = ReduceMean<axes=[1], keepdims=0>(h_)"""),
    "the example of the largest number": (MASKS["greater"],
        "g = ArgMax<axis=0>(x)  h_ = Gather(t, g)  h = ReduceMean<axes=[1], keepdims=0>(h_)"),
    "examples that a number names": (MASKS["greater"],
        f"{LAST}  h_ = Gather(t_x, g)  h = ReduceMean<axes=[1], keepdims=0>(h_)"),
    "negated ids": ("m = Not(x)", USES["mean"]),
    "a large limit": ("m = Greater(x, huge)", USES["mean"]),
    "masked ids": (MASKS["greater"],
        "i = Where(m, x, k)  h_ = Gather(t, i)  h = ReduceMean<axes=[1], keepdims=0>(h_)"),
    "products of counts": (MASKS["greater"],
        """i = Cast<to=7>(m)  j = CumSum(i, k1)  c = Mul(j, j)  f = Cast<to=1>(c)
        h = MatMul(f, t4)"""),
    "sums of sums": (MASKS["greater"],
        """i = Cast<to=7>(m)  c = ReduceSum<keepdims=1>(i, one)  d = ReduceSum<keepdims=1>(c, one)
        f = Cast<to=1>(d)  h = MatMul(f, t1)"""),
    "positions as numbers": (MASKS["greater"],
        f"{COUNTED}  f = Cast<to=1>(r_)  h = MatMul(f, t4)"),
    "the row of another example": (MASKS["of its own row"].replace("start, n_", "k1, n_"),
        USES["mean"]),
    "every second example": (MASKS["of its own row"].replace("n_, k1", "n_, two"),
        USES["mean"]),
    "the row before": (rows("r0 = Add(r, minus)"), USES["mean"]),
    "the examples the other way round": (rows("r0 = Sub(start, r)"), USES["mean"]),
    "parts that are shorter": (MASKS["of its own part of all"].replace("r, long", "r, shorter"),
        USES["mean"]),
    "parts that begin later": (
        MASKS["of its own part of all"].replace("places)", "places)  p1 = Add(at, k1)")
        .replace("Gather(g_, at)", "Gather(g_, p1)"), USES["mean"]),
    "numbers that wrap around": (
        rows("r8 = Cast<to=3>(r)  r0 = Cast<to=7>(r8)"), USES["mean"]),
    "the number of an example as its position": (
        MASKS["of its own row"].replace("(r3, p3)", "(p3, r3)"), USES["mean"]),
    "the number of an example as a number": (MASKS["greater"],
        f"{NUMBERED}  r1 = Unsqueeze(o, last)  f = Cast<to=1>(r1)  h = Mul(f, w3)"),
    "the number of an example as an id": (MASKS["greater"], f"{NUMBERED}  h = Gather(t, o)"),
    "the larger of two numbers of examples": (MASKS["greater"],
        f"{NUMBERED}  b = Max(o, k1)  h = Gather(t, b)"),
    "types that differ": (MASKS["greater"],
        USES["one type for all"].replace("Expand(types,", "Expand(many,")),
    "hidden outside of attention": (MASKS["greater"],
        "u = Unsqueeze(m, last)  s = Where(u, t_x, never)  h = ReduceMax<axes=[1], keepdims=0>(s)"),
    "plus infinity": (MASKS["greater"],
        "u = Unsqueeze(m, last)  s = Where(u, t_x, ever)  h = ReduceMax<axes=[1], keepdims=0>(s)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_bound_speaks_of_is_refused(name: str) -> None:
    refused(*REFUSED[name])


def refused(mask: str, use: str, ids: str = "x") -> None:
    proto = network(mask, use, np.random.default_rng(0), ids)
    with pytest.raises(Unsupported):
        program(proto)


def test_attention_hides_by_a_value() -> None:
    for use in (USES["hidden"], f"{SCORES}  {GUARD}"):
        found = program(network(MASKS["less"], use, np.random.default_rng(0)))
        (step,) = (step for step in found.steps if isinstance(step.op, Attention))
        assert len(step.inputs) == 4
