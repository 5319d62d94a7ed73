"""Seed reuse (LC315): whether two releases share their noise.

Statement: no two steps or ranks draw noise from one state of the generator, and the noise of two
releases is independent. Compared: digests of generator states, exactly; and for all pairs of
recorded noises d, d' of one tensor of p ≥ 2 entries the cosine c of their angle.

Threshold: if d' is Gaussian noise of whatever size, independent of d, its direction is uniform, and
(1 + c)/2 has the distribution Beta((p − 1)/2, (p − 1)/2) exactly. A pair rejects at 1e-9 divided by
the number of pairs, so that all together raise a false alarm with at most 1e-9. What rounding to
the stored type may have added to the cosine counts in favour of the run.
Equal states have no innocent explanation but a step that was done twice from one checkpoint, with
the same batch and weights: a release that is repeated word by word.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Final

import numpy as np
from scipy.stats import beta

from lipcert.audit.checks.noises import AddedNoise, added_noises
from lipcert.audit.checks.sampling import FALSE_ALARM
from lipcert.audit.checks.subject import Checked, RecordedRun
from lipcert.audit.records import CheckReport, Verdict

__all__ = ["seed_reuse"]

_NAME: Final = "seed-reuse"
_MOST_STEPS: Final = 24


def seed_reuse(run: RecordedRun) -> Checked:
    """A report for each kind of reuse with its first place, or a pass."""
    stated = [step for step in run.steps if step.noise is not None and step.noise.generator]
    noises = _by_tensor(run)
    pairs = sum(math.comb(len(items), 2) for items in noises.values())
    if len(stated) < 2 and not pairs:
        text = f"{_NAME}: no two steps record the state of the generator or their noise"
        return Checked(not_done=(text,) if run.steps else ())
    faults = [*_equal_states(run), *_correlated(noises, pairs)]
    if not faults:
        message = (
            f"the noise of {len(stated)} steps was drawn from different states of the generator, "
            f"and {pairs} pairs of recorded noises are not correlated"
        )
        faults = [CheckReport("LC315", _NAME, Verdict.PASS, message)]
    return Checked(tuple(faults))


def _equal_states(run: RecordedRun) -> Iterator[CheckReport]:
    first: dict[str, str] = {}
    for step in run.steps:
        state = None if step.noise is None else step.noise.generator
        if state is None:
            continue
        if state in first:
            yield _fault(
                f"the noise of {run.name(step)} is drawn from the state of the generator from "
                f"which that of {first[state]} was drawn",
                run.name(step),
            )
            return
        first[state] = run.name(step)


def _by_tensor(run: RecordedRun) -> dict[str, list[AddedNoise]]:
    """Of the first steps that record noise; pairs grow with the square of their number."""
    found: dict[str, list[AddedNoise]] = {}
    for item in added_noises(run):
        items = found.setdefault(item.tensor, [])
        if len(items) < _MOST_STEPS and item.noise.size > 1 and np.any(item.noise):
            items.append(item)
    return found


def _correlated(noises: dict[str, list[AddedNoise]], pairs: int) -> Iterator[CheckReport]:
    for tensor, items in noises.items():
        for first, second in combinations(items, 2):
            lengths = float(np.linalg.norm(first.noise) * np.linalg.norm(second.noise))
            cosine = float(first.noise @ second.noise) / lengths
            slack = float(np.abs(first.noise) @ second.moved + first.moved @ np.abs(second.noise))
            half = (len(first.noise) - 1) / 2.0
            likely = min(1.0, max(abs(cosine) - slack / lengths, 0.0))
            chance = float(2.0 * beta.cdf((1.0 - likely) / 2.0, half, half))
            if chance < FALSE_ALARM / pairs:
                yield _fault(
                    f"the noises on {tensor!r} at {first.step} and at {second.step} have the "
                    f"correlation {cosine:.6g}, which chance gives with at most {chance:.1e}",
                    second.step,
                    cosine,
                )
                return


def _fault(message: str, where: str, correlation: float | None = None) -> CheckReport:
    return CheckReport(
        code="LC315",
        name=_NAME,
        verdict=Verdict.VIOLATION,
        message=message,
        where=where,
        measured=correlation,
        expected=None if correlation is None else 0.0,
        remedy="seed the generator of the noise once for the whole run, differently in every rank",
    )
