"""Ops that are bounded on a part of the line: imported always, bounded where the box allows."""

import numpy as np
import pytest

from lipcert.analysis.pipeline import analyze
from lipcert.errors import UnsupportedModelError
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.importer.models import model, saved

SHAPE = ("N", 4, 5)


def imported(tmp_path, nodes, tensors=None, shape=SHAPE, opset=17):
    found = load_model(saved(model(nodes, shape, tensors, opset=opset), tmp_path), trusted=True)
    assert found.verification.max_difference < 1e-4
    return found


def lipschitz(found, low, high):
    analysis = analyze(found, Settings(input_box=(low, high)))
    reasons = [item.message + item.remedy for item in analysis.diagnostics if item.code == "LC101"]
    return analysis.network.lipschitz, reasons


@pytest.mark.parametrize(
    ("kind", "safe", "slope", "unsafe"),
    [
        ("Log", (0.5, 2.0), 2.0, (0.0, 1.0)),
        ("Sqrt", (0.25, 4.0), 1.0, (-1.0, 1.0)),
        ("Reciprocal", (0.5, 2.0), 4.0, (-1.0, 1.0)),
        ("Exp", (0.0, 1.0), np.e, (0.0, 800.0)),
    ],
)
def test_unary(tmp_path, kind, safe, slope, unsafe):
    found = imported(tmp_path, f"y = {kind}(x)")
    assert lipschitz(found, *safe)[0] == pytest.approx(slope, rel=1e-9)
    value, reasons = lipschitz(found, *unsafe)
    assert value is None
    words = "range of float64" if kind == "Exp" else f"{kind.lower()} needs"
    remedy = "input domain" if kind == "Exp" else "--input-box"
    assert any(words in reason and remedy in reason for reason in reasons)


def test_power_of_two_values_is_refused(tmp_path):
    nodes = "a = Abs(x)  y = Pow(a, x)"
    with pytest.raises(UnsupportedModelError, match=r"LC028.*Pow"):
        imported(tmp_path, nodes)
