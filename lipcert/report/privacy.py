"""The account of a run: as the object `privacy` of documents, in words, and as CSV.

The object is one record, which documents are written from and read back as, and from which the text
is made: what is promised under which assumptions. An ε is rounded up for people and in full
precision for programs, for whom null or an empty field stands for "no finite ε".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, final

from lipcert.core.codec import member
from lipcert.diagnostics import Diagnostic
from lipcert.errors import UsageError
from lipcert.privacy.account import Account, Divisor
from lipcert.privacy.accounting import Accountant, CurvePoint
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, SizeSource, TrainingPlan
from lipcert.privacy.selection import Law
from lipcert.report import document as doc
from lipcert.report.document import csv_text, diagnostics_told
from lipcert.report.json import DOCUMENT, dump
from lipcert.text.numbers import at_most
from lipcert.upper import finite

_CHANGE: Final = {
    Neighbouring.ADD_OR_REMOVE_ONE: "added or removed",
    Neighbouring.REPLACE_ONE: "replaced by any other",
    Neighbouring.ZERO_OUT: "left out, with its place in the batches kept empty",
}
ACCOUNTANTS: Final[Mapping[str, str]] = {
    Accountant.PLD.value: "privacy loss distributions",
    Accountant.RDP.value: "Rényi divergences",
}
_SIZE: Final = {
    SizeSource.DECLARED: "declared and public, as the rate and the number of steps are",
    SizeSource.DATA: "counted in the private data set",
}
_SAMPLING: Final = {
    Sampling.POISSON: "Poisson: each example independently with probability {share}, at every step",
    Sampling.BALLS_IN_BINS: "balls in bins: every epoch puts each example into one of its batches, "
    "uniformly and independently of all others",
    Sampling.WITHOUT_REPLACEMENT: "a uniform subset of exactly {share} examples, anew "
    "for every step",
    Sampling.SHUFFLE: "disjoint batches of {batch} in every epoch, shuffled or in fixed order: an "
    "example enters one release per epoch, and no sampling amplifies",
    Sampling.FULL_BATCH: "none: every step sees all examples",
}
_LAWS: Final = {
    Law.GEOMETRIC.value: "K = k ≥ 1 has the probability (1 − 1/{mean})^(k−1)/{mean}",
    Law.POISSON.value: "K is Poisson of mean {mean} (0: nothing is published)",
}
_CURVES: Final[Mapping[str, str]] = {"steps": "steps", "noise-multiplier": "σ"}


@final
@dataclass(frozen=True, slots=True)
class ZeroConcentrated:
    """The zCDP statement of a run, and the ε that it converts to."""

    rho_per_release: float
    rho: float
    epsilon: float


@final
@dataclass(frozen=True, slots=True)
class Selection:
    """ε of one trial alone, and of a search that publishes only the best of a random number of
    them, by its law."""

    one_trial: float | None
    best_of: Mapping[str, float | None]

    @property
    def cheapest(self) -> tuple[str, float] | None:
        """The law with the smallest ε."""
        known = {law: found for law, found in self.best_of.items() if found is not None}
        return min(known.items(), key=lambda item: item[1], default=None)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrivacy:
    """The object `privacy` of documents: what a run costs, and everything that is conditional on.

    allocation: how the noise is split among groups; None where it was not stated. estimates: ε by
    accountant, the tightest first. statement: the assumptions, by topic. trials: how many such runs
    the ε is that of; selection: where there are several.
    """

    epsilon: float | None
    delta: float
    noise_multiplier: float | None
    allocation: str | None
    sampling: str
    steps: int
    accountant: str
    neighbours: str
    dataset_size: int
    dataset_size_from: str
    batch_size: int
    sampling_rate: float | None = field(default=None, metadata=member(optional=True))
    participations: int
    estimates: Mapping[str, float | None]
    poisson_epsilon: float | None
    claimed_epsilon: float | None
    zcdp: ZeroConcentrated | None
    trials: int = field(default=1, metadata=member(optional=True))
    selection: Selection | None = field(default=None, metadata=member(optional=True))
    statement: Mapping[str, str]

    @classmethod
    def of(cls, account: Account, allocation: str | None) -> RunPrivacy:
        """What documents say of an account."""
        plan, zcdp, selection = account.plan, account.zcdp, account.selection
        return cls(
            epsilon=account.epsilon,
            delta=plan.delta,
            noise_multiplier=account.noise_multiplier,
            allocation=allocation,
            sampling=plan.sampling.value,
            steps=plan.releases,
            accountant=account.accountant.value,
            neighbours=plan.neighbours.value,
            dataset_size=plan.dataset_size,
            dataset_size_from=plan.dataset_size_from.value,
            batch_size=plan.batch,
            sampling_rate=plan.rate,
            participations=plan.participations,
            estimates={item.accountant.value: item.epsilon for item in account.estimates},
            poisson_epsilon=account.poisson_epsilon,
            claimed_epsilon=account.claimed_epsilon,
            zcdp=zcdp
            and ZeroConcentrated(zcdp.rho_per_release.value, zcdp.rho.value, zcdp.epsilon.value),
            trials=plan.trials,
            selection=selection
            and Selection(
                selection.one_trial, {law.value: found for law, found in selection.best_of.items()}
            ),
            statement=_statement(account),
        )

    @property
    def plan(self) -> TrainingPlan | None:
        """The plan of the run; None where this version has no account of one."""
        return plan_of(asdict(self))


def plan_of(run: Mapping[str, Any]) -> TrainingPlan | None:
    """The plan of a run in words of documents; None where this version has no account of one."""
    try:
        return TrainingPlan.described(run)
    except (UsageError, ValueError):
        return None


def privacy_promise(run: RunPrivacy) -> str:
    """The answer in one sentence."""
    if run.epsilon is None:
        return "No finite ε: the findings say why."
    what = "The run is" if run.trials == 1 else f"{run.trials} such runs together are"
    return (
        f"{what} (ε, δ)-differentially private with ε = {at_most(run.epsilon)} and "
        f"δ = {run.delta:g}, if the assumptions hold."
    )


def _statement(account: Account) -> dict[str, str]:
    """Everything the ε is conditional on."""
    plan = account.plan
    divisor = f"a mean divides by the public constant {plan.batch}; a sum by nothing"
    if account.declaration.divisor is Divisor.BATCH_SIZE:
        divisor = "a mean divides by the size of the batch at hand"
    steps = f"{plan.releases} steps"
    if plan.sampling.by_epoch:
        steps += f"; one example takes part in {plan.participations} of them at most"
    trials, chosen = {}, " (selection of hyperparameters included)"
    if plan.trials > 1:
        chosen = ""
        steps = f"in each trial {steps}"
        trials["trials"] = (
            f"{plan.trials}, none of which costs more than the one described; all may be "
            "published, and each may be chosen after looking at those before"
        )
    return {
        "unit": f"one of N = {plan.dataset_size} examples, {_SIZE[plan.dataset_size_from]}",
        "neighbours": f"one example is {_CHANGE[plan.neighbours]} ({plan.neighbours.value})",
        "sampling": _sampling_text(plan),
        "divisor": divisor,
        "noise": _noise_text(account),
        "releases": steps,
        **trials,
        "accountant": f"{ACCOUNTANTS[account.accountant.value]}, by {_accounted_by(plan)}",
        "assumed": "every release has sensitivity Δ or less; noise is drawn exactly and "
        f"independently; {'batches stay secret; ' if plan.sampling.amplifies else ''}"
        f"nothing else about the data is published{chosen}",
    }


def _accounted_by(plan: TrainingPlan) -> str:
    own = plan.sampling is Sampling.BALLS_IN_BINS
    return "LipCert's checker" if own else "dp-accounting"


def _sampling_text(plan: TrainingPlan) -> str:
    share = f"{plan.batch} of {plan.dataset_size}"
    if plan.rate is not None:
        share = f"{plan.rate:.9g} (stated; {share} is {plan.batch / plan.dataset_size:.9g})"
    return _SAMPLING[plan.sampling].format(share=share, batch=plan.batch)


def comparison_rows(run: RunPrivacy) -> Iterator[tuple[str, str]]:
    """ε by other means, the claim included."""
    for accountant, epsilon in run.estimates.items():
        if accountant != run.accountant and epsilon is not None:
            yield f"ε by {ACCOUNTANTS.get(accountant, accountant)}", at_most(epsilon)
    if run.poisson_epsilon is not None:
        yield (
            "ε if batches were Poisson samples",
            f"{at_most(run.poisson_epsilon)}, which this run cannot claim: its batches are "
            f"drawn by {run.sampling}",
        )
    if run.selection is not None:
        yield from _selection_rows(run, run.selection)
    if run.zcdp is not None:
        once, rho, converted = map(
            at_most, (run.zcdp.rho_per_release, run.zcdp.rho, run.zcdp.epsilon)
        )
        text = f"ρ = {once} per release, {rho} in all; by simple conversion ε = {converted}"
        yield "zCDP", text
    if run.claimed_epsilon is not None:
        yield "ε as claimed", at_most(run.claimed_epsilon)


def _selection_rows(run: RunPrivacy, selection: Selection) -> Iterator[tuple[str, str]]:
    if selection.one_trial is not None:
        yield "ε of one trial", f"{at_most(selection.one_trial)}, if no other trial reads the data"
    for law, epsilon in selection.best_of.items():
        if epsilon is not None:
            text = _LAWS[law].format(mean=run.trials) if law in _LAWS else law
            yield f"ε of the best of K trials, {law}", f"{at_most(epsilon)}, if {text}"
    cheapest = selection.cheapest
    if cheapest is None:
        return
    law, least = cheapest
    if run.epsilon is not None and run.epsilon <= least:
        yield "cheaper", f"{run.trials} trials, all counted"
        return
    yield (
        "cheaper",
        f"a random number K of trials ({law}, mean {run.trials}), if K is drawn once, before and "
        "apart from the data, the hyper-parameters of each trial are drawn from one fixed "
        "distribution, they are compared on public data, and only the best is published: K and "
        "the others stay secret",
    )


def _noise_text(account: Account) -> str:
    sigma = account.noise_multiplier
    if sigma is None:
        return "no multiplier describes it"
    delta = "2G" if account.plan.neighbours is Neighbouring.REPLACE_ONE else "G"
    return (
        f"Gaussian, joint multiplier σ = {sigma:.12g}: deviation σ·Δ on a release of "
        f"sensitivity Δ = {delta} (sum) for gradients of norm G"
    )


@final
@dataclass(frozen=True, slots=True)
class Point:
    """ε of a run of this length and noise; None: no finite one."""

    noise_multiplier: float
    steps: int
    epsilon: float | None


@final
@dataclass(frozen=True, slots=True)
class PrivacyReport:
    """What a run costs, which of its numbers was asked for, and curves by what varies."""

    solved_for: str
    privacy: RunPrivacy
    curves: Mapping[str, tuple[Point, ...]]
    diagnostics: tuple[Diagnostic, ...]

    @classmethod
    def of(
        cls,
        account: Account,
        solved_for: str,
        allocation: str | None,
        curves: Mapping[str, Sequence[CurvePoint]],
    ) -> PrivacyReport:
        """From an account. allocation: as in `RunPrivacy`."""
        drawn = {
            name: tuple(
                Point(point.noise_multiplier, point.steps, finite(point.epsilon))
                for point in points
            )
            for name, points in curves.items()
        }
        return cls(solved_for, RunPrivacy.of(account, allocation), drawn, account.diagnostics)


def privacy_document(report: PrivacyReport) -> doc.Document:
    """The answer, what it rests on, comparisons, curves, findings."""
    run = report.privacy
    tone = doc.Tone.BAD if run.epsilon is None else doc.Tone.GOOD
    answers = [doc.Answer(privacy_promise(run), tone)]
    if report.solved_for != "epsilon":
        answers.append(doc.Answer(_solution(report), doc.Tone.SUBJECT))
    return doc.Document(
        "LipCert privacy",
        tuple(answers),
        sections=doc.sections_of(
            ("Statement", doc.Statements.of(run.statement.items())),
            ("By other means", doc.Statements.of(comparison_rows(run))),
            *(
                (f"ε over {_CURVES.get(name, name)}", _curve(name, points))
                for name, points in report.curves.items()
            ),
            ("Diagnostics", doc.Findings(diagnostics_told(report.diagnostics))),
        ),
        word="NO FINITE ε" if run.epsilon is None else f"ε ≤ {at_most(run.epsilon)}",
    )


def _solution(report: PrivacyReport) -> str:
    run = report.privacy
    if report.solved_for == "steps":
        return f"Largest number of steps: {run.steps}"
    sigma = run.noise_multiplier
    return f"Noise multiplier found: {'none' if sigma is None else f'{sigma:.12g}'}"


def _curve(name: str, points: Sequence[Point]) -> doc.Ranking:
    known = [point.epsilon for point in points if point.epsilon is not None]
    largest = max(known, default=1.0) or 1.0
    return doc.Ranking(
        tuple(
            doc.Bar(
                str(point.steps) if name == "steps" else f"{point.noise_multiplier:.6g}",
                "∞" if point.epsilon is None else at_most(point.epsilon),
                1.0 if point.epsilon is None else point.epsilon / largest,
            )
            for point in points
        )
    )


def privacy_json(report: PrivacyReport) -> str:
    """The document `lipcert.privacy/1` of a run."""
    return dump({"schema": "lipcert.privacy/1", **DOCUMENT.write(report)})


def privacy_csv(report: PrivacyReport) -> str:
    """The answer as the first row, then the points of the curves."""
    run = report.privacy
    rows: list[tuple[str, Point | RunPrivacy]] = [("answer", run)]
    rows += [(name, point) for name, points in report.curves.items() for point in points]
    return csv_text(
        ("row", "noise_multiplier", "steps", "delta", "epsilon"),
        [
            (name, item.noise_multiplier, str(item.steps), run.delta, item.epsilon)
            for name, item in rows
        ],
    )
