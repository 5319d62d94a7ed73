"""Raising: which p, q and τ give max([K, c/τ], −pqᵀ) a small norm.

`numbers_to_raise` takes a kernel, c, and a bound of ‖x‖ for x ≥ 0, and returns untrusted numbers
for `core.norms.raised`. Quasi-Newton steps minimise the logarithm of ‖K'‖·√(‖x‖² + ‖z‖²) over the
logarithms of all numbers, while the smoothing of the maximum over directions decreases. ‖K'‖ is the
largest norm of a symbol at a few frequencies; a matrix has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.line import NotProved
from lipcert.core.lines.gains import GainFact, constants_of, copies_of
from lipcert.core.lines.proof import Proof
from lipcert.core.norms.convolution import Kernel, kernel_of
from lipcert.core.norms.lines import Axis, axes_of, phases_of
from lipcert.core.norms.raised import raised_kernel, tap_of_all
from lipcert.core.program import Step
from lipcert.search.eigenvalues import estimated_squares
from lipcert.search.multipliers import smoothed_ball
from lipcert.search.norms import ROOMS, proposals
from lipcert.search.quasi_newton import Seen, descend

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]
_PHASES: Final = ((0.03, 0.4, 1.6), (0.01, 0.5, 1.4), (0.003, 1.0, 1.2))
"""Phases: smoothing of the maximum as a share of a sum, share of the evaluations left, and the
ratio to the known bound above which the result of the phase is given up."""
_PATIENT: Final = ((0.03, 0.3, 1.6), (0.01, 0.4, 1.4), (0.003, 0.5, 1.3), (0.0005, 1.0, 1.2))
"""The same, if more evaluations are allowed."""
_MOST_LOOKS, _MOST_AT_FREQUENCIES, _LEAST_LOOKS = 30, 20, 6
_WORK: Final = 3e9
"""Most multiplications of all evaluations."""
_LEAST_GAIN: Final = 1e-4
_ROUNDS: Final = 12
_LARGEST: Final = 1e50
"""Limit for numbers, so that their products stay far from the ends of float64."""
_WORTH: Final = 0.98
"""What must be possible, as a share of the known bound."""
_PER_SHIFT: Final = 2
"""Frequencies along an axis, for each shift."""
_LARGE, _ROUGH = 0.5, 1e-2
"""Shares of the largest square: from which a frequency may become a peak; and accuracy."""


def gains(
    proof: Proof, steps: Sequence[Step], norm: float, known: float, patience: float = 1.0
) -> Iterator[GainFact]:
    """Yield lines about a ReLU after a run of steps, each with more room than the one before.

    norm: of what the run reads; known: of the ReLU. patience: factor for the evaluations.
    """
    *run, above = steps
    try:
        kernel = kernel_of(run, proof.program.shapes)
        if not kernel.frame.kernel.any() or _looks(kernel, patience) < _LEAST_LOOKS:
            return
        constants = constants_of(run, proof)
        copies = copies_of(above.shape, len(kernel.frame.kernel), kernel.frame.groups)
        numbers = numbers_to_raise(kernel, constants, norm, copies, known, patience=patience)
        if numbers is None:
            return
        raised = raised_kernel(kernel, constants, numbers)
    except NotProved:
        return
    length = math.hypot(norm, copies**0.5 * numbers[2][0])
    values = tuple(step.output for step in run)
    for claim in proposals(raised, "fast"):
        for room in ROOMS:
            gain = claim.bound * (1.0 + room)
            if gain * length < known:
                yield GainFact(
                    value=above.output,
                    values=values,
                    numbers=numbers,
                    gain=gain,
                    **asdict(claim.witness),
                )


def numbers_to_raise(
    kernel: Kernel,
    constants: FloatArray,
    norm: float,
    copies: int,
    known: float,
    *,
    patience: float = 1.0,
) -> tuple[tuple[float, ...], ...] | None:
    """Return p, q and (τ,); None if a bound below the known one is out of reach.

    norm: of x. copies: of τ in z. known: of the ReLU; on a torus, where no window reads padding, it
    is larger.
    """
    looks = _looks(kernel, patience)
    problem = _Problem.of(kernel, constants, norm, copies) if looks >= _LEAST_LOOKS else None
    if problem is None:
        return None
    frame = kernel.frame
    inside = [float((frame.reads(axis) >= 0).mean()) for axis in range(len(frame.size))]
    known /= math.prod(inside)
    p, q, reached = problem.start()
    if reached >= _WORTH * known:
        return None
    tau = (0.3 if constants.any() else 1e-6) * norm / copies**0.5
    point = np.log(np.concatenate([p, q, [tau]]))
    for width, share, hope in _PATIENT if patience > 1.0 else _PHASES:
        some = max(1, round(share * looks))
        looks -= some
        near = problem.near_peaks(point)

        def look(where: FloatArray, near: _Problem = near, width: float = width) -> Seen:
            return near.look(where, width)

        here = look(point)
        for found in descend(look, here, some, _LEAST_GAIN / patience):
            here = found
        if here.value > 2.0 * np.log(hope * known):
            return None
        point = here.point
    p, q, tau = problem.numbers(point)
    return tuple(p.tolist()), tuple(q.tolist()), (tau,)


def _looks(kernel: Kernel, patience: float) -> int:
    """Return how many evaluations are allowed; one entry counts as a hundred multiplications."""
    axes, frame = axes_of(kernel.frame), kernel.frame
    shifts, points = math.prod(axis.length for axis in axes), len(_powers(axes))
    outputs = len(frame.kernel) // frame.groups
    inputs = (frame.kernel.shape[1] + 1) * math.prod(axis.phases for axis in axes)
    small, times = min(outputs, inputs), (4 if points > 1 else 1) * points
    products = 4 * outputs * inputs * small + 10 * small**3
    work = frame.groups * (times * products + 400 * shifts * outputs * inputs)
    most = _MOST_LOOKS if points == 1 else _MOST_AT_FREQUENCIES
    return int(patience * min(_WORK / work, most))


@dataclass(frozen=True, eq=False)
class _Problem:
    """The bound as a function of the logarithms of p, q and τ, one after the other.

    fixed: K as [shifts, groups, outputs, inputs · phases]; where: for each input, phase and shift,
    the index in q; `last` is that of z, and the one behind it that of what no tap reads. powers:
    of the frequencies, by shift.
    """

    fixed: FloatArray
    where: IndexArray
    last: int
    constants: FloatArray
    powers: Any
    norm: float
    copies: int

    @classmethod
    def of(cls, kernel: Kernel, constants: FloatArray, norm: float, copies: int) -> _Problem | None:
        """Return the problem; None for numbers beyond float64, or where the core proves nothing."""
        upper, frame = kernel.entries.hi, kernel.frame
        scale = float(np.abs(upper).mean()) if upper.size else 0.0
        sizes = (scale, norm, float(np.abs(constants).max(initial=0.0)) + 1.0)
        tap = tap_of_all(frame)
        if tap is None or kernel.adjoint:
            return None
        if not all(1.0 / _LARGEST < size < _LARGEST for size in sizes):
            return None
        outputs, inputs, *taps = upper.shape
        wide = (frame.groups, outputs // frame.groups, inputs + 1, *taps)
        places, values = np.zeros(wide), np.zeros(wide)
        entries = frame.groups * inputs * math.prod(taps)
        own = np.arange(1.0, entries + 1.0).reshape(frame.groups, 1, inputs, *taps)
        places[:, :, :inputs], places[:, :, inputs, *tap] = own, entries + 1.0
        values[:, :, :inputs] = upper.reshape(*wide[:2], inputs, *taps)
        layout = replace(frame, kernel=places.reshape(outputs, inputs + 1, *taps))
        axes = axes_of(layout)
        where = phases_of(layout, axes)[:, :, 0].astype(np.int64)
        fixed = phases_of(replace(layout, kernel=values.reshape(layout.kernel.shape)), axes)
        powers = _powers(axes)
        numbers = np.where(where == 0, entries + 1, where - 1)
        return cls(fixed, numbers, entries, constants.reshape(wide[:2]), powers, norm, copies)

    @cached_property
    def scale(self) -> float:
        """About the mean magnitude of an entry."""
        entries = np.count_nonzero(self.where < self.last) * self.fixed.shape[2]
        return float(np.abs(self.fixed).sum() / max(entries, 1))

    def start(self) -> tuple[FloatArray, FloatArray, float]:
        """Return first values of p and q, and a norm attained by values that are constant in space.

        They are the ReLU at a good x, and this x.
        """
        total, reached = self.fixed.sum(axis=0), 0.0
        p, q = np.ones(self.constants.shape), np.ones(self.last + 1)
        for group, matrix in enumerate(total):
            above, below, own = _best(matrix, self.constants[group], self.norm / self.copies**0.5)
            p[group] = above / above.max()
            shares = np.broadcast_to(below / below.max(), self.where[:, group].shape)
            live = self.where[:, group] < self.last
            q[self.where[:, group][live]] = shares[live]
            reached = max(reached, own)
        size = 4.0 * self.scale**0.5
        p, q = (size * np.maximum(part, 0.1) for part in (p.ravel(), q))
        return p, q, reached * self.copies**0.5

    def numbers(self, point: FloatArray) -> tuple[FloatArray, FloatArray, float]:
        """Return p, q and τ at a point of logarithms."""
        found, rows = np.exp(point), self.constants.size
        return found[:rows], found[rows:-1], float(found[-1])

    def near_peaks(self, point: FloatArray) -> _Problem:
        """Keep only those frequencies at which the symbol is large."""
        if len(self.powers) == 1:
            return self
        whole, level, _ = self._raised(point)
        squares = estimated_squares(self._symbols(np.maximum(whole, level)), _ROUGH)
        largest = squares.reshape(len(self.powers), -1).max(axis=1)
        return replace(self, powers=self.powers[largest >= _LARGE * largest.max()])

    def _raised(self, point: FloatArray) -> tuple[FloatArray, FloatArray, npt.NDArray[np.bool_]]:
        """Return [K, c/τ], −pqᵀ, and which entries of the former belong to z."""
        p, q, tau = self.numbers(point)
        shares = np.append(q, 0.0)[self.where][:, :, None, :]
        level = -p.reshape(1, *self.constants.shape, 1) * shares
        is_z = (self.where == self.last)[:, :, None, :]
        whole = np.where(is_z, (self.constants / tau)[None, :, :, None], self.fixed)
        return whole, level, is_z

    def _symbols(self, raised: FloatArray) -> Any:
        """Return the symbols: [frequencies and groups, outputs, inputs · phases]."""
        stack = self.powers @ raised.reshape(len(raised), -1)
        return stack.reshape(-1, *raised.shape[2:])

    def look(self, point: FloatArray, width: float) -> Seen:
        """Evaluate at a point. width: of the smoothed maximum."""
        whole, level, is_z = self._raised(point)
        tau = float(np.exp(point[-1]))
        largest, slopes = self._largest(np.maximum(whole, level), width)
        slopes = slopes / largest
        length = self.norm**2 + self.copies * tau**2
        by_level = np.where(whole < level, slopes * level, 0.0)
        by_tau = -float(np.where(is_z & (whole >= level), slopes * whole, 0.0).sum())
        gradient = np.concatenate([*self._sums(by_level), [by_tau]])
        gradient[-1] += 2.0 * self.copies * tau**2 / length
        curvature = np.concatenate([*self._sums(np.abs(by_level)), [abs(by_tau) + 2.0]])
        curvature = np.maximum(curvature, 0.01 * float(curvature.max()))
        return Seen(point, float(np.log(largest) + np.log(length)), gradient, curvature)

    def _sums(self, entries: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return sums for each number in p, and in q."""
        columns = entries.sum(axis=2).ravel()
        by_input: FloatArray = np.zeros(self.last + 2)
        np.add.at(by_input, self.where.ravel(), columns)
        return entries.sum(axis=(0, 3)).ravel(), by_input[:-1]

    def _largest(self, raised: FloatArray, width: float) -> tuple[float, FloatArray]:
        """Return ‖K'‖², smoothed, and its derivative by each entry."""
        stack = self._symbols(raised)
        wide = raised.shape[2] < raised.shape[3]
        adjoint = stack.conj().swapaxes(1, 2)
        squares = stack @ adjoint if wide else adjoint @ stack
        width *= float(np.einsum("kii->k", squares).real.max())
        if len(stack) == 1:
            largest, cases = smoothed_ball(squares[0], width)
            weights: Any = (cases @ cases.T)[None]
        else:
            values, vectors = np.linalg.eigh(squares)
            top = float(values.max())
            shares = np.exp((values - top) / width)
            total = float(shares.sum())
            largest = top + width * math.log(total)
            vectors *= np.sqrt(shares / total)[:, None, :]
            weights = vectors @ vectors.conj().swapaxes(1, 2)
        slopes = 2.0 * (weights @ stack if wide else stack @ weights)
        turned = self.powers.conj().T @ slopes.reshape(len(self.powers), -1)
        return largest, np.ascontiguousarray(turned.real).reshape(raised.shape)


def _powers(axes: Sequence[Axis]) -> Any:
    """Return exp(i·Σ_a j_a·w_a) as [frequencies, shifts], half of the last axis; 1 without any."""
    extended = [axis.length for axis in axes if axis.length > 1]
    powers: Any = np.ones((1, 1))
    for number, length in enumerate(extended, 1):
        count = _PER_SHIFT * length
        last = count // 2 + 1 if number == len(extended) else count
        circle = np.exp(2j * np.pi / count * np.outer(np.arange(last), np.arange(length)))
        powers = (powers[:, None, :, None] * circle[None, :, None, :]).reshape(
            len(powers) * last, -1
        )
    return powers


def _best(
    matrix: FloatArray, constants: FloatArray, norm: float
) -> tuple[FloatArray, FloatArray, float]:
    """Return relu(Wx + b) for a good x, the x that it comes from, and its norm."""
    positive = np.maximum(matrix, 0.0)
    below = positive[np.argmax(norm * np.linalg.norm(positive, axis=1) + constants)] + 1e-300
    above, reached = np.ones(len(matrix)), 0.0
    for _ in range(_ROUNDS):
        below = below * (norm / max(float(np.linalg.norm(below)), 1e-300))
        value = np.maximum(matrix @ below + constants, 0.0)
        if not value.any():
            break
        above, reached = value, float(np.linalg.norm(value))
        next_below = np.maximum(matrix.T @ value, 0.0)
        if not next_below.any():
            break
        below = next_below
    return above, below, reached
