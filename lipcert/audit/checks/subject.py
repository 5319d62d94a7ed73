"""Subject: what the checks look at, and what a check leaves.

What enters: claims, and the recorded run or the data that they are held against. What leaves: the
same with what is derived from it once; findings. Invariant: what could not be checked is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, final

from lipcert.analysis.planned import known_plan, planned_multiplier
from lipcert.analysis.release import noise_groups_of
from lipcert.audit.audited_weights import Settled, settled_at
from lipcert.audit.bounds import Claims
from lipcert.audit.recorded import names_in, recorded_batches, step_name, weights_at
from lipcert.audit.recorded_names import Match
from lipcert.audit.records import CheckReport
from lipcert.audit.trace.reading import Trace
from lipcert.audit.trace.records import Declaration, Noise, Step
from lipcert.gradient_stats.examples import Readable
from lipcert.graph.ir import Graph
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings.settings import Settings
from lipcert.upper import FloatArray

_MOST: Final = 4


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


def shortened(reports: Sequence[CheckReport]) -> tuple[CheckReport, ...]:
    """The first few; the last of them says how many more there are."""
    kept = list(reports[:_MOST])
    more = len(reports) - len(kept)
    if more:
        kept[-1] = replace(kept[-1], message=f"{kept[-1].message} (and {more} more places)")
    return tuple(kept)


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
            groups = noise_groups_of(self.claims.engine.groups, settings)
            return planned_multiplier(self.plan, settings, groups)
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
