"""The report of a study as a document, in the order of reading.

What enters: a study. What leaves: a `Document`: the answers, each with a word and sentences; the
bounds of the whole, what they are conditional on, and then layer by layer and group by group where
they come from; and the commands that make everything again, in which words that a shell would read
are quoted. Invariant: "proved" is said of what the checker accepted, and of nothing else.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lipcert.analysis.records import Analysis
from lipcert.report import document as doc
from lipcert.report.analysis import COTANGENT, nodes_table, parameters_table, verdict_answers
from lipcert.report.audit import (
    DIMENSION,
    GRADIENT_NORM,
    GROUP,
    MEASURED,
    TONES,
    answer,
    checks_of,
    fact_rows,
    gradient_rows,
    group_cells,
    meaning,
    values_table,
    worth_of,
)
from lipcert.report.document import (
    Answer,
    Cell,
    Column,
    Line,
    Section,
    Statement,
    Statements,
    Tone,
    told_once,
)
from lipcert.report.figures import group_figures, network_figures, noise_figure, privacy_figures
from lipcert.report.numbers import NO_BOUND, at_most, percent
from lipcert.report.study.joining import ANALYSIS, AUDIT, CERTIFICATE, CHECK, PRIVACY
from lipcert.report.study.records import (
    CertificateFacts,
    CheckFacts,
    GroupRow,
    LedgerEntry,
    PrivacyFacts,
    Study,
    group_rows,
    noise_shares,
)

_MOST_FINDINGS: Final = 100
_STATUS: Final[Mapping[str, Tone]] = {"checked": Tone.GOOD, "accepted": Tone.GOOD}
_RELEASE: Final = (
    GROUP,
    DIMENSION,
    Column("G", True),
    Column("Δ", True, optional=True),
    Column("noise std", True, optional=True),
    Column("noise energy", True, optional=True),
)
_VALUE_COLUMNS: Final = (
    Column("value"),
    Column("op"),
    Column("‖value‖", True),
    Column("‖cotangent‖", True),
)
_MOST_REASONS: Final = 5
_CHECKED: Final[Mapping[str, tuple[Tone, str]]] = {
    "valid": (Tone.GOOD, "Everything claimed is proved."),
    "conditional": (
        Tone.OPEN,
        "Everything claimed is proved, if the declared assumptions hold that nobody checked.",
    ),
    "unknown": (Tone.OPEN, "The checker cannot tell."),
    "invalid": (Tone.BAD, "What is claimed does not follow."),
}
_UNWRITTEN: Final = "analysis.json"
"""what a document is called that was never written"""


def study_document(study: Study, most: int | None = 300) -> doc.Document:
    """What a report says of everything that is known; tables of at most so many rows."""
    findings = told_once(
        Line((item.level, item.code), item.node, item.message, item.remedy)
        for item in study.findings
    )
    told = doc.Findings(findings[:_MOST_FINDINGS], max(len(findings) - _MOST_FINDINGS, 0))
    # what was asked first: the bounds and how they were tried, then where they come from
    figures = (
        *group_figures(study),
        *privacy_figures(study),
        *network_figures(study),
        *noise_figure(study),
    )
    return doc.Document(
        f"LipCert report: {study.model_path or 'a model'}",
        cards_of(study),
        Statements.of(list(_subject(study))),
        doc.sections_of(
            Section("Key numbers", (_key_numbers(study),), "numbers"),
            Section("Assumptions", tuple(_assumptions(study)), "assumptions"),
            Section("Diagnostics", (told,), "diagnostics"),
            Section("Charts", (doc.Charts(figures),), "charts"),
            Section("Groups", (_groups(study, most),)),
            *_tables(study, most),
            Section("How to make this again", (doc.Commands(commands_of(study)),), "again"),
        ),
    )


def _subject(study: Study) -> Iterator[tuple[str, str]]:
    if study.model_path:
        yield "model", study.model_path
    if study.model_sha256:
        yield "sha256", study.model_sha256
    if study.analysis is not None:
        yield "trained parameters", f"{study.analysis.analysis.model.parameters:,}"
    if study.certificate is not None:
        yield "certificate sha256", study.certificate.sha256
    files = [source.path for source in study.sources if source.path]
    if files:
        yield "made from", ", ".join(files)


def _key_numbers(study: Study) -> doc.Table:
    """The bounds of the whole network, as every document states them."""
    certificate = study.certificate
    claimed = [] if certificate is None else _claimed(certificate)
    if study.analysis is None:
        return _number_table(("bound of", "certificate"), claimed)
    answers = study.analysis.answers
    if certificate is None:
        return _number_table(("bound of", "analysis"), answers)
    rows = [(name, text, dict(claimed).get(name, "")) for name, text in answers]
    return _number_table(("bound of", "analysis", "certificate"), rows)


def _number_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> doc.Table:
    first, *others = titles
    return doc.table([Column(first), *(Column(title, True) for title in others)], rows)


def _claimed(certificate: CertificateFacts) -> list[tuple[str, str]]:
    """Under the words of the analysis."""
    bounds = {
        "Lipschitz constant of the network": certificate.lipschitz,
        "per-example gradient norm G": certificate.grad_norm,
        "sensitivity Δ": certificate.sensitivity,
    }
    return [
        (name, "not claimed" if bound is None else f"≤ {at_most(bound)}")
        for name, bound in bounds.items()
    ]


def _assumptions(study: Study) -> Iterator[Statements]:
    """Of the certificate, the analysis, the run and the audit, with what is known of each."""
    entries: Sequence[LedgerEntry] = () if study.check is None else study.check.ledger
    if not entries and study.certificate is not None:
        entries = study.certificate.ledger
    rows = [
        Statement(item.id, item.text, item.status, _STATUS.get(item.status, Tone.OPEN))
        for item in entries
    ]
    yield Statements(tuple(rows), "The certificate holds if")
    if study.analysis is not None:
        yield Statements.of(study.analysis.assumptions, "The analysis holds if")
    if study.privacy is not None:
        yield Statements.of(study.privacy.statement, "The ε holds if")
    if study.audit is not None:
        yield Statements.of(fact_rows(study.audit), "What was audited")


def _tables(study: Study, most: int | None) -> Iterator[Section]:
    if study.analysis is not None:
        analysis = study.analysis.analysis
        yield Section("Layers", (nodes_table(analysis, most), Statements.of([COTANGENT])))
        yield Section("Parameters", (parameters_table(analysis, most),))
    elif study.certificate is not None:
        rows = [
            (item.value, item.op or "input", item.output_norm, item.cotangent_norm)
            for item in study.certificate.values
        ]
        values = doc.table(_VALUE_COLUMNS, rows[:most], len(rows[most:]))
        yield Section("Values", (values, Statements.of([COTANGENT])))
    if study.audit is not None:
        yield Section("Audited gradient", (Statements.of(gradient_rows(study.audit)),))
        legend = Statements.of([GRADIENT_NORM])
        yield Section("Audited values", (values_table(study.audit, most), legend))
        yield Section("Checks of the audit", (checks_of(study.audit),))
    if study.check is not None:
        steps = [(name, "yes" if holds else "no") for name, holds in study.check.stages]
        yield Section("Steps of the check", (Statements.of(steps),))


def _groups(study: Study, most: int | None) -> doc.Table:
    rows = group_rows(study)
    shares = noise_shares(study)
    audited = any(row.audit is not None for row in rows)
    cells = [_group(row, shares, audited) for row in rows[:most]]
    columns = (*_RELEASE, *MEASURED) if audited else _RELEASE
    return doc.table(columns, cells, len(rows) - len(cells))


def _group(row: GroupRow, shares: dict[str, float], audited: bool) -> tuple[Cell, ...]:
    release = ("", "") if row.release is None else (row.release.sensitivity, row.release.noise_std)
    share = percent(shares.get(row.name))
    if row.audit is None:
        measured = ("",) * len(MEASURED) * audited
        return (row.name, f"{row.dimension:,}", row.grad_norm, *release, share, *measured)
    name, dimension, bound, *found = group_cells(row.audit)
    return (name, dimension, bound, *release, share, *found[: len(MEASURED)])


def cards_of(study: Study) -> tuple[Answer, ...]:
    """The answers, what is proved first."""
    return tuple(_cards(study))


def _cards(study: Study) -> Iterator[Answer]:
    if study.analysis is not None:
        yield from _use(study.analysis.analysis)
    if study.check is not None:
        yield _checked(study.check)
    elif study.certificate is not None:
        yield _claim_alone(study.certificate)
    if study.analysis is not None:
        is_lost = study.analysis.analysis.network.sensitivity is None
        word, tone = ("NO BOUND", Tone.BAD) if is_lost else ("BOUNDED", Tone.PLAIN)
        yield Answer(word, tone, "Analysis", (study.analysis.promise,))
    if study.audit is not None:
        report = study.audit
        sentences = (answer(report), meaning(report), *worth_of(report))
        sentences = (*sentences, *report.reasons[:_MOST_REASONS])
        yield Answer(report.verdict.value.upper(), TONES[report.verdict], "Audit", sentences)
    if study.privacy is not None:
        yield _private(study.privacy)


def _use(analysis: Analysis) -> Iterator[Answer]:
    """What the bounds are good for, before what they are, and gates that do not hold."""
    if analysis.usefulness is not None:
        first, *gates = verdict_answers(analysis)
        word, sentences = analysis.usefulness.verdict.upper(), [first.text]
        sentences += [item.text for item in gates]
        yield Answer(word, first.tone, "Use", tuple(sentences))


def _checked(check: CheckFacts) -> Answer:
    tone, sentence = _CHECKED[check.verdict]
    reasons = check.reasons[:_MOST_REASONS]
    if len(check.reasons) > _MOST_REASONS:
        reasons = (*reasons, f"and {len(check.reasons) - _MOST_REASONS} more")
    sentences = (sentence, *check.promise, *reasons)
    return Answer(check.verdict.upper(), tone, "Certificate", sentences)


def _claim_alone(certificate: CertificateFacts) -> Answer:
    """A certificate without its check promises nothing yet."""
    sentences = (
        f"For {certificate.scope}, it claims a gradient norm of one example of "
        f"{_at_most(certificate.grad_norm)} and a sensitivity of "
        f"{_at_most(certificate.sensitivity)}.",
        "No check of this certificate is part of this report: `lipcert check` makes one.",
    )
    return Answer("CLAIMED", Tone.OPEN, "Certificate", sentences)


def _private(facts: PrivacyFacts) -> Answer:
    if facts.epsilon is None:
        return Answer("NO FINITE ε", Tone.BAD, "Privacy", ("The diagnostics say why.",))
    epsilon = at_most(facts.epsilon)
    sentence = (
        f"The run is (ε, δ)-differentially private with ε = {epsilon} and δ = {facts.delta:g}, if "
        "the assumptions hold."
    )
    return Answer(f"ε ≤ {epsilon}", Tone.PLAIN, "Privacy", (sentence,))


def _at_most(value: float | None) -> str:
    return NO_BOUND if value is None else f"at most {at_most(value)}"


def commands_of(study: Study) -> tuple[tuple[str, str], ...]:
    """Commands in the order in which they are given."""
    model = shlex.quote(study.model_path or "MODEL.onnx")
    paths = {source.schema: shlex.quote(source.path or _UNWRITTEN) for source in study.sources}
    found = []
    if study.model_sha256:
        found.append((f"the model has to be {study.model_sha256[:16]}…", f"sha256sum {model}"))
    if ANALYSIS in paths:
        found += _analysed(model, paths[ANALYSIS])
    if CERTIFICATE in paths:
        command = f"lipcert check {paths[CERTIFICATE]} --model {model}"
        found.append(("needs nothing but the two files", command))
    if AUDIT in paths:
        found.append(
            ("with the data and the options named above", f"lipcert audit {model} --format json")
        )
    if ANALYSIS in paths and study.privacy is not None:
        words = f"lipcert privacy {paths[ANALYSIS]} --curve steps --curve noise-multiplier"
        found.append(("ε of the run, with curves by the tightest accountant", words))
    order = (ANALYSIS, CERTIFICATE, CHECK, AUDIT, PRIVACY)
    files = " ".join(paths[schema] for schema in order if schema in paths)
    found.append(("this page", f"lipcert report {files} -o report.html"))
    return tuple(found)


def _analysed(model: str, path: str) -> list[tuple[str, str]]:
    """To make the analysis, or to make it again and compare."""
    note = "with the options that state the assumptions above, or their lipcert.toml"
    if path == _UNWRITTEN:
        return [(note, f"lipcert analyze {model} --format json -o {path}")]
    return [
        (note, f"lipcert analyze {model} --format json -o again.json"),
        (
            "leaves with 0 if nothing became weaker",
            f"lipcert compare {path} again.json --fail-on-regression",
        ),
    ]
