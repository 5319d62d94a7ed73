"""Added noise: what a run added to its clean gradients, tensor by tensor.

What enters: a recorded run. What leaves: an `AddedNoise` for each tensor that was recorded before
after the noise, in the order of the steps. Invariant: what storing a gradient may have rounded
is stated with it, entry by entry; what several ranks hold of one release comes once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from lipcert.audit.checks.batches import noise_stds
from lipcert.audit.checks.subject import RecordedRun
from lipcert.audit.records import Check
from lipcert.audit.trace.records import Step
from lipcert.upper import FloatArray

_BFLOAT16: Final = 2.0**-8
NAME: Final = "noise"
CHECK: Final = Check(
    "LC314",
    NAME,
    "add independent Gaussian noise of the stated deviation to every tensor that is released, and "
    "record the gradients directly before and after it",
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class AddedNoise:
    """Noise on one tensor: noised − clean. moved: bound of what rounding added to it, entrywise.

    std: as stated; None where nothing is stated of this tensor.
    """

    step: str
    rank: int
    number: int
    tensor: str
    noise: FloatArray
    clean: FloatArray
    moved: FloatArray
    std: float | None


def added_noises(run: RecordedRun) -> Iterator[AddedNoise]:
    """Of every tensor that was recorded before and after, flat."""
    seen: set[tuple[int, str, str]] = set()
    for step in run.steps:
        before, after = step.gradients.clean, step.gradients.noised
        if before is None or after is None:
            continue
        release = (step.number, before.sha256, after.sha256)
        if release in seen:
            continue
        seen.add(release)
        clean, noised = before.tensors(), after.tensors()
        stds = noise_stds(run, step)
        for name in sorted(clean.keys() & noised.keys()):
            unit = storage_unit(step, noised[name])
            first = clean[name].astype(np.float64).reshape(-1)
            second = noised[name].astype(np.float64).reshape(-1)
            yield AddedNoise(
                run.name(step),
                step.rank,
                step.number,
                name,
                second - first,
                first,
                2.0 * unit * (np.abs(first) + np.abs(second)),
                stds.get(name),
            )


def storage_unit(step: Step, recorded: npt.NDArray[Any]) -> float:
    """Relative error of storing an entry of a recorded gradient; bfloat16 is read as float32."""
    halved = step.arithmetic is not None and step.arithmetic.dtype == "bfloat16"
    return max(float(np.finfo(recorded.dtype).eps), _BFLOAT16 if halved else 0.0)
