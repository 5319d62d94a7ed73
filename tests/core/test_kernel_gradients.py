"""Gradients of kernels by differences of classes, against slopes and images that were searched."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lipcert.core.certificate import Constraint, ScopeClaim
from lipcert.core.forms.kernels import laid_out
from lipcert.core.forms.pulled import pulled
from lipcert.core.forms.signs import Differences
from lipcert.core.interval import exact
from lipcert.core.line import NotProved
from lipcert.core.lines.kernels import Kernel, KernelGradient, kernel_at
from lipcert.core.lines.proof import LOSS, Proof
from lipcert.core.lines.signs import SignPull
from lipcert.core.norms import ENGINES
from lipcert.core.program import (
    Activation,
    AveragePool,
    BatchNorm,
    Conv,
    Dense,
    Move,
    Op,
    Scale,
    Shift,
    Step,
)
from lipcert.search.kernels import kernel_lines
from tests.core.kernel_attacks import (
    CLASSES,
    Chain,
    attained,
    chain,
    linear,
    operand,
    proved,
    windows,
)
from tests.weakenings.oracles import PREMISES

IMAGES = replace(PREMISES, input_norm=1.0, input_box=(0.0, 1.0))
SIGNED = replace(PREMISES, input_norm=1.0)
BRIGHT = replace(PREMISES, input_norm=4.0, input_box=(0.0, 1.0))
LINEAR = AveragePool | BatchNorm | Conv | Dense | Move | Scale


def bound_of(found: Chain) -> tuple[KernelGradient, float]:
    """The line that says most, of those that are proved."""
    for line in kernel_lines(found.proof, found.value, math.inf, "tight"):
        try:
            return line, line.evaluate(found.proof)
        except NotProved:
            continue
    return line, math.inf


def no_kernel_has_a_larger_gradient(premises, seed):
    found = chain(seed, premises)
    _, bound = bound_of(found)
    assert attained(found, 2, 16, seed) <= bound * (1.0 + 1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_of_images_without_signs(seed):
    no_kernel_has_a_larger_gradient(IMAGES, seed)


@pytest.mark.parametrize("seed", range(400, 416))
def test_of_images_whose_pixels_are_as_bright_as_can_be(seed):
    no_kernel_has_a_larger_gradient(BRIGHT, seed)


def weighted(premises, seed) -> tuple[Chain, KernelGradient]:
    """A chain, and its best line, which has weights."""
    found = chain(seed, premises)
    line, _ = bound_of(found)
    assert line.weights
    return found, line


@pytest.mark.parametrize("seed", [415, 416, 420])
def test_weights_say_more_than_norms(seed):
    found, line = weighted(BRIGHT, seed)
    with pytest.raises(NotProved):
        replace(line, weights=()).evaluate(found.proof)


@pytest.mark.parametrize("row", range(2))
def test_weights_that_prove_nothing_are_refused(row):
    found, line = weighted(BRIGHT, 416)
    numbers = line.weights[row]
    for other in (
        [1.01 * n for n in numbers],
        numbers[1:],
        [0.0, *numbers[1:]],
        [1e308] * len(numbers),
    ):
        rows = [*line.weights]
        rows[row] = tuple(other)
        with pytest.raises(NotProved):
            replace(line, weights=tuple(rows)).evaluate(found.proof)
    with pytest.raises(NotProved):
        replace(line, weights=line.weights[:1]).evaluate(found.proof)


def no_cotangent_is_longer(premises, seed):
    found = chain(seed, premises)
    bound = SignPull(value=found.value, stop=found.proof.program.output).evaluate(found.proof)
    assert attained(found, 2, 16, seed, is_cotangent=True) <= bound * (1.0 + 1e-12)


@pytest.mark.parametrize("seed", range(12, 24))
def test_of_values(seed):
    no_cotangent_is_longer(IMAGES, seed)


@pytest.mark.parametrize("seed", range(100, 104))
def test_of_images_with_signs(seed):
    no_kernel_has_a_larger_gradient(SIGNED, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(200, 320))
def test_of_many_chains(seed):
    no_kernel_has_a_larger_gradient(IMAGES if seed % 4 else SIGNED, seed)


def of_one_sign(found: Chain) -> float:
    """Per channel the larger of the positive and the negative part, all taps together: as if the
    slopes had one sign for all of them."""
    line, _ = bound_of(found)
    kernel, largest = kernel_at(found.proof, found.value, line.stop), 0.0
    for one in range(CLASSES):
        for other in range(one):
            vector = kernel.vector(one, other)
            rows = np.stack([np.maximum(vector.lo, 0.0), np.maximum(-vector.lo, 0.0)])
            whole = laid_out(rows, kernel.reads, kernel.pixels)
            parts = whole.reshape(2, len(vector.lo), -1, kernel.pixels)
            squares = np.einsum("sctx,scty->scxy", parts, parts).max(axis=0).sum(axis=0)
            largest = max(largest, float(np.linalg.eigvalsh(squares)[-1]))
    return kernel.scale * kernel.norm * largest**0.5


def test_one_sign_for_all_taps_is_no_bound():
    """What the attacks above would find, if it were taken for one."""
    exceeded = []
    for seed in range(8, 15):
        found = chain(seed, IMAGES, layers=1)
        true = attained(found, 3, 16, seed)
        assert true <= bound_of(found)[1] * (1.0 + 1e-12)
        exceeded.append(true > of_one_sign(found) * (1.0 + 1e-9))
    assert sum(exceeded) >= 2


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_pulled_through_linear_steps(seed):
    """As torch differentiates."""
    found, rng = chain(seed, IMAGES), np.random.default_rng(seed)
    program = found.proof.program
    for step in program.steps:
        if not isinstance(step.op, LINEAR):
            continue
        shape = program.shapes[step.inputs[0]]
        rows = rng.standard_normal((2, math.prod(step.shape)))
        interval = pulled(exact(rows), step, shape, {})
        x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        for row, low, high in zip(rows, interval.lo, interval.hi, strict=True):
            value = linear(step, x, {}).flatten() @ torch.from_numpy(row)
            (true,) = torch.autograd.grad(value, x)
            assert np.all(low <= true.numpy().ravel() + 1e-13)
            assert np.all(true.numpy().ravel() - 1e-13 <= high)
            assert np.all(high - low <= 1e-12)


def of_one_pixel(*factors: float) -> Chain:
    """x ↦ relu(3x) at one pixel, then relu(fx ± 3) for each factor f, and four times that."""
    window, one = windows((1,), 1, 1, 0, 1), np.ones((1, 1, 1))
    relu, flat = Activation("relu"), Move(np.zeros((1, 1), dtype=np.int64))
    scores = Dense(operand(np.array([[4.0], [0.0], [0.0]])), None)
    row: list[Op] = [Conv(operand(3.0 * one), None, window, 1, transposed=False), relu]
    for factor in factors:
        row.append(Conv(operand(factor * one), None, window, 1, transposed=False))
        row += [Shift(operand(np.copysign(3.0, -factor) * one)), relu]
    row += [flat, scores]
    shapes, steps = {"x": (1, 1, 1)}, []
    for number, op in enumerate(row):
        shape = {flat: (1, 1), scores: (1, CLASSES)}.get(op, (1, 1, 1))
        steps.append(Step(op, (f"v{number - 1}" if number else "x",), f"v{number}", shape, number))
        shapes[f"v{number}"] = shape
    return proved(shapes, steps, SIGNED, "v0")


@pytest.mark.parametrize("factors", [(), (-2.0,), (-2.0, 2.0)])
def test_attained_by_single_entries(factors):
    """The gradient is 4·Πf·x·(e_i − e_j) at most."""
    found = of_one_pixel(*factors)
    _, bound = bound_of(found)
    assert bound == pytest.approx(attained(found, 20, 1, 0), rel=1e-4)


@pytest.mark.parametrize("factors", [(-2.0,), (-2.0, 2.0)])
def test_weights_of_single_entries_attain_the_same(factors):
    found = of_one_pixel(*factors)
    line, bound = bound_of(found)
    weighted = replace(line, weights=((1.0,), (0.49999,)))
    assert weighted.evaluate(found.proof) == pytest.approx(bound, rel=1e-4)
    assert bound >= attained(found, 20, 1, 0)
    with pytest.raises(NotProved):
        replace(weighted, claim=0.99 * line.claim).evaluate(found.proof)


def test_what_unknown_slopes_add_counts():
    """Beside u = 0 of all pairs, d of norm 1: σ ≤ ½ is proved, and the gradient is d."""
    zeros, ones = exact(np.zeros((CLASSES, 1))), np.ones((CLASSES, CLASSES))
    differences = Differences(zeros, ones, 2.0 * ones)
    reads, slopes = np.zeros((1, 1), dtype=np.int64), exact(np.ones((1, 1)))
    kernel = Kernel(differences, slopes, 1.0, reads, 1, True, 1.0, 1.0, 1.0, np.ones((1, 1)), 1, ())
    assert kernel.bound(chain(0, IMAGES).proof, 1.0, 1.5) >= 1.0


def test_integers_prove_the_same():
    found = chain(3, IMAGES)
    line, bound = bound_of(found)
    found.proof.engine = ENGINES["exact"]
    assert line.evaluate(found.proof) == bound


def test_a_claim_that_is_too_low_is_refused():
    for seed in range(6):
        found = chain(seed, IMAGES)
        line, bound = bound_of(found)
        with pytest.raises(NotProved):
            replace(line, claim=0.9 * line.claim / 1.05).evaluate(found.proof)
        with pytest.raises(NotProved):
            replace(line, ratio=0.0).evaluate(found.proof)
        assert bound < math.inf


def test_what_else_is_read_or_may_change_is_refused():
    found = chain(1, IMAGES)
    program, proof = found.proof.program, found.proof
    line, _ = bound_of(found)
    of_values = SignPull(value=line.value, stop=line.stop)
    with pytest.raises(NotProved):
        replace(of_values, of="output").evaluate(proof)
    again = replace(program.steps[0], output="again", inputs=(found.value,))
    refused(replace(program, steps=(program.steps[0], again, *program.steps[1:])), proof, line)
    held = (Constraint("above", "spectral", 100.0),)
    refused(program, proof, line, scope=ScopeClaim("constraint-set", ("above",), held))
    refused(program, proof, line, premises=replace(IMAGES, loss="mae"))


def refused(program, proof, line, **changes):
    """By a proof that knows what another one does."""
    about = {"premises": proof.premises, "scope": ScopeClaim("point", (), ()), **changes}
    other = Proof(program, about["premises"], about["scope"], proof.engine)
    other.norms.update(proof.norms)
    other.facts.update(proof.facts)
    known = proof.passes[LOSS].cotangents[program.output]
    hull = None if "premises" in changes else known.hull
    other.passes[LOSS].cotangents[program.output] = replace(known, hull=hull)
    with pytest.raises(NotProved):
        line.evaluate(other)
