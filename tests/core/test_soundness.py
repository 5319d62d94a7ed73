"""Soundness: no example, label or admissible weights exceed a bound, on random ONNX models."""

import numpy as np
import onnxruntime as ort
import pytest
import torch

from lipcert.core.certificate import Constraint, ScopeClaim
from lipcert.core.interval import Interval, exact
from lipcert.core.ledger.premises import Premises
from lipcert.core.ledger.updates import Clipless
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Activation, Dense, Move, Op
from lipcert.core.rules.base import rule_class
from lipcert.core.rules.facts import Cotangent, Fact
from lipcert.core.window_kinds import Conv
from lipcert.search.evidence import Evidence
from lipcert.search.prover import derive
from tests.core.adversary import found_above
from tests.core.lower.cases import model, program
from tests.core.onnx_torch import compute, stored
from tests.core.random_models import random_model

SEEDS = 12
_PREMISES = Premises(1.0, None, "mae", (("output_reduction", "sum"),), None, "add-remove",
                     mechanism=Clipless())  # fmt: skip


@pytest.mark.sample(seed=SEEDS // 3)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_exceeds_its_bound(seed: int) -> None:
    assert not found_above(seed)


@pytest.mark.sample(seed=SEEDS // 3)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_oracle_computes_what_onnxruntime_does(seed: int) -> None:
    proto = random_model(seed)
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    shape = [dim.dim_value or 1 for dim in dims]
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    ours = compute(proto, torch.from_numpy(x).double(), stored(proto))[proto.graph.output[0].name]
    try:
        session = ort.InferenceSession(proto.SerializeToString())
    except Exception as error:  # noqa: BLE001 (some models repeat an input of Gemm or pad too far)
        pytest.skip(str(error)[:80])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], ours.numpy(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "question", "seed"),
    [
        (Dense, "fact", 0),
        (Conv, "fact", 2),
        (Move, "fact", 0),
        (Dense, "pulled", 0),
        (Dense, "lipschitz", 0),
        (Conv, "lipschitz", 2),
        (Move, "lipschitz", 4),
        (Activation, "fact", 0),
        (Activation, "slopes", 1),
        (Dense, "reaches", 0),
    ],
)
def test_the_adversary_finds_a_lost_factor_of_two(
    monkeypatch: pytest.MonkeyPatch, kind: type[Op], question: str, seed: int
) -> None:
    """One mutant per kind of question."""
    rule = rule_class(kind)
    right = getattr(rule, question)
    monkeypatch.setattr(rule, question, lambda *a: _halved(right(*a)))
    assert found_above(seed, 4)


def _halved(found: object) -> object:
    match found:
        case Fact():
            return Fact(found.norm / 2.0, found.box, found.row_norm, found.column_norm)
        case Cotangent():
            return Cotangent(found.norm / 2.0, found.hull)
        case float():
            return found / 2.0
        case Interval():
            return found * exact(0.5)
        case _:
            return [(operand, reach / 2.0) for operand, reach in found]


def test_a_trained_number_in_a_function_is_refused_within_constraints() -> None:
    """The limit of a clip is read from the file, but the constraints admit others."""
    numbers = {"low": -0.1, "high": 0.1, "w": np.eye(2)}
    found = program(model("c = Clip(x, low, high)  y = Gemm(c, w)", ["N", 2], numbers))
    assert found.untracked == {"low", "high"}
    trained = ("high", "w")
    balls = tuple(Constraint(name, "frobenius", 2.0) for name in trained)
    for scope, refused in (
        (ScopeClaim("point", trained, ()), False),
        (ScopeClaim("constraint-set", ("w",), balls[1:]), False),
        (ScopeClaim("constraint-set", trained, balls), True),
    ):
        evidence = Evidence(scope)
        if refused:
            with pytest.raises(Unsupported, match="enters as a plain number"):
                derive(found, _PREMISES, evidence)
        else:
            derive(found, _PREMISES, evidence)


def test_a_value_that_steps_pass_by_does_not_keep_the_name_of_the_tensor() -> None:
    """Both moves of x are one step, so that half of the gradient at v never reaches a step v."""
    nodes = """v = Reshape(x, s)  t = Transpose<perm=[0, 2, 1]>(v)  u = Reshape(t, f)  r = Relu(v)
        q = Reshape(r, f)  y = Add(u, q)"""
    found = program(model(nodes, ["N", 4], {"s": [0, 2, 2], "f": [0, 4]}))
    assert "v" not in found.shapes
    evidence = Evidence(ScopeClaim("point", (), ()))
    derived = derive(found, _PREMISES, evidence)
    # at the input both ways count
    assert derived.cotangents["x"].norm >= 2.0 * np.sqrt(4.0)
