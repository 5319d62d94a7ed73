"""Runs of linear nodes around a convolution: never below the norm of the explicit map."""

import numpy as np
import pytest

from lipcert.facts import Bound, CotangentFacts, ValueFacts
from lipcert.fusion import Fusions, fused
from lipcert.interval import Interval
from lipcert.ir import Graph, Node, Parameter, evaluate
from lipcert.geometry import Window
from lipcert.norms.operator_norm import Tier
from lipcert.operand import Operand
from lipcert.ops.activation import Activation
from lipcert.ops.affine import Scale
from lipcert.ops.base import Op
from lipcert.ops.combine import Add
from lipcert.ops.conv import Conv
from lipcert.ops.kinks import Relu
from lipcert.ops.normalization import BatchNorm
from lipcert.ops.pooling import AveragePool
from lipcert.ops.shape import Pad, PadMode, Reshape
from lipcert.propagation.propagate import backward, forward
from lipcert.scope import Constraint, ConstraintKind, ConstraintScope, PointScope, Scope
from lipcert.upper import Upper

POINT = PointScope(Tier.FAST)
UNIT = CotangentFacts(Bound(Upper(1.0), "test.unit"))


def _conv(
    rng: np.random.Generator, outer: int, inner: int, window: Window, groups: int = 1
) -> Conv:
    shape = (outer, inner // groups, window.taps, window.taps)
    weight = Operand(rng.standard_normal(shape), "kernel")
    return Conv(weight, Operand(rng.standard_normal(outer)), (window, window), groups)


def _batch_norm(rng: np.random.Generator, channels: int) -> BatchNorm:
    arrays = (rng.standard_normal(channels), rng.uniform(0.1, 4.0, channels))
    scale, bias = rng.standard_normal(channels), rng.standard_normal(channels)
    mean, variance = (Operand(array) for array in arrays)
    return BatchNorm(mean, variance, 1e-5, Operand(scale, "scale"), Operand(bias, "bias"))


def _graph(shape: tuple[int, ...], *ops: Op) -> Graph:
    """The ops in a row, Add reading the input again."""
    nodes: list[Node] = []
    value, current = "x", shape
    for number, op in enumerate(ops):
        inputs = (value, "x") if isinstance(op, Add) else (value,)
        current = op.output_shape([current, shape] if isinstance(op, Add) else [current])
        nodes.append(Node(f"n{number}", op, inputs, f"v{number}", current))
        value = f"v{number}"
    names = {o.parameter: o.shape for op in ops for o in op.operands().values() if o.parameter}
    parameters = {name: Parameter(name, shape) for name, shape in names.items()}
    return Graph("x", shape, value, tuple(nodes), parameters)


def _facts(graph: Graph, scope: Scope = POINT) -> dict[str, ValueFacts]:
    norm = Bound(Upper(10.0), "test.input")
    return forward(graph, ValueFacts.of(graph.input_shape, norm), scope)


def _true_norm(graph: Graph) -> float:
    """The largest singular value of the linear part of the whole graph."""
    size = int(np.prod(graph.input_shape))
    zero = np.zeros((1, *graph.input_shape))
    basis = np.eye(size).reshape(size, *graph.input_shape)
    images = evaluate(graph, basis)[graph.output_name] - evaluate(graph, zero)[graph.output_name]
    return float(np.linalg.norm(images.reshape(size, -1), 2))


def _pool(size: int, taps: int, stride: int) -> AveragePool:
    window = Window(size, taps, stride)
    return AveragePool((window, window), ((taps,) * window.outputs,) * 2)


def _cases() -> dict[str, Graph]:
    rng = np.random.default_rng(0)
    same = Window(6, 3, 1, 1, 1, 1)
    pads = {
        mode: Pad((0, 1, 2), (0, 1, 0), mode, 3.0 if mode is PadMode.CONSTANT else 0.0)
        for mode in PadMode
    }
    cases = {
        "conv, norm": _graph((3, 6, 6), _conv(rng, 4, 3, same), _batch_norm(rng, 4)),
        "norm, conv": _graph((4, 6, 6), _batch_norm(rng, 4), _conv(rng, 2, 4, same, 2)),
        "norm, conv, norm": _graph(
            (4, 6, 6), _batch_norm(rng, 4), _conv(rng, 6, 4, same, 2), _batch_norm(rng, 6)
        ),
        "conv, scale": _graph(
            (2, 6, 6), _conv(rng, 3, 2, same), Scale(Operand(rng.standard_normal((3, 1, 1))))
        ),
        "conv, pool": _graph((2, 6, 6), _conv(rng, 3, 2, same), _pool(6, 2, 2)),
        "conv, overlapping pool, norm": _graph(
            (2, 6, 6), _conv(rng, 3, 2, same), _pool(6, 3, 2), _batch_norm(rng, 3)
        ),
        "strided dilated conv, pool": _graph(
            (2, 9, 9), _conv(rng, 3, 2, Window(9, 3, 2, 3, 2, 3)), _pool(4, 2, 1)
        ),
        "strided conv, pool, pool": _graph(
            (2, 9, 9), _conv(rng, 3, 2, Window(9, 2, 2)), _pool(4, 2, 1), _pool(3, 2, 1)
        ),
        "conv, sum": _graph((3, 6, 6), _conv(rng, 3, 3, same), Add((2.0, -1.5))),
        "conv, norm, sum": _graph(
            (4, 6, 6), _conv(rng, 4, 4, same, 2), _batch_norm(rng, 4), Add((1.0, 1.0))
        ),
    }
    for mode, pad in pads.items():
        kernel = Operand(rng.standard_normal((3, 2, 3, 3)), "kernel")
        conv = Conv(kernel, None, (Window(8, 3, 1, 1, 1, 0), Window(8, 3, 2)), 1)
        cases[f"{mode.value} pad, conv"] = _graph((2, 6, 6), pad, conv)
        cases[f"norm, {mode.value} pad, conv, norm"] = _graph(
            (2, 6, 6), _batch_norm(rng, 2), pad, conv, _batch_norm(rng, 3)
        )
    return cases


CASES = _cases()


def _pulled(graph: Graph, scope: Scope = POINT) -> float:
    """The cotangent of the input for a unit cotangent at the output, as propagation uses it."""
    facts = _facts(graph, scope)
    fusions = Fusions.of(graph, scope)
    plain = backward(graph, facts, UNIT, scope)
    cotangents = dict(plain)
    for node in reversed(graph.nodes):
        for name in node.inputs:
            readers = [other for other in graph.nodes if name in other.inputs]
            if len(readers) == 1:
                inputs = [facts[each] for each in node.inputs]
                at_output = cotangents[node.output]
                share = node.op.input_cotangent(0, at_output, inputs, scope)
                cotangents[name] = fusions.refined(node, share, cotangents)
    return fusions.whole("x", cotangents["x"], cotangents).norm.value.value


@pytest.mark.parametrize("name", CASES)
def test_against_the_explicit_matrix(name: str) -> None:
    graph = CASES[name]
    truth = _true_norm(graph)
    plain = backward(graph, _facts(graph), UNIT, POINT)["x"].norm.value.value
    value = _pulled(graph)
    assert truth * (1 - 1e-12) <= value <= truth * (1 + 1e-5)
    assert value <= plain * (1 + 1e-5)


def test_a_norm_after_a_convolution_costs_less_than_the_product() -> None:
    graph = CASES["conv, norm"]
    plain = backward(graph, _facts(graph), UNIT, POINT)["x"].norm.value.value
    assert _pulled(graph) < 0.9 * plain


def test_random_runs() -> None:
    rng = np.random.default_rng(8)
    for _ in range(25):
        groups = int(rng.integers(1, 3))
        inner, outer = (groups * int(n) for n in rng.integers(1, 3, size=2))
        window = Window(7, int(rng.integers(1, 4)), int(rng.integers(1, 3)), 1, 1, 0)
        ops: list[Op] = [_conv(rng, outer, inner, window, groups)]
        if rng.random() < 0.5:
            ops.insert(0, _batch_norm(rng, inner))
        if rng.random() < 0.5:
            ops.append(_batch_norm(rng, outer))
        if rng.random() < 0.7:
            taps, stride = int(rng.integers(1, 4)), int(rng.integers(1, 3))
            ops.append(_pool(window.outputs, min(taps, window.outputs), stride))
        graph = _graph((inner, 7, 7), *ops)
        truth = _true_norm(graph)
        assert truth * (1 - 1e-12) <= _pulled(graph) <= truth * (1 + 1e-5) + 1e-12


def test_a_kink_ends_a_run() -> None:
    rng = np.random.default_rng(0)
    same = Window(6, 3, 1, 1, 1, 1)
    ops = (_conv(rng, 4, 3, same), Activation(Relu()), _batch_norm(rng, 4))
    graph = _graph((3, 6, 6), *ops)
    facts = _facts(graph)
    assert not Fusions.of(graph, POINT).runs
    assert fused(graph.nodes, facts, POINT) is None


def test_a_second_reader_ends_a_run() -> None:
    rng = np.random.default_rng(0)
    same = Window(6, 3, 1, 1, 1, 1)
    conv, norm = _conv(rng, 3, 3, same), _batch_norm(rng, 3)
    shape = (3, 6, 6)
    nodes = (
        Node("conv", conv, ("x",), "c", shape),
        Node("norm", norm, ("c",), "n", shape),
        Node("sum", Add((1.0, 1.0)), ("c", "n"), "s", shape),
    )
    parameters = {name: Parameter(name, (3,)) for name in ("kernel", "scale", "bias")}
    graph = Graph("x", shape, "s", nodes, parameters)
    fusions = Fusions.of(graph, POINT)
    assert not fusions.runs
    assert not fusions.sums
    seen = Graph("x", shape, "c", nodes[:2], parameters)
    assert not Fusions.of(seen, POINT).runs


def test_trained_weights_under_constraints_are_not_fused() -> None:
    graph = CASES["conv, norm"]
    trainable = frozenset({"kernel", "scale", "bias"})
    for kind in ConstraintKind:
        constraints = {name: Constraint(kind, Upper(1.0)) for name in trainable}
        scope = ConstraintScope(constraints, trainable, Tier.FAST)
        assert not Fusions.of(graph, scope).runs
    constraints = {"bias": Constraint(ConstraintKind.FROBENIUS, Upper(1.0))}
    scope = ConstraintScope(constraints, frozenset({"bias"}), Tier.FAST)
    assert Fusions.of(graph, scope).runs


def test_slopes_that_vary_count_with_their_spread() -> None:
    """A diagonal known only within a range still bounds every diagonal in it."""
    rng = np.random.default_rng(4)
    graph = _graph((2, 5, 5), _conv(rng, 3, 2, Window(5, 3, 1, 1, 1, 1)))
    composite = fused(graph.nodes, _facts(graph), POINT)
    assert composite is not None
    middle, spread = rng.standard_normal(3), 0.01
    slopes = Interval(middle - spread, middle + spread)
    bound = composite.scaled(slopes).norm(POINT.operator_norm).value.value
    basis = np.eye(50).reshape(50, 2, 5, 5)
    images = evaluate(graph, basis)["v0"] - evaluate(graph, np.zeros((1, 2, 5, 5)))["v0"]
    for _ in range(50):
        diagonal = rng.uniform(slopes.lo[:, None, None], slopes.hi[:, None, None], size=(3, 5, 5))
        assert bound >= np.linalg.norm((images * diagonal).reshape(50, -1), 2)


def test_a_reshape_is_not_a_diagonal() -> None:
    """It moves entries to other channels: no run reaches across it."""
    rng = np.random.default_rng(5)
    same = Window(4, 3, 1, 1, 1, 1)
    graph = _graph(
        (2, 2, 4, 4),
        Reshape((4, 4, 4)),
        _conv(rng, 4, 4, same),
        Reshape((2, 2, 4, 4)),
        Reshape((64,)),
        Scale(Operand(rng.standard_normal(64))),
    )
    fusions = Fusions.of(graph, POINT)
    assert not fusions.runs


def test_a_pool_that_reads_padding_is_left_alone() -> None:
    """Its windows reach beyond the map of the convolution, so that no joint window exists."""
    rng = np.random.default_rng(6)
    pool = Window(1, 2, 1, 1, 0, 1)
    graph = _graph(
        (1, 4, 4),
        _conv(rng, 2, 1, Window(4, 3, 4, 1, 0, 1)),
        AveragePool((pool, pool), ((1,), (1,))),
    )
    assert not Fusions.of(graph, POINT).runs


def _forward(graph: Graph, below: ValueFacts, fusions: Fusions) -> float:
    return forward(graph, below, POINT, fusions=fusions)[graph.output_name].norm.value.value


@pytest.mark.parametrize("name", CASES)
def test_values_at_the_end_of_a_run_stay_below_the_bound(name: str) -> None:
    """The right singular vectors of the whole map, on the sphere, in either direction."""
    graph = CASES[name]
    size = int(np.prod(graph.input_shape))
    zero = evaluate(graph, np.zeros((1, *graph.input_shape)))[graph.output_name]
    images = evaluate(graph, np.eye(size).reshape(size, *graph.input_shape))[graph.output_name]
    _, _, rows = np.linalg.svd((images - zero).reshape(size, -1).T, full_matrices=False)
    points = 10.0 * np.concatenate([rows, -rows]).reshape(-1, *graph.input_shape)
    outputs = evaluate(graph, points)[graph.output_name]
    attained = float(np.max(np.linalg.norm(outputs.reshape(len(outputs), -1), axis=1)))
    below = ValueFacts.of(graph.input_shape, Bound(Upper(10.0), "test.input"))
    together = _forward(graph, below, Fusions.of(graph, POINT))
    apart = _forward(graph, below, Fusions({}, {}, {}))
    assert attained * (1 - 1e-12) <= together <= apart


def test_a_kink_that_is_linear_on_the_inputs_at_hand_ends_a_run() -> None:
    """Its value at 0 does not say where the line through the others would be."""
    shape, window = (1, 1, 1), Window(1, 1)
    conv = Conv(Operand(np.ones((1, 1, 1, 1)), "w"), Operand(np.array([-3.0])), (window, window), 1)
    graph = _graph(shape, conv, Activation(Relu()))
    fusions = Fusions.of(graph, POINT)
    assert not fusions.ends
    box = Interval(np.full(shape, 5.0), np.full(shape, 5.0))
    below = ValueFacts.of(shape, Bound(Upper(5.0), "test.input"), box)
    assert _forward(graph, below, fusions) >= 2.0


def test_a_joint_kernel_beyond_the_range_of_floats_has_no_norm() -> None:
    window = Window(2, 1)
    conv = Conv(Operand(np.full((1, 1, 1, 1), 1e200), "w"), None, (window, window), 1)
    graph = _graph((1, 2, 2), conv, Scale(Operand(np.full((1, 1, 1), 1e200))))
    _, norm = Fusions.of(graph, POINT).runs["n0"]
    assert not norm.is_finite
    facts = _facts(graph)
    assert not facts[graph.output_name].norm.is_finite
