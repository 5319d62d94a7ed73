"""Cotangents and parameter gradients of programs are those of torch's autograd on the file."""

import numpy as np
import pytest
import torch

from lipcert.core.coverage import tensors
from lipcert.core.interval import exact
from lipcert.core.kinds import CotangentClip, InputClip, LocalResponse
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Activation, Program, Step
from lipcert.core.rules.activations import function
from lipcert.core.token_kinds import Attention
from lipcert.graph.evaluate import evaluate, evaluate_batch
from lipcert.search.lower_bounds import plain_operands
from lipcert.search.operand_gradients import operand_gradients
from lipcert.search.pullbacks import cotangents, is_quick, pulls
from tests.core.lower.cases import model, program, read
from tests.core.onnx_torch import compute, stored
from tests.core.random_models import random_model

RNG = np.random.default_rng(5)
COUNT = 3


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


IMAGE = ["N", 4, 6, 5]
CASES = {
    "conv": ("c = Conv<strides=[2, 1], dilations=[1, 2], pads=[1, 0, 0, 1]>(x, k, b)  y = Tanh(c)",
        IMAGE, {"k": normal(6, 4, 3, 2), "b": normal(6)}),
    "attention": ("""a = MatMul(x, q)  b = MatMul(x, k)  c = MatMul(x, v)
        t = Transpose<perm=[0, 2, 1]>(b)  s = MatMul(a, t)  p = Softmax<axis=-1>(s)
        y = MatMul(p, c)""", ["N", 4, 5],
        {"q": normal(5, 3), "k": normal(5, 3), "v": normal(5, 2)}),
    "lengths of windows": (
        """l = LpPool<kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 0, 1], p=2>(x)
        y = LpPool<kernel_shape=[2, 2], p=1>(l)""", IMAGE, {}),
    "unit length": ("u = LpNormalization<axis=-1, p=2>(x)  y = ReduceLogSumExp(u, axes)",
        ["N", 2, 3], {"axes": [1]}),
    "gate": ("""s = Sigmoid(x)  m = ReduceMean(x, axes)  a = Mul(s, m)  c = Concat<axis=2>(a, x)
        n = ReduceL2(c, last)  d = Div(c, n)  y = ReduceMax(d, last)""", ["N", 2, 3],
        {"axes": [1], "last": [-1]}),
}  # fmt: skip


def agrees(proto, found: Program, plain: bool = True) -> None:
    rng = np.random.default_rng(0)
    batch = rng.standard_normal((COUNT, *found.shapes[found.input]))
    values = evaluate_batch(found, batch)
    for k in range(COUNT):
        for name, value in evaluate(found, batch[k]).items():
            np.testing.assert_allclose(values[name][k], value, rtol=1e-12, atol=1e-12)
    seeds = rng.standard_normal((COUNT, *found.shapes[found.output]))
    at = cotangents(found, pulls(found, values), {found.output: seeds})
    free = plain_operands(found, tensors(read(proto)))
    assert free or not plain
    for k in range(COUNT):
        x = torch.tensor(batch[k], requires_grad=True)
        theta = {
            name: value.requires_grad_(value.is_floating_point())
            for name, value in stored(proto).items()
        }
        out = compute(proto, x, theta)[proto.graph.output[0].name]
        (out * torch.tensor(seeds[k]).reshape(out.shape)).sum().backward()
        expected = np.zeros(x.shape) if x.grad is None else x.grad.numpy()
        mine = at[found.input][k] if found.input in at else np.zeros(x.shape)
        np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-6)
        for step in found.steps:
            if step.output not in at:
                continue
            own = operand_gradients(step, values[step.inputs[0]], at[step.output])
            for name, found_here in own:
                operand = getattr(step.op, name)
                if operand in free:
                    gradient = theta[next(iter(operand.sources))].grad
                    expected = float(gradient.square().sum())
                    assert found_here.squares()[k] == pytest.approx(expected, rel=1e-6)
                    each, alone = found_here.each()[k], found_here.total(np.eye(COUNT)[k])
                    assert np.sum(each**2) == pytest.approx(expected, rel=1e-6)
                    np.testing.assert_allclose(alone, each, rtol=1e-12, atol=1e-12)


def test_one_example_serves_many_cotangents():
    nodes, shape, constants = CASES["conv"]
    found = program(model(nodes, shape, constants, opset=20))
    x = RNG.standard_normal((1, *found.shapes[found.input]))
    seeds = RNG.standard_normal((COUNT, *found.shapes[found.output]))
    one = cotangents(found, pulls(found, evaluate_batch(found, x)), {found.output: seeds})
    same = evaluate_batch(found, np.repeat(x, COUNT, axis=0))
    many = cotangents(found, pulls(found, same), {found.output: seeds})
    np.testing.assert_allclose(one[found.input], many[found.input], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_common_steps(case):
    nodes, shape, constants = CASES[case]
    proto = model(nodes, shape, constants, opset=20)
    found = program(proto)
    agrees(proto, found, plain=bool(constants) and case not in {"gate", "unit length"})


def test_attention_is_one_step():
    nodes, shape, constants = CASES["attention"]
    found = program(model(nodes, shape, constants, opset=20))
    assert any(isinstance(step.op, Attention) for step in found.steps)


def test_random_models():
    known = 0
    for seed in range(40):
        proto = random_model(seed)
        try:
            found = program(proto, proto.graph.output[0].name)
        except Unsupported:
            continue
        known += 1
        agrees(proto, found, plain=False)
    assert known >= 30


def vjp(function, x, g):
    at = torch.tensor(x, requires_grad=True)
    (function(at) * torch.tensor(g)).sum().backward()
    return at.grad.numpy()


def pulled(op, x, g):
    step = Step(op, ("x",), "y", x.shape[1:], 0)
    found = Program("x", "y", {"x": x.shape[1:], "y": x.shape[1:]}, (step,), None, ())
    return cotangents(found, pulls(found, evaluate_batch(found, x)), {"y": g})["x"]


def responded(x):
    return torch.nn.functional.local_response_norm(x, 3, 0.7, 0.6, 1.5)


def within(x):
    return x * torch.clamp(2.0 / torch.linalg.vector_norm(x), max=1.0)


def test_steps_of_no_common_operator():
    """Responses of channels, and the clips of training: outside of the radius and within it."""
    x, g = RNG.standard_normal((2, COUNT, 1, 5, 2, 3))
    x[0] *= 0.01
    response = pulled(LocalResponse(3, 0.7, 0.6, 1.5), x, g)
    clip = pulled(InputClip(2.0), x, g)
    for k in range(COUNT):
        np.testing.assert_allclose(response[k], vjp(responded, x[k], g[k]), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(clip[k], vjp(within, x[k], g[k]), rtol=1e-12, atol=1e-12)
    g[0] *= 0.01
    for by_channel in (False, True):
        found = pulled(CotangentClip(0.5, by_channel), x, g)
        for k in range(COUNT):
            sums = np.abs(g[k][0]).sum(axis=(1, 2)) if by_channel else g[k]
            factor = min(1.0, 0.5 / np.linalg.norm(sums))
            np.testing.assert_allclose(found[k], factor * g[k], rtol=1e-12)


def test_the_slope_at_a_kink_is_the_least():
    found = program(model("y = Relu(x)", ["N", 3]))
    values = evaluate_batch(found, np.array([[[-1.0, 0.0, 1.0]]]))
    at = cotangents(found, pulls(found, values), {found.output: np.ones((1, 1, 3))})
    assert at["x"].tolist() == [[[0.0, 0.0, 1.0]]]


def test_an_operand_that_does_not_show_its_tensor_once_is_not_plain():
    """A product with numbers up to 1 has the gain 1, and shows less of the gradient."""
    constants = {"w": normal(3, 3), "c": np.array([1.0, 0.5, 0.25])}
    nodes = "v = Mul(w, c)  h = MatMul(x, v)  y = Relu(h)"
    proto = model(nodes, ["N", 3], constants)
    assert not plain_of(proto)
    twice = "h = MatMul(x, w)  y = MatMul(h, w)"
    assert not plain_of(model(twice, ["N", 3], {"w": normal(3, 3)}))
    turned = "v = Transpose<perm=[1, 0]>(w)  y = MatMul(x, v)"
    assert len(plain_of(model(turned, ["N", 3], {"w": normal(3, 3)}))) == 1


def plain_of(proto) -> frozenset[object]:
    return plain_operands(program(proto), tensors(read(proto)))


QUICK: dict[str, tuple[float, ...]] = {
    "relu": (), "leaky_relu": (-0.3,), "abs": (), "clip": (-1.0, 2.0), "hard_swish": (),
    "elu": (0.4,), "sigmoid": (), "tanh": (), "silu": (), "mish": (), "softplus": (), "gelu": (),
    "erf": (), "exp": (), "quick_gelu": (1.702,), "gelu_tanh": (), "celu": (0.5,),
}  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_slopes_are_those_that_the_core_encloses(name: str) -> None:
    """Of least magnitude at a kink; far out too, and none of what is no number."""
    op = Activation(name, QUICK[name])
    assert is_quick(op) == (name != "celu")
    kinks = np.array([-3.0, -1.0, 0.0, 2.0, 3.0, -700.0, 700.0, -1e5, 5e4, np.nan])
    x = np.concatenate([8.0 * RNG.standard_normal(60000), kinks])[np.newaxis]
    if name == "exp":
        x = np.minimum(x, 600.0)
    program = Program("x", "y", dict.fromkeys("xy", x.shape), (Step(op, ("x",), "y", x.shape, 0),),
                      None, ())  # fmt: skip
    (found,) = pulls(program, {"x": x[None], "y": x[None]})["y"](np.ones((1, *x.shape)))
    ends = function(name, QUICK[name]).derivative(exact(np.nan_to_num(x)))
    expected = np.where(np.isnan(x), np.nan, np.clip(0.0, ends.lo, ends.hi))
    np.testing.assert_allclose(found[0], expected, rtol=1e-8, atol=1e-12)
