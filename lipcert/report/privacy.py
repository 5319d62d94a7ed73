"""Privacy: the account of a run, as the object `privacy` of documents, in words, and as CSV.

An ε is rounded up for readers and has full precision for programs, for which null or an empty field
stands for "no finite ε".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lipcert.diagnostics import Diagnostic
from lipcert.privacy.account import Account
from lipcert.privacy.accounting import CurvePoint
from lipcert.privacy.selection import Law
from lipcert.report import document as doc
from lipcert.report.document import csv_text
from lipcert.report.json import DOCUMENT, dump
from lipcert.text.numbers import at_most

_LAWS: Final = {
    Law.GEOMETRIC.value: "K = k ≥ 1 has the probability (1 − 1/{mean})^(k−1)/{mean}",
    Law.POISSON.value: "K is Poisson of mean {mean} (0: nothing is published)",
}
_SELECTED: Final = (
    "K is drawn once, before and apart from the data, the hyper-parameters of each trial are drawn "
    "from one fixed distribution, they are compared on public data, and only the best is "
    "published: K and the others stay secret"
)
_OTHER_MEANS: Final = ("estimates", "poisson_epsilon", "selection", "zcdp", "claimed_epsilon")
_CURVES: Final[Mapping[str, str]] = {"steps": "steps", "noise-multiplier": "σ"}
_LARGE: Final = " This δ is not below 1/N: choose a smaller one."


def privacy_promise(run: Account) -> str:
    """Return the answer in one sentence."""
    if run.epsilon is None:
        return "No finite ε: the findings say why."
    what = "The run is" if run.trials == 1 else f"{run.trials} such runs together are"
    return (
        f"{what} (ε, δ)-differentially private with ε = {at_most(run.epsilon)} and "
        f"δ = {run.delta:g}, if the assumptions hold.{_LARGE * (run.delta * run.dataset_size >= 1)}"
    )


def comparison_rows(run: Account) -> Iterator[tuple[str, str]]:
    """Yield ε by other means, including the claim, by their names in JSON."""
    members = DOCUMENT.write(run)
    shown = {name: members[name] for name in _OTHER_MEANS if members.get(name) is not None}
    if run.poisson_epsilon is not None:
        shown["poisson_epsilon"] = (
            f"{at_most(run.poisson_epsilon)}, which this run cannot claim: its batches are drawn "
            f"by {run.sampling}"
        )
    yield from doc.described(shown)
    if run.selection is not None:
        best = run.selection.best_of
        laws = " or ".join(
            text.format(mean=run.trials) for law, text in _LAWS.items() if best.get(law) is not None
        )
        yield "one trial", "provided that no other trial reads the data"
        yield "best of K", f"provided that {laws}; {_SELECTED}" if laws else "no finite ε"


@dataclass(frozen=True, slots=True)
class PrivacyReport:
    """What a run costs, which of its numbers was computed, and curves by what varies."""

    solved_for: str
    privacy: Account
    curves: Mapping[str, tuple[CurvePoint, ...]]
    diagnostics: tuple[Diagnostic, ...]


def privacy_document(report: PrivacyReport) -> doc.Document:
    """Return the answer, what it rests on, comparisons, curves, findings."""
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
            ("Diagnostics", doc.Findings.of(report.diagnostics)),
        ),
        word="NO FINITE ε" if run.epsilon is None else f"ε ≤ {at_most(run.epsilon)}",
    )


def _solution(report: PrivacyReport) -> str:
    run = report.privacy
    if report.solved_for == "steps":
        return f"Largest number of steps: {run.steps}"
    sigma = run.noise_multiplier
    return f"Noise multiplier found: {'none' if sigma is None else f'{sigma:.12g}'}"


def _curve(name: str, points: Sequence[CurvePoint]) -> doc.Table:
    known = [point.epsilon for point in points if point.epsilon is not None]
    largest = max(known, default=1.0) or 1.0
    return doc.ranking(
        ("steps" if name == "steps" else "σ", "ε"),
        [
            (
                str(point.steps) if name == "steps" else f"{point.noise_multiplier:.6g}",
                "∞" if point.epsilon is None else at_most(point.epsilon),
                1.0 if point.epsilon is None else point.epsilon / largest,
            )
            for point in points
        ],
    )


def privacy_json(report: PrivacyReport) -> str:
    """Return the document `lipcert.privacy/1` of a run."""
    return dump({"schema": "lipcert.privacy/1", **DOCUMENT.write(report)})


def privacy_csv(report: PrivacyReport) -> str:
    """Return the answer as the first row, then the points of the curves."""
    run = report.privacy
    rows: list[tuple[str, CurvePoint | Account]] = [("answer", run)]
    rows += [(name, point) for name, points in report.curves.items() for point in points]
    return csv_text(
        ("row", "noise_multiplier", "steps", "delta", "epsilon"),
        [
            (name, item.noise_multiplier, str(item.steps), run.delta, item.epsilon)
            for name, item in rows
        ],
    )
