"""The account of a run: in words, as a document, as `lipcert.privacy/1` and as CSV.

What enters: an account, points of curves. What leaves: what is promised under which assumptions, as
pairs (topic, sentence); a `Document` whose first line is the answer; the object `privacy`, which an
analysis holds too; CSV. An ε is rounded up for people and in full precision for programs, for whom
null or an empty field stands for "no finite ε".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from lipcert.privacy.account import Account
from lipcert.privacy.accounting import Accountant, CurvePoint
from lipcert.privacy.declaration import Divisor
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, SizeSource, TrainingPlan
from lipcert.report import document as doc
from lipcert.report.csv import csv_text
from lipcert.report.document import diagnostics_told
from lipcert.report.json import diagnostic_list, dump
from lipcert.report.numbers import at_most

_CHANGE: Final = {
    Neighbouring.ADD_OR_REMOVE_ONE: "added or removed",
    Neighbouring.REPLACE_ONE: "replaced by any other",
    Neighbouring.ZERO_OUT: "left out, its place in the batches kept empty",
}
_ACCOUNTANT: Final = {
    Accountant.PLD: "privacy loss distributions",
    Accountant.RDP: "Rényi divergences",
}
_SIZE: Final = {
    SizeSource.DECLARED: "declared and public, as the rate and the number of steps are",
    SizeSource.DATA: "counted in the private data set",
}
_SAMPLING: Final = {
    Sampling.POISSON: "Poisson: every example alone with probability {share}, anew for every step",
    Sampling.WITHOUT_REPLACEMENT: "a uniform subset of exactly {share} examples, anew "
    "for every step",
    Sampling.SHUFFLE: "disjoint batches of {batch} in every epoch, shuffled or in fixed order: an "
    "example enters one release per epoch, and no sampling amplifies",
    Sampling.FULL_BATCH: "none: every step sees all examples",
}
_CURVES: Final[Mapping[str, str]] = {"steps": "steps", "noise-multiplier": "σ"}


def privacy_promise(account: Account) -> str:
    """The answer in one sentence."""
    if account.epsilon is None:
        return "No finite ε: the findings say why."
    return (
        f"The run is (ε, δ)-differentially private with ε = {at_most(account.epsilon)} and "
        f"δ = {account.plan.delta:g}, if the assumptions hold."
    )


def statement_rows(account: Account) -> list[tuple[str, str]]:
    """Everything the ε is conditional on."""
    plan = account.plan
    divisor = f"a mean divides by the public constant {plan.batch}; a sum by nothing"
    if account.declaration.divisor is Divisor.BATCH_SIZE:
        divisor = "a mean divides by the size of the batch at hand"
    steps = f"{plan.releases} steps"
    if plan.sampling is Sampling.SHUFFLE:
        steps += f"; one example takes part in {plan.participations} of them at most"
    secret = plan.sampling in {Sampling.POISSON, Sampling.WITHOUT_REPLACEMENT}
    return [
        ("unit", f"one of N = {plan.dataset_size} examples, {_SIZE[plan.dataset_size_from]}"),
        ("neighbours", f"one example is {_CHANGE[plan.neighbours]} ({plan.neighbours.value})"),
        ("sampling", _sampling_text(plan)),
        ("divisor", divisor),
        ("noise", _noise_text(account)),
        ("releases", steps),
        ("accountant", f"{_ACCOUNTANT[account.accountant]}, by dp-accounting"),
        (
            "assumed",
            "every release has sensitivity Δ or less; noise is drawn exactly and independently; "
            f"{'batches stay secret; ' if secret else ''}"
            "nothing else about the data is published (selection of hyperparameters included)",
        ),
    ]


def _sampling_text(plan: TrainingPlan) -> str:
    share = f"{plan.batch} of {plan.dataset_size}"
    if plan.rate is not None:
        share = f"{plan.rate:.9g} (stated; {share} is {plan.batch / plan.dataset_size:.9g})"
    return _SAMPLING[plan.sampling].format(share=share, batch=plan.batch)


def comparison_rows(account: Account) -> list[tuple[str, str]]:
    """ε by other means, the claim included."""
    return list(_other_means(account))


def _other_means(account: Account) -> Iterator[tuple[str, str]]:
    for estimate in account.estimates:
        if estimate.accountant is not account.accountant and estimate.epsilon is not None:
            yield f"ε by {_ACCOUNTANT[estimate.accountant]}", at_most(estimate.epsilon)
    if account.poisson_epsilon is not None:
        yield (
            "ε if batches were Poisson samples",
            f"{at_most(account.poisson_epsilon)}, which this run may not claim: its batches are "
            f"drawn by {account.plan.sampling.value}",
        )
    if account.zcdp is not None:
        once, rho, epsilon = (
            at_most(up.value)
            for up in (account.zcdp.rho_per_release, account.zcdp.rho, account.zcdp.epsilon)
        )
        text = f"ρ = {once} per release, {rho} in all; by simple conversion ε = {epsilon}"
        yield "zCDP", text
    if account.claimed_epsilon is not None:
        yield "ε as claimed", at_most(account.claimed_epsilon)


def _noise_text(account: Account) -> str:
    sigma = account.noise_multiplier
    if sigma is None:
        return "no multiplier describes it"
    delta = "2G" if account.plan.neighbours is Neighbouring.REPLACE_ONE else "G"
    return (
        f"Gaussian, joint multiplier σ = {sigma:.12g}: deviation σ·Δ on a release of "
        f"sensitivity Δ = {delta} (sum) for gradients of norm G"
    )


def privacy_object(account: Account, allocation: str | None) -> dict[str, object]:
    """The object `privacy`, here and in an analysis."""
    plan, zcdp = account.plan, account.zcdp
    return {
        "epsilon": account.epsilon,
        "delta": plan.delta,
        "noise_multiplier": account.noise_multiplier,
        "allocation": allocation,
        "sampling": plan.sampling.value,
        "steps": plan.releases,
        "accountant": account.accountant.value,
        "neighbours": plan.neighbours.value,
        "dataset_size": plan.dataset_size,
        "dataset_size_from": plan.dataset_size_from.value,
        "batch_size": plan.batch,
        **({} if plan.rate is None else {"sampling_rate": plan.rate}),
        "participations": plan.participations,
        "estimates": {
            estimate.accountant.value: estimate.epsilon for estimate in account.estimates
        },
        "poisson_epsilon": account.poisson_epsilon,
        "claimed_epsilon": account.claimed_epsilon,
        "zcdp": zcdp
        and {
            "rho_per_release": zcdp.rho_per_release.value,
            "rho": zcdp.rho.value,
            "epsilon": zcdp.epsilon.value,
        },
        "statement": dict(statement_rows(account)),
    }


@final
@dataclass(frozen=True, slots=True)
class PrivacyReport:
    """An account, which of its numbers was asked for, and curves by what varies.

    allocation: how the noise is split among groups; None where nobody said.
    """

    account: Account
    solved_for: str
    allocation: str | None
    curves: Mapping[str, Sequence[CurvePoint]]


def privacy_document(report: PrivacyReport) -> doc.Document:
    """The answer, what it rests on, comparisons, curves, findings."""
    account = report.account
    tone = doc.Tone.BAD if account.epsilon is None else doc.Tone.GOOD
    answers = [doc.Answer(privacy_promise(account), tone)]
    if report.solved_for != "epsilon":
        answers.append(doc.Answer(_solution(report), doc.Tone.SUBJECT))
    return doc.Document(
        "LipCert privacy",
        tuple(answers),
        sections=doc.sections_of(
            doc.Section("Statement", (doc.Statements.of(statement_rows(account)),)),
            doc.Section("By other means", (doc.Statements.of(comparison_rows(account)),)),
            *(
                doc.Section(f"ε over {_CURVES[name]}", (_curve(name, points),))
                for name, points in report.curves.items()
            ),
            doc.Section("Diagnostics", (doc.Findings(diagnostics_told(account.diagnostics)),)),
        ),
    )


def _solution(report: PrivacyReport) -> str:
    account = report.account
    if report.solved_for == "steps":
        return f"Largest number of steps: {account.plan.releases}"
    sigma = account.noise_multiplier
    return f"Noise multiplier found: {'none' if sigma is None else f'{sigma:.12g}'}"


def _curve(name: str, points: Sequence[CurvePoint]) -> doc.Ranking:
    largest = max((p.epsilon for p in points if math.isfinite(p.epsilon)), default=1.0) or 1.0
    return doc.Ranking(
        tuple(
            doc.Bar(
                str(point.steps) if name == "steps" else f"{point.noise_multiplier:.6g}",
                at_most(point.epsilon) if math.isfinite(point.epsilon) else "∞",
                min(point.epsilon / largest, 1.0),
            )
            for point in points
        )
    )


def privacy_json(report: PrivacyReport) -> str:
    """`lipcert.privacy/1`."""
    return dump(
        {
            "schema": "lipcert.privacy/1",
            "solved_for": report.solved_for,
            "privacy": privacy_object(report.account, report.allocation),
            "curves": {
                name: [
                    {
                        "noise_multiplier": point.noise_multiplier,
                        "steps": point.steps,
                        "epsilon": _finite(point.epsilon),
                    }
                    for point in points
                ]
                for name, points in report.curves.items()
            },
            "diagnostics": diagnostic_list(report.account.diagnostics),
        }
    )


def privacy_csv(report: PrivacyReport) -> str:
    """The answer as the first row, then the points of the curves."""
    account = report.account
    rows = [("answer", account.noise_multiplier, account.plan.releases, account.epsilon)]
    for name, points in report.curves.items():
        rows += [(name, point.noise_multiplier, point.steps, point.epsilon) for point in points]
    return csv_text(
        ("row", "noise_multiplier", "steps", "delta", "epsilon"),
        [
            (name, multiplier, str(steps), account.plan.delta, epsilon)
            for name, multiplier, steps, epsilon in rows
        ],
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
