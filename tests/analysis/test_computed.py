"""Weights that the file computes: bounds of what they are computed from, attacked by autograd."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import lipcert
from lipcert.audit.records import Verdict as AuditVerdict
from lipcert.core.check import Choices, check
from lipcert.core.verdict import Verdict
from lipcert.errors import NoVerdictError
from lipcert.importer.load import load_model
from lipcert.measure.gradient_norms import NormEngine
from lipcert.measure.lowering import LoweredNetwork
from tests.importer.models import model, saved, weights

TENSORS = {
    "v": weights(6, 4), "g": weights(6, 1, seed=1), "b0": weights(6, seed=2),
    "w": weights(3, 6, seed=3), "down": weights(2, 6, seed=4), "up": weights(3, 2, seed=5),
}  # fmt: skip
NODES = """n = ReduceL2<axes=[1]>(v)  unit = Div(v, n)  first = Mul(unit, g)
    h = Gemm<transB=1>(x, first, b0)  r = Relu(h)  low = MatMul(up, down)  second = Add(w, low)
    y = Gemm<transB=1>(r, second)"""
STATED = lipcert.Settings(loss="cross-entropy", input_norm=1.0)


@pytest.fixture
def path(tmp_path):
    return saved(model(NODES, ("N", 4), TENSORS), tmp_path)


def network(x, v, g, b0, w, down, up):
    h = F.linear(x, g * v / v.norm(dim=1, keepdim=True), b0)
    return F.linear(F.relu(h), w + up @ down)


def test_no_gradient_is_larger_than_its_bound(path) -> None:
    found = lipcert.analyze(path, STATED)
    bounds = {item.name: item.grad_norm for item in found.parameters}
    assert bounds.keys() == TENSORS.keys()
    largest = dict.fromkeys(bounds, 0.0)
    for row in F.normalize(torch.randn(100, 4, generator=torch.manual_seed(0)), dim=1):
        given = [torch.from_numpy(item).requires_grad_() for item in TENSORS.values()]
        logits = network(row, *given)
        loss = F.cross_entropy(logits, logits.argmin())
        for name, item in zip(TENSORS, torch.autograd.grad(loss, given), strict=True):
            largest[name] = max(largest[name], float(item.norm()))
    for name, bound in bounds.items():
        assert largest[name] <= bound <= 30 * largest[name], name
    assert not {"LC009", "LC411"} & {item.code for item in found.diagnostics}
    assert found.usefulness.observed is not None


def test_they_are_certified(path) -> None:
    certificate = path.with_suffix(".json")
    issued = lipcert.certify(path, STATED, out=certificate)
    report = check(certificate.read_bytes(), path, Choices())
    assert report.verdict is not Verdict.INVALID
    assert {item.tensor for item in issued.certificate.parameters} == TENSORS.keys()


def test_weights_that_are_free_within_constraints_have_none(path) -> None:
    held = lipcert.Settings(
        loss="cross-entropy", input_norm=1.0, constraint="spectral:1", scope="constraint-set"
    )
    found = lipcert.analyze(path, held)
    lost = {item.name for item in found.parameters if item.grad_norm is None}
    assert lost >= {"v", "g", "up", "down"}
    assert found.network.grad_norm is None


def test_a_constraint_on_w_is_none_on_1_plus_w(tmp_path) -> None:
    nodes = "one = Constant<value_float=1.0>()  s = Add(w, one)  h = Mul(x, s)  y = MatMul(h, v)"
    tensors = {"w": weights(4), "v": weights(4, 3, seed=1)}
    held = lipcert.Settings(
        input_norm=1.0, constraint="spectral:1", bias_norm=1.0, scope="constraint-set"
    )
    found = lipcert.analyze(saved(model(nodes, ("N", 4), tensors), tmp_path), held)
    (told,) = [item.message for item in found.diagnostics if item.code == "LC101"]
    assert "'w' is trained but no constraint bounds what is computed from it" in told


@pytest.mark.parametrize(("copy", "lost"), [("b", "b"), ("onnx::MatMul_7", "a")])
def test_what_a_copy_holds_has_no_bound(tmp_path, copy, lost) -> None:
    """Of numbers that the exporter stored once, or twice, no operand shows whose they are."""
    tensors = {"a": np.full((4, 4), 0.5, "<f4")}
    nodes = f'b = Identity(a)  e = Exp(a)  h = MatMul(x, e)  f = Exp("{copy}")  y = MatMul(h, f)'
    if copy != "b":
        tensors[copy] = tensors["a"]
    proto = model(nodes, ("N", 4), tensors)
    proto.producer_name = "pytorch"
    found = lipcert.analyze(saved(proto, tmp_path), STATED)
    assert [item.name for item in found.parameters if item.grad_norm is None] == [lost]


STANDARD = """m = ReduceMean<axes=[1, 2, 3]>(k)  c = Sub(k, m)  cc = Mul(c, c)
    s = ReduceMean<axes=[1, 2, 3]>(cc)  d = Sqrt(s)  kernel = Div(c, d)
    h = Conv<group=2, strides=[2, 1], pads=[1, 0, 0, 1], dilations=[1, 2],
        kernel_shape=[2, 3]>(x, kernel, b)
    r = Relu(h)  p = GlobalAveragePool(r)  f = Flatten(p)  y = MatMul(f, w)"""
QUERIES = """one = Constant<value_ints=[1]>()  ln = LayerNormalization(l, g, b)  lq = MatMul(ln, q)
    t = Transpose<perm=[1, 0]>(lq)  keys = MatMul(x, q)  scores = MatMul(keys, t)  scale = Exp(a)
    scaled = Mul(scores, scale)  p = Softmax<axis=1>(scaled)
    h = ReduceMean<axes=[1], keepdims=0>(p)  ps = Mul(p, scores)  u = ReduceSum<keepdims=0>(ps, one)
    y = Add(h, u)"""


def standardised(x, k, b, w):
    c = k - k.mean((1, 2, 3), keepdim=True)
    kernel = c / c.square().mean((1, 2, 3), keepdim=True).sqrt()
    h = F.conv2d(F.pad(x, (0, 1, 1, 0)), kernel, b, (2, 1), 0, (1, 2), 2)
    return h.relu().mean((2, 3)) @ w


def queries(x, l, g, b, q, a):
    scores = (x @ q) @ (F.layer_norm(l, (4,), g, b) @ q).T
    p = (scores * a.exp()).softmax(1)
    return p.mean(1) + (p * scores).sum(1)


NETWORKS = {
    "products and quotients": (NODES, TENSORS, (4,), network),
    "standardised kernels": (
        STANDARD, {"k": weights(4, 3, 2, 3), "b": weights(4, seed=1), "w": weights(4, 3, seed=2)},
        (6, 5, 7), standardised),
    "learnt queries and an exponential": (
        QUERIES, {"l": weights(3, 4), "g": weights(4, seed=3), "b": weights(4, seed=4),
                  "q": weights(4, 4, seed=1), "a": weights(3, seed=2)}, (5, 4), queries),
}  # fmt: skip


@pytest.mark.parametrize("batch", ["N", 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_their_gradients_are_those_of_autograd(name, batch, tmp_path) -> None:
    nodes, tensors, shape, function = NETWORKS[name]
    graph = load_model(saved(model(nodes, (batch, *shape), tensors), tmp_path)).graph.measured
    assert graph.parameters.keys() == tensors.keys()
    moved = {key: 0.7 * item for key, item in tensors.items()}  # not the numbers of the file
    lowered = LoweredNetwork.of(graph, torch.float64, torch.device("cpu"), moved)
    x = torch.rand(3, *shape, generator=torch.manual_seed(0), dtype=torch.float64)
    losses = partial(F.cross_entropy, reduction="none")
    found = NormEngine(lowered).measure(x, lambda y: losses(y, y.argmin(1)))
    given = [torch.from_numpy(item).double().requires_grad_() for item in moved.values()]
    for place, row in enumerate(x):
        logits = function(row[None], *given)
        loss = F.cross_entropy(logits, logits.argmin(1))
        for key, item in zip(tensors, torch.autograd.grad(loss, given), strict=True):
            norm = found.parameters[key].norm[place]
            assert norm == pytest.approx(float(item.norm()), rel=1e-9), (key, place)


def test_tensors_in_nodes_are_shown_too(tmp_path) -> None:
    """If the file does not say what is trained, a mask in a node may be."""
    nodes = """m = Constant<value=float[4, 3]{1, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1}>()  e = Exp(a)
        w = Mul(e, m)  y = MatMul(x, w)"""
    proto = model(nodes, ("N", 4), {"a": weights(4, 3)})
    assert not load_model(saved(proto, tmp_path)).graph.measured.computed


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_sizes_of_a_fixed_batch_are_not_those_of_an_example(shape, tmp_path) -> None:
    nodes = """sizes = Constant<value_ints=[2, -1]>()  e = Exp(a)  h = Reshape(x, sizes)
        m = ReduceMean<axes=[1]>(h)  y = MatMul(m, e)"""
    graph = load_model(saved(model(nodes, (2, *shape), {"a": weights(1, 3)}), tmp_path)).graph
    assert graph.input_shape == shape
    # one example would be two of two entries; the program does not say that h has the shape of x
    assert bool(graph.measured.computed) is (len(shape) == 1)


def test_an_audit_finds_them_within_their_bounds(path) -> None:
    assert lipcert.audit(path, STATED, attack_steps=2).verdict is AuditVerdict.PASS


def test_what_no_step_computes_is_not_measured(path, tmp_path) -> None:
    """Bounds of all weights within constraints need other numbers of what is computed, too."""
    held = lipcert.Settings(loss="cross-entropy", input_norm=1.0, constraint="spectral:1")
    says = r"LC319.*'down', 'g', 'up', 'v'.*requires_grad_\(False\)"
    with pytest.raises(NoVerdictError, match=says):
        lipcert.audit(path, held, attack_steps=2)
    nodes = "e = Exp(k)  y = ConvTranspose(x, e)"
    proto = model(nodes, ("N", 2, 4), {"k": weights(2, 2, 3)})
    with pytest.raises(NoVerdictError, match=r"LC319.*'k'.*through node .*ConvTranspose"):
        load_model(saved(proto, tmp_path)).graph.measured.check_shown()


def test_equal_numbers_of_a_scale_and_a_variance_are_one_tensor(tmp_path) -> None:
    """As exporters store those of a layer that was never trained."""
    names = ["bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"]
    tensors = {names[0]: np.ones(4, np.float32), names[1]: np.zeros(4, np.float32)}
    weight, bias, mean, variance = (f'"{name}"' for name in names)
    nodes = f"""{variance} = Identity({weight})  {mean} = Identity({bias})
        h = BatchNormalization(x, {weight}, {bias}, {mean}, {variance})  y = MatMul(h, w)"""
    tensors |= {"w": weights(4, 3)}
    found = lipcert.analyze(saved(model(nodes, ("N", 4), tensors), tmp_path), STATED)
    assert all(item.grad_norm is not None for item in found.parameters)
