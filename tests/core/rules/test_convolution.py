"""Conv: images at the border, gradients of kernels behind a move and by channel sums."""

import math

import numpy as np
import pytest
import torch

from lipcert.core.interval import exact
from lipcert.core.program import Move, Operand, Shape
from lipcert.core.rules.facts import Cotangent, Fact
from lipcert.core.window_kinds import Conv, Window
from tests.core.rules.cases import KINDS, POINT, behind_one, exactly, fact_behind, ones, rule
from tests.core.rules.evaluate import apply, operands_of, spectral


def test_attained_convolution_box_at_the_border() -> None:
    """Ones under a kernel of ones: 4 at corners of a padded image and 9 inside, so a range."""
    w = Window((3, 3), (1, 1), (1, 1), (1, 1), (4, 4))
    op = Conv(exactly(np.ones((1, 1, 3, 3))), exactly([0.5]), w, 1, transposed=False)
    x = Fact.of((1, 1, 4, 4), box=exact(np.ones((1, 1, 1, 1))))
    found = fact_behind(op, x, (1, 1, 4, 4), (1, 1, 4, 4), {"y": 9.0})
    assert (found.box.lo.item(), found.box.hi.item()) == pytest.approx((4.5, 9.5))
    counts = np.outer([2, 3, 3, 2], [2, 3, 3, 2]) + 0.5
    assert found.norm == pytest.approx(np.linalg.norm(counts), rel=1e-9)


def test_boxes_of_images_stay_small() -> None:
    w = Window((3, 3), (1, 1), (1, 1), (1, 1), (200, 200))
    kernel = np.multiply.outer([1.0, 2.0], np.ones((1, 3, 3)))
    op = Conv(exactly(kernel), None, w, 1, transposed=False)
    x = Fact.of((1, 1, 200, 200), 1.0)
    found = fact_behind(op, x, (1, 1, 200, 200), (1, 2, 200, 200), {})
    assert found.box.shape == (1, 2, 1, 1)
    flat = Move(np.arange(80000).reshape(1, 2, 40000))
    assert fact_behind(flat, found, (1, 2, 200, 200), (1, 2, 40000), {}).box.shape == (1, 2, 1)


@pytest.mark.sample(seed=7)
@pytest.mark.parametrize("seed", range(20))
def test_kernels_behind_a_move(seed: int) -> None:
    """Any rearrangement in front of a convolution, with repetition and zeros."""
    rng = np.random.default_rng(seed)
    case = KINDS["Conv"](rng)
    (before,) = case.shapes
    source: Shape = (int(rng.integers(1, 9)),)
    move = Move(rng.integers(-1, source[0], size=before))
    x = rng.normal(size=source)
    behind = behind_one(move, Fact.of(source, float(np.linalg.norm(x))), source)
    inside = np.append(x, 0.0)[move.sources]
    facts = [Fact.of(before)]
    found = dict(
        rule(case.op, facts, [before], case.shape, POINT, behind).gradients(Cotangent(1.0))
    )
    tensors = {operand: torch.tensor(operand.lo) for operand in operands_of(case.op)}
    jacobian = torch.autograd.functional.jacobian(
        lambda t: apply(case.op, [torch.tensor(inside)], case.shape, tensors | {case.op.weight: t}),
        tensors[case.op.weight],
    )
    assert spectral(jacobian.reshape(math.prod(case.shape), -1)) <= found["w"] * (1 + 1e-9)


def test_attained_behind_a_move() -> None:
    """One number at all 4 places, read by 3 windows of 2 taps: a matrix of 6 ones."""
    window = Window((2,), (1,), (1,), (0,), (3,))
    op = Conv(ones((1, 1, 2), "w"), None, window, 1, transposed=False)
    behind = behind_one(
        Move(np.zeros((1, 1, 4), dtype=np.int64)), Fact.of((1, 1, 1), 1.0), (1, 1, 1)
    )
    asked = rule(op, [Fact.of((1, 1, 4))], [(1, 1, 4)], (1, 1, 3), POINT, behind)
    found = asked.gradients(Cotangent(1.0))
    assert dict(found)["w"] == pytest.approx(math.sqrt(6), rel=1e-15)


def _bounds(op: Conv, x: Fact, before, after, behind=None) -> dict[str, float]:
    """For cotangents with √Σ_c ‖g_c‖₁² ≤ 2 of which nothing else is known."""
    received = Cotangent(math.inf, None, 2.0)
    asked = rule(op, [x], [before], after, behind=behind)
    return dict(asked.gradients(received))


def _steepest(op: Conv, operand: Operand, x: np.ndarray, after) -> float:
    """sup of ‖Jᵀg‖ over √Σ_c ‖g_c‖₁² ≤ 2: reached where g is one number, the longest row of J."""
    tensors = {item: torch.tensor(item.lo) for item in operands_of(op)}
    jacobian = torch.autograd.functional.jacobian(
        lambda t: apply(op, [torch.tensor(x)], after, tensors | {operand: t}), tensors[operand]
    )
    return 2.0 * float(jacobian.reshape(math.prod(after), -1).norm(dim=1).max())


@pytest.mark.sample(seed=14)
@pytest.mark.parametrize("seed", range(40))
def test_no_gradient_is_larger_than_by_channel_sums(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = KINDS["Conv"](rng)
    (before,) = case.shapes
    x = rng.normal(size=before)
    found = _bounds(case.op, Fact.of(before, float(np.linalg.norm(x))), before, case.shape)
    for operand in operands_of(case.op):
        (name,) = operand.sources
        assert _steepest(case.op, operand, x, case.shape) <= found[name] * (1 + 1e-9)


@pytest.mark.sample(seed=14)
@pytest.mark.parametrize("seed", range(40))
def test_behind_any_move(seed: int) -> None:
    """Repetition within a window counts, repetition between windows does not."""
    rng = np.random.default_rng(seed)
    case = KINDS["Conv"](rng)
    (before,) = case.shapes
    source = (int(rng.integers(1, 9)),)
    move = Move(rng.integers(-1, source[0], size=before))
    x = rng.normal(size=source)
    behind = behind_one(move, Fact.of(source, float(np.linalg.norm(x))), source)
    inside = np.append(x, 0.0)[move.sources]
    found = _bounds(case.op, Fact.of(before), before, case.shape, behind)
    weight = case.op.weight
    (name,) = weight.sources
    assert _steepest(case.op, weight, inside, case.shape) <= found[name] * (1 + 1e-9)


def test_one_window_of_equal_entries_attains_what_their_largest_allows() -> None:
    """Of an image of which the norm is far larger: three entries of 0.5 under one output."""
    op, _ = _one_by_three("wrap")
    asked = rule(op, [Fact.of((1, 1, 6), box=exact(np.full((1, 1, 1), 0.5)))], [(1, 1, 6)],
                 (1, 2, 4))  # fmt: skip
    found = dict(asked.gradients(Cotangent(9.0, sums=2.0)))
    assert found["w"] == pytest.approx(2.0 * 0.5 * math.sqrt(3.0))


def _one_by_three(padding: str, strides: int = 1) -> tuple[Conv, Move]:
    """Three taps over four entries, padded by one at both ends."""
    window = Window((3,), (strides,), (1,), (0,), ((6 - 3) // strides + 1,))
    weight = Operand(np.ones((2, 1, 3)), np.ones((2, 1, 3)), {"w": 1.0})
    bias = Operand(np.ones(2), np.ones(2), {"b": 1.0})
    sources = np.pad(np.arange(4), 1, mode=padding).reshape(1, 1, 6)
    return Conv(weight, bias, window, 1, transposed=False), Move(sources)


@pytest.mark.parametrize(
    ("padding", "repeated"), [("wrap", 1), ("reflect", 2), ("edge", 2), ("symmetric", 2)]
)
def test_the_published_bound_holds_for_circular_padding_alone(padding: str, repeated: int) -> None:
    """β·C for circular padding; a reflected or repeated entry is met twice by one window."""
    op, move = _one_by_three(padding)
    behind = behind_one(move, Fact.of((1, 1, 4), 0.5), (1, 1, 4))
    found = _bounds(op, Fact.of((1, 1, 6)), (1, 1, 6), (1, 2, 4), behind)
    assert found["w"] == pytest.approx(0.5 * 2.0 * math.sqrt(repeated), rel=1e-15)
    assert found["b"] == 2.0
    x = np.zeros(4)
    x[1 if padding == "reflect" else 0] = 0.5
    inside = x[move.sources]
    assert _steepest(op, op.weight, inside, (1, 2, 4)) == pytest.approx(found["w"])


def test_a_bound_of_the_kernel_is_none_of_the_bias() -> None:
    """A line may say more of the gradient of the kernel; each position adds to that of the bias."""
    window = Window((3,), (1,), (1,), (1,), (4,))
    kernel, bias = (
        Operand(array, array, {name: 1.0})
        for name, array in (("kernel", np.ones((1, 1, 3))), ("bias", np.zeros(1)))
    )
    op = Conv(kernel, bias, window, 1, transposed=False)
    x = Fact.of((1, 1, 4), 1.0)
    found = rule(op, [x], [(1, 1, 4)], (1, 1, 4))
    assert dict(found.gradients(Cotangent(1.0), 0.5)) == {"kernel": 0.5, "bias": 2.0}
