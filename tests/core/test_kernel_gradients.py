"""Gradients of kernels by differences of classes, against slopes and images that were searched."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from lipcert.core.certificate import Constraint, ScopeClaim
from lipcert.core.coverage import rule_of
from lipcert.core.forms.kernels import laid_out
from lipcert.core.forms.signs import Differences, pulled
from lipcert.core.interval import exact
from lipcert.core.kinds import BatchNorm
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.chains import slopes_between
from lipcert.core.lines.kernels import Kernel, KernelGradient, kernel_at
from lipcert.core.lines.proof import LOSS, Proof
from lipcert.core.lines.signs import SignPull
from lipcert.core.lines.steps import InputFact, LossPull, StepFact
from lipcert.core.norms import ENGINES
from lipcert.core.program import Activation, Dense, Move, Op, Operand, Place, Program, Shape, Step
from lipcert.core.token_kinds import Scale, Shift
from lipcert.core.window_kinds import AveragePool, Conv
from lipcert.search.kernels import kernel_lines
from lipcert.search.norms import find_norms
from tests.core.mutants.truth import follow
from tests.core.norms.convolutions import window_of
from tests.core.rules.evaluate import apply, operands_of
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


@pytest.mark.parametrize(
    ("premises", "seeds"),
    [(IMAGES, range(3)), (BRIGHT, range(400, 403)), (SIGNED, range(100, 102))],
    ids=["without signs", "as bright as can be", "with signs"],
)
def test_of_images(premises, seeds):
    for seed in seeds:
        no_kernel_has_a_larger_gradient(premises, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(200, 320))
def test_of_many_chains(seed):
    no_kernel_has_a_larger_gradient((SIGNED, BRIGHT, IMAGES, IMAGES)[seed % 4], seed)


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


@pytest.mark.parametrize("seed", range(12, 18))
def test_of_values(seed):
    found = chain(seed, IMAGES)
    bound = SignPull(value=found.value, stop=found.proof.program.output).evaluate(found.proof)
    assert attained(found, 2, 16, seed, is_cotangent=True) <= bound * (1.0 + 1e-12)


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
    for seed in (8, 9, 13):
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
        interval = pulled(exact(rows), step, shape)
        x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        for row, low, high in zip(rows, interval.lo, interval.hi, strict=True):
            value = linear(step, x, {}).flatten() @ torch.from_numpy(row)
            (true,) = torch.autograd.grad(value, x)
            assert np.all(low <= true.numpy().ravel() + 1e-13)
            assert np.all(true.numpy().ravel() - 1e-13 <= high)
            assert np.all(high - low <= 1e-12)


def of_one_pixel(*factors: float) -> Chain:
    """x ↦ relu(3x) at one pixel, then relu(fx ± 3) for each factor f, and four times that."""
    window, one = window_of((1,), (1,)), np.ones((1, 1, 1))
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


CLASSES = 3


@dataclass(frozen=True)
class Chain:
    """A proof about a chain, up to the cotangent of its scores; value: of the first kernel."""

    proof: Proof
    value: str


def operand(array: np.ndarray, *sources: str) -> Operand:
    return Operand(array, array, dict.fromkeys(sources, 1.0))


def evenly(axes: int, *numbers: int) -> list[Shape]:
    return [(number,) * axes for number in numbers]


def chain(seed: int, premises, layers: int = 3) -> Chain:
    """A random one: convolutions, at most so many, pools, factors and kinks, on one axis or two."""
    rng = np.random.default_rng(seed)
    axes = 1 + int(rng.random() < 0.8)
    shape: Shape = (1, int(rng.integers(1, 3)), *(int(rng.integers(5, 9)),) * axes)
    shapes, steps, value = {"x": shape}, list[Step](), ""

    def then(op: Op, after: Shape) -> None:
        nonlocal shape
        below = steps[-1].output if steps else "x"
        name = f"v{len(steps)}"
        steps.append(Step(op, (below,), name, after, len(steps)))
        shapes[name] = shape = after

    for number in range(int(rng.integers(1, layers + 1))):
        if number and rng.random() < 0.3 and min(shape[2:]) >= 4:
            taps, pad = (2, 0) if rng.random() < 0.7 else (3, 1)
            window = window_of((taps,) * axes, shape[2:], *evenly(axes, 2, 1, pad, pad))
            op = AveragePool(window, counts_padding=bool(rng.random() < 0.5))
            then(op, (*shape[:2], *window.outputs))
        taps, stride, pad = 3 if rng.random() < 0.8 else 2, int(rng.integers(1, 3)), 1
        dilation = 2 if rng.random() < 0.15 else 1
        window = window_of((taps,) * axes, shape[2:], *evenly(axes, stride, dilation, pad, pad))
        if min(window.outputs) < 1:
            continue
        groups = shape[1] if rng.random() < 0.2 else 1
        channels = groups * int(rng.integers(1, 4))
        kernel = rng.standard_normal((channels, shape[1] // groups, *window.taps))
        bias = operand(0.3 * rng.standard_normal(channels)) if rng.random() < 0.5 else None
        kernel += rng.uniform(-0.5, 0.5)
        then(
            Conv(operand(kernel, f"w{number}"), bias, window, groups, transposed=False),
            (1, channels, *window.outputs),
        )
        value = value or steps[-1].output
        if rng.random() < 0.2:
            parts = (operand(rng.uniform(-1.5, 1.5, channels)) for _ in range(4))
            then(BatchNorm(*parts), shape)
        if rng.random() < 0.9:
            kinds = [("relu", ()), ("leaky_relu", (0.2,)), ("sigmoid", ()), ("abs", ())]
            then(Activation(*kinds[int(rng.choice(4, p=(0.7, 0.1, 0.1, 0.1)))]), shape)
        if rng.random() < 0.1:
            then(Scale(operand(rng.uniform(-1.5, 1.5, (1, *shape[1:])))), shape)
    size = math.prod(shape)
    then(Move(rng.permutation(size).reshape(1, size)), (1, size))
    then(Dense(operand(rng.standard_normal((CLASSES, size)), "above"), None), (1, CLASSES))
    return proved(shapes, steps, premises, value)


def proved(shapes: dict[str, Shape], steps, premises, value: str) -> Chain:
    """With all norms and facts of steps from "x" up to scores, and the cotangent of these."""
    program = Program("x", steps[-1].output, shapes, tuple(steps), Place(0), ())
    scope = ScopeClaim("point", (), ())
    found = find_norms(program, scope, "fast")
    proof = Proof(program, premises, scope, ENGINES["float"])
    facts: list[Line] = [StepFact(value=step.output, step=rule_of(step.op)) for step in steps]
    lines = (*found, InputFact(value="x"), *facts)
    follow(proof, [*lines, LossPull(value=program.output)])
    return Chain(proof, value)


def linear(step: Step, x: torch.Tensor, slopes: dict[str, torch.Tensor]) -> torch.Tensor:
    """The linear part of a step, with these slopes."""
    if isinstance(step.op, Activation):
        return x * slopes[step.output]
    numbers = {operand: torch.tensor(operand.lo) for operand in operands_of(step.op)}
    one, zero = (apply(step.op, [at], step.shape, numbers) for at in (x, torch.zeros_like(x)))
    return one - zero


def attained(
    found: Chain, starts: int, rounds: int, seed: int, *, is_cotangent: bool = False
) -> float:
    """The largest norm of the gradient of the first kernel, over all pairs of classes; or of that
    of what it computes."""
    torch.manual_seed(seed)
    proof, steps = found.proof, found.proof.program.steps
    hull = proof.passes[LOSS].cotangents[proof.program.output].hull
    place = next(k for k, step in enumerate(steps) if step.output == found.value)
    limits = slopes_between(steps[place:], proof.facts)
    below, shapes = steps[place].inputs[0], proof.program.shapes
    fact = proof.facts[below]
    signless = bool((fact.box.lo >= 0.0).all())
    ends = {
        name: [torch.tensor(np.broadcast_to(end, shapes[name])) for end in (each.lo, each.hi)]
        for name, each in limits.items()
    }
    largest = 0.0
    for one, other in itertools.combinations(range(CLASSES), 2):
        pair = torch.zeros(1, CLASSES, dtype=torch.float64)
        pair[0, one], pair[0, other] = 1.0, -1.0
        for _ in range(starts):
            x = torch.randn(shapes[below], dtype=torch.float64)
            at = {"": brightest(x.abs() if signless else x, fact)}
            for name, (low, high) in ends.items():
                at[name] = torch.where(torch.rand(low.shape) < 0.5, low, high)
            for turn in range(rounds):
                leaves = {name: value.detach().requires_grad_() for name, value in at.items()}
                square = squared(steps[place:], leaves, pair, is_cotangent=is_cotangent)
                largest = max(largest, float(square.detach()) ** 0.5)
                name = list(at)[turn % len(at)]
                (rise,) = torch.autograd.grad(square, leaves[name], materialize_grads=True)
                if name:
                    low, high = ends[name]
                    at[name] = torch.where(rise > 0.0, high, low)
                    continue
                rise = rise.clamp(min=0.0) if signless else rise
                at[name] = brightest(rise, fact) if rise.any() else at[name]
    return largest * hull.scale


def brightest(rise: torch.Tensor, fact) -> torch.Tensor:
    """A multiple of an image, up to the ends of the box, of the norm that is allowed, or nearly."""
    low, high = (
        torch.tensor(np.broadcast_to(end, rise.shape)) for end in (fact.box.lo, fact.box.hi)
    )
    factor = fact.norm / rise.norm()
    for _ in range(40):
        more = (2.0 * factor * rise).clamp(low, high)
        if more.norm() > fact.norm or not (more != (factor * rise).clamp(low, high)).any():
            break
        factor = 2.0 * factor
    below, above = factor, 2.0 * factor
    for _ in range(24):
        middle = 0.5 * (below + above)
        is_within = (middle * rise).clamp(low, high).norm() <= fact.norm
        below, above = (middle, above) if is_within else (below, middle)
    return (below * rise).clamp(low, high)


def squared(
    steps, at: dict[str, torch.Tensor], pair: torch.Tensor, *, is_cotangent: bool
) -> torch.Tensor:
    """‖gradient of the kernel of the first step‖², or of what that computes."""
    op = replace(steps[0].op, bias=None)
    weight = torch.tensor(op.weight.lo, requires_grad=True)
    value = first = apply(op, [at[""]], steps[0].shape, {op.weight: weight})
    for step in steps[1:]:
        value = linear(step, value, at)
    of = first if is_cotangent else weight
    (gradient,) = torch.autograd.grad((value * pair).sum(), of, create_graph=True)
    return gradient.square().sum()
