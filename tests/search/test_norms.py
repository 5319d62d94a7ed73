"""Norms of programs: what is claimed holds for the map written out, and the core proves it.

The truth is the matrix of singular vectors of each map, evaluated by its definition.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.certificate import Constraint, ScopeClaim
from lipcert.core.interval import Interval
from lipcert.core.lines.norms import StepNorm, norm_holds
from lipcert.core.lines.runs import RunNorm
from lipcert.core.lower.lower import lower
from lipcert.core.norms import ENGINES
from lipcert.core.norms.claim import NormWitness
from lipcert.core.norms.convolution import Convolution, Kernel
from lipcert.core.reader.model import read_model
from lipcert.search import norms
from lipcert.search.evidence import Evidence
from lipcert.search.norms import Claim, find_norms, proposals
from lipcert.search.prover import derive, serving
from tests.core.norms.convolutions import applied, convolutions, window_of
from tests.search.test_chains import PREMISES

MODELS = Path(__file__).parents[2] / "models"
POINT = ScopeClaim("point", (), ())
TIERS = ("quick", "fast", "tight")
PROOFS = [engine.norms for engine in ENGINES.values()]


def written_out(conv):
    """The matrix of a convolution, a column for each entry of the input."""
    shape = (conv.kernel.shape[1] * conv.groups, *conv.size)
    units = np.eye(math.prod(shape)).reshape(-1, *shape)
    return np.stack([applied(conv, unit).ravel() for unit in units], axis=1)


def kernel_of(conv, adjoint=False):
    return Kernel(Interval(conv.kernel, conv.kernel), conv, adjoint)


def raised(claim):
    return claim.bound * (1.0 + norms.ROOMS[0])


@pytest.mark.parametrize("tier", TIERS)
@given(convolutions(), st.booleans())
def test_every_proposal_is_true_and_proved_by_both_engines(tier, conv, adjoint):
    """Strides, dilations, groups, padding beyond the input; up to three dimensions."""
    truth = float(np.linalg.norm(written_out(conv), 2))
    kernel = kernel_of(conv, adjoint)
    found = proposals(kernel, tier)
    assert found
    assert [claim.bound for claim in found] == sorted(claim.bound for claim in found)
    if tier != "quick":
        assert found[0].bound == pytest.approx(truth, rel=1e-9, abs=1e-12)  # small maps: exact
    for claim in found:
        assert claim.bound >= truth * (1.0 - 1e-9)
        for check in PROOFS:
            assert kernel.norm_at_most(raised(claim), claim.witness, check)


@given(convolutions(), st.floats(1e-7, 0.5))
def test_nothing_below_the_truth_is_proved_by_any_method(conv, below):
    truth = float(np.linalg.norm(written_out(conv), 2))
    kernel = kernel_of(conv)
    for claim in (*proposals(kernel, "fast"), Claim(0.0, NormWitness("dense"))):
        if truth > 0.0:
            for check in PROOFS:
                low = truth * (1.0 - below)
                assert not kernel.norm_at_most(low, claim.witness, check)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (2, 2), (10, 784), (300, 40), (340, 330)])
def test_matrices_are_exact(tier, shape):
    matrix = np.random.default_rng(1).standard_normal(shape)
    (claim,) = proposals(matrix_kernel(matrix), tier)
    assert claim.bound == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-9)
    for check in PROOFS:
        assert matrix_kernel(matrix).norm_at_most(raised(claim), claim.witness, check)


def matrix_kernel(matrix):
    from lipcert.core.norms.convolution import _POINT

    entries = matrix[:, :, None]
    frame = Convolution(entries, (1,), _POINT)
    return Kernel(Interval(entries, entries), frame, False)


def test_a_matrix_too_large_for_its_norm_has_that_of_frobenius():
    matrix = np.random.default_rng(2).standard_normal((2000, 2000))
    (claim,) = proposals(matrix_kernel(matrix), "quick")
    assert claim.bound == pytest.approx(np.linalg.norm(matrix), rel=1e-12)
    assert matrix_kernel(matrix).norm_at_most(raised(claim), claim.witness, PROOFS[0])


def test_an_interval_kernel_is_claimed_with_its_radius():
    rng = np.random.default_rng(3)
    conv = Convolution(rng.standard_normal((2, 2, 3)), (9,), window_of((3,), (9,)))
    radius = 0.1 * rng.random(conv.kernel.shape)
    kernel = replace(kernel_of(conv), entries=Interval(conv.kernel - radius, conv.kernel + radius))
    worst = 0.0
    for _ in range(20):
        signs = rng.choice([-1.0, 1.0], radius.shape)
        inside = Convolution(conv.kernel + signs * radius, conv.size, conv.window)
        worst = max(worst, float(np.linalg.norm(written_out(inside), 2)))
    for claim in proposals(kernel, "fast"):
        assert claim.bound >= worst
        assert kernel.norm_at_most(raised(claim), claim.witness, PROOFS[0])


@pytest.mark.parametrize("shape", [(64, 1, 3, 3), (16, 16, 3, 3)])
def test_a_large_map_is_close_to_its_truth(shape):
    """Power iteration from below, on a map that is not written out."""
    groups = 64 // shape[1] if shape[1] == 1 else 1
    rng = np.random.default_rng(4)
    window = window_of((3, 3), (48, 48), before=(1, 1), after=(1, 1))
    conv = Convolution(rng.standard_normal(shape), (48, 48), window, groups)
    claim = proposals(kernel_of(conv), "fast")[0]
    below = power_iteration(conv)
    assert below * (1.0 - 1e-9) <= claim.bound <= below * 1.01
    assert kernel_of(conv).norm_at_most(raised(claim), claim.witness, PROOFS[0])
    assert not kernel_of(conv).norm_at_most(below * (1 - 1e-6), claim.witness, PROOFS[0])


def power_iteration(conv):
    """‖T‖ from below, by torch's convolution and its gradient."""
    import torch

    weight = torch.tensor(conv.kernel)
    torch.manual_seed(0)
    x = torch.randn(1, conv.kernel.shape[1] * conv.groups, *conv.size, dtype=torch.float64)
    norm = 0.0
    for _ in range(300):
        x = (x / x.norm()).requires_grad_()
        y = torch.nn.functional.conv2d(x, weight, padding=1, groups=conv.groups)
        norm = float(y.detach().norm())
        (x,) = torch.autograd.grad(0.5 * y.square().sum(), x)
    return norm


@pytest.mark.parametrize("scale", [2.0**-1030, 2.0**1000])
def test_extreme_magnitudes(scale):
    window = window_of((3, 3), (30, 30), before=(1, 1), after=(1, 1))
    conv = Convolution(np.full((8, 8, 3, 3), scale), (30, 30), window)
    found = proposals(kernel_of(conv), "fast")
    assert {claim.witness.method for claim in found} == {"windows", "absolute", "torus"}
    for claim in found:
        assert kernel_of(conv).norm_at_most(raised(claim), claim.witness, PROOFS[0])


def test_what_overflows_is_not_proposed():
    assert proposals(matrix_kernel(np.full((3, 3), 1.7e308)), "fast") == ()


@pytest.fixture(name="program", scope="module")
def _program():
    return read("digits_resnet_groupnorm")


def read(name):
    model = read_model(MODELS / f"{name}.onnx")
    return lower(model, model.outputs[-1])


@pytest.fixture(name="found", scope="module")
def _found(program):
    return find_norms(program, POINT, "fast")


def holds(steps, claim, program):
    witness = NormWitness(claim.method, claim.twists, claim.counts)
    return norm_holds(steps, program.shapes, claim.bound, witness, ENGINES["float"].norms)


def of_steps(found):
    return {line.value: line for line in found if isinstance(line, StepNorm)}


def of_runs(found):
    return [line for line in found if isinstance(line, RunNorm)]


def linear_steps(program):
    return [step.output for step in program.steps if type(step.op).__name__ in {"Conv", "Dense"}]


def test_every_linear_step_of_a_network_has_a_proved_norm(program, found):
    assert list(of_steps(found)) == linear_steps(program)
    steps = {step.output: step for step in program.steps}
    for value, claim in of_steps(found).items():
        assert holds([steps[value]], claim, program)
    for run in of_runs(found):
        assert holds([steps[v] for v in run.values], run, program)


def test_progress_names_every_step_and_run(program, found):
    seen = []
    find_norms(program, POINT, "quick", lambda value, *_: seen.append(value))
    assert set(linear_steps(program)) <= set(seen)
    assert len(seen) >= len(of_steps(found)) + len(of_runs(found))


def test_free_weights_need_no_norms(program, found):
    (first, *_) = linear_steps(program)
    step = next(step for step in program.steps if step.output == first)
    name = next(iter(step.op.weight.sources))
    few = find_norms(program, ScopeClaim("constraint-set", (name,), ()), "quick")
    assert list(of_steps(few)) == linear_steps(program)[1:]
    assert not any(first in run.values for run in of_runs(few))


@pytest.mark.parametrize("free", [0, 1, 2])
@pytest.mark.parametrize("known", ["nothing", "input", "weights"])
def test_norms_that_are_not_asked_for_change_no_bound(free, known):
    """One of three layers may have any weights: norms above it serve the pull down to it."""
    program = read("digits_cnn")
    steps = {step.output: step for step in program.steps}
    (name,) = steps[linear_steps(program)[free]].op.weight.sources
    held = (Constraint(name, "spectral", 1.0),) if known == "weights" else ()
    scope = ScopeClaim("constraint-set", (name,), held)
    premises = replace(PREMISES, input_norm=1.0 if known == "input" else None, input_box=None)
    every = find_norms(program, scope, "quick")
    few = find_norms(program, scope, "quick", serves=serving(program, premises, scope))
    dropped = set(of_steps(every)) - set(of_steps(few))
    assert dropped == set(linear_steps(program)[:free] if known == "nothing" else ())
    one, other = (derive(program, premises, Evidence(scope, lines)) for lines in (every, few))
    assert one.gradients == other.gradients
    assert one.lipschitz == other.lipschitz
    for before, after in ((one.facts, other.facts), (one.cotangents, other.cotangents)):
        assert {v: x.norm for v, x in before.items()} == {v: x.norm for v, x in after.items()}


@pytest.mark.parametrize("error", [1e-7, 1e-5, 1e-3])
def test_a_peak_that_was_missed_costs_room_and_no_bound(program, found, error, monkeypatch):
    """Proposals below the truth are raised until the core proves them, never believed."""

    def low(kernel, tier):
        return tuple(c._replace(bound=c.bound * (1.0 - error)) for c in proposals(kernel, tier))

    monkeypatch.setattr(norms, "proposals", low)
    again = find_norms(program, POINT, "fast")
    assert list(of_steps(again)) == list(of_steps(found))
    for value, claim in of_steps(again).items():
        truth = of_steps(found)[value].bound / (1.0 + norms.ROOMS[0])
        assert truth * (1.0 - 1e-8) <= claim.bound <= truth * (1.0 + 20.0 * error)


def test_another_method_takes_the_place_of_one_that_fails(program, found, monkeypatch):
    def broken(kernel, tier):
        wrong = Claim(1e-3, NormWitness("torus", (1,), (3,)))
        return (wrong, *proposals(kernel, "quick"))

    monkeypatch.setattr(norms, "proposals", broken)
    again = find_norms(program, POINT, "fast")
    assert list(of_steps(again)) == list(of_steps(found))
    for value, claim in of_steps(again).items():
        assert claim.bound >= of_steps(found)[value].bound * (1.0 - 1e-7)


def test_what_cannot_be_proved_is_left_out(program, monkeypatch):
    """The search proposes what is false."""
    lies = (Claim(1e-6, NormWitness("windows")),)
    monkeypatch.setattr(norms, "proposals", lambda kernel, tier: lies)
    assert find_norms(program, POINT, "fast") == ()
