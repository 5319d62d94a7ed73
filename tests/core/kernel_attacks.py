"""Chains below differences of classes, and the largest gradient of their first kernel.

A gradient of a kernel is linear in the image, and in the slopes of every layer, each for itself: so
its norm is convex in each of these, and rises when one of them goes to where its linear part is
largest. From some places at random that ends at large gradients, with slopes of any values that the
facts allow, whether an image has such slopes or not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from lipcert.core.certificate import ScopeClaim
from lipcert.core.coverage import rule_of
from lipcert.core.ledger.premises import Premises
from lipcert.core.line import Line
from lipcert.core.lines.chains import slopes_between
from lipcert.core.lines.facts import InputFact, StepFact
from lipcert.core.lines.proof import LOSS, Proof
from lipcert.core.lines.pulls import LossPull
from lipcert.core.norms import ENGINES
from lipcert.core.program import (
    Activation,
    AveragePool,
    BatchNorm,
    Conv,
    Dense,
    Move,
    Op,
    Operand,
    Place,
    Program,
    Scale,
    Shape,
    Shift,
    Step,
    Window,
)
from lipcert.core.rules.facts import Fact
from lipcert.search.norms import find_norms
from tests.core.mutants.truth import follow

CLASSES = 3


@dataclass(frozen=True)
class Chain:
    """A proof about a chain, up to the cotangent of its scores; value: of the first kernel."""

    proof: Proof
    value: str


def operand(array: np.ndarray, *sources: str) -> Operand:
    return Operand(array, array, dict.fromkeys(sources, 1.0))


def windows(size: Shape, taps: int, stride: int, pad: int, dilation: int) -> Window:
    outputs = tuple((n + 2 * pad - dilation * (taps - 1) - 1) // stride + 1 for n in size)
    each = (1,) * len(size)
    return Window(
        tuple(taps * n for n in each),
        tuple(stride * n for n in each),
        tuple(dilation * n for n in each),
        tuple(pad * n for n in each),
        outputs,
    )


def chain(seed: int, premises: Premises, layers: int = 3) -> Chain:
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
            window = windows(shape[2:], taps, 2, pad, 1)
            op = AveragePool(window, counts_padding=bool(rng.random() < 0.5))
            then(op, (*shape[:2], *window.outputs))
        taps, stride, pad = 3 if rng.random() < 0.8 else 2, int(rng.integers(1, 3)), 1
        dilation = 2 if rng.random() < 0.15 else 1
        window = windows(shape[2:], taps, stride, pad, dilation)
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


def proved(
    shapes: dict[str, Shape], steps: Sequence[Step], premises: Premises, value: str
) -> Chain:
    """With all norms and facts of steps from "x" up to scores, and the cotangent of these."""
    program = Program("x", steps[-1].output, shapes, tuple(steps), Place(0), ())
    scope = ScopeClaim("point", (), ())
    found = find_norms(program, scope, "fast", lambda _: None)
    proof = Proof(program, premises, scope, ENGINES["float"])
    facts: list[Line] = [StepFact(value=step.output, step=rule_of(step.op)) for step in steps]
    lines = (*found, InputFact(value="x"), *facts)
    follow(proof, [*lines, LossPull(value=program.output)])
    return Chain(proof, value)


def linear(step: Step, x: torch.Tensor, slopes: dict[str, torch.Tensor]) -> torch.Tensor:
    """The linear part of a step, with these slopes."""
    op = step.op
    match op:
        case Conv():
            return convolved(op, x, torch.tensor(op.weight.lo))
        case AveragePool(window, counts_padding):
            pool = F.avg_pool1d if x.dim() == 3 else F.avg_pool2d
            kernel = (window.taps, window.strides, window.before)
            return pool(x, *kernel, count_include_pad=counts_padding)
        case BatchNorm(scale, _, _, inverse):
            factor = torch.from_numpy(scale.lo * inverse.lo)
            return x * factor.reshape(-1, *[1] * (x.dim() - 2))
        case Scale(factor):
            return x * torch.from_numpy(factor.lo)
        case Shift():
            return x
        case Activation():
            return x * slopes[step.output]
        case Move(sources):
            return x.flatten()[torch.from_numpy(sources)]
        case Dense(weight):
            return x @ torch.from_numpy(weight.lo).T
    raise TypeError(op)


def attained(
    found: Chain, starts: int, rounds: int, seed: int, *, is_cotangent: bool = False
) -> float:
    """The largest norm of the gradient of the first kernel, over all pairs of classes; or of that
    of what it computes."""
    torch.manual_seed(seed)
    proof, steps = found.proof, found.proof.program.steps
    hull = proof.passes[LOSS].cotangents[proof.program.output].hull
    place = next(k for k, step in enumerate(steps) if step.output == found.value)
    limits = slopes_between(steps[place:], proof.facts) or {}
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


def brightest(rise: torch.Tensor, fact: Fact) -> torch.Tensor:
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
    for _ in range(40):
        middle = 0.5 * (below + above)
        is_within = (middle * rise).clamp(low, high).norm() <= fact.norm
        below, above = (middle, above) if is_within else (below, middle)
    return (below * rise).clamp(low, high)


def squared(
    steps: Sequence[Step], at: dict[str, torch.Tensor], pair: torch.Tensor, *, is_cotangent: bool
) -> torch.Tensor:
    """‖gradient of the kernel of the first step‖², or of what that computes."""
    weight = torch.tensor(steps[0].op.weight.lo, requires_grad=True)
    value = first = convolved(steps[0].op, at[""], weight)
    for step in steps[1:]:
        value = linear(step, value, at)
    of = first if is_cotangent else weight
    (gradient,) = torch.autograd.grad((value * pair).sum(), of, create_graph=True)
    return gradient.square().sum()


def convolved(op: Conv, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    convolve = F.conv1d if x.dim() == 3 else F.conv2d
    window = op.window
    return convolve(x, weight, None, window.strides, window.before, window.dilations, op.groups)
