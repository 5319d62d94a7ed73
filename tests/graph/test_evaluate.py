"""Programs computed in numpy; that steps mean what onnxruntime computes, `tests/core/lower`."""

import mpmath
import numpy as np
import pytest

from lipcert.core.kinds import CotangentClip, InputClip
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Activation, Place, Program, Step
from lipcert.graph.evaluate import _FEW, evaluate, function_of
from tests.core.lower.cases import model, program

RNG = np.random.default_rng(3)


def of_steps(*ops) -> Program:
    names = ["x", *(f"v{k}" for k in range(len(ops)))]
    steps = tuple(Step(op, (names[k],), names[k + 1], (1, 2), k) for k, op in enumerate(ops))
    return Program("x", names[-1], dict.fromkeys(names, (1, 2)), steps, Place(0), ())


def test_clips_of_training_shorten_inputs_and_pass_values_on():
    found = evaluate(of_steps(InputClip(1.0), CotangentClip(0.1, False)), np.array([[3.0, 4.0]]))
    np.testing.assert_allclose(found["v1"], [[0.6, 0.8]])
    short = evaluate(of_steps(InputClip(1.0)), np.zeros((1, 2)))
    np.testing.assert_array_equal(short["v0"], np.zeros((1, 2)))


def test_functions_without_a_value_there_are_not_numbers():
    found = evaluate(of_steps(Activation("log"), Activation("relu")), np.array([[-1.0, 1.0]]))
    assert np.isnan(found["v0"]).tolist() == [[True, False]]


def test_unknown_functions_have_no_numbers():
    with pytest.raises(Unsupported):
        function_of("step", (), np.zeros(1))


@pytest.mark.parametrize("copies", [1, _FEW])
def test_functions_of_errors_of_few_and_of_many_numbers(copies: int):
    x = np.linspace(-6.0, 6.0, 7)
    for name, truth in (("erf", mpmath.erf), ("gelu", lambda t: t * mpmath.ncdf(t))):
        found = function_of(name, (), np.broadcast_to(x, (copies, 7)))
        assert (found == found[0]).all()
        np.testing.assert_allclose(found[0], [float(truth(t)) for t in x], rtol=1e-13)


@pytest.mark.parametrize("arithmetic", ["float16", "float32", "float64"])
def test_every_step_keeps_the_arithmetic(arithmetic):
    constants = {"w": RNG.standard_normal((4, 2, 2, 2)), "b": RNG.standard_normal(4)}
    nodes = """c = Conv(x, w, b)  s = Softplus(c)  m = MaxPool<kernel_shape=[2, 2]>(s)
        y = ReduceL2<axes=[1]>(m)"""
    found = program(model(nodes, ["N", 2, 4, 4], constants))
    x = RNG.standard_normal((1, 2, 4, 4))
    values = evaluate(found, x, arithmetic)
    assert {item.dtype.name for item in values.values()} == {arithmetic}
    exact = evaluate(found, x)[found.output]
    error = np.abs(values[found.output] - exact).max() / np.abs(exact).max()
    assert error <= 32 * np.finfo(arithmetic).eps
    assert (error > 0) == (arithmetic != "float64")
