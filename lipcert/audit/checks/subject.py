"""A recorded run as checks see it, and the form of a check.

A check is a generator: it yields a report for each thing that it compared, and a sentence for each
thing that it could not compare. `RunCheck` is the one loop around it. The docstring of a check
states what is claimed, the statistic, the threshold, and how often a right run is blamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias, final

from lipcert.analysis.release import known_plan, planned_multiplier
from lipcert.audit.audited_weights import Settled, settled_at
from lipcert.audit.bounds import Claims
from lipcert.audit.recorded import names_in, recorded_batches, step_name, weights_at
from lipcert.audit.recorded_names import Match
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.trace.reading import Trace
from lipcert.audit.trace.records import Declaration, Noise, Step
from lipcert.gradient_stats.examples import Readable
from lipcert.graph.ir import Graph
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings.settings import Settings
from lipcert.upper import FloatArray

FEW: Final = 4
"""places that are named where a check fails at many"""


@final
@dataclass(frozen=True, slots=True)
class Checked:
    """What checks found, and a sentence for each that could not be done."""

    reports: tuple[CheckReport, ...] = ()
    not_done: tuple[str, ...] = ()


def joined(*parts: Checked) -> Checked:
    """All of them in order; a sentence that several would say is said once."""
    return Checked(
        tuple(report for part in parts for report in part.reports),
        tuple(dict.fromkeys(text for part in parts for text in part.not_done)),
    )


@final
@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A recorded run and the claims that are made of it.

    device: where gradients are computed. data: the data set, for a trace that names its examples.
    """

    claims: Claims
    trace: Trace
    device: str = "cpu"
    data: Readable | None = None

    @property
    def settings(self) -> Settings:
        """Those that the claims are conditional on."""
        return self.claims.settings

    @property
    def graph(self) -> Graph:
        """The network as the run evaluates it, clips included."""
        return self.claims.engine.graph

    @property
    def declared(self) -> Declaration:
        """What the run says of itself."""
        return self.trace.manifest.declaration

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Of all ranks, one after the other."""
        return tuple(self.trace.steps())

    @cached_property
    def noises(self) -> Mapping[int, Noise]:
        """What is stated of the noise of each step, by the first rank that says anything."""
        found: dict[int, Noise] = {}
        for step in self.steps:
            if step.noise is not None:
                found.setdefault(step.number, step.noise)
        return found

    @cached_property
    def plan(self) -> TrainingPlan | None:
        """The run that was accounted for, where the claims describe one completely."""
        return known_plan(self.settings)

    @cached_property
    def multiplier(self) -> float | None:
        """σ as the claims or else the run itself state it; None where nobody does."""
        settings = self.settings
        if settings.noise_multiplier is not None:
            return settings.noise_multiplier
        is_planned = settings.target_epsilon is not None and self.plan is not None
        if is_planned or settings.noise_multipliers:
            return planned_multiplier(self.plan, settings, self.claims.engine.groups)
        return self.declared.noise_multiplier

    @cached_property
    def whole_batches(self) -> frozenset[str]:
        """Steps that are replayed."""
        return frozenset(name for name, _ in recorded_batches(self.trace, self.data))

    @cached_property
    def names(self) -> Mapping[str, Match]:
        """The recorded tensor of each parameter of the graph."""
        return names_in(self.trace, self.graph)

    def name(self, step: Step) -> str:
        """What a step is called."""
        return step_name(self.trace, step)

    def weights(self, name: str) -> Mapping[str, FloatArray]:
        """Weights by the graph's names."""
        return weights_at(self.trace, name, self.graph)

    def settled(self, name: str) -> Settled:
        """Weights, drawn into their constraints where rounding left them outside, and claims."""
        return settled_at(self.claims, self.trace, name)


Finding: TypeAlias = CheckReport | str
"""a report, or a sentence that says what could not be compared, and why"""
Finder: TypeAlias = Callable[[RecordedRun], Iterable[Finding]]


@final
@dataclass(frozen=True, slots=True)
class RunCheck:
    """A check of recorded runs; `find` yields its findings.

    most: so many places are named, the worst first; None: all of them, in order. keeps_passes:
    whether a pass stands beside failures, because it is of something else.
    """

    check: Check
    find: Finder
    most: int | None = None
    keeps_passes: bool = False

    def __call__(self, run: RecordedRun) -> Checked:
        """What the check finds in a run."""
        found = list(self.find(run))
        reports = [item for item in found if isinstance(item, CheckReport)]
        missing = [f"{self.check.name}: {item}" for item in found if isinstance(item, str)]
        failed = [report for report in reports if report.verdict is not Verdict.PASS]
        if failed and not self.keeps_passes:
            reports = failed
        if self.most is not None:
            reports.sort(key=lambda report: report.verdict is not Verdict.VIOLATION)
            reports = list(shortened(reports, self.most))
        return Checked(tuple(reports), tuple(dict.fromkeys(missing)))


def run_check(
    check: Check, *, most: int | None = None, keeps_passes: bool = False
) -> Callable[[Finder], RunCheck]:
    """Make a check of the generator below."""
    return lambda find: RunCheck(check, find, most, keeps_passes)


def shortened(reports: Sequence[CheckReport], most: int = FEW) -> tuple[CheckReport, ...]:
    """The first few; the last of them says how many more there are."""
    kept = list(reports[:most])
    more = len(reports) - len(kept)
    if more:
        kept[-1] = replace(kept[-1], message=f"{kept[-1].message} (and {more} more places)")
    return tuple(kept)
