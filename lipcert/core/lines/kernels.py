"""grad/kernel: gradients of kernels of convolutions, from differences of classes above them."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from lipcert.core.arithmetic import add_up, divide_down, multiply_up, round_down, sqrt_up
from lipcert.core.budget import spend
from lipcert.core.codec import Bound, member
from lipcert.core.forms.kernels import MAX_BETWEEN, correlated, laid_out, weighted_reach
from lipcert.core.forms.links import Diagonal, link_of
from lipcert.core.forms.signs import Differences, ball_of, distances, pulled
from lipcert.core.interval import Array, Interval, exact, up
from lipcert.core.kinds import BatchNorm, PRelu
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.chains import slopes_between
from lipcert.core.lines.norms import matrix_holds
from lipcert.core.lines.proof import LOSS, Proof
from lipcert.core.lines.signs import differences_at, path_between
from lipcert.core.norms.claim import all_at_most
from lipcert.core.program import Activation, IndexArray, Step
from lipcert.core.rules.base import rule_at
from lipcert.core.rules.facts import root_up
from lipcert.core.rules.window_reads import windows_over
from lipcert.core.rules.windows import convolution_axes, kernel_square
from lipcert.core.token_kinds import Scale, Shift
from lipcert.core.window_kinds import Conv


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KernelGradient(Line[float]):
    """‖∂loss/∂kernel‖₂ ≤ bound through the convolution that computes a value.

    stop: a value above, in the hull of whose cotangent the differences of classes lie. claim: for
    every pair of classes σ + κ·h·‖d‖ ≤ claim is proved, of `forms.kernels` (with a = ratio) and
    `forms.signs`, unless κ·h·‖q‖ is that small already; h the largest slope between the value and
    where the differences are.
    Hypotheses (checked): from the value to the stop each step reads what the one before computes
    and nothing else, and is fixed; nothing else reads it; the convolution is not transposed.
    Proof: a gradient of the kernel is linear in the cotangent, which lies in a hull whose vertices
    are convex combinations of differences e_i − e_j: its norm is largest at one of these. That of
    u + d is at most σ‖x‖ of u, and R·h·‖d‖ of d, R the norm of kernel ↦ value. By `forms.kernels`,
    what the lowest unknown slopes add to a vector is bounded by a and b, and d is no more than that
    and what they and the linear steps below them make of the d above.
    """

    value: str
    stop: str
    ratio: Bound
    claim: Bound
    weights: tuple[tuple[Bound, ...], ...] = field(default=(), metadata=member(optional=True))

    def evaluate(self, proof: Proof) -> float:
        """Over all pairs of classes."""
        kernel = kernel_at(proof, self.value, self.stop)
        if len(self.weights) not in {0, 2}:
            raise NotProved("its weights are not two rows")
        part = None
        if self.weights:
            inner, outer = (np.array(row, dtype=np.float64) for row in self.weights)
            part = added_below(proof, kernel, self.stop).part(kernel, inner, outer, proof)
        return kernel.bound(proof, self.ratio, self.claim, part)

    def least(self, found: float) -> float:
        """The largest of all pairs."""
        return found

    def keep(self, proof: Proof, _: float) -> None:
        """For the tensors of the kernel."""
        known = proof.kernels.get(self.value, math.inf)
        proof.kernels[self.value] = min(known, self.stated)


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """What is known of the cotangents of a convolution, and of what it reads.

    differences: where they are, `slopes` above the value it computes, [channels, windows]; scale:
    of the hull. reads, pixels, nonnegative: as in `forms.kernels`. norm: of what it reads;
    largest: magnitudes of that, [input channels, pixels], of so many groups. reach: of kernel ↦
    value; stretch: κ. above: the steps from the differences up to the stop.
    """

    differences: Differences
    slopes: Interval
    scale: float
    reads: IndexArray
    pixels: int
    nonnegative: bool
    norm: float
    reach: float
    stretch: float
    largest: Array
    groups: int
    above: Sequence[Step]

    @property
    def steepest(self) -> float:
        """h: the largest magnitude of a slope."""
        return float(np.max(self.slopes.magnitude(), initial=0.0))

    def vector(self, one: int, other: int) -> Interval:
        """u of a pair of classes, [channels, windows]."""
        found = self.differences.vectors
        rows = [Interval(found.lo[k], found.hi[k]) for k in (one, other)]
        return (rows[0] - rows[1]).moved(lambda end: end.reshape(self.slopes.shape))

    def proves(self, proof: Proof, pair: tuple[int, int], ratio: float, claim: float) -> bool:
        """Whether σ ≤ claim could be proved for the u of a pair, with a = ratio.

        Proof: an entry stands in [aD; S] once for each tap at most. Let U be [aμv; ρ|v|] as a
        matrix [2·channels, windows]; then ‖[aD; S]x‖² = Σ_t ‖U·x(t)‖² ≤ ‖U‖²·r‖x‖², x(t) what the
        windows read through tap t, if no pixel is read more than r times. That takes less work,
        and is tried first.
        """
        spend()
        if not (claim >= 0.0 and 0.0 < ratio < math.inf):
            return False
        check, reads = proof.engine.norms, self.reads
        parts = correlated(self.vector(*pair), self.slopes, ratio, nonnegative=self.nonnegative)
        claim = divide_down(claim, sqrt_up(1 + 1 / Fraction(ratio) ** 2))
        times = int(np.bincount(reads[reads >= 0], minlength=1).max())

        def check_rows(parts: Array, bound: float) -> bool:
            return check(parts.reshape(-1, len(reads)), bound)

        def check_all(parts: Array, bound: float) -> bool:
            return check(laid_out(parts, reads, self.pixels), bound)

        by_rows, every = divide_down(claim, root_up(max(times, 1))), root_up(reads.shape[1])
        with suppress(NotProved):  # beyond the limits of a proof
            found = all_at_most(parts, 1.0, by_rows, check_rows)
            return found or all_at_most(parts, every, claim, check_all)
        return False

    def rests(self, part: Array | None) -> tuple[Array, Array]:
        """What d adds to a gradient, for every pair of classes: over ‖x‖, and whole.

        part: another bound of the whole.
        """
        rests = up(self.steepest * self.differences.rests)
        shares, wholes = up(self.stretch * rests), up(self.reach * rests)
        if part is None or not self.norm:
            return shares, wholes
        return np.minimum(shares, up(part / self.norm)), np.minimum(wholes, part)

    def bound(self, proof: Proof, ratio: float, level: float, part: Array | None = None) -> float:
        """What follows from σ + κ·h·‖d‖ ≤ level, as far as it has to be proved; NotProved where
        it is not. part: as of `rests`."""
        pairs = np.triu_indices(len(self.differences.rests), 1)
        sizes = up(self.steepest * self.differences.sizes[pairs])
        shares, wholes = (rests[pairs] for rests in self.rests(part))
        is_small = up(self.stretch * sizes) <= level
        found = multiply_up(self.reach, float(np.max(sizes[is_small], initial=0.0)))
        for place in np.flatnonzero(~is_small):
            pair = int(pairs[0][place]), int(pairs[1][place])
            claim = round_down(Fraction(level) - Fraction(float(shares[place])))
            if not self.proves(proof, pair, ratio, claim):
                raise NotProved(f"it is not proved of the classes {pair[0]} and {pair[1]}")
            found = max(found, add_up(multiply_up(self.norm, claim), float(wholes[place])))
        return multiply_up(self.scale, found)


@dataclass(frozen=True, slots=True, eq=False)
class Added:
    """What the lowest unknown slopes add, and the linear steps between them and the kernel.

    matrix: A of `forms.kernels`, [above, below]; vectors: ρu, [classes, above]; rests: what is left
    of ‖d‖ for each pair.
    """

    matrix: Interval
    vectors: Interval
    rests: Array

    def part(self, kernel: Kernel, inner: Array, outer: Array, proof: Proof) -> Array:
        """What d adds to a gradient, for every pair of classes, by a and b; NotProved where they
        prove nothing."""
        spend()
        if (len(outer), len(inner)) != self.matrix.shape:
            raise NotProved("its weights do not fit the steps above")
        if not ((inner > 0.0).all() and (outer > 0.0).all()):
            raise NotProved("its weights are not positive")
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            weighted = self.matrix * exact(inner) * exact(outer[:, None])
            slopes = kernel.slopes.magnitude()
            shares = up(slopes / inner.reshape(slopes.shape))
            reach = weighted_reach(shares, kernel.reads, kernel.largest, kernel.norm, kernel.groups)
            sizes = distances(self.vectors * exact(outer).reciprocal())
            rests = up(multiply_up(kernel.reach, kernel.steepest) * self.rests)
            found = up(up(reach * sizes) + rests)
        holds = matrix_holds(weighted, 1.0, proof.engine.norms)
        if not holds or not np.isfinite(found).all():
            raise NotProved("its weights prove nothing")
        return found


def added_below(proof: Proof, kernel: Kernel, stop: str) -> Added:
    """NotProved where no unknown slopes are above linear steps, or these are too large."""
    shapes, steps = proof.program.shapes, kernel.above
    bends = (k for k, step in enumerate(steps) if isinstance(step.op, Activation | PRelu))
    count = next(bends, 0)
    linear, bent = steps[:count], steps[count] if count else None
    if bent is None:
        raise NotProved("there are no linear steps below unknown slopes")
    size = math.prod(bent.shape)
    if size * max(size, *(math.prod(shapes[step.inputs[0]]) for step in linear)) > MAX_BETWEEN:
        raise NotProved("the linear steps below unknown slopes are too large")
    matrix, norm = exact(np.eye(size)), 1.0
    for step in reversed(linear):
        matrix = pulled(matrix, step, shapes[step.inputs[0]])
        rule = rule_at(shapes, step, proof.facts, proof.weights)
        norm = multiply_up(norm, rule.lipschitz(0))
    _, radius, most = ball_of(slopes_between((bent,), proof.facts)[bent.output])
    differences = differences_at(proof, bent.output, stop)
    rests = up(multiply_up(norm, most) * differences.rests)
    return Added(matrix, differences.vectors * exact(radius), rests)


def kernel_at(proof: Proof, value: str, stop: str) -> Kernel:
    """Of the convolution that computes a value; NotProved where the hypotheses do not hold."""
    step = proof.step(value)
    if not isinstance(step.op, Conv) or step.op.transposed or step.shape[0] != 1:
        raise NotProved("it is not computed by a plain convolution")
    path = path_between(proof, value, stop)
    slopes, zone = exact(np.ones(math.prod(step.shape))), 0
    for above in path:
        diagonal = _diagonal(proof, above)
        if diagonal is None:
            break
        slopes, zone = slopes * diagonal.entries, zone + 1
    top = path[zone - 1].output if zone else value
    hull = proof.passes[LOSS].cotangents[stop].hull
    differences = differences_at(proof, top, stop)
    rule = rule_at(proof.program.shapes, step, proof.facts, proof.weights)
    axes = convolution_axes(step.op, rule.before, step.shape)
    reach = next(iter(rule.reaches()))[1]
    if hull is None or not (math.isfinite(reach) and math.isfinite(rule.x.norm)):
        raise NotProved("what the convolution reads is not bounded")
    if not (np.isfinite(slopes.magnitude()).all() and np.isfinite(differences.sizes).all()):
        raise NotProved("the slopes above are not bounded")
    return Kernel(
        differences,
        slopes.moved(lambda end: end.reshape(step.shape[1], -1)),
        hull.scale,
        windows_over(rule.before, axes),
        math.prod(rule.before[2:]),
        bool((rule.x.box.lo >= 0.0).all()),
        rule.x.norm,
        reach,
        root_up(kernel_square(axes)),
        rule.x.box.broadcast(rule.before).magnitude().reshape(rule.before[1], -1),
        step.op.groups,
        path[zone:],
    )


def _diagonal(proof: Proof, step: Step) -> Diagonal | None:
    """Of a step that acts entry by entry, with bounded slopes; None for another."""
    if not isinstance(step.op, Activation | PRelu | BatchNorm | Scale | Shift):
        return None
    with suppress(NotProved):
        link = link_of(step, step.shape, slopes_between((step,), proof.facts))
        return link if isinstance(link, Diagonal) else None
    return None
