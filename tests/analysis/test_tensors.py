"""Which tensors of a file hold which parameter: what exporters merge, copy and leave out."""

import numpy as np
import pytest

from lipcert.analysis.bounded import Bounded, bounded, bounded_again
from lipcert.errors import NoVerdictError
from lipcert.importer.load import load_model
from lipcert.importer.nodes import FX_NODE
from lipcert.settings.settings import Settings
from tests.importer.models import model, saved, weights
from tests.importer.test_calls import noted
from tests.importer.test_parameters import with_metadata

PLAIN = Settings(input_norm=1.0, loss="cross-entropy")
RULE = "pkg.onnxscript.rewriter.rule_name"


def without_a_bias(folder, second: str):
    """y = 10·(w x + b) + c, where the file lacks b; both are zeros. second: how it calls c."""
    nodes = f'h = Gemm<transB=1>(x, w)  y = Gemm<transB=1>(h, v, "{second}")'
    v = 10.0 * np.eye(3, dtype=np.float32)
    tensors = {"w": weights(3, 4), "v": v, second: np.zeros(3, np.float32)}
    names = "".join(f"p_{name}: PARAMETER target='{name}'\n" for name in "wbvc")
    notes = {
        "h": {
            FX_NODE: noted("linear", "linear", "%x, %p_w, %p_b"),
            RULE: "RemoveOptionalBiasFromGemm",
        },
        "y": {FX_NODE: noted("linear_1", "linear", "%linear, %p_v, %p_c")},
    }
    proto = with_metadata(model(nodes, ("N", 4), tensors), f"x: USER_INPUT\n{names}", notes)
    return load_model(saved(proto, folder), trusted=True)


@pytest.mark.parametrize("second", ["c", "d"])
def test_a_bias_left_out_is_no_other_tensor_of_zeros(tmp_path, second: str) -> None:
    """∂loss/∂b = 10·∂loss/∂c, whose norm comes near √2 where another class is certain."""
    found = bounded(without_a_bias(tmp_path, second), PLAIN)
    for each in (found, bounded_again(found, Settings(input_norm=0.5, loss="cross-entropy"))):
        assert 14.1 < each.grad_norms["b"] < 14.2
        assert 1.41 < each.grad_norms["c"] < 1.42


@pytest.mark.parametrize(("size", "places"), [(4, [0] * 4), (1, [0] * 4), (3, [0, 0, 1, 1])])
def test_a_bias_of_repeated_zeros_is_not_left_out(tmp_path, size: int, places: list[int]) -> None:
    """y = Wx + b[places], W of ones: at x = (½, ½, ½, ½) and −0.35 as labels, ∂loss/∂y is 4.7."""
    nodes = "c = Gather(b, i)  y = Gemm(x, w, c)"
    tensors = {"w": np.ones((4, 4), np.float32), "b": np.zeros(size, np.float32)}
    proto = model(nodes, ("N", 4), {**tensors, "i": np.array(places)})
    settings = Settings(
        input_norm=1.0, loss="mse", label_norm=0.7, output_reduction="sum", half=False
    )
    bound = bounded(load_model(saved(proto, tmp_path)), settings).grad_norms["b"]
    attained = 4.7 * float(np.linalg.norm(np.bincount(places)))
    assert attained * (1 - 1e-12) <= bound <= attained * 1.001


def merged(folder):
    """y = b·(a·x): a and b were equal when the file was written, which stores them once."""
    nodes = "h = Mul(x, a)  y = Mul(h, a)"
    names = "p_a: PARAMETER target='a'\np_b: PARAMETER target='b'\n"
    notes = {
        "h": {FX_NODE: noted("mul", "mul", "%x, %p_a")},
        "y": {FX_NODE: noted("mul_1", "mul", "%mul, %p_b")},
    }
    proto = model(nodes, ("N", 4), {"a": np.arange(1, 5, dtype=np.float32)})
    return load_model(saved(with_metadata(proto, f"x: USER_INPUT\n{names}", notes), folder))


def bounds(folder, **settings: object) -> Bounded:
    return bounded(merged(folder), Settings(input_norm=1.0, loss="cross-entropy", **settings))


def test_parameters_that_share_a_tensor_share_its_bound(tmp_path) -> None:
    found = bounds(tmp_path)
    assert found.tensors == {"a": ("a",), "b": ("a",)}
    assert found.grad_norms["a"] == found.grad_norms["b"]


@pytest.mark.parametrize(
    "settings",
    [
        {"freeze": ("a",), "constraint": "frobenius:0.5"},
        {"constraints": {"a": "frobenius:10", "b": "frobenius:0.5"}},
        {
            "constraints": {"a": "frobenius:10", "b": "frobenius:0.5"},
            "mechanism": "weight-clipping",
        },
    ],
)
def test_a_shared_tensor_under_two_constraints_is_refused(
    tmp_path, settings: dict[str, object]
) -> None:
    """The bounds of the one that is let be, or of the looser one, would be those of the other."""
    with pytest.raises(NoVerdictError, match="'a' and 'b' as one tensor"):
        bounds(tmp_path, **settings)
    assert bounds(tmp_path, constraint="frobenius:0.5").derived.lipschitz <= 0.25 * (1 + 1e-9)


def test_other_numbers_of_parameters_that_share_a_tensor(tmp_path) -> None:
    found = bounds(tmp_path)
    ones = np.ones(4)
    again = bounded_again(found, PLAIN, {"a": ones, "b": ones})
    assert again.derived.lipschitz == pytest.approx(1.0)
    for other in ({"a": 3.0 * ones, "b": ones}, {"b": ones}):
        with pytest.raises(NoVerdictError, match="their numbers differ by now"):
            bounded_again(found, PLAIN, other)
