"""Attacks: what they propose is admissible, and comes close to maxima that are known."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipcert.audit.attack import proposals
from lipcert.audit.attack.ascent import Best, Field, Rows, SearchSpace, Slopes, climb
from lipcert.audit.attack.weights import WeightSet
from lipcert.audit.bounds import Claims, claims_of_analysis
from lipcert.audit.prepared_job import random_examples
from lipcert.audit.unit_results import Family
from lipcert.errors import UsageError
from lipcert.gradient_stats.examples import Examples
from lipcert.gradient_stats.labels import checked_labels
from lipcert.graph.geometry import Window
from lipcert.importer.load import load_model
from lipcert.measure.lowering import lowered
from lipcert.measure.precision import Precision
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.audit.test_random_examples import DOMAINS, LOSSES, SINGLE, assert_inside, claims
from tests.audit.test_replay import replayer
from tests.measure.lowering.cases import CASES
from tests.models.shipped import path_of
from tests.networks import chain, dag, reshaped, trained
from tests.ops import Activation, Conv, Dense, Scale
from tests.written import model_of

CPU = torch.device("cpu")
RNG = np.random.default_rng(5)


def attacked(run: Claims, start: Examples | None = None, steps: int = 15, **options):
    start = random_examples(run, 8) if start is None else start
    options = {"move_weights": False, "device": CPU, **options}
    return list(proposals(run, None, start, steps, **options))


def replayed(run: Claims, steps: int) -> dict[str, float]:
    """How much of the bound of each group an attack reaches; none is exceeded."""
    exact = replayer(run, Precision.FLOAT64)
    found = dict.fromkeys((group.name for group in run.groups), 0.0)
    for proposal in attacked(run, random_examples(run, 16), steps):
        tallies = exact.replay(proposal.examples, 0, None).tallies[Family.GRADIENT]
        assert not any(tally.violations for tally in tallies.values())
        found = {name: max(share, tallies[name].share) for name, share in found.items()}
    return found


def claimed(graph, **given) -> Claims:
    return claims_of_analysis(model_of(graph), Settings(**given))


def largest(run: Claims, examples: Examples, weights=None):
    """By the field itself, whose norms `test_norms` holds against plain autograd."""
    field = Field(run, weights, CPU, torch.float64)
    return field.norms(examples.x.astype(np.float64), examples.y).max(axis=1)


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
def test_inputs_are_admissible(domain):
    run = claims(**domain)
    (found,) = attacked(run, steps=6)
    assert_inside(found.examples.x, run.settings)
    assert found.weights is None


@pytest.mark.sample(12)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_labels_are_admissible_and_nothing_is_lost(loss, outputs):
    kind = loss.get("loss")
    if outputs == 1 and kind not in SINGLE:
        pytest.skip("a loss over several classes")
    run = claims(outputs, **loss, input_norm=2.0)
    start = random_examples(run, 12)
    (found,) = attacked(run, start, steps=6)
    labels = checked_labels(run.engine.loss, found.examples.y, (outputs,))
    assert len(labels) == len(found.examples.x)
    assert np.all(largest(run, found.examples) >= largest(run, start) * (1.0 - 1e-5))


@pytest.mark.parametrize("size", [0.5, 3.0])
def test_one_layer_of_two_classes(size):
    """‖∂ℓ/∂W‖ = ‖x‖·√2·σ((w_j − w_y)·x), largest for x along w_j − w_y at the border."""
    weight = RNG.standard_normal((2, 7))
    run = claimed(chain((7,), Dense(trained("w", weight))), input_norm=size)
    exact = np.sqrt(2.0) * size / (1.0 + np.exp(-size * np.linalg.norm(weight[1] - weight[0])))
    (found,) = attacked(run)
    assert 0.99 * exact <= largest(run, found.examples)[0] <= exact * (1.0 + 1e-6)


def test_one_layer_in_a_box():
    """Against every corner of the box."""
    weight = RNG.standard_normal((3, 6))
    run = claimed(chain((6,), Dense(trained("w", weight))), input_box=(-1.0, 2.0))
    corners = np.array(list(itertools.product((-1.0, 2.0), repeat=6)))
    best = max(
        np.linalg.norm(x) * np.linalg.norm(odds / odds.sum() - np.eye(3)[label])
        for x in corners
        for odds in [np.exp(weight @ x)]
        for label in range(3)
    )
    (found,) = attacked(run, steps=30)
    assert largest(run, found.examples)[0] >= 0.999 * best


def test_a_regression_leaves_no_gap():
    """‖∂ℓ/∂W‖ = 2‖Wx − y‖‖x‖ ≤ 2(‖W‖R + r)R, attained: the label is opposite to the output."""
    weight = RNG.standard_normal((3, 5))
    run = claimed(
        chain((5,), Dense(trained("w", weight))),
        loss="mse",
        label_norm=1.5,
        output_reduction="sum",
        input_norm=2.0,
    )
    exact = 2.0 * (np.linalg.norm(weight, 2) * 2.0 + 1.5) * 2.0
    (found,) = attacked(run, steps=30)
    assert 0.99 * exact <= largest(run, found.examples)[0] <= exact * (1.0 + 1e-6)


def test_the_gradient_that_is_released_is_attacked():
    """With the gradient at the output clipped to c, one layer has the gradient c·‖x‖ at most."""
    weight = RNG.standard_normal((4, 6))
    run = claimed(chain((6,), Dense(trained("w", weight))), input_norm=2.0, loss_clip=0.25)
    (found,) = attacked(run)
    assert largest(run, found.examples)[0] == pytest.approx(0.5, rel=1e-5)


def shared_network():
    """A kernel used twice, a frozen scale, a dense layer at several positions, then at one."""
    kernel = trained("k", RNG.standard_normal((2, 2, 3)))
    window = (Window(5, 3, 1, 1, 1, 1),)
    first, second = Conv(kernel, None, window), Conv(kernel, trained("k_b", np.ones(2)), window)
    return dag(
        (2, 5),
        [
            ("a", first, ("x",)),
            ("b", Activation("tanh"), ("a",)),
            ("c", second, ("b",)),
            ("d", Scale(trained("s", RNG.standard_normal((2, 5)))), ("c",)),
            ("e", Dense(trained("w", RNG.standard_normal((4, 5)))), ("d",)),
            ("f", reshaped(8), ("e",)),
            (
                "g",
                Dense(trained("v", RNG.standard_normal((3, 8))), trained("u", np.ones(3))),
                ("f",),
            ),
        ],
    )


def plain_gradients(graph, weights, x, label):
    """Of one example, by plain torch."""
    t = {name: torch.tensor(array).requires_grad_() for name, array in weights.items()}
    conv = torch.nn.functional.conv1d
    a = conv(torch.tensor(x)[None], t["k"], padding=1)
    c = conv(torch.tanh(a), t["k"], t["k_b"], padding=1) * t["s"]
    z = (c @ t["w"].T).reshape(1, 8) @ t["v"].T + t["u"]
    loss = torch.nn.functional.cross_entropy(z, torch.tensor([label]))
    return dict(zip(t, torch.autograd.grad(loss, list(t.values())), strict=True))


def test_norms_and_slopes():
    """Norms against single examples in plain torch, slopes against difference quotients."""
    graph = shared_network()
    run = claimed(graph, input_norm=3.0)
    field = Field(run, None, CPU, torch.float64)
    weights = dict(field.weights)
    x, labels = RNG.standard_normal((3, 2, 5)), np.array([0, 2, 1])
    norms = field.norms(x, labels)
    for example in range(3):
        plain = plain_gradients(graph, weights, x[example], labels[example])
        for objective, group in enumerate(run.groups):
            squares = [float(plain[name].square().sum()) for name in group.parameters]
            assert norms[objective, example] == pytest.approx(np.sqrt(sum(squares)), rel=1e-10)
    assert np.allclose(norms[-1] ** 2, np.sum(norms[:-1] ** 2, axis=0))
    wanted = np.array([0, 1, len(run.groups)])
    found = field.slopes(x, labels, wanted)
    assert np.allclose(found.norms.T, norms, rtol=1e-12)
    direction = RNG.standard_normal(x.shape)
    ends = [field.norms(x + t * 1e-6 * direction, labels) for t in (1.0, -1.0)]
    quotients = (np.log(ends[0]) - np.log(ends[1])) / 2e-6
    inner = np.sum(found.x * direction, axis=(1, 2))
    assert np.allclose(inner, quotients[wanted, np.arange(3)], rtol=1e-5, atol=1e-8)
    slopes = field.weight_slopes(x[0], labels[0], 0, ("k", "v"))
    for name in ("k", "v"):
        move = RNG.standard_normal(weights[name].shape)
        heights = []
        for t in (1.0, -1.0):
            field.at({name: weights[name] + t * 1e-6 * move})
            heights.append(np.log(field.norms(x[:1], labels[:1])[0, 0]))
        field.at(weights)
        assert np.sum(slopes[name] * move) == pytest.approx(
            (heights[0] - heights[1]) / 2e-6, rel=1e-5
        )


def test_every_op_can_be_differentiated_twice():
    """The ascent follows the slope of a gradient, so no op may lack a second derivative."""
    for case in CASES:
        try:
            differentiate_twice(case)
        except RuntimeError as error:
            error.add_note(case.name)
            raise


def differentiate_twice(case):
    inputs = [torch.tensor(0.1 + RNG.random((2, *s))).requires_grad_() for s in case.inputs]
    operands = {name: torch.tensor(item.array) for name, item in case.node.operands.items()}
    with sdpa_kernel(SDPBackend.MATH):
        output = lowered(case.node, inputs, operands)
    if not output.requires_grad:  # a row of a table, or a comparison
        return
    found = torch.autograd.grad(output.square().sum(), inputs, create_graph=True, allow_unused=True)
    squares = [gradient.square().sum() for gradient in found if gradient is not None]
    if squares and any(square.requires_grad for square in squares):
        torch.autograd.grad(sum(squares), inputs, allow_unused=True)


def test_the_same_seed_proposes_the_same():
    run = claimed(shared_network(), input_box=(0.0, 1.0))
    (first,), (second,) = attacked(run, steps=5), attacked(run, steps=5)
    (other,) = attacked(run, steps=5, seed=1)
    assert np.array_equal(first.examples.x, second.examples.x)
    assert np.array_equal(first.examples.y, second.examples.y)
    assert not np.array_equal(first.examples.x, other.examples.x)


def test_inadmissible_starts_and_none():
    run = claims(input_norm=1.0)
    far = Examples(np.full((2, 6), 100.0), np.array([0, 1]), "far")
    none = Examples(np.zeros((0, 6)), np.zeros(0, dtype=np.int64), "none")
    for start in (far, none):
        (found,) = attacked(run, start, steps=3)
        assert_inside(found.examples.x, run.settings)


def test_where_nothing_rises():
    """Behind units that are all off, no norm depends on the example."""
    off = Dense(trained("w", np.ones((3, 4))), trained("b", np.full(3, -50.0)))
    graph = chain((4,), off, Activation("relu"), Dense(trained("v", np.ones((2, 3)))))
    run = claimed(graph, input_norm=1.0)
    (found,) = attacked(run, steps=12)
    assert_inside(found.examples.x, run.settings)
    assert np.array_equal(largest(run, found.examples), np.zeros(3))


def constrained_network():
    window = (Window(6, 3, 1, 1, 1, 1), Window(6, 3, 1, 1, 1, 1))
    return chain(
        (1, 6, 6),
        Conv(trained("k", RNG.standard_normal((2, 1, 3, 3))), trained("b", np.ones(2)), window),
        Activation("relu"),
        reshaped(72),
        Dense(trained("w", RNG.standard_normal((5, 72)))),
        Scale(trained("s", RNG.standard_normal(5))),
        Dense(trained("v", RNG.standard_normal((3, 5))), trained("u", np.ones(3))),
    )


def test_weights_obey_their_constraints():
    """By singular values of dense matrices, of the convolution written out column by column."""
    run = claimed(
        constrained_network(),
        input_norm=1.0,
        constraint=ConstraintSpec("spectral", 0.8),
        constraints=(("v", ConstraintSpec("frobenius", 1.3)),),
        bias_norm=0.5,
    )
    found = attacked(run, steps=3, move_weights=True)
    assert len(found) == len(run.groups) + 1  # none at the weights of the file, which disobey
    for proposal in found:
        weights = proposal.weights
        assert set(weights) == set(run.engine.graph.parameters)
        assert np.linalg.norm(weights["w"], 2) <= 0.8
        assert np.abs(weights["s"]).max() <= 0.8
        assert np.linalg.norm(weights["v"]) <= 1.3
        assert max(np.linalg.norm(weights["b"]), np.linalg.norm(weights["u"])) <= 0.5
        units = torch.eye(36, dtype=torch.float64).reshape(36, 1, 6, 6)
        kernel = torch.tensor(weights["k"])
        matrix = torch.nn.functional.conv2d(units, kernel, padding=1).reshape(36, -1).numpy()
        assert np.linalg.norm(matrix, 2) <= 0.8
        assert_inside(proposal.examples.x, run.settings)
    reached = np.max([largest(run, p.examples, p.weights)[:-1] for p in found], axis=0)
    bounds = np.array([group.grad_norm for group in run.groups])
    assert np.all(reached <= bounds * (1.0 + 1e-9))


def test_weights_climb_to_what_is_known():
    """One layer under ‖W‖₂ ≤ c: √2·R·σ(√2·c·R) at best, for two opposite rows."""
    graph = chain((6,), Dense(trained("w", 0.1 * RNG.standard_normal((2, 6)))))
    run = claimed(graph, input_norm=1.0, constraint=ConstraintSpec("spectral", 2.0))
    found = attacked(run, steps=10, move_weights=True)
    exact = np.sqrt(2.0) / (1.0 + np.exp(-2.0 * np.sqrt(2.0)))
    reached = [largest(run, p.examples, p.weights)[0] for p in found]
    assert len(found) == 2
    assert 0.99 * exact <= max(reached) <= exact * (1.0 + 1e-6)


def test_a_climb_goes_as_it_says():
    """By hand: twice as far after a success, a quarter after a failure, which is undone; if stuck,
    from the best example of all rows, which a leap has found, a tenth of the way to 11."""

    def slopes(x, labels, wanted):
        tried.append(float(x[1, 0]))
        norms = np.tile(10.0 - abs(x[:, :1] - 1.0), (1, 2))
        return Slopes(norms, np.sign(1.0 - x), 0.0 * labels)

    tried: list[float] = []
    domain = SimpleNamespace(width=1.0, projected=lambda x: x, drawn=lambda n, _: np.full(n, 11.0))
    labels = SimpleNamespace(moved=lambda label, slope, step: label)
    space = SearchSpace(SimpleNamespace(slopes=slopes), domain, labels, RNG)
    best, rows = Best(2), Rows(np.zeros((2, 1)), np.zeros(2), np.arange(2))
    last = climb(space, rows, best, 16)
    up = [0.0, 0.06, 0.18, 0.42, 0.9, 1.86, 1.14, 0.96, 1.08, 0.99, 1.05, 1.005, 0.975]
    assert tried == pytest.approx([*up, 2.0, 1.8, 1.4])
    assert last.x[1, 0] == pytest.approx(1.4)
    assert [best.example(objective)[0].item() for objective in range(2)] == [1.0, 1.0]
    assert best.norms.tolist() == [10.0, 10.0]


def test_weights_that_must_not_move():
    run = claims(input_norm=1.0)
    with pytest.raises(UsageError, match="scope point"):
        attacked(run, move_weights=True)


@pytest.mark.nightly
def test_weights_that_nothing_holds():
    """Under clips in the backward pass the bounds hold whatever the weights are."""
    run = claimed(
        constrained_network(),
        input_norm=1.0,
        mechanism="backprop-clipping",
        input_clip=1.0,
        cotangent_clip=0.1,
    )
    assert WeightSet.of(run).free == {"k", "b", "w", "s", "v", "u"}
    found = attacked(run, steps=3, move_weights=True)
    reached = np.max([largest(run, p.examples, p.weights)[:-1] for p in found], axis=0)
    bounds = np.array([group.grad_norm for group in run.groups])
    assert np.all(reached <= bounds * (1.0 + 1e-9))
    assert reached[0] > 0.0


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "group", "factor"),
    [("digits_orthogonal_mlp", "hidden2", 0.96), ("digits_lipschitz_cnn", "conv3", 0.9)],
)
def test_a_bound_that_is_too_small_is_found(name, group, factor):
    """A bound scaled down below the truth: the data do not show it, the attack does."""
    model = load_model(path_of(name), trusted=True)
    run = claims_of_analysis(model, Settings(input_norm=1.0))
    faulty = replace(
        run,
        groups=tuple(
            replace(g, grad_norm=factor * g.grad_norm) if g.name == group else g for g in run.groups
        ),
    )
    data = digits(run)
    exact = replayer(faulty, Precision.FLOAT64, watch_values=False)
    (found,) = attacked(faulty, Examples(data.x[:32], data.y[:32], "digits"), steps=30)
    violations = [
        {
            g: tally.violations
            for g, tally in exact.replay(e, 0, len(e)).tallies[Family.GRADIENT].items()
        }
        for e in (data, found.examples)
    ]
    assert not any(violations[0].values())
    assert violations[1].pop(group) > 0
    assert not any(violations[1].values())


def digits(run: Claims) -> Examples:
    """The digits of scikit-learn, scaled to the radius."""
    datasets = pytest.importorskip("sklearn.datasets")
    pixels, labels = datasets.load_digits(return_X_y=True)
    x = pixels / np.maximum(np.linalg.norm(pixels, axis=1, keepdims=True), 1e-9) * (1.0 - 1e-12)
    return Examples(x[:400].reshape(-1, *run.engine.graph.input_shape), labels[:400], "digits")
