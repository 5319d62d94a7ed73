"""Embeddings: rows of tables against autograd; numbers that are read as such; hostile files."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto

from lipcert.core.certificate import Constraint, ScopeClaim
from lipcert.core.ledger.premises import Premises
from lipcert.core.ledger.updates import Clipless
from lipcert.core.lower.errors import Unsupported
from lipcert.search.evidence import Evidence
from lipcert.search.prover import derive
from tests.core.lower.cases import agrees, model, program, used
from tests.core.onnx_torch import compute, stored

SLACK = 1e-9


def of_numbers(proto: ModelProto, kind: int = TensorProto.INT64) -> ModelProto:
    """With an input of whole numbers."""
    proto.graph.input[0].type.tensor_type.elem_type = kind
    return proto


def bounds(
    proto: ModelProto, scope: ScopeClaim, box: tuple[float, float] | None, loss: str
) -> dict[str, float]:
    """Of every trained tensor, by the checker alone."""
    parameters = {
        "cross-entropy": (("label_smoothing", 0.0), ("temperature", 1.0)),
        "mae": (("output_reduction", "sum"),),
    }[loss]
    premises = Premises(None, box, loss, parameters, None, "add-remove", mechanism=Clipless())
    found = derive(program(proto), premises, Evidence(scope))
    return {name: found.gradients[name] for name in scope.trained}


def gradients(
    proto: ModelProto, x: np.ndarray, label: int, loss: str, weights: dict[str, torch.Tensor]
) -> dict[str, float]:
    """Norms for one example x [...], by autograd."""
    held = {name: w.clone().requires_grad_() for name, w in weights.items()}
    rest = {name: w for name, w in stored(proto).items() if name not in held}
    y = compute(proto, torch.from_numpy(x[None]), {**rest, **held})["y"]
    if loss == "mae":
        target = 1e6 * torch.where(torch.arange(y.numel()) == label, 1.0, -1.0)
        (y.reshape(-1) - target).abs().sum().backward()
    else:
        torch.nn.functional.cross_entropy(y.reshape(1, -1), torch.tensor([label])).backward()
    return {n: 0.0 if w.grad is None else float(w.grad.norm()) for n, w in held.items()}


def text(
    rng: np.random.Generator, rows: int, width: int, positions: int, kind: str, layer: bool
) -> tuple[ModelProto, tuple[str, ...]]:
    """Rows of a view of a table, perhaps normalised, added up over positions, and classified."""
    table = (width, rows) if kind in {"transposed", "tied"} else (rows, width)
    constants = {
        "t": rng.standard_normal(table),
        "w": rng.standard_normal((width, 3)),
        "axes": [1],
        "scale": np.float32(rng.uniform(0.2, 3.0)),
        "g": rng.uniform(-2.0, 2.0, width),
        "b": rng.standard_normal(width),
    }
    made = {"scaled": "Mul(t, scale)", "transposed": "Transpose(t)", "tied": "Transpose(t)"}
    nodes = f"view = {made.get(kind, 'Identity(t)')}  e = Gather(view, x)"
    last, trained = "e", ["t"]
    if kind == "twice":
        nodes += "  f = Gather(t, x)  r = Relu(f)  h = Add(e, r)"
        last = "h"
    if layer:
        nodes += f"  n = LayerNormalization<epsilon=0.1>({last}, g, b)"
        last = "n"
        trained += ["g", "b"]
    nodes += f"  m = ReduceSum<keepdims=0>({last}, axes)"
    nodes += f"  y = MatMul(m, {'t' if kind == 'tied' else 'w'})"
    trained += [] if kind == "tied" else ["w"]
    proto = model(nodes, ["N", positions], used(nodes, constants))
    return of_numbers(proto), tuple(sorted(trained))


@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 6),
    width=st.integers(1, 6),
    positions=st.integers(1, 7),
    kind=st.sampled_from(["plain", "scaled", "transposed", "tied", "twice"]),
    layer=st.booleans(),
    held=st.sampled_from([None, "frobenius", "spectral"]),
    loss=st.sampled_from(["cross-entropy", "mae"]),
)
def test_no_ids_and_no_admitted_weights_exceed_a_bound(
    seed: int, rows: int, width: int, positions: int, kind: str, layer: bool, held: str | None,
    loss: str,
) -> None:  # fmt: skip
    """Ids that are all equal, all negative, and drawn; weights at the rims of their constraints."""
    rng = np.random.default_rng(seed)
    proto, trained = text(rng, rows, width, positions, kind, layer)
    weights = {name: w for name, w in stored(proto).items() if name in trained}
    scope = ScopeClaim("point", trained, ())
    if held is not None:
        limits = tuple(
            Constraint(name, held, float(length(w, held) * rng.uniform(0.5, 2.0)))
            for name, w in weights.items()
        )
        scope = ScopeClaim("constraint-set", trained, limits)
    limit = bounds(proto, scope, (-float(rows), rows - 1.0), loss)
    classes = rows if kind == "tied" else 3
    drawn = rng.integers(-rows, rows, size=(3, positions))
    alike = np.repeat(rng.integers(-rows, rows, size=(3, 1)), positions, axis=1)
    for x in np.concatenate([drawn, alike]):
        for spread in (False, True):
            point = admitted(weights, scope, rng, spread=spread)
            for label in range(classes):
                for name, norm in gradients(proto, x, label, loss, point).items():
                    assert norm <= limit[name] * (1 + SLACK), (name, x)


def length(weight: torch.Tensor, kind: str) -> float:
    """As a constraint measures it. Of tables that also are matrices: as matrices."""
    if kind == "frobenius":
        return float(weight.norm())
    if weight.ndim == 1:
        return float(weight.abs().max())
    return float(torch.linalg.matrix_norm(weight, 2))


def admitted(
    weights: dict[str, torch.Tensor], scope: ScopeClaim, rng: np.random.Generator, *, spread: bool
) -> dict[str, torch.Tensor]:
    """At the rims of the constraints; spread: other weights than the file's."""
    found = dict(weights)
    for item in scope.constraints:
        w = weights[item.tensor]
        w = torch.from_numpy(rng.standard_normal(w.shape)) if spread else w
        found[item.tensor] = w * (item.radius / max(length(w, item.kind), 1e-9))
    return found


def test_a_bound_is_attained_where_all_ids_are_equal() -> None:
    """Nine positions read one row, whose gradient is the sum of nine equal cotangents: √9 of c."""
    nodes = "e = Gather(t, x)  y = Flatten(e)"
    proto = of_numbers(model(nodes, ["N", 9], {"t": np.zeros((2, 1))}))
    limit = bounds(proto, ScopeClaim("point", ("t",), ()), (0.0, 1.0), "mae")["t"]
    y = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    (y[torch.zeros(9, dtype=torch.int64)] + 1.0).abs().sum().backward()
    assert limit == pytest.approx(float(y.grad.norm()), rel=1e-9)


def test_a_spectral_radius_is_that_of_the_longest_row() -> None:
    """Rows that are all alike: of norm 1 each, although the matrix has a norm of √50."""
    proto, trained = text(np.random.default_rng(0), 50, 4, 3, "plain", layer=False)
    limits = tuple(Constraint(name, "spectral", 1.0) for name in trained)
    limit = bounds(proto, ScopeClaim("constraint-set", trained, limits), (0.0, 49.0), "mae")
    table = torch.zeros(50, 4, dtype=torch.float64)
    table[:, 0] = 1.0
    weights = {"t": table, "w": torch.eye(4, 3, dtype=torch.float64)}
    found = gradients(proto, np.array([1, 7, 7]), 0, "mae", weights)
    assert all(norm <= limit[name] * (1 + SLACK) for name, norm in found.items())


def test_numbers_beside_those_that_choose_rows_may_be_larger_than_the_table() -> None:
    """Column 0 reads one of five rows, column 1 is an age of up to 120."""
    rng = np.random.default_rng(0)
    nodes = """a, b = Split<axis=1>(x, sizes)  e = Gather(t, a)  r = Reshape(e, shape)
        f = Cast<to=1>(b)  z = MatMul(f, u)  h = Add(r, z)  y = MatMul(h, w)"""
    tensors = {"t": rng.standard_normal((5, 4)), "u": np.ones((1, 4)), "w": np.eye(4, 3)}
    proto = of_numbers(model(nodes, ["N", 2], {**tensors, "sizes": [1, 1], "shape": [-1, 4]}))
    trained = ("t", "u", "w")
    limit = bounds(proto, ScopeClaim("point", trained, ()), (0.0, 120.0), "cross-entropy")
    t, u, w = (
        torch.from_numpy(tensors[name].astype(np.float32).astype(float)).requires_grad_()
        for name in trained
    )
    for label in range(3):
        y = (t[2] + 120.0 * u[0]) @ w
        loss = torch.nn.functional.cross_entropy(y[None], torch.tensor([label]))
        found = torch.autograd.grad(loss, [t, u, w])
        for name, gradient in zip(trained, found, strict=True):
            assert float(gradient.norm()) <= limit[name]


I, T = "x, k", TensorProto
COMPUTED = {
    **{op: f"i = {op}({I})" for op in ("Div", "Mod", "Max", "Min", "Pow")},
    **{op: f"i = {op}(x)" for op in ("Abs", "Neg", "Relu", "Sign", "Trilu", "Dropout")},
    **{
        f"Cast to {kind}": f"n = Cast<to={kind}>(x)  i = Cast<to=7>(n)"
        for kind in (T.INT8, T.UINT8, T.UINT64, T.FLOAT)
    },
    "Equal": f"c = Equal({I})  i = Where(c, x, k)",
    "Greater": f"c = Greater({I})  i = Where(c, x, k)",
    "Clip": "i = Clip(x, k, k)",
    "Pad": "i = Pad(x, pads)",
    "ReduceMax": "i = ReduceMax(x)",
}


@pytest.mark.parametrize("name", COMPUTED)
def test_ids_are_not_computed_with_as_with_reals(name: str) -> None:
    """Division of whole numbers drops what is left, and types lose numbers."""
    nodes = f"{COMPUTED[name]}  e = Gather(t, i)  y = Flatten(e)"
    constants = {"t": np.ones((5, 4)), "k": np.int64(1), "pads": [0, 0, 0, 1]}
    refused(of_numbers(model(nodes, ["N", 3], constants, opset=20)))


SUMS = {
    "numbers of columns of their own": "i = Add(x, first)",
    "numbers turned round": "i = Sub(four, x)",
    "multiples": "i = Mul(x, minus)",
    "beside a constant": """n = Shape<end=1>(x)  s = Concat<axis=0>(n, two)
        some = Expand(four, s)  i = Concat<axis=1>(x, some, x)""",
    "sums of those before": "i = CumSum<exclusive=1>(x, k)",
    "places from the end": """r = Cast<to=1>(x)  c = Less(r, zero)  n = Not(c)  f = Cast<to=7>(c)
        g = Cast<to=7>(n)  m = Add(x, four)  a = Mul(f, m)  b = Mul(x, g)  i = Add(a, b)""",
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_ids_read_rows(name: str) -> None:
    nodes = f"{SUMS[name]}  e = Gather(t, i)  y = ReduceSum<keepdims=0>(e, one)"
    constants = {
        "t": np.random.default_rng(0).standard_normal((9, 4)), "k": np.int64(1),
        "first": [0, 3, 5], "one": [1], "four": np.int64(4), "minus": [-1, 1, 2],
        "two": [2], "zero": np.float32(0.0),
    }  # fmt: skip
    proto = of_numbers(model(nodes, ["N", 3], constants))
    ids = np.random.default_rng(1).integers(-4, 4, size=(10, 1, 3))
    assert agrees(proto, examples=[*ids]).batch_proved


@pytest.mark.parametrize(("axis", "kind"), [(-1, np.float32), (1, np.int64)])
def test_one_hot_ids_are_entries(axis: int, kind: type) -> None:
    """Of numbers that name no place onnxruntime makes zeros, and so does the program."""
    nodes = f"h = OneHot<axis={axis}>(x, depth, ends)  f = Cast<to=1>(h)  y = MatMul(f, w)"
    ends, w = np.asarray([0, 1], kind), np.random.default_rng(0).standard_normal((3, 2))
    w = w if axis == 1 else np.vstack([w, w[:1]])
    proto = of_numbers(model(nodes, ["N", 3], {"depth": np.int64(4), "ends": ends, "w": w}))
    ids = np.random.default_rng(1).integers(-4, 6, size=(10, 1, 3))
    found = agrees(proto, examples=[*ids])
    assert found.batch_proved
    assert found.ids == 4


SELECTED = {
    "ids of another axis": "e = Gather<axis=1>(t, x)",
    "entries, not rows": "e = Gather(line, x)",
    "GatherElements": "e = GatherElements(t, x)",
    "GatherND": "u = Unsqueeze(x, last)  e = GatherND(t, u)",
    "ScatterND": "e = ScatterND(t, x, rows)",
    "Slice": "e = Slice(t, x, x)",
    "Reshape": "e = Reshape(t, x)",
    "Expand": "e = Expand(t, x)",
    "ConstantOfShape": "e = ConstantOfShape(x)",
    "whole numbers of a table": "n = Gather(whole, x)  d = Div(n, depth)  e = Cast<to=1>(d)",
    "truth values of a table": "c = Gather(flags, x)  e = Where(c, t, t)",
    "rows of another example": "i = Reshape(x, turned)  e = Gather(t, i)",
}  # fmt: skip


@pytest.mark.parametrize("name", SELECTED)
def test_rows_of_a_table_are_all_that_ids_select(name: str) -> None:
    nodes = f"{SELECTED[name]}  y = Flatten(e)"
    constants = {"t": np.ones((5, 4)), "line": np.ones(5), "last": [-1], "depth": np.int64(4),
                 "ends": np.array([0.0, 1.0]), "rows": np.ones((1, 4)), "turned": [3, -1],
                 "whole": np.arange(20).reshape(5, 4), "flags": np.ones((5, 4), bool)}  # fmt: skip
    refused(of_numbers(model(nodes, ["N", 3], constants, opset=20)))


def test_numbers_that_another_type_would_make_negative_are_refused() -> None:
    """As int64, 2⁶⁴ − 1 is −1, of which the Relu is 1: not 0, as for all of [0, 2⁶⁴]."""
    nodes = "i = Cast<to=7>(x)  f = Cast<to=1>(i)  n = Neg(f)  y = Relu(n)"
    program(of_numbers(model(nodes, ["N", 3]), T.UINT32))
    refused(of_numbers(model(nodes, ["N", 3]), T.UINT64))


def refused(proto: ModelProto) -> None:
    with pytest.raises(Unsupported):
        program(proto)
