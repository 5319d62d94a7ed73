"""Masks computed from ids: means and attention over what they show, against autograd."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto

from lipcert.core.certificate import ScopeClaim
from lipcert.core.kinds import MaskedMean
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Program
from lipcert.core.token_kinds import Attention
from tests.core.lower.cases import agrees, model, node, program
from tests.core.onnx_torch import stored
from tests.core.test_embeddings import bounds, gradients, of_numbers

T = TensorProto
POSITIONS, ROWS, WIDTH = 4, 5, 3
MASKS = {
    "not equal": [node("Equal", "x k", "e"), node("Not", "e", "m")],
    "twice not": [node("Equal", "x k", "e"), node("Not", "e", "a"), node("Not", "a", "b"),
                  node("Not", "b", "m")],
    "greater": [node("Greater", "x k", "m")],
    "at least": [node("GreaterOrEqual", "x k", "m")],
    "less": [node("Less", "x k", "m")],
    "turned": [node("LessOrEqual", "k x", "m")],
    "cast": [node("Cast", "x", "m", to=T.BOOL)],
    "and": [node("Greater", "x k", "a"), node("Less", "x high", "b"), node("And", "a b", "m")],
    "or": [node("Greater", "x k", "a"), node("Less", "x low", "b"), node("Or", "a b", "m")],
    "and a constant": [node("Greater", "x k", "a"), node("And", "odd a", "m")],
    "or a constant": [node("Greater", "x k", "a"), node("Or", "a odd", "m")],
    "unlike its neighbour": [
        node("Gather", "x turned", "z", axis=1), node("Equal", "x z", "e"), node("Not", "e", "m")],
    "larger than its neighbour": [
        node("Gather", "x turned", "z", axis=1), node("Less", "z x", "m")],
    "of products": [
        node("Mul", "x x", "xx"), node("Sub", "xx x", "dx"), node("Cast", "dx", "m", to=T.BOOL)],
    "of several, one after another": [
        node("Less", "x high", "a"), node("Shape", "x", "size"), node("Expand", "odd size", "b"),
        node("Greater", "x k", "z"), node("Concat", "a b z", "abz", axis=1),
        node("Gather", "abz crossed", "m", axis=1)],
    "the first always": [
        node("CastLike", "k1 x", "o_"), node("Shape", "x", "size"), node("Expand", "o_ size", "z"),
        node("Concat", "z x", "zx", axis=1), node("Gather", "zx behind", "c_", axis=1),
        node("Cast", "c_", "m", to=T.BOOL)],
    "numbers behind ones": [
        node("Cast", "x", "r", to=T.FLOAT), node("Shape", "x", "size"),
        node("Expand", "unit size", "z"), node("Concat", "z r", "zr", axis=1),
        node("Gather", "zr behind", "c_", axis=1), node("Cast", "c_", "m", to=T.BOOL)],
    "equal as numbers": [
        node("Greater", "x k", "b"), node("Cast", "b", "r", to=T.FLOAT),
        node("Sub", "unit r", "c_"), node("Equal", "c_ zero", "m")],
    "of its own row": [
        node("Equal", "x k", "e"), node("Shape", "x", "size", start=0, end=1),
        node("Squeeze", "size", "n_"), node("Range", "start n_ k1", "r"),
        node("Unsqueeze", "r last", "r1"), node("Max", "r1 places", "both"),
        node("Shape", "both", "sizes"), node("Expand", "r1 sizes", "r2"),
        node("Expand", "places sizes", "p2"), node("Unsqueeze", "r2 last", "r3"),
        node("Unsqueeze", "p2 last", "p3"), node("Concat", "r3 p3", "at", axis=-1),
        node("GatherND", "e at", "m"),
    ],
    "of its own part of all": [
        node("Equal", "x k", "e"), node("Shape", "x", "size", start=0, end=1),
        node("Squeeze", "size", "n_"), node("Range", "start n_ k1", "r"),
        node("Mul", "r long", "r0"), node("Unsqueeze", "r0 last", "r1"),
        node("Add", "r1 places", "at"), node("Flatten", "e", "f_", axis=2),
        node("Reshape", "f_ last", "g_"), node("Gather", "g_ at", "m"),
    ],
}  # fmt: skip
"""a truth value m of each position, from ids x"""
LAST = [node("Cast", "m", "j", to=T.INT64), node("Mul", "counted j", "p_"),
        node("ArgMax", "p_", "g", axis=-1, keepdims=0)]  # fmt: skip
NUMBERED = [node("Shape", "x", "all", start=0, end=1), node("Squeeze", "all", "all_"),
            node("Range", "start all_ k1", "o")]  # fmt: skip
USES = {
    "mean": [
        node("Cast", "m", "f", to=T.FLOAT), node("Unsqueeze", "f last", "u"),
        node("Mul", "t_x u", "s"), node("ReduceSum", "s one", "n", keepdims=0),
        node("ReduceSum", "u one", "c", keepdims=0), node("Clip", "c floor", "d"),
        node("Div", "n d", "h"),
    ],
    "mean of whole counts": [
        node("Unsqueeze", "m last", "u"), node("Where", "u t_x zero", "s"),
        node("ReduceSum", "s one", "n", keepdims=0), node("Cast", "m", "i", to=T.INT64),
        node("ReduceSum", "i one", "c", keepdims=1), node("Max", "c k1", "d"),
        node("Cast", "d", "g", to=T.FLOAT), node("Div", "n g", "h"),
    ],
    "other rows": [
        node("Unsqueeze", "m last", "u"), node("Where", "u t_x row", "s"),
        node("ReduceMean", "s", "h", axes=[1], keepdims=0),
    ],
    "hidden": [
        node("Transpose", "t_x", "k_", perm=[0, 2, 1]), node("MatMul", "t_x k_", "s"),
        node("Where", "m zero never", "f"), node("Unsqueeze", "f one", "u"),
        node("Add", "s u", "q"), node("Softmax", "q", "p"), node("MatMul", "p t_x", "v"),
        node("ReduceMean", "v", "h", axes=[1], keepdims=0),
    ],
    "counted positions": [
        node("Cast", "m", "i", to=T.INT32), node("CumSum", "i k1", "c"), node("Mul", "c i", "d"),
        node("Cast", "d", "l", to=T.INT64), node("CastLike", "l x", "l_"),
        node("Add", "l_ k1", "r_"), node("Gather", "tp r_", "q_r"),
        node("Add", "t_x q_r", "s"), node("ReduceMean", "s", "h", axes=[1], keepdims=0),
    ],
    "added positions": [
        node("Cast", "m", "i", to=T.INT64), node("Mul", "x i", "xi"), node("CumSum", "xi k1", "c"),
        node("Equal", "c k", "e_"), node("Cast", "e_", "l", to=T.INT64),
        node("Gather", "tp l", "q_r"), node("Add", "t_x q_r", "s"),
        node("ReduceMean", "s", "h", axes=[1], keepdims=0),
    ],
    "last shown": [
        *LAST, *NUMBERED, node("Unsqueeze", "o last", "o1"), node("Unsqueeze", "g last", "g1"),
        node("Concat", "o1 g1", "here", axis=-1), node("GatherND", "t_x here", "h"),
    ],
    "last shown of all": [
        *LAST, *NUMBERED, node("Mul", "o long", "o0"), node("Add", "g o0", "here"),
        node("Flatten", "t_x", "f1", axis=2), node("Gather", "f1 here", "h"),
    ],
    "last shown of its row": [
        *LAST, node("Unsqueeze", "g last", "here"),
        node("GatherND", "t_x here", "h", batch_dims=1)],
    "last counted": [
        node("Cast", "m", "i", to=T.INT64), node("ReduceSum", "i one", "c", keepdims=1),
        node("Sub", "c k1", "g"), node("Unsqueeze", "g last", "g1"),
        node("Expand", "g1 wide", "here"), node("GatherElements", "t_x here", "h_", axis=1),
        node("Squeeze", "h_ one", "h"),
    ],
    "some": [
        node("Cast", "m", "i", to=T.INT64), node("CumSum", "i k1", "c"), node("Sub", "c k1", "g"),
        node("Unsqueeze", "g last", "g1"), node("Expand", "g1 wider", "here"),
        node("GatherElements", "t_x here", "h_", axis=1),
        node("ReduceMean", "h_", "h", axes=[1], keepdims=0),
    ],
    "ends": [
        node("ArgMax", "x", "g", axis=1), node("ArgMin", "x", "g0", axis=1, select_last_index=1),
        node("Cast", "m", "i", to=T.INT64), node("ArgMax", "i", "g1", axis=1, select_last_index=1),
        *NUMBERED, node("Concat", "g g0 g1", "g2", axis=1), node("Unsqueeze", "o last", "o1"),
        node("Max", "o1 g2", "most"), node("Shape", "most", "shape_"),
        node("Expand", "o1 shape_", "o2"), node("Unsqueeze", "o2 last", "o3"),
        node("Expand", "g2 shape_", "g3"), node("Unsqueeze", "g3 last", "g4"),
        node("Concat", "o3 g4", "here", axis=2), node("GatherND", "t_x here", "h_"),
        node("ReduceMean", "h_", "h", axes=[1], keepdims=0),
    ],
    "one type for all": [
        node("Shape", "x", "size_", start=0, end=1), node("Concat", "size_ four", "both_", axis=0),
        node("Expand", "types both_", "y_"), node("Cast", "m", "i", to=T.INT64),
        node("GatherElements", "y_ i", "y_i", axis=1), node("Gather", "tp y_i", "q_0"),
        node("Gather", "tp y_", "q_1"), node("Gather", "tp i", "q_2"),
        node("Sum", "t_x q_0 q_1 q_2", "s"),
        node("ReduceMean", "s", "h", axes=[1], keepdims=0),
    ],
    "nearly hidden": [
        node("Transpose", "t_x", "k_", perm=[0, 2, 1]), node("MatMul", "t_x k_", "s"),
        node("Unsqueeze", "m one", "u"), node("Where", "u s far", "q"),
        node("Softmax", "q", "p"), node("MatMul", "p t_x", "v"),
        node("ReduceMean", "v", "h", axes=[1], keepdims=0),
    ],
}  # fmt: skip
"""from the mask m and the rows t_x of a table to h [N, width]"""


def network(
    mask: list[NodeProto], use: list[NodeProto], rng: np.random.Generator, ids: str = "x"
) -> ModelProto:
    """Rows of a table, what a mask makes of them, and a matrix."""
    nodes = [*mask, node("Gather", f"t {ids}", "t_x"), *use, node("MatMul", "h w", "y")]
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
    }  # fmt: skip
    used = {name for item in nodes for name in item.input}
    constants = {name: value for name, value in constants.items() if name in used}
    return of_numbers(model(nodes, ["N", POSITIONS], constants))


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
    other = [node("Equal", "x high", "e2"), node("Cast", "e2", "f2", to=T.FLOAT),
             node("Unsqueeze", "f2 last", "u2")]  # fmt: skip
    use = [*USES["mean"][:4], *other, node("ReduceSum", "u2 one", "c", keepdims=0),
           *USES["mean"][5:]]  # fmt: skip
    proto = network(MASKS["not equal"], use, np.random.default_rng(0))
    assert not any(isinstance(step.op, MaskedMean) for step in program(proto).steps)
    part = [*USES["mean"][:4], node("Slice", "u zero_ two one", "u2"),
            node("ReduceSum", "u2 one", "c", keepdims=0), *USES["mean"][5:]]  # fmt: skip
    proto = network(MASKS["not equal"], part, np.random.default_rng(0))
    proto.graph.initializer.extend(model([], ["N"], {"zero_": [0], "two": [2]}).graph.initializer)
    assert not any(isinstance(step.op, MaskedMean) for step in program(proto).steps)


def test_ids_of_a_narrower_type_are_others_than_the_ids() -> None:
    """As int32, 2³² is 0: no mean counts one of them and adds up the other."""
    cast = [node("Cast", "x", "i", to=T.INT32)]
    found = program(
        network([*cast, *MASKS["not equal"]], USES["mean"], np.random.default_rng(0), "i")
    )
    assert found.ids == ROWS
    own = [*cast, node("Cast", "i", "z", to=T.INT64), node("Equal", "z k", "e0"),
           node("Not", "e0", "m0"), *MASKS["not equal"]]  # fmt: skip
    for counted, is_mean in (("m", True), ("m0", False)):
        use = [node("Cast", "m", "f", to=T.FLOAT), node("Unsqueeze", "f last", "u"),
               node("Mul", "t_x u", "s"), node("ReduceSum", "s one", "n", keepdims=0),
               node("Cast", counted, "f0", to=T.FLOAT), node("Unsqueeze", "f0 last", "u0"),
               node("ReduceSum", "u0 one", "c", keepdims=0), *USES["mean"][5:]]  # fmt: skip
        steps = program(network(own, use, np.random.default_rng(0))).steps
        assert any(isinstance(step.op, MaskedMean) for step in steps) == is_mean
    refused([*cast, node("Cast", "i", "r", to=T.FLOAT), node("Greater", "r zero", "m")],
            USES["mean"], "i")  # fmt: skip


SCORES = [node("Transpose", "t_x", "k_", perm=[0, 2, 1]), node("MatMul", "t_x k_", "s"),
          node("Unsqueeze", "m one", "u"), node("Where", "u never s", "q"),
          node("Softmax", "q", "p")]  # fmt: skip
MEAN = node("ReduceMean", "v", "h", axes=[1], keepdims=0)
GUARD = [node("IsNaN", "p", "n"), node("Where", "n zero p", "g"), node("MatMul", "g t_x", "v"),
         MEAN]  # fmt: skip
"""of an example of padding alone no token is seen, and its output is 0"""
REFUSED = {
    "another number where nothing is seen": (MASKS["less"], [
        *SCORES, node("IsNaN", "p", "n"), node("Where", "n far p", "g"),
        node("MatMul", "g t_x", "v"), MEAN]),
    "a number for the output of nothing": (MASKS["less"], [
        *SCORES, node("MatMul", "p t_x", "a"), node("IsNaN", "a", "n"),
        node("Where", "n zero a", "v"), MEAN]),
    "a threshold behind an output of nothing": (MASKS["less"], [
        *SCORES, node("MatMul", "p t_x", "a"), node("Greater", "a far", "n"),
        node("Where", "n a far", "v"), MEAN]),
    "a mask that repeats the scores": (
        [node("Unsqueeze", "x one", "x_"), node("Less", "x_ k41", "m")], [
        node("ReduceMean", "t_x", "b", axes=[1], keepdims=1),
        node("Transpose", "t_x", "k_", perm=[0, 2, 1]), node("MatMul", "b k_", "s"),
        node("Where", "m never s", "q"), node("Softmax", "q", "p"), node("MatMul", "p t_x", "v"),
        MEAN]),
    "infinities that repeat the scores": (
        [node("Less", "x k", "m")], [
        node("ReduceMean", "t_x", "b", axes=[1], keepdims=1),
        node("Transpose", "t_x", "k_", perm=[0, 2, 1]), node("MatMul", "b k_", "s"),
        node("Unsqueeze", "m one", "u"), node("Where", "u nevers s", "q"),
        node("Softmax", "q", "p"), node("MatMul", "p t_x", "v"), MEAN]),
    "quotients of ids that a constant chooses": (MASKS["greater"], [
        node("Where", "odd x k", "i"), node("Gather", "i first", "a", axis=1),
        node("Gather", "i last", "b", axis=1), node("Div", "a b", "c"),
        node("Cast", "c", "f", to=T.FLOAT), node("MatMul", "f t1", "h")]),
    "means of ids that a constant chooses": (MASKS["greater"], [
        node("Cast", "x", "x32", to=T.INT32), node("Where", "odd x32 x32", "i"),
        node("ReduceMean", "i", "c", axes=[1]), node("Cast", "c", "f", to=T.FLOAT),
        node("MatMul", "f t1", "h")]),
    "truth values that a constant chooses": (MASKS["not equal"], [
        node("Where", "odd m e", "o"), node("Cast", "o", "f", to=T.FLOAT),
        node("MatMul", "f t4", "h")]),
    "what hides, chosen by a constant": (MASKS["greater"], [
        *USES["hidden"][:3], node("Where", "odd f zero", "g"), node("Unsqueeze", "g one", "u"),
        *USES["hidden"][4:]]),
    "the larger of a count and an id": (MASKS["greater"], [
        node("Cast", "m", "i", to=T.INT64), node("ReduceSum", "i one", "c", keepdims=1),
        node("Max", "c x", "d"), node("Cast", "d", "f", to=T.FLOAT), node("MatMul", "f t4", "h")]),
    "a number of the type of narrower ids": (
        [node("Cast", "x", "x_", to=T.INT32), node("CastLike", "k1 x_", "l"),
         node("Cast", "l", "l_", to=T.INT64), node("Greater", "x l_", "m")], USES["mean"]),
    "parts of numbers": ([node("Cast", "x", "r", to=T.FLOAT), node("Mul", "r half", "h2"),
                          node("Equal", "h2 zero", "m")], USES["mean"]),
    "limits between numbers": ([node("Cast", "x", "r", to=T.FLOAT),
                                node("Equal", "r half", "m")], USES["mean"]),
    "products of numbers": ([node("Cast", "x", "r", to=T.FLOAT), node("Mul", "r r", "rr"),
                             node("Cast", "rr", "m", to=T.BOOL)], USES["mean"]),
    "a sum as a number": (MASKS["greater"], [
        node("Mul", "x x", "c"), node("Cast", "c", "f", to=T.FLOAT), node("MatMul", "f t4", "h")]),
    "the largest of reals": (MASKS["greater"], [
        node("ArgMax", "t_x", "at", axis=2, keepdims=1), node("Gather", "t at", "h_"),
        node("ReduceMean", "h_", "h", axes=[1, 2], keepdims=0)]),
    "tokens by a count that may be -1, of another example then": (MASKS["greater"], [
        node("Cast", "m", "i", to=T.INT64), node("ReduceSum", "i one", "c", keepdims=0),
        node("Sub", "c k1", "g"), *USES["last shown of all"][3:]]),
    "tokens of parts that are shorter": (MASKS["greater"], [
        *USES["last shown of all"][:6], node("Mul", "o shorter", "o0"),
        *USES["last shown of all"][7:]]),
    "tokens of every second example": (MASKS["greater"], [
        node("Range", "start all_ two", "o") if item.op_type == "Range" else item
        for item in USES["last shown"]]),
    "tokens of the example that a number names": (MASKS["greater"], [
        node("Concat", "g1 o1", "here", axis=-1) if item.op_type == "Concat" else item
        for item in USES["last shown"]]),
    "entries of the examples that a number names": (MASKS["greater"], [
        node("Cast", "m", "i", to=T.INT64), node("Unsqueeze", "i last", "g"),
        node("Expand", "g wide", "here"), node("GatherElements", "t_x here", "h_", axis=0),
        node("ReduceMean", "h_", "h", axes=[1], keepdims=0)]),
    "the example of the largest number": (MASKS["greater"], [
        node("ArgMax", "x", "g", axis=0), node("Gather", "t g", "h_"),
        node("ReduceMean", "h_", "h", axes=[1], keepdims=0)]),
    "examples that a number names": (MASKS["greater"], [*LAST, node("Gather", "t_x g", "h_"),
        node("ReduceMean", "h_", "h", axes=[1], keepdims=0)]),
    "negated ids": ([node("Not", "x", "m")], USES["mean"]),
    "a large limit": ([node("Greater", "x huge", "m")], USES["mean"]),
    "masked ids": (MASKS["greater"], [node("Where", "m x k", "i"), node("Gather", "t i", "h_"),
                                      node("ReduceMean", "h_", "h", axes=[1], keepdims=0)]),
    "products of counts": (MASKS["greater"], [
        node("Cast", "m", "i", to=T.INT64), node("CumSum", "i k1", "j"), node("Mul", "j j", "c"),
        node("Cast", "c", "f", to=T.FLOAT),
        node("MatMul", "f t4", "h")]),
    "sums of sums": (MASKS["greater"], [
        node("Cast", "m", "i", to=T.INT64), node("ReduceSum", "i one", "c", keepdims=1),
        node("ReduceSum", "c one", "d", keepdims=1), node("Cast", "d", "f", to=T.FLOAT),
        node("MatMul", "f t1", "h")]),
    "positions as numbers": (MASKS["greater"], [
        *USES["counted positions"][:6], node("Cast", "r_", "f", to=T.FLOAT),
        node("MatMul", "f t4", "h")]),
    "the row of another example": ([
        *(node("Range", "k1 n_ k1", "r") if item.op_type == "Range" else item
          for item in MASKS["of its own row"])], USES["mean"]),
    "every second example": ([
        *(node("Range", "start n_ two", "r") if item.op_type == "Range" else item
          for item in MASKS["of its own row"])], USES["mean"]),
    "the row before": ([
        *MASKS["of its own row"][:4], node("Add", "r minus", "r0"),
        node("Unsqueeze", "r0 last", "r1"), *MASKS["of its own row"][5:]], USES["mean"]),
    "the examples the other way round": ([
        *MASKS["of its own row"][:4], node("Sub", "start r", "r0"),
        node("Unsqueeze", "r0 last", "r1"), *MASKS["of its own row"][5:]], USES["mean"]),
    "parts that are shorter": ([
        node("Mul", "r shorter", "r0") if item.op_type == "Mul" else item
        for item in MASKS["of its own part of all"]], USES["mean"]),
    "parts that begin later": ([
        *MASKS["of its own part of all"][:6], node("Add", "places k1", "p1"),
        node("Add", "r1 p1", "at"), *MASKS["of its own part of all"][7:]], USES["mean"]),
    "numbers that wrap around": ([
        *MASKS["of its own row"][:4], node("Cast", "r", "r8", to=T.INT8),
        node("Cast", "r8", "r0", to=T.INT64), node("Unsqueeze", "r0 last", "r1"),
        *MASKS["of its own row"][5:]], USES["mean"]),
    "the number of an example as its position": ([
        *MASKS["of its own row"][:-2], node("Concat", "p3 r3", "at", axis=-1),
        MASKS["of its own row"][-1]], USES["mean"]),
    "the number of an example as a number": (MASKS["greater"], [
        *MASKS["of its own row"][1:5], node("Cast", "r1", "f", to=T.FLOAT),
        node("Mul", "f w3", "h")]),
    "the number of an example as an id": (MASKS["greater"], [
        *MASKS["of its own row"][1:4], node("Gather", "t r", "h")]),
    "the larger of two numbers of examples": (MASKS["greater"], [
        *MASKS["of its own row"][1:4], node("Max", "r k1", "b"), node("Gather", "t b", "h")]),
    "types that differ": (MASKS["greater"], [
        item if item.op_type != "Expand" else node("Expand", "many both_", "y_")
        for item in USES["one type for all"]]),
    "hidden outside of attention": (MASKS["greater"], [
        node("Unsqueeze", "m last", "u"), node("Where", "u t_x never", "s"),
        node("ReduceMax", "s", "h", axes=[1], keepdims=0)]),
    "plus infinity": (MASKS["greater"], [
        node("Unsqueeze", "m last", "u"), node("Where", "u t_x ever", "s"),
        node("ReduceMax", "s", "h", axes=[1], keepdims=0)]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_bound_speaks_of_is_refused(name: str) -> None:
    refused(*REFUSED[name])


def refused(mask: list[NodeProto], use: list[NodeProto], ids: str = "x") -> None:
    proto = network(mask, use, np.random.default_rng(0), ids)
    used = {name for item in proto.graph.node for name in item.input}
    more = {"huge": np.int64(2**60), "ever": np.float32(np.inf), "t4": np.ones((4, WIDTH)),
            "two": np.int64(2), "half": np.float32(0.5), "shorter": np.int64(3),
            "minus": np.int64(-1), "many": np.arange(4)[None],
            "t1": np.ones((1, WIDTH)), "k32": np.int64(0),
            "w3": np.ones(WIDTH), "k41": np.zeros((4, 1), np.int64), "first": [0],
            "nevers": np.full((1, POSITIONS, 1), -np.inf)}  # fmt: skip
    more = {name: value for name, value in more.items() if name in used}
    proto.graph.initializer.extend(model([], ["N"], more).graph.initializer)
    with pytest.raises(Unsupported):
        program(proto)


def test_attention_hides_by_a_value() -> None:
    for use in (USES["hidden"], [*SCORES, *GUARD]):
        found: Program = program(network(MASKS["less"], use, np.random.default_rng(0)))
        (step,) = (step for step in found.steps if isinstance(step.op, Attention))
        assert len(step.inputs) == 4
