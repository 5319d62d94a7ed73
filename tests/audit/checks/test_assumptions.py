"""Constraints of weights: certified on both ends, and what rounding of a projection explains."""

from types import SimpleNamespace

import numpy as np
import pytest

from lipcert.audit.bounds import claims_of_analysis
from lipcert.audit.checks.assumptions import _reported, file_weights, stored_unit
from lipcert.audit.records import CheckReport, Verdict
from lipcert.audit.trace.records import Arithmetic
from lipcert.audit.weight_norms import Excess, operator_norm_lower, operator_norm_upper
from lipcert.graph.geometry import Window
from lipcert.graph.ir import Node, graph_at, is_shown, parameters_of
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.networks import dag, trained
from tests.ops import Conv, ConvTranspose, Dense, evaluated
from tests.written import model_of


def matrix_of(node: Node) -> np.ndarray:
    """The linear map as a matrix, entry by entry."""
    shape = node.given[0][1:]
    size = int(np.prod(shape))
    return evaluated(node, np.eye(size).reshape(size, *shape)).reshape(size, -1).T


@pytest.mark.parametrize("seed", range(4))
def test_the_norm_lies_between_its_ends_and_close_to_them(seed: int) -> None:
    random = np.random.default_rng(seed)
    window = Window(size=6, taps=3, stride=1 + seed % 2, pad_begin=1, pad_end=1)
    kernel = trained("w", random.standard_normal((4, 2, 3, 3)))
    matrix, bias = trained("w", random.standard_normal((5, 7))), trained("b", np.ones(5))
    conv = Conv(kernel, None, (window, window))((2, 6, 6))
    for node, unbiased in ((conv, conv), (Dense(matrix, bias)((7,)), Dense(matrix)((7,)))):
        exact = np.linalg.norm(matrix_of(unbiased), 2)
        found = operator_norm_lower(node)
        assert found <= exact * (1 + 1e-14)
        assert found >= 0.98 * exact
        proved = operator_norm_upper(node, "fast")
        assert exact * (1 - 1e-14) <= proved <= exact * (1 + 1e-3)


def test_a_transposed_convolution_too() -> None:
    random = np.random.default_rng(1)
    window = Window(size=6, taps=3, stride=1, pad_begin=1, pad_end=1)
    kernel = trained("w", random.standard_normal((2, 3, 3)))
    node = ConvTranspose(kernel, None, (window,))((2, 6))
    exact = np.linalg.norm(matrix_of(node), 2)
    assert 0.98 * exact <= operator_norm_lower(node) <= exact * (1 + 1e-14)
    assert exact * (1 - 1e-14) <= operator_norm_upper(node, "fast") <= exact * (1 + 1e-3)


@pytest.mark.parametrize(
    ("kind", "factor", "verdict"),
    [
        ("spectral", 1.0, Verdict.PASS),
        ("spectral", 1.0 + 2e-7, Verdict.PASS),
        ("spectral", 1.0 + 1e-5, Verdict.MISMATCH),
        ("frobenius", 0.4, Verdict.PASS),
        ("frobenius", 1.0, Verdict.MISMATCH),
    ],
)
def test_weights_of_the_file(kind: str, factor: float, verdict: Verdict) -> None:
    matrix = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0].astype(np.float32)
    report = checked(matrix.astype(np.float64) / np.linalg.norm(matrix, 2) * factor, kind)
    assert report.verdict is verdict
    assert report.expected == 1.0


def test_a_small_excess_is_stated() -> None:
    weight = (np.eye(6) * np.float32(1.0 + 2.4e-7)).astype(np.float64)
    found = checked(weight, "spectral")
    assert 1.0 + 2.3e-7 < found.measured < 1.0 + 2.9e-7
    assert f"{found.measured:.9g}" in found.message


def test_every_tensor_that_is_not_certainly_within_is_reported() -> None:
    ends = {"a": (0.9, 1.0), "b": (0.9, 1.1), "c": (1.1, 1.2)}
    spectral = ConstraintSpec("spectral", 2.0)
    found = [Excess("step 1", name, spectral, *ends[name], 1.0) for name in ends]
    reported = [(item.verdict, item.measured) for item in _reported(found, Verdict.MISMATCH)]
    assert reported == [(Verdict.INCONCLUSIVE, 2.2), (Verdict.MISMATCH, 2.2)]


def checked(weight: np.ndarray, kind: str) -> CheckReport:
    weight = weight.astype(np.float32).astype(np.float64)
    graph = dag((6,), [("o", Dense(trained("fc.weight", weight)), ("x",))])
    settings = Settings(constraint=ConstraintSpec(kind, 1.0), input_norm=1.0)
    claims = claims_of_analysis(model_of(graph), settings)
    (report,) = file_weights(claims, parameters_of(graph))
    return report


def test_a_graph_at_other_weights() -> None:
    graph = dag((6,), [("o", Dense(trained("fc.weight", np.eye(6))), ("x",))])
    other = graph_at(graph, {"fc.weight": 2.0 * np.eye(6)})
    assert is_shown(graph, "fc.weight", np.eye(6))
    assert is_shown(other, "fc.weight", 2.0 * np.eye(6))
    assert not is_shown(other, "fc.weight", np.eye(6))


@pytest.mark.parametrize(
    ("dtype", "bits"), [("float64", 53), ("float32", 24), ("float16", 11), ("bfloat16", 8)]
)
def test_a_projection_may_be_off_by_roundings_of_the_stored_type(dtype: str, bits: int) -> None:
    arithmetic = Arithmetic("cpu", dtype, None, False, False, True)
    run = SimpleNamespace(steps=[SimpleNamespace(arithmetic=arithmetic)])
    assert stored_unit(run) == 2.0**-bits
