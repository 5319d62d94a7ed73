"""ε from below (LC323): a lower bound, from a recorded run, of the ε that an account may state.

Statement: the ε that is claimed is at least `lower`. At each recorded step with weights and
gradients, let g_t be what one example adds to the noised sum at the weights θ_t, s the stated
deviations of the noise, tensor by tensor, and a_t = ‖g_t/s‖. Assumed, and tested by LC314 and
LC311: along gradients of examples the noise is Gaussian, independent of the past, and τ times what
is stated, τ the same everywhere; and examples are sampled as accounted for.

The mechanism. Release the sums of the gradients at θ_1, θ_2, …, chosen in advance, with this noise;
a recorded step stands for the steps that follow it until the next. The example's part of it is
Gaussian releases of the shifts a_t/τ, because all other examples, and which of them are in a batch,
may be known: ε also holds given that. Observing only z_t = ⟨g_t/s, ·⟩/a_t reveals less. So the ε of
those shifts (`privacy.below`) is a lower bound of this mechanism's. The account composes releases
whose weights are chosen in any way, before or after each release, with these weights and examples
among them: its ε is that of this mechanism, or more. What is bounded from below is thus the least ε
that an account may state, at the recorded weights and for this example; not what an attacker learns
who sees only the last weights, or whose first weights are drawn anew.

Confidence. Which steps are recorded is decided before their noise is drawn; so are θ_t and, for the
examined examples, which belong to the first batch that is known, g_t from that step on. Let
u_1 … u_m be an orthonormal basis of the span of their g_t/s: given the past, ⟨u_k, noise/s⟩ are
independent N(0, τ²), so that all their squares, over all steps, add up to τ²·χ²_n, n the number of
them, exactly. Hence τ² ≤ Σ⟨u_k, noise/s⟩²/χ²_n(0.05), with the confidence 0.95, and the bound falls
in τ. The example is chosen afterwards: the statement holds for all of them at once, since only τ is
subject to chance. Rounding to the stored type may have moved an entry of the noise by e:
|⟨u, z⟩| + ⟨|u|, e⟩ replaces it.

Threshold: a lower bound of the confidence 1 − `SHARE`, or more, that is above the claimed ε is a
violation: in a correct run τ ≥ 1 and a_t ≤ 1/σ, so that it is rejected with at most that
probability. If noise is not Gaussian, or used twice, the assumption fails, and nothing is stated.

The idea of a lower bound from one run is that of Steinke, Nasr and Jagielski (NeurIPS 2023, arXiv
2305.08846); that scores along canaries are Gaussian is due to Agrawal et al. (arXiv 2606.12733),
who use it in the limit of many steps. Here no limit is taken, and no example is left out at random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.linalg import qr
from scipy.stats import chi2

from lipcert.audit.bounds import claimed_epsilon
from lipcert.audit.checks.chance import SHARE
from lipcert.audit.checks.draws import Epochs
from lipcert.audit.checks.gradients import Pass, gradients_at, passes_of
from lipcert.audit.checks.run_check import (
    NO_DECAY,
    Batch,
    Finding,
    batch_of,
    decay_of,
    noise_stds,
    run_check,
    scale_of,
    stored_roundoff,
)
from lipcert.audit.checks.sampling import OF_EACH, members_of, resumed_steps
from lipcert.audit.recorded import RecordedRun
from lipcert.audit.records import Check, EpsilonInterval, ExampleReference
from lipcert.audit.trace.records import Step
from lipcert.core.program import FloatArray
from lipcert.gradient_stats.examples import outside
from lipcert.privacy.below import allocated_epsilon, gaussian_epsilon, poisson_epsilon
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan

_CHECK: Final = Check(
    "LC323",
    "epsilon",
    "examine the noise along the gradients of examples, and the other findings",
)
CONFIDENCE: Final = 0.95
_DIRECTIONS: Final = 512
"""Number of directions in which noise is examined, in all steps together, if steps allow it."""
_LEAST: Final = 8
_MOST: Final = 128
_PAIRED: Final = 16
_ENTRIES: Final = 1 << 24
_DEPENDENT: Final = 1e-9
_ROOM: Final = 1.0 - 2.0**-20
"""Covers the rounding of stated deviations and of norms."""
_STEEPEST: Final = 50.0
_Index = npt.NDArray[np.int64]


@run_check(_CHECK)
def epsilon(run: RecordedRun) -> Iterator[Finding]:
    """Yield the interval, and a report that it holds or is empty."""
    plan, claimed, decay = run.plan, claimed_epsilon(run.claims), decay_of(run)
    first = next(_batches(run), None)
    if plan is None or isinstance(claimed, str):
        yield "no ε is claimed that could be compared with one from below"
    elif (plan.sampling.amplifies, plan.neighbours) == (True, Neighbouring.REPLACE_ONE):
        yield (
            f"for {plan.sampling.value} batches under replace-one no ε from below is known; under "
            "add-remove there is one"
        )
    elif run.declared.dropout:
        yield "the masks of dropout are not recorded, so that no gradient of the run is known"
    elif decay is None:
        yield NO_DECAY
    elif first is None:
        yield (
            "no ε from below: no step records its examples, its weights, and its gradients before "
            "and after the noise"
        )
    elif not len((chosen := _Chosen.of(run, first, decay)).places):
        yield f"no ε from below: no example of {first.name} lies in the declared domain"
    else:
        yield from _compared(run, plan, claimed, chosen)


def _batches(run: RecordedRun) -> Iterator[Batch]:
    """Yield the batches of detailed steps, as far as they are known."""
    for step in _detailed(run).values():
        if run.name(step) in run.whole_batches:
            found = batch_of(run, step)
            if isinstance(found, Batch) and found.scales:
                yield found


def _detailed(run: RecordedRun) -> Mapping[int, Step]:
    """Return the steps with weights and gradients before and after the noise, of the first rank."""
    found: dict[int, Step] = {}
    for step in run.steps:
        if step.weights_before and step.gradients.clean and step.gradients.noised:
            found.setdefault(step.number, step)
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True, eq=False)
class _Chosen:
    """The examples of one batch that are examined, at every step, by their places in it."""

    batch: Batch
    places: _Index
    decay: float

    @classmethod
    def of(cls, run: RecordedRun, batch: Batch, decay: float) -> _Chosen:
        """Choose admissible examples with the longest gradients, before the noise of this step is
        drawn."""
        inside = np.ones(len(batch), dtype=np.bool_)
        inside[[place for place, _ in outside(batch.x, run.settings, run.graph.inputs)]] = False
        size = sum(group.dimension for group in run.claims.groups)
        wanted = max(_LEAST, -(-_DIRECTIONS // len(_detailed(run))))
        count = max(1, min(wanted, _MOST, _ENTRIES // max(size, 1)))
        at = gradients_at(run, batch.name, decay)
        lengths = np.concatenate([part.lengths() for part in passes_of(at, batch)])
        places = np.argsort(-lengths, kind="stable")
        return cls(batch, places[inside[places]][:count], decay)

    def index(self) -> _Index | None:
        """Return their indices in the data; None if the batch does not state them."""
        parts = [part.index for part in self.batch.step.batches if part.examples]
        known = [part for part in parts if part is not None]
        return np.concatenate(known)[self.places] if len(known) == len(parts) else None


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """The statistics of one recorded step that a lower bound of ε uses.

    shifts: ‖g/s‖ of each example, or of each pair if one is replaced. square: an upper bound of the
    squared noise along their gradients, in standard deviations. directions: the number of
    directions that it is summed over.
    """

    name: str
    number: int
    shifts: FloatArray
    square: float
    directions: int

    @classmethod
    def at(cls, run: RecordedRun, step: Step, chosen: _Chosen) -> _Seen | None:
        """Observe one step; None if the claims do not apply to its weights, or its units are not
        known."""
        scale = next((found for part in step.batches if (found := scale_of(run, part))), None)
        scale = scale or chosen.batch.scales[0][1]
        if not run.replay_weights(run.name(step)).admissible:
            return None
        noise, moved, stds = _noise(run, step)
        if not stds:
            return None
        batch, places = chosen.batch, chosen.places
        gradients = gradients_at(run, run.name(step), chosen.decay)
        examples = Pass(gradients, batch.x[places], batch.labels[places], scale)
        rows = []
        for place in range(len(places)):
            one = examples.single(place)
            rows.append(np.concatenate([np.ravel(one[name]) / std for name, std in stds.items()]))
        moves = np.array(rows)
        if not np.all(np.isfinite(moves)) or not np.all(np.isfinite(noise)):
            return None
        basis, steep, _ = qr(moves.T, mode="economic", pivoting=True)
        sizes = np.abs(np.diag(steep))
        basis = basis[:, sizes > _DEPENDENT * sizes[0]]
        along = np.abs(basis.T @ noise) + np.abs(basis.T) @ moved
        shifts = np.linalg.norm(moves, axis=1)
        if _replaces(run):
            some = moves[:_PAIRED]
            shifts = np.linalg.norm(some[:, np.newaxis] - some, axis=2).ravel()
        return cls(
            run.name(step), step.number, _ROOM * shifts, float(along @ along), basis.shape[1]
        )


def _replaces(run: RecordedRun) -> bool:
    return Neighbouring(run.settings.neighbours) is Neighbouring.REPLACE_ONE


def _noise(run: RecordedRun, step: Step) -> tuple[FloatArray, FloatArray, Mapping[str, float]]:
    """Return the noise in its deviations, what rounding moved of it, and the deviation by
    parameter.

    Only parameters that were noised and recorded are included.
    """
    clean, noised, _ = step.gradients.tensors()
    by_tensor = noise_stds(run, step)
    stds, noises, moved = {}, [np.zeros(0)], [np.zeros(0)]
    for group in run.claims.groups:
        for name in group.parameters:
            match = run.names[name]
            std = by_tensor.get(match.recorded, 0.0)
            if std > 0.0 and match.recorded in clean.keys() & noised.keys():
                first, second = match.numbers(clean), match.numbers(noised)
                unit = 2.0 * stored_roundoff(step, noised[match.recorded])
                stds[name] = std
                noises.append(np.ravel(second - first) / std)
                moved.append(unit * np.ravel(np.abs(first) + np.abs(second)) / std)
    return np.concatenate(noises), np.concatenate(moved), stds


@dataclass(frozen=True, slots=True, eq=False)
class _Spent:
    """The privacy that one example spends in the run.

    which: of the examined examples, or pairs of them. shifts: of the steps that may contain it, by
    the epochs of balls in bins. largest: the name of the recorded step with the largest shift.
    """

    plan: TrainingPlan
    which: int
    epochs: tuple[FloatArray, ...]
    largest: str

    @classmethod
    def of(
        cls, run: RecordedRun, plan: TrainingPlan, seen: Sequence[_Seen], chosen: _Chosen
    ) -> _Spent | None:
        """Choose the example that spends most; None if the batches of a shuffle are not known."""
        numbers = np.array(sorted({step.number for step in run.steps}))
        at = np.searchsorted([item.number for item in seen], numbers, side="right") - 1
        numbers, at = numbers[at >= 0], at[at >= 0]
        table = np.array([item.shifts for item in seen])[at]
        if plan.sampling is Sampling.SHUFFLE:
            present = _present(run, numbers, chosen)
            if present is None:
                return None
            first = present[:, :_PAIRED] if _replaces(run) else present
            table = np.where(np.repeat(first, table.shape[1] // first.shape[1], 1), table, 0.0)
        which = int(np.argmax(np.sum(np.expm1(np.minimum(table**2, _STEEPEST)), axis=0)))
        shifts = table[:, which]
        largest = seen[at[np.argmax(shifts)]].name
        if plan.sampling is not Sampling.BALLS_IN_BINS:
            return cls(plan, which, (shifts,), largest)
        epochs = Epochs(plan.batches_per_epoch, sorted(resumed_steps(run)))
        begun = np.array([epochs.place(int(number))[0] for number in numbers])
        parts = tuple(shifts[begun == first] for first in np.unique(begun))
        return cls(plan, which, parts, largest)

    def epsilon(self, noise: float) -> float:
        """Return ε if the noise is this many times what is stated."""
        if noise == 0.0:
            return math.inf
        epochs = [shifts / noise for shifts in self.epochs]
        match self.plan.sampling:
            case Sampling.BALLS_IN_BINS:
                return allocated_epsilon(epochs, self.plan.batches_per_epoch, self.plan.delta)
            case Sampling.POISSON:
                rate = self.plan.sampling_rate * (1.0 - 2.0**-50)
                return poisson_epsilon(epochs[0], rate, self.plan.delta)
        return gaussian_epsilon(epochs[0], self.plan.delta)


def _present(run: RecordedRun, numbers: _Index, chosen: _Chosen) -> npt.NDArray[np.bool_] | None:
    """Return whether the batch of each step has each of the examples; None if that is not
    recorded."""
    members, index = members_of(run), chosen.index()
    if members is None or index is None:
        return None
    by_number = dict(members)
    return np.array([np.isin(index, by_number[int(number)]) for number in numbers])


def _compared(
    run: RecordedRun, plan: TrainingPlan, claimed: float, chosen: _Chosen
) -> Iterator[Finding]:
    since = chosen.batch.step.number
    found = [_Seen.at(run, step, chosen) for n, step in _detailed(run).items() if n >= since]
    seen = [item for item in found if item is not None and item.directions]
    if not seen:
        yield "no ε from below: no step shows the gradient of an example and the noise on it"
        return
    spent = _Spent.of(run, plan, seen, chosen)
    if spent is None:
        yield "no ε from below: it is not recorded which batches an example is in"
        return
    square, directions = sum(item.square for item in seen), sum(item.directions for item in seen)

    def noise(chance: float) -> float:
        return math.sqrt(square / float(chi2.ppf(chance, directions)))

    place = chosen.places[spent.which // (len(chosen.places[:_PAIRED]) if _replaces(run) else 1)]
    lower = spent.epsilon(noise(1.0 - CONFIDENCE))
    interval = EpsilonInterval(
        lower=lower,
        confidence=CONFIDENCE,
        upper=claimed,
        is_certified=run.claims.certificate is not None,
        is_contradicted=lower > claimed and spent.epsilon(noise(SHARE - 2.0 * OF_EACH)) > claimed,
        delta=plan.delta,
        example=ExampleReference(chosen.batch.name, int(place)),
        noise=math.sqrt(square / directions),
        noise_at_most=noise(1.0 - CONFIDENCE),
        directions=directions,
        steps=len(seen),
        releases=len({step.number for step in run.steps}),
        largest_step=spent.largest,
    )
    yield interval
    report = _CHECK.failed if interval.is_contradicted else _CHECK.passed
    yield report(f"{interval.sentence}: {interval.reason}", spent.largest, (lower, claimed))
