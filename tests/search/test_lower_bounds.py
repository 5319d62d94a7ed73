"""A witness is reached by an admissible example: no bound is below, some are attained."""

import itertools
import math

import numpy as np
import pytest

from lipcert.core.certificate import Constraint, ScopeClaim
from lipcert.core.coverage import tensors
from lipcert.core.ledger.premises import Premises
from lipcert.core.ledger.updates import Clipless
from lipcert.core.lines.norms import StepNorm
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Program
from lipcert.losses import make_loss, parameters
from lipcert.search import lower_bounds
from lipcert.search.evidence import Evidence
from lipcert.search.lower_bounds import NO_WITNESS, Witness, aligned_program, find_witness
from lipcert.search.prover import derive
from tests.core.lower.cases import model, program, read
from tests.core.random_models import random_model

RNG = np.random.default_rng(11)
CROSS_ENTROPY = make_loss("cross-entropy")


class Case:
    """A file with what is assumed of it."""

    def __init__(self, proto, loss=CROSS_ENTROPY, *, norm=None, box=None, clip=None):
        self.program: Program = program(proto, proto.graph.output[0].name)
        self.stored = tensors(read(proto))
        self.trained = {
            name: tensor for name, tensor in self.stored.items() if tensor.values().dtype == float
        }
        self.loss, self.clip = loss, clip
        numbers = ((name, _plain(value)) for name, value in parameters(loss).items())
        self.premises = Premises(norm, box, loss.kind, tuple(sorted(numbers)), clip,
                                 "add-remove", mechanism=Clipless())  # fmt: skip

    def bounds(self, radii=None):
        """The joint gradient norm and the Lipschitz constant that the core derives."""
        kind = "point" if radii is None else "constraint-set"
        held = tuple(Constraint(name, *item) for name, item in sorted((radii or {}).items()))
        scope = ScopeClaim(kind, tuple(sorted(self.trained)), held)
        norms = () if radii else self._norms()
        found = derive(self.program, self.premises, Evidence(scope, norms))
        gradients = [found.gradients.get(name, 0.0) for name in self.trained]
        return math.hypot(*gradients), found.lipschitz

    def _norms(self):
        """Of dense layers, by their singular values."""
        norms = {
            step.output: float(np.linalg.norm(step.op.weight.lo, 2)) * (1 + 1e-12)
            for step in self.program.steps
            if type(step.op).__name__ == "Dense"
        }
        return tuple(StepNorm(value=k, bound=v, method="dense") for k, v in norms.items())

    def facts(self):
        return derive(self.program, self.premises, Evidence(ScopeClaim("point", (), ()))).facts

    def found(self, at=None) -> Witness:
        trained = self.trained if at is None else dict.fromkeys(self.trained)
        return find_witness(at or self.program, self.loss, self.facts(), self.clip, trained)

    def aligned(self, radii):
        lengths = {name: radius for name, (_, radius) in radii.items()}
        return aligned_program(self.program, lengths, self.facts(), self.trained)


def _plain(value):
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else (
        value if isinstance(value, str) else float(value)
    )  # fmt: skip


def chain(size, *layers, loss=CROSS_ENTROPY, **domain):
    """Layers: a matrix [outputs, inputs], a pair of it and a bias, or the name of an operator."""
    nodes, constants, value = "", {}, "x"
    for k, layer in enumerate(layers):
        target = "y" if k == len(layers) - 1 else f"v{k}"
        if isinstance(layer, str):
            nodes += f"{target} = {layer}({value})  "
        else:
            weight, bias = layer if isinstance(layer, tuple) else (layer, None)
            inputs = f"{value}, w{k}"
            constants[f"w{k}"] = weight
            if bias is not None:
                inputs, constants[f"b{k}"] = f"{inputs}, b{k}", bias
            nodes += f"{target} = Gemm<transB=1>({inputs})  "
        value = target
    return Case(model(nodes, ["N", size], constants), loss, **domain)


def orthogonal(size):
    return np.linalg.qr(RNG.standard_normal((size, size)))[0]


@pytest.mark.parametrize(
    "loss",
    [
        make_loss("cross-entropy", temperature=0.1),
        make_loss("mse", label_norm=2.0),
        make_loss("bce", temperature=0.05),
    ],
    ids=lambda loss: loss.kind,
)
def test_orthogonal_networks_attain_their_bound(loss):
    layers = (orthogonal(6), "Abs", orthogonal(6), "Abs", orthogonal(6))
    case = chain(6, *layers, loss=loss, norm=5.0)
    grad_norm, lipschitz = case.bounds()
    found = case.found()
    assert found.lipschitz == pytest.approx(lipschitz, rel=1e-6)
    assert found.lipschitz <= lipschitz
    assert found.grad_norm <= grad_norm
    if loss.kind != "bce":  # its worst logits have equal magnitudes
        assert found.grad_norm == pytest.approx(grad_norm, rel=1e-6)


def test_one_linear_layer():
    case = chain(5, (RNG.standard_normal((2, 5)), RNG.standard_normal(2)), norm=60.0)
    grad_norm, lipschitz = case.bounds()
    found = case.found()
    assert found.grad_norm == pytest.approx(grad_norm, rel=1e-6)
    assert found.lipschitz == pytest.approx(lipschitz, rel=1e-6)


@pytest.mark.nightly
def test_random_networks_do_not_exceed_their_bounds():
    searched = 0
    for seed in range(12):
        try:
            case = Case(random_model(seed), make_loss("bce"), norm=3.0)
            bounds = case.bounds()
        except Unsupported:
            continue
        found = case.found()
        if found is NO_WITNESS:
            continue
        searched += 1
        assert found.grad_norm is None or found.grad_norm <= bounds[0]
        assert found.lipschitz is None or found.lipschitz <= bounds[1]
    assert searched >= 6


@pytest.mark.parametrize("kind", ["spectral", "frobenius"])
@pytest.mark.parametrize("biased", [False, True])
def test_constraints_are_attained_by_aligned_weights(kind, biased):
    layers = []
    for before, after in itertools.pairwise((5, 7, 6, 2)):
        weight = RNG.standard_normal((after, before))
        layers += [(weight, np.zeros(after)) if biased else weight, "Relu"]
    case = chain(5, *layers[:-1], box=(0.0, 1.0))
    radii = {name: (kind, 3.0) for name in case.trained if name.startswith("w")}
    radii |= {name: ("frobenius", 0.5) for name in case.trained if name.startswith("b")}
    grad_norm, lipschitz = case.bounds(radii)
    aligned = case.aligned(radii)
    for step in aligned.steps:
        for operand in (getattr(step.op, "weight", None), getattr(step.op, "bias", None)):
            if operand is not None:
                (name,) = operand.sources
                assert np.linalg.norm(operand.lo) <= radii[name][1]
    found = case.found(aligned)
    assert found.grad_norm <= grad_norm
    assert found.grad_norm == pytest.approx(grad_norm, rel=1e-6)
    assert found.lipschitz == pytest.approx(lipschitz, rel=1e-6)


def test_it_is_deterministic():
    _, case = deep(0, (6, 20, 20, 9))
    assert case.found() == case.found()


def test_weights_that_are_not_free_are_not_aligned():
    radii = {"w": ("spectral", 1.0)}
    once = "y = MatMul(x, w)"
    twice = "h = MatMul(x, w)  r = Relu(h)  y = MatMul(r, w)"
    weight = {"w": np.eye(4)}
    assert Case(model(once, ["N", 4], weight), norm=1.0).aligned(radii) is not None
    assert Case(model(once, ["N", 4], weight), norm=1.0).aligned({}) is None
    assert Case(model(twice, ["N", 4], weight), norm=1.0).aligned(radii) is None


def test_weights_that_let_nothing_through_are_no_witness():
    nodes = "h = MatMul(x, w)  m = ReduceMean<axes=[1]>(h)  c = Sub(h, m)  y = MatMul(c, v)"
    case = Case(model(nodes, ["N", 4], {"w": np.eye(4), "v": np.eye(4)}), norm=1.0)
    assert case.aligned({"w": ("spectral", 1.0), "v": ("spectral", 1.0)}) is None


def test_frozen_weights_stay():
    case = chain(4, np.eye(4), "Relu", 2.0 * np.eye(4), norm=1.0)
    del case.trained["w2"]
    aligned = case.aligned(dict.fromkeys(("w0", "w2"), ("spectral", 1.0)))
    assert np.array_equal(aligned.steps[2].op.weight.lo, 2 * np.eye(4))


def test_a_clip_of_the_loss_gradient_is_part_of_the_run():
    weight = 3.0 * RNG.standard_normal((2, 5))
    free, clipped = (chain(5, weight, norm=9.0, clip=clip).found() for clip in (None, 0.25))
    assert clipped.grad_norm == pytest.approx(0.25 * 9.0, rel=1e-6)
    assert free.grad_norm == pytest.approx(2**0.5 * 9.0, rel=1e-6)


def test_nothing_is_said_where_nothing_is_known(monkeypatch):
    assert chain(4, np.eye(4), norm=1.0).found() is not NO_WITNESS
    assert chain(4, np.eye(4)).found() is NO_WITNESS
    cosine = make_loss("cosine", cosine_floor=1.0)
    assert chain(4, np.eye(4), loss=cosine, norm=1.0).found() is NO_WITNESS
    monkeypatch.setattr(lower_bounds, "_LARGEST_WORK", 1.0)
    assert chain(4, np.eye(4), norm=1.0).found() is NO_WITNESS


def test_what_overflows_is_no_witness():
    layers = [1e30 * np.eye(4)] * 11
    found = chain(4, *layers, loss=make_loss("mse", label_norm=1.0), norm=1.0).found()
    assert found.grad_norm in {None, 0.0}
    assert found.lipschitz is None


def test_the_gradient_of_a_zero_network_is_zero():
    case = chain(4, np.zeros((3, 4)), loss=make_loss("mse", label_norm=0.0), norm=0.0)
    assert case.found().grad_norm == 0.0


@pytest.mark.parametrize("seed", [1, 4, 5])
def test_an_ascent_reaches_what_a_grid_of_examples_does(seed):
    """All labels at 3,125 examples; where steps went on downhill, 0.79 to 0.85 were reached."""
    layers, case = deep(seed, (5, 20, 20, 20, 20, 20, 5))
    grid = np.array(list(itertools.product(np.linspace(0.0, 1.0, 5), repeat=5)))
    assert case.found().grad_norm >= 0.95 * largest_gradient(layers[::2], grid)


def test_an_evolution_goes_on_where_an_ascent_stops(monkeypatch):
    _, case = deep(4, (16, 16, 16, 16, 16, 16, 5))
    found = case.found()
    monkeypatch.setattr(lower_bounds._Search, "_evolved", lambda _, best, *start: best)
    assert found.grad_norm > 1.05 * case.found().grad_norm


def deep(seed, widths):
    random = np.random.default_rng(seed)
    layers = []
    for before, after in itertools.pairwise(widths):
        weight = 1.5 * random.standard_normal((after, before)) / before**0.5
        layers += [(weight, 0.5 * random.standard_normal(after)), "Relu"]
    return layers, chain(widths[0], *layers[:-1], box=(0.0, 1.0))


def largest_gradient(layers, x):
    """Over examples and labels of cross-entropy, of a perceptron with ReLU."""
    values = [x]
    for weight, bias in layers[:-1]:
        values.append(np.maximum(values[-1] @ weight.T + bias, 0.0))
    logits = values[-1] @ layers[-1][0].T + layers[-1][1]
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    largest = 0.0
    for label in range(logits.shape[1]):
        cotangent, total = shares - np.eye(logits.shape[1])[label], np.zeros(len(x))
        for (weight, _), value in zip(layers[::-1], values[::-1], strict=True):
            total += (cotangent**2).sum(axis=1) * (1.0 + (value**2).sum(axis=1))
            cotangent = (cotangent @ weight) * (value > 0.0)
        largest = max(largest, float(total.max()))
    return largest**0.5
