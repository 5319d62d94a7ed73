"""Odd graphs: whatever the checker makes a program of computes what onnxruntime computes."""

import itertools
from collections import Counter

import numpy as np
import pytest
from onnx import printer

from tests.core.lower.cases import model
from tests.core.lower.odd_graphs import OPERATORS, blocks, odd_graph, outcome, outcomes

GRAPHS = 400
UNDERSTOOD = 0.3
"""of all graphs, so that the comparison is of something"""
UNDERSTOOD_KINDS = [kind for kind in dict.fromkeys(OPERATORS) if kind is not blocks]
"""the checker has no rule for DepthToSpace and SpaceToDepth"""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_odd_graphs_are_read_as_onnxruntime_reads_them():
    counts = Counter()
    for number, proto, found in outcomes(20_250_301, GRAPHS):
        counts[found] += 1
        known = found in {"", "refused", "undefined"}
        assert known, f"graph {number}: {found}\n{printer.to_text(proto.graph)}"
    assert counts[""] >= UNDERSTOOD * GRAPHS


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("operator", UNDERSTOOD_KINDS, ids=lambda item: item.__name__)
def test_every_kind_of_odd_operator_is_also_understood(operator, tmp_path):
    """What is never lowered is never compared."""
    for seed in range(60):
        proto = odd_graph(np.random.default_rng([7, seed]), (operator,))
        found = outcome(proto, tmp_path)
        assert found in {"", "refused", "undefined"}, printer.to_text(proto.graph)
        if not found:
            return
    pytest.fail("none of the graphs was understood")


@pytest.mark.sample(9)
@pytest.mark.parametrize("opset", [9, 11, 22])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("kind", ["Conv", "MaxPool", "AveragePool", "LpPool"])
def test_all_short_windows_are_read_as_onnxruntime_reads_them(kind, mode, opset, tmp_path):
    counts = Counter()
    for taps, stride, size in itertools.product((1, 2, 3), (1, 2, 3, 5), (1, 3, 4, 6, 7)):
        window = f'auto_pad="{mode}", strides=[{stride}]'
        nodes = f"y = {kind}<{window}, kernel_shape=[{taps}]>(x)"
        if kind == "Conv":
            nodes = f"y = Conv<{window}>(x, w)"
        constants = {"w": np.arange(1.0, taps + 1).reshape(1, 1, -1)} if kind == "Conv" else {}
        found = outcome(model(nodes, [1, 1, size], constants, opset), tmp_path)
        counts["undefined" if "onnxruntime does not run it" in found else found] += 1
    assert set(counts) <= {"", "refused", "undefined"}, counts
    assert counts[""] >= 10


NOT_NUMBERS = {
    "zero times infinity": ("c = Mul(zero, inf)  y = Mul(x, c)", {"zero": 0.0, "inf": np.inf}),
    "infinity by infinity": ("c = Div(inf, inf)  y = Mul(x, c)", {"inf": np.inf}),
    "no number below minus infinity": ("y = Clip(x, , inf)", {"inf": -np.inf}),
    "no number above infinity": ("y = Max(x, inf)", {"inf": np.inf}),
    "no multiple of infinity": ("y = Gemm<beta=0.5>(x, w, inf)",
        {"w": np.ones((4, 4)), "inf": [np.inf]}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", NOT_NUMBERS)
def test_constants_that_are_no_numbers_are_refused(name, tmp_path):
    nodes, constants = NOT_NUMBERS[name]
    assert outcome(model(nodes, ["N", 4], constants), tmp_path) == "refused"
