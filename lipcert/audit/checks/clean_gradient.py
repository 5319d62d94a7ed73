"""The clean gradient (LC312, LC317): whether the noised quantity is the sum of clipped gradients.

Statement: the recorded gradient before the noise is outer · Σ_i m(inner · ∇ℓ_i), computed by the
bounded network, loss and mechanism over the batches of all ranks, which record one sum; and 0 if no
example was drawn. Compared: d, the distance of the two, with

    a   8 times the distance between this sum in the recorded precision and in float64, plus the
        rounding of adding n gradients one after another, n·u·Σ‖g_i‖, in the type of the parameters,
        plus one rounding of the products in every pass, 16 if this device has no such products,
        plus what a clip may leave out that divides by the upper end of a norm in the recorded
        precision: d ≤ a passes. With the decay inside the clip, f_i∇ℓ_i and f_iλθ are added up
        separately, f_i being the factor of the clip, and may cancel: what is added is then as long
        as ‖f_i∇ℓ_i‖ + f_iλ‖θ‖ ≤ ‖g_i‖ + 2f_iλ‖θ‖;
    S   Σ‖g_i‖/16 + a: d > S is a violation.

Threshold: at the kink of a ReLU the derivative may differ between two kernels; of one example that
moved the gradient by at most 0.8 % in measurements, an eighth of what S allows every example at
once. Between the two the check is inconclusive. It is not a statistical test; no proof bounds
kinks. A tensor without any recorded gradient is frozen in that step; `released` looks at what is
applied without noise. If the masks of dropout were not recorded, no replay gives that sum; its
length is then compared with what n clipped gradients can add up to, and the rest is reported as
unchecked.
A difference by one factor is recognised: r, the distance from the nearest multiple α of the sum, is
what rounding and kinks leave, so that |α − 1|·‖sum‖ > 8·(r + a) indicates a wrong divisor. If α is
above 1, each example contributes α times what the account assumes.
A difference by a factor f_i of each example, such as from clips by other norms or weights after the
clip, is also recognised: f is the least-squares solution of Σ f_i m(∇ℓ_i) = recorded, r its
residual, and d > 8·(r + a) means that it explains the difference. What rounding and kinks move,
8·(r + a) at most, moves f_i by at most that times the norm of row i of the pseudoinverse; an f_i
that exceeds 1 by more is an example that contributes too much. This needs gradients that are
linearly independent and have at least twice as many entries as there are examples, since as many
factors as entries explain anything, kinks included; and batches of at most 2²⁴ numbers in all.
A clip that leaves less than the recorded one is recognised, too: of whole gradients, tensors or
entries, to a radius c of at most C/√K, K the number of these parts, so that no example contributes
more than C. If its sum is at most a away for one c, which is searched for, the check is
inconclusive, since the trace does not show whether c is public. Since one radius explains any one
number, this needs 16 entries.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from scipy.optimize import minimize_scalar

from lipcert.audit.bounds import Claims
from lipcert.audit.checks.gradients import Gradients, Pass, clips_of, passes_of
from lipcert.audit.checks.run_check import (
    FEW,
    NO_DECAY,
    Finding,
    Release,
    decay_of,
    exact,
    norm_of,
    releases,
    run_check,
)
from lipcert.audit.recorded import RecordedRun
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.trace.blobs import Blob
from lipcert.core.program import FloatArray
from lipcert.core.window_kinds import Conv
from lipcert.measure.measured import joint
from lipcert.measure.precision import Precision

_NAME: Final = "agreement"
_CHECK: Final = Check("LC317", _NAME)
_CONTRIBUTED: Final = Check("LC312", _NAME, "clip the gradient of each example before the sum")
_FACTOR: Final = 8.0
_KINKS: Final = 1.0 / 16.0
_UNSEEN: Final = 16
"""Roundings of products that this device cannot repeat; three of TF32 were measured."""
_LARGEST: Final = 1 << 24
_FEWEST: Final = 16
_SHORT: Final = 2.0**-24
"""Share of the longest gradient, or of the largest singular value."""


@run_check(_CHECK, most=FEW)
def clean_gradients(run: RecordedRun) -> Iterator[Finding]:
    """Report each recorded clean gradient that is not the sum, or the largest pass."""
    decay = decay_of(run)
    if decay is None:
        yield NO_DECAY
        return
    if run.declared.dropout:
        names = ", ".join(run.declared.dropout[:3])
        yield (
            f"the masks of dropout ({names}) are not recorded, so neither the sum of the gradients "
            "nor the contribution of an example can be recomputed: sums were compared with what "
            "clipped gradients can add up to, contributions are those without dropout"
        )
        reports = [
            report
            for item in releases(run)
            for clean in item.cleans
            for report in _lengths(run, item, clean)
        ]
    else:
        reports = [_compared(run, release, decay) for release in releases(run)]
        if not reports and run.trace.manifest.examples_key is not None and not run.whole_batches:
            yield "no example of a step is available with its clean gradient"
        elif not reports:
            yield "no step records its batch, its weights and its clean gradient"
    passes = [report for report in reports if report.verdict is Verdict.PASS]
    yield from (report for report in reports if report.verdict is not Verdict.PASS)
    yield from sorted(passes, key=lambda report: report.measured or 0.0)[-1:]


def _lengths(run: RecordedRun, release: Release, clean: Blob) -> Iterator[CheckReport]:
    """Compare, for each group at one step, the length of the clean gradient with its largest value.

    n gradients, each clipped to C, add up to at most n·C, for any masks. Additions in float32 round
    by at most 2^-20 of what is added.
    """
    snapshot = clean.tensors()
    for group in run.claims.groups:
        recorded = [run.names[name] for name in group.parameters if name in run.names]
        parts = [item.numbers(snapshot) for item in recorded if item.recorded in snapshot]
        length = math.hypot(*(norm_of(np.ravel(part)) for part in parts))
        outer = max((s.outer for b in release.batches for _, s in b.scales), default=0.0)
        most = release.examples * (group.grad_norm or math.inf) * outer * (1.0 + 2.0**-20)
        passes = length <= most
        report = _CONTRIBUTED.passed if passes else _CONTRIBUTED.failed
        yield report(
            f"the clean gradient of {release.name}, group {group.name}, has the norm "
            f"{length:.4g}, and {release.examples} clipped gradients add up to {most:.4g} at most",
            release.name,
            (length, most),
        )


def _compared(run: RecordedRun, release: Release, decay: float) -> CheckReport:
    if len(release.cleans) > 1 or len(release.starts) > 1:
        what = "weights" if len(release.cleans) == 1 else "clean gradients"
        return _CHECK.failed(
            f"the ranks hold different {what} at {release.name}, which all of them share",
            release.name,
            verdict=Verdict.INCONCLUSIVE,
            remedy="add the gradients of all ranks up, record the sum as clean in each, and apply "
            "one noised gradient everywhere",
        )
    (clean,) = release.cleans
    if not release.batches:
        return _of_nothing(release, clean)
    return _Comparison(run, release, clean, decay).report()


def _of_nothing(release: Release, clean: Blob) -> CheckReport:
    """Check the gradient of an empty batch, which must be 0."""
    length = math.hypot(*(norm_of(exact(x)) for x in clean.tensors().values()))
    what = f"the clean gradient of the empty batch of {release.name}"
    if length == 0.0:
        return _CHECK.passed(f"{what} is 0", release.name, (length, 0.0))
    return _CHECK.failed(
        f"{what} has the norm {length:.4g}, though it has no examples",
        release.name,
        (length, 0.0),
        remedy="set gradients to 0 in every step, also where no example is drawn",
    )


class _Comparison:
    """A recorded clean gradient beside the sum; lengths of the module docstring, and what explains
    them.

    added: length of all that is added up, ≥ s. is_factor: whether only α differs. extra: tensors
    that were recorded and are not bounded. heaviest: the example with the largest factor, and that
    factor, if it is certainly above 1. shorter: the parts whose clip leaves less, and its radius.
    """

    def __init__(self, run: RecordedRun, release: Release, clean: Blob, decay: float) -> None:
        self.name = release.name
        first, snapshot = release.batches[0], clean.tensors()
        weights, claims = run.weights(first.name), _of_tensors(run, release)
        clips = clips_of(run, claims)
        precise = Gradients(claims, weights, run.device, decay=decay, clips=clips)
        passes = _passes(precise, release)
        used = stored = None
        if (arithmetic := first.step.arithmetic) is not None:
            convolves = any(isinstance(node.op, Conv) for node in run.graph.nodes)
            used, stored = arithmetic.products(convolves=convolves), arithmetic.stored
        own = used if used and (used, run.device) != (Precision.TF32, "cpu") else Precision.FLOAT32
        ours = _flat(run, _total(passes))
        near, rounded = passes, ours
        if own is not Precision.FLOAT64:
            rough = Gradients(claims, weights, run.device, own, decay, clips=clips)
            near = _passes(rough, release)
            rounded = _flat(run, _total(near))
        recorded = {n: m.numbers(snapshot) for n, m in run.names.items() if m.recorded in snapshot}
        theirs = _flat(run, recorded)
        extra = snapshot.keys() - {match.recorded for match in run.names.values()}
        self.extra = sorted(name for name in extra if np.any(snapshot[name]))
        self.s = sum(float(np.sum(joint([*p.contributions().values()]).norm)) for p in passes)
        self.added = self.s + 2.0 * sum(part.decayed() for part in passes)
        roundings = len(release.batches) + (0 if used in (None, own) else _UNSEEN)
        share = release.examples * (stored or own).unit + roundings * (used or own).unit
        slack = share * self.added + sum(part.clip_slack() for part in near)
        self.d, self.a = norm_of(theirs - ours), _FACTOR * norm_of(rounded - ours) + slack
        square = float(ours @ ours)
        self.alpha = alpha = float(theirs @ ours) / square if square > 0.0 else 1.0
        off = _FACTOR * (norm_of(theirs - alpha * ours) + self.a)
        self.is_factor = abs(alpha - 1.0) * norm_of(ours) > off
        self.heaviest = self.shorter = None
        is_explained = self.d <= self.a or self.is_factor or bool(self.extra)
        is_small = release.examples * len(theirs) <= _LARGEST and self.d < math.inf
        if is_small and not is_explained:
            singles = [part.single(k) for part in passes for k in range(len(part.lengths()))]
            rows = np.array([_flat(run, single) for single in singles])
            self.heaviest = _heaviest(rows, theirs, self.d, self.a)
            if len(precise.clips) == len({part.scale for part in passes}) == 1:
                clip, outer = precise.clips[0].clip, passes[0].scale.outer
                lengths = np.concatenate([part.lengths() for part in passes])
                factors, most = clip.factors(lengths)[:, np.newaxis], clip.radius * outer
                plain = rows / np.where(factors > 0.0, factors, 1.0)
                names = (name for group in run.claims.groups for name in group.parameters)
                sizes = [run.graph.parameters[name].size for name in names]
                self.shorter = _shorter(plain, sizes, theirs, most, self.a)

    def report(self) -> CheckReport:
        """Report the distance, by what explains it."""
        name, d, a = self.name, self.d, self.a
        check, verdict, what = _CHECK, Verdict.VIOLATION, f"the clean gradient of {name}"
        times = f"{what} is {self.alpha:.6g} times what its examples should add up to"
        if self.extra:
            message = f"{self.extra[0]!r}, released at {name}, is not in the bounded network"
            remedy = "bound the network that is trained, or freeze the tensor"
        elif self.is_factor and self.alpha > 1.0:
            check = _CONTRIBUTED
            message = f"{times}: each contributes that many times what the account assumes"
            remedy = "divide by the public constant that is declared, once, after every clip"
        elif self.is_factor:
            verdict = Verdict.INCONCLUSIVE
            message = f"{times}, so its divisor is not the recorded one"
            remedy = "record the divisor: recorder.batch(divisor=…)"
        elif self.shorter is not None:
            verdict = Verdict.INCONCLUSIVE
            message = (
                f"{what} is the sum of what clips of all {self.shorter[0]} leave, which is no more "
                f"than is accounted for: of each at most {self.shorter[1]:.6g}"
            )
            remedy = "declare how gradients are clipped, to one public radius"
        elif self.heaviest is not None:
            check, (place, factor) = _CONTRIBUTED, self.heaviest
            message = (
                f"example {place} of the batch of {name} contributes {factor:.6g} times what "
                "the clip leaves of its gradient"
            )
            remedy = "clip by the norm of the whole gradient in float32, and weight examples before"
        elif not d <= a:
            is_clear = not d <= self.s * _KINKS + a
            verdict = Verdict.VIOLATION if is_clear else Verdict.INCONCLUSIVE
            message = (
                f"{what} is not the sum of the gradients of its examples: it is {d:.4g} away, "
                f"where rounding explains {a:.2g}"
            )
            remedy = "look for batch statistics, dropout, another loss or another network"
        else:
            verdict, remedy = Verdict.PASS, ""
            message = (
                f"{what} is the sum of the gradients of its examples, up to "
                f"{d / self.added if self.added else d:.2g} of what is added up"
            )
        return check.failed(message, name, (d, a), verdict=verdict, remedy=remedy)


def _heaviest(rows: FloatArray, theirs: FloatArray, d: float, a: float) -> tuple[int, float] | None:
    """Return the example of the largest factor, if factors explain d and this one is above 1.

    rows: what every example should add.
    """
    lengths = np.linalg.norm(rows, axis=1)
    chosen = np.flatnonzero(lengths > _SHORT * np.max(lengths, initial=0.0))
    if not 0 < 2 * len(chosen) <= np.count_nonzero(np.any(rows[chosen], axis=0)):
        return None
    left, sizes, right = np.linalg.svd(rows[chosen].T, full_matrices=False)
    if not sizes[-1] > _SHORT * sizes[0]:
        return None
    inverse = right.T / sizes
    factors = inverse @ (left.T @ theirs)
    residual = norm_of(theirs - rows[chosen].T @ factors)
    moved = _FACTOR * (residual + a)
    excess = factors - 1.0 - moved * np.linalg.norm(inverse, axis=1)
    worst = int(np.argmax(excess))
    if d <= moved or excess[worst] <= 0.0:
        return None
    return int(chosen[worst]), float(factors[worst])


def _shorter(
    rows: FloatArray, sizes: list[int], theirs: FloatArray, most: float, a: float
) -> tuple[str, float] | None:
    """Return a clip of parts, at most as long together as this, whose sum is theirs.

    rows: gradients before a clip; sizes: of their tensors.
    """
    if np.count_nonzero(theirs) < _FEWEST or not rows.any():
        return None
    ways = {"gradients": [len(theirs)], "tensors": sizes, "entries": [1] * len(theirs)}
    for what, parts in ways.items():
        starts = np.cumsum([0, *parts[:-1]], dtype=np.intp)
        lengths = np.repeat(np.sqrt(np.add.reduceat(rows * rows, starts, axis=1)), parts, axis=1)

        def rest(radius: float, lengths: FloatArray = lengths) -> float:
            return norm_of(theirs - (rows * (radius / np.maximum(lengths, radius))).sum(axis=0))

        end = min(most / math.sqrt(len(parts)), float(np.max(lengths)))
        best = minimize_scalar(
            rest, bounds=(_SHORT * end, end), method="bounded", options={"xatol": _SHORT * end}
        )
        if best.fun <= a:
            return what, float(best.x)
    return None


def _of_tensors(run: RecordedRun, release: Release) -> Claims:
    """Return the claims of recorded tensors; others are frozen in this step, and not clipped.

    A tensor that was noised or applied counts, too: its clean gradient must be there.
    """
    recorded = {n for step in release.steps for b in step.gradients.each if b for n in b.tensors()}
    shown = {name for name, match in run.names.items() if match.recorded in recorded}
    parts = [tuple(n for n in group.parameters if n in shown) for group in run.claims.groups]
    found = tuple(replace(g, parameters=p) for g, p in zip(run.claims.groups, parts, strict=True))
    return replace(run.claims, groups=found) if all(parts) else run.claims


def _passes(gradients: Gradients, release: Release) -> list[Pass]:
    return [part for batch in release.batches for part in passes_of(gradients, batch)]


def _total(passes: list[Pass]) -> Mapping[str, FloatArray]:
    parts = [part.total() for part in passes]
    return {name: sum((part[name] for part in parts), np.zeros(())) for name in parts[0]}


def _flat(run: RecordedRun, gradients: Mapping[str, FloatArray]) -> FloatArray:
    """Return all trained parameters in one vector; 0 if one has no gradient."""
    parts = [
        np.ravel(gradients.get(name, np.zeros(run.graph.parameters[name].shape)))
        for group in run.claims.groups
        for name in group.parameters
    ]
    return np.concatenate(parts)
