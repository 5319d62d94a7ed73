"""Contribution (LC312): what each recorded example adds to the quantity that is noised.

Statement: with c_k the norm of what one example adds to the quantity that is noised in group k, and
s_k the noise there, m·√Σ (c_k/s_k)² ≤ 1/σ, m being the number of gradients by which neighbouring
data sets differ; and c_k ≤ G_k/divisor, if the run's divisor is that of the claims, and G_k, if a
run computes it anew at every step, that of the step's weights. Compared: the lower ends of c_k,
computed in float64 at the recorded weights, with what is claimed.

Threshold: an example violates if c_k minus the rounding of its norm and the margin of float64
(`measure.measured`, a millionth) is above the claim; for the first inequality, above it by more
than 2^-22, the most by which rounding a standard deviation to float32 can reduce it. False alarms:
none within what that margin covers. Examples that attain the claim pass.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.audit.checks.gradients import Gradients, Pass, gradients_at, passes_of, together
from lipcert.audit.checks.run_check import (
    NO_DECAY,
    Batch,
    Finding,
    batch_of,
    claimed_divisor,
    decay_of,
    group_stds,
    run_check,
)
from lipcert.audit.recorded import RecordedRun
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.trace.records import Step
from lipcert.audit.weight_norms import ReplayWeights
from lipcert.core.program import FloatArray
from lipcert.errors import NoVerdictError
from lipcert.measure.measured import Measured, decide, joint, largest_of
from lipcert.privacy.noise import Neighbouring

_CHECK: Final = Check(
    "LC312",
    "contribution",
    "compute the sensitivity of what is noised: a sensitivity divided by the batch size belongs to "
    "gradients that were divided after every clip",
)
_STORED: Final = 1.0 + 2.0**-22
_Compared: TypeAlias = tuple[str, CheckReport]
"""A report, and the kind of its comparison."""


@run_check(_CHECK, keeps_passes=True)
def contribution(run: RecordedRun) -> Iterator[Finding]:
    """Yield one report per comparison: the largest excess, or a pass."""
    decay = decay_of(run)
    if not run.whole_batches and run.trace.manifest.examples_key is not None:
        yield "no example of a step is available with its weights"
    elif not run.whole_batches:
        yield "no step records its weights and its batch; use detail=… of the recorder"
    elif decay is None:
        yield NO_DECAY
    else:
        found = [item for step in run.steps for item in _excesses(run, step, decay)]
        yield from (item for item in found if isinstance(item, str))
        pairs = [item for item in found if not isinstance(item, str)]
        for kind in dict.fromkeys(kind for kind, _ in pairs):
            yield max((report for own, report in pairs if own == kind), key=_excess)


def _excess(report: CheckReport) -> tuple[bool, float]:
    """Return by how much more than claimed an example contributes."""
    measured, expected = report.measured or 0.0, report.expected or 0.0
    is_over = report.verdict is not Verdict.PASS
    return is_over, measured / expected if expected else math.inf if is_over else 0.0


def _excesses(run: RecordedRun, step: Step, decay: float) -> Iterator[str | _Compared]:
    """Yield the report of each comparison; sentences for what the step does not record."""
    batch = batch_of(run, step)
    if isinstance(batch, str):
        yield batch
    if not isinstance(batch, Batch):
        return
    at = run.replay_weights(batch.name)
    gradients = gradients_at(run, batch.name, decay)
    passes = passes_of(gradients, batch)
    parts = [part.contributions() for part in passes]
    names = [group.name for group in at.claims.groups]
    found = {name: together([part[name] for part in parts]) for name in names}
    _require_agreement(run, batch, gradients, found)
    stds = group_stds(run, batch.step)
    sigma = run.multiplier
    noised = sigma is not None and stds.keys() == set(names) and max(stds.values()) > 0.0
    if noised and sigma is not None:
        yield "noise", _protected(run, batch, found, sigma)
    else:
        yield f"the noise of {batch.name}, or its multiplier, is not stated"
    divisor = claimed_divisor(run.settings)
    same = all(abs(part.scale.divisor / divisor - 1.0) < 2.0**-40 for part in passes)
    if not at.admissible:
        yield f"the bounds do not apply to the weights of {batch.name}"
    elif same or not noised:
        yield from (("claim", report) for report in _claimed(at, batch, found, divisor))


def _require_agreement(
    run: RecordedRun, batch: Batch, gradients: Gradients, found: Mapping[str, Measured]
) -> None:
    """Compute the longest gradient again by plain backpropagation of this example alone.

    Both computations use float64 and differ by how they round; half of its digits leave room for
    any network that is not chaotic, and a wrong norm is wrong in its first digits. If ∇ℓ and a
    decay cancel, the remainder is known only to the error of the norm.
    """
    together = joint(list(found.values()))
    whole = together.norm
    if not np.all(np.isfinite(whole)):
        return
    index = int(np.argmax(whole))
    scale = next(scale for rows, scale in batch.scales if rows.start <= index < rows.stop)
    alone = slice(index, index + 1)
    one = Pass(gradients, batch.x[alone], batch.labels[alone], scale).total()
    again = math.hypot(*(float(np.linalg.norm(part)) for part in one.values()))
    if abs(again - whole[index]) > 2.0**-26 * max(again, whole[index]) + together.error[index]:
        raise NoVerdictError(
            f"[LC317] example {index} of {batch.name}: two ways to compute its gradient norm give "
            f"{whole[index]:.9g} and {again:.9g} ({run.device}); this is a defect of LipCert, or "
            "the gradient jumps at this example: report it with the model"
        )


def _claimed(
    at: ReplayWeights,
    batch: Batch,
    found: Mapping[str, Measured],
    divisor: float,
) -> Iterator[CheckReport]:
    """Compare each group's contributions with G/divisor."""
    largest = largest_of(found.values())
    for group in at.claims.groups:
        if math.isinf(group.grad_norm):
            continue
        claim = group.grad_norm / divisor
        limit = claim * (1.0 + 2.0**-50)
        norms = found[group.name]
        where = f"{batch.name}, group {group.name}"
        worst = _largest(norms)
        ratio = worst / claim if claim else math.inf
        what = f"{worst:.6g} to the quantity that is noised, {ratio:.4g} of the claimed"
        what += f" sensitivity {claim:.6g} of one gradient"
        over = decide(norms, limit, largest=largest).violating
        yield _report(what, where, (worst, claim), over)


def _protected(
    run: RecordedRun,
    batch: Batch,
    found: Mapping[str, Measured],
    sigma: float,
) -> CheckReport:
    """Compare all groups together with the noise."""
    factor = Neighbouring(run.settings.neighbours).moved
    stds, limit = group_stds(run, batch.step), _STORED / sigma
    largest = largest_of(found.values())
    norms = joint([_scaled(found[name], largest, factor, std) for name, std in stds.items()])
    worst = _largest(norms)
    what = f"{worst:.6g} standard deviations of the noise, which may hide {1.0 / sigma:.6g}: the"
    what += f" noise is {1.0 / (worst * sigma) if worst else np.inf:.4g} times what this example"
    what += " requires"
    over = decide(norms, limit).violating
    return _report(what, batch.name, (worst, 1.0 / sigma), over)


def _largest(norms: Measured) -> float:
    return float(np.max(np.where(np.isfinite(norms.norm), norms.norm, np.inf)))


def _scaled(norms: Measured, largest: FloatArray | float, factor: float, std: float) -> Measured:
    """Return contributions to one group in deviations of its noise.

    Without noise, as on a group that nothing can reach, only a contribution of 0 is hidden.
    """
    if std == 0.0:
        shown = np.where(decide(norms, 0.0, largest=largest).violating, np.inf, 0.0)
        return Measured(shown, np.zeros_like(shown))
    return Measured(factor * norms.norm / std, factor * norms.error / std)


def _report(
    what: str, where: str, numbers: tuple[float, float], over: npt.NDArray[np.bool_]
) -> CheckReport:
    """Report the largest contribution. over: which examples contribute more than is claimed."""
    if not over.any():
        message = f"the largest contribution of an example is {what}"
        return _CHECK.passed(message, where, numbers)
    return _CHECK.failed(
        f"{np.count_nonzero(over)} of {len(over)} examples of {where} contribute more than is "
        f"claimed; the largest contribution is {what}",
        where,
        numbers,
    )
