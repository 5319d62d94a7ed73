"""Answers that are known in closed form, reproduced from files."""

import math

import numpy as np
import pytest
import torch

from lipcert.graph.geometry import Window
from lipcert.graph.ir import Operand
from lipcert.settings.settings import ConstraintSpec
from tests.networks import chain, dag, orthogonal, proved, reshaped, trained
from tests.ops import Activation, Add, BatchNorm, Concat, Conv, Dense, Normalize, Scale, Sort


def total_norm(found) -> float:
    return math.hypot(*found.grad_norms.values())


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_orthogonal_nets_have_root_depth_times_input_times_cotangent(depth: int) -> None:
    """Gradient-norm-preserving linear nets: G = √D·X₀·l, attained."""
    layers = [Dense(trained(f"w{k}", orthogonal(16, k)), None) for k in range(depth)]
    found = proved(chain((16,), *layers), math.sqrt(2), input_norm=3.0)
    assert total_norm(found) == pytest.approx(math.sqrt(2 * depth) * 3.0, rel=1e-6)
    assert found.derived.lipschitz == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("depth", [2, 4])
def test_group_sort_keeps_the_orthogonal_answer(depth: int) -> None:
    ops = []
    for k in range(depth):
        ops.append(Dense(trained(f"w{k}", orthogonal(16, k)), None))
        if k < depth - 1:
            ops += [reshaped(8, 2), Sort(1), reshaped(16)]
    far = 2000.0  # logits so large that the loss gradient reaches √2
    found = proved(chain((16,), *ops), input_norm=far, loss="cross-entropy")
    assert total_norm(found) == pytest.approx(math.sqrt(2 * depth) * far, rel=1e-6)


@pytest.mark.parametrize(
    ("spectral", "slope", "bias"),
    [
        (1.0, 1.0, 0.0),
        (1.0, 1.0, 0.5),
        (2.0, 0.5, 0.3),
        (0.9, 1.0, 0.2),
        (1.2, 1.0, 0.1),
        (0.5, 1.0, 0.0),
    ],
)
@pytest.mark.parametrize("depth", [1, 3, 6])
def test_closed_forms_for_bounded_weights(
    spectral: float, slope: float, bias: float, depth: int
) -> None:
    """Feed-forward nets with ‖W‖ ≤ U, ‖b‖ ≤ B and S-Lipschitz activations with f(0) = 0.

    With α = U·S: X_d = α^d (X₀ − SB/(1 − α)) + SB/(1 − α), or X₀ + dSB for α = 1; the gradient of
    layer d is at most l·S·α^(D−d)·√(X_{d−1}² + 1) (Béthune et al. 2024, Theorem 1 and lemmas).
    """
    size, x0, loss_norm = 6, 2.0, 1.4
    constraints, steps = [], []
    for d in range(depth):
        weight, shift = trained(f"w{d}", np.eye(size)), trained(f"b{d}", np.zeros(size))
        constraints.append((f"w{d}", ConstraintSpec("spectral", spectral)))
        steps += [Dense(weight, shift), Scale(Operand(np.full(1, slope)))]
    graph = chain((size,), *steps)
    found = proved(graph, loss_norm, input_norm=x0, constraints=tuple(constraints), bias_norm=bias)

    growth = spectral * slope
    if math.isclose(growth, 1.0):
        radii = [x0 + d * slope * bias for d in range(depth)]
    else:
        fixpoint = slope * bias / (1 - growth)
        radii = [growth**d * (x0 - fixpoint) + fixpoint for d in range(depth)]
    expected = [
        loss_norm * slope * growth ** (depth - 1 - d) * math.sqrt(radius**2 + 1)
        for d, radius in enumerate(radii)
    ]
    measured = found.grad_norms
    for d, value in enumerate(expected):
        assert math.hypot(measured[f"w{d}"], measured[f"b{d}"]) == pytest.approx(value, rel=1e-9)


def test_seven_by_seven_stride_two_counts_four_windows() -> None:
    window = Window(224, 7, 2, 1, 3, 3)
    conv = Conv(trained("w", np.ones((1, 1, 7, 7))), None, (window, window), 1)
    found = proved(chain((1, 224, 224), conv), input_norm=1.0)
    assert found.grad_norms["w"] == pytest.approx(4.0, rel=1e-12)


def test_residual_branches_add_and_concat_is_exact() -> None:
    weight = 2.0 * orthogonal(4, 1)
    residual = dag(
        (4,), [("h", Dense(trained("w", weight), None), ("x",)), ("y", Add((1.0, 1.0)), ("x", "h"))]
    )
    found = proved(residual, input_norm=1.0)
    assert found.derived.lipschitz == pytest.approx(3.0, rel=1e-6)
    both = dag((4,), [("r", Activation("relu"), ("x",)), ("y", Concat(0), ("x", "r"))])
    assert proved(both, input_norm=1.0).at_output.norm == pytest.approx(math.sqrt(2), rel=1e-9)


@pytest.mark.parametrize("depth", [1, 3])
def test_normalised_residuals_attain_one_over_root_epsilon_in_every_block(depth: int) -> None:
    """x + LayerNorm(x): an input of equal entries is one of the next block, too."""
    steps, below = [], "x"
    for k in range(depth):
        steps += [
            (f"n{k}", Normalize((0,), 1e-5, centred=True), (below,)),
            (f"s{k}", Add((1, 1)), (below, f"n{k}")),
        ]
        below = f"s{k}"
    found = proved(dag((8,), steps), input_norm=3.0)
    x = torch.full((8,), 0.5, dtype=torch.float64, requires_grad=True)
    y = x
    for _ in range(depth):
        y = y + torch.nn.functional.layer_norm(y, (8,), eps=1e-5)
    (jacobian,) = torch.autograd.grad(y[0] - y[1], x)
    attained = float(jacobian.norm()) / math.sqrt(2)
    assert found.derived.lipschitz == pytest.approx(attained, rel=1e-6)
    assert attained > 317.0**depth


def test_a_shared_weight_adds_its_uses() -> None:
    weight = trained("w", orthogonal(4, 2))
    twice = chain((4,), Dense(weight, None), Dense(weight, None))
    assert proved(twice, input_norm=3.0).grad_norms["w"] == pytest.approx(6.0, rel=1e-6)


def test_pairs_beat_root_two_at_the_last_layer() -> None:
    """max ‖w_i − w_j‖ ≤ √2·‖W‖, strictly for equal rows."""
    weight = np.ones((10, 5)) + 1e-3 * np.random.default_rng(0).standard_normal((10, 5))
    graph = chain((5,), Activation("relu"), Dense(trained("w", weight), None))
    found = proved(graph, input_box=(0.0, 1.0), loss="cross-entropy")
    at_output, at_hidden = (found.derived.cotangents[value] for value in ("v1", "v0"))
    truth = at_output.hull.scale * max(float(np.linalg.norm(a - b)) for a in weight for b in weight)
    assert truth * (1 - 1e-9) <= at_hidden.norm <= truth * (1 + 1e-6)


def test_a_scale_that_starts_at_zero_is_bounded() -> None:
    """BatchNorm whose scale is 0, as residual branches are often initialised."""
    zero = BatchNorm(np.zeros(4), np.ones(4), trained("g", np.zeros(4)), trained("h", np.zeros(4)))
    graph = chain(
        (4,),
        Dense(trained("w0", orthogonal(4, 0)), None),
        zero,
        Activation("relu"),
        Dense(trained("w1", orthogonal(4, 1)), None),
    )
    found = proved(graph, input_norm=1.0).grad_norms
    assert found["w0"] == pytest.approx(0.0, abs=1e-300)
    assert found["g"] >= 0.99


def test_a_batch_norm_beyond_float64_has_no_bound() -> None:
    huge = BatchNorm(
        np.full(2, 1e200), np.ones(2), trained("g", np.full(2, 1e200)), trained("h", np.zeros(2))
    )
    assert proved(chain((2,), huge), input_norm=1.0).at_output.norm == math.inf
