"""Analysis: `lipcert analyze` as a document for readers, as CSV, and as findings for CI systems.

The first lines of the document are the answer, and the assumptions come before everything that
rests on them. A missing bound is an error for CI systems, never a pass: it was not decided.
Rankings are for orientation: they are ratios of certified bounds, not bounds themselves. Names of a
model are in sentences verbatim: the writers make them safe.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from lipcert.analysis.records import (
    Analysis,
    NodeReport,
    ParameterReport,
    Usefulness,
    VerdictName,
    is_attained,
)
from lipcert.core.ledger.mechanism import MECHANISMS
from lipcert.diagnostics import Level
from lipcert.gradient_stats.examples import RANDOM
from lipcert.report import document as doc
from lipcert.report.ci import (
    CiReport,
    gate_findings,
    gate_statements,
)
from lipcert.report.document import Finding, by_level, csv_text
from lipcert.report.json import DOCUMENT, dump
from lipcert.report.privacy import comparison_rows, privacy_promise
from lipcert.settings.gates import GateOutcome, worst_of
from lipcert.settings.loss_spec import loss_words
from lipcert.text.numbers import NO_BOUND, at_most, measured, percent, shape_text

VERDICTS: Final[Mapping[VerdictName, doc.Tone]] = MappingProxyType(
    {
        "useful": doc.Tone.GOOD,
        "costly": doc.Tone.OPEN,
        "not usable": doc.Tone.BAD,
        "unknown": doc.Tone.BAD,
        "nothing trained": doc.Tone.OPEN,
    }
)

CSV_COLUMNS: Final = (
    *("parameter", "shape", "node", "group", "trainable"),
    *("grad_norm", "sensitivity", "noise_std"),
)
SCOPES: Final = {
    "point": "these weights only (scope point): training changes them",
    "constraint-set": "all weights within the constraints (scope constraint-set)",
}
"""The weights that bounds hold for."""
_ASSUMED: Final = "ASSUMED, because nothing was stated: "
_EVAL: Final = "ASSUMED to stay in eval mode, statistics frozen and nothing dropped: "
_STEPWISE: Final = "those in the file, clipped: bounds must be computed again before every step"
_PROVED: Final = "examples are independent of each other: proved on the graph"
_NOT_PROVED: Final = "the file holds one example; ASSUMED that each of a batch passes alone"
Rows = list[tuple[str, str]]
_CHANGE: Final = {
    "add-remove": "added or removed",
    "replace-one": "replaced by another",
    "zero-out": "left out",
}
_SHOWN: Final = 5
_LEAST_SHARE: Final = 5e-4
_LEAST_STRETCH: Final = 1.001
_NO_GROUP: Final = "LC102"


def _operator_norm(node: NodeReport) -> doc.Cell:
    return "" if node.operator_norm is None else node.operator_norm


_NODE_COLUMNS: Final = (
    doc.Column("node", least=15, cell=lambda node: node.name),
    doc.Column("op", least=11, most=20, rank=3, cell=lambda node: node.op),
    doc.Column("shape", rank=4, cell=lambda node: shape_text(node.shape)),
    doc.Column("‖input‖", True, rank=5, cell=lambda node: node.input_norm),
    doc.Column("‖W‖", True, rank=2, cell=_operator_norm),
    doc.Column("Lipschitz", True, cell=lambda node: node.input_lipschitz),
    doc.Column("‖output‖", True, rank=1, cell=lambda node: node.output_norm),
    doc.Column("‖cotangent‖", True, cell=lambda node: node.cotangent_norm),
)
COTANGENT: Final = (
    "‖cotangent‖",
    "norm of the gradient of the loss with respect to the layer's output",
)


def analysis_document(analysis: Analysis, most: int | None = None) -> doc.Document:
    """Return an analysis as a document; tables have at most `most` rows."""
    run = analysis.privacy
    tone = tone_of(analysis)
    answers = [
        *verdict_answers(analysis),
        doc.Answer(headline(analysis), doc.Tone.SUBJECT),
        doc.Answer(promise(analysis), tone),
    ]
    rows: list[tuple[str, str]] = []
    if run is not None:
        answers.append(doc.Answer(privacy_promise(run), tone))
        rows = [*run.statement.items(), *comparison_rows(run)]
    noise = {group.name: group.noise_energy_share for group in analysis.groups}
    bounds = doc.Statements.of(answer_rows(analysis), tone=tone)
    return doc.Document(
        "LipCert analysis",
        tuple(answers),
        sections=doc.sections_of(
            ("Assumptions", doc.Statements.of(assumption_rows(analysis))),
            ("Gates", gate_statements(analysis.gates)),
            ("Answer (every norm is a 2-norm)", bounds),
            ("Privacy of the run", doc.Statements.of(rows)),
            (
                "Nodes, in data-flow order",
                doc.tabled(_NODE_COLUMNS, analysis.nodes, most),
                doc.Statements.of([COTANGENT] if analysis.nodes else []),
            ),
            ("Parameters", _parameters(analysis, most)),
            ("Ways to split the noise, at the same privacy", _allocations(analysis)),
            ("Where the bound is lost: largest stretch", stretches(analysis)),
            ("Largest shares of G²", _largest("parameter", gradient_shares(analysis))),
            ("Largest shares of the noise energy", _largest("group", noise)),
            ("Diagnostics", doc.Findings.of(analysis.diagnostics)),
        ),
        word=_word(analysis),
    )


def _word(analysis: Analysis) -> str:
    if analysis.network.sensitivity is None:
        return "NO BOUND"
    return "BOUNDED" if analysis.usefulness is None else analysis.usefulness.verdict.upper()


def tone_of(analysis: Analysis) -> doc.Tone:
    """Return a tone for the bounds: bad without a bound, plain if they are of no use."""
    if analysis.network.sensitivity is None:
        return doc.Tone.BAD
    use = analysis.usefulness
    is_of_use = use is None or use.verdict not in {"not usable", "nothing trained"}
    return doc.Tone.GOOD if is_of_use else doc.Tone.PLAIN


def verdict_answers(analysis: Analysis) -> list[doc.Answer]:
    """Return how usable the bounds are, and the gates that do not hold."""
    use = analysis.usefulness
    found = [] if use is None else [doc.Answer(use.sentence, VERDICTS[use.verdict])]
    rows = gate_statements(analysis.gates).rows
    open_ = (row for row in rows if row.status != GateOutcome.HOLDS.value)
    return found + [doc.Answer(f"Gate: {row.text}.", row.tone) for row in open_]


def _parameters(analysis: Analysis, most: int | None) -> doc.Table:
    """Return parameters with what is released of them, and the largest norms at given examples."""
    use, seen = analysis.usefulness, dict[str, float]()
    if use is not None and use.observed is not None and use.observed.source != RANDOM:
        seen = dict(use.observed.parameters)

    def number(title: str, cell: Callable[[ParameterReport], doc.Cell], rank: int) -> doc.Column:
        own = lambda item: cell(item) if item.trainable else ""  # noqa: E731
        return doc.Column(title, True, rank=rank, optional=title == "observed", cell=own)

    columns = (
        doc.Column("parameter", least=20, cell=lambda item: item.name),
        doc.Column("shape", rank=4, cell=lambda item: shape_text(item.shape)),
        doc.Column("G", True, cell=lambda item: item.grad_norm if item.trainable else "frozen"),
        number("observed", lambda item: measured(seen.get(item.name)), 6),
        number("Δ", lambda item: item.sensitivity, 1),
        number("noise std", lambda item: item.noise_std, 2),
        doc.Column("group", least=10, most=24, rank=5, cell=lambda item: item.group or ""),
    )
    return doc.tabled(columns, analysis.parameters, most)


def _allocations(analysis: Analysis) -> doc.Table:
    least = min((item.noise_energy for item in analysis.allocations), default=0.0)
    columns = (
        doc.Column("allocation", cell=lambda item: item.name + " (chosen)" * item.chosen),
        doc.Column("noise energy Σ d·s²", True, cell=lambda item: at_most(item.noise_energy)),
        doc.Column("relative", True, cell=lambda item: f"{item.noise_energy / least:.3g}×"),
    )
    return doc.tabled(columns, analysis.allocations if least > 0.0 else ())


def analysis_json(analysis: Analysis) -> str:
    """Return the document `lipcert.analysis/1` of an analysis."""
    members = DOCUMENT.write(analysis)
    members["assumptions"]["loss"]["reduction"] = analysis.assumptions.reduction
    members["network"]["attained"] = analysis.network.attained
    return dump({"schema": "lipcert.analysis/1", **members})


def analysis_csv(analysis: Analysis) -> str:
    """Return one row per parameter; fields that a frozen one lacks are empty."""
    rows = [
        (
            item.name,
            "x".join(str(size) for size in item.shape),
            item.node,
            item.group or "",
            "yes" if item.trainable else "no",
            item.grad_norm,
            item.sensitivity,
            item.noise_std,
        )
        for item in analysis.parameters
    ]
    return csv_text(CSV_COLUMNS, rows)


def analysis_ci(analysis: Analysis) -> CiReport:
    """Return the report of an analysis for CI systems."""
    is_bounded, use = analysis.network.grad_norm is not None, analysis.usefulness
    answer = promise(analysis) if use is None else f"{use.sentence} {promise(analysis)}"
    findings = [Finding.of(diagnostic) for diagnostic in analysis.diagnostics]
    if use is not None and use.verdict != "useful":
        findings.append(Finding("LC109", Level.WARNING, "model", "", use.sentence))
    findings += gate_findings(analysis.gates)
    if not is_bounded and not any(finding.level is Level.ERROR for finding in findings):
        findings.append(Finding(_NO_GROUP, Level.ERROR, "model", "", answer))
    return CiReport(
        verb="analyze",
        file=analysis.model.path,
        headline=answer,
        holds=is_bounded and worst_of(analysis.gates) is GateOutcome.HOLDS,
        findings=by_level(findings),
        properties={
            "model_sha256": analysis.model.sha256,
            "scope": analysis.assumptions.scope,
            "loss": str(analysis.assumptions.loss.get("kind", "")),
            "grad_norm": repr(analysis.network.grad_norm),
            "sensitivity": repr(analysis.network.sensitivity),
        },
    )


def stretches(analysis: Analysis) -> doc.Table:
    """Return the nodes with the largest Lipschitz constants above 1; bars are logarithmic."""
    found = [node for node in analysis.nodes if _stretch(node) >= _LEAST_STRETCH]
    top = sorted(found, key=_stretch, reverse=True)[:_SHOWN]
    longest = max((math.log(_stretch(node)) for node in top), default=0.0)
    return doc.ranking(
        ("node", "op", "stretch"),
        [
            (node.name, node.op, f"{at_most(_stretch(node))}×", math.log(_stretch(node)) / longest)
            for node in top
        ],
    )


def _stretch(node: NodeReport) -> float:
    return max((bound for bound in node.input_lipschitz if bound is not None), default=0.0)


def gradient_shares(analysis: Analysis) -> dict[str, float]:
    """Return each trained parameter's share of the squared bound G² (empty: no bound)."""
    found = {item.name: item.grad_norm for item in analysis.parameters if item.trainable}
    norms = {name: norm for name, norm in found.items() if norm is not None}
    largest = max(norms.values(), default=0.0)
    if largest == 0.0 or len(norms) < len(found):
        return {}
    squares = {name: (norm / largest) ** 2 for name, norm in norms.items()}
    whole = sum(squares.values())
    return {name: square / whole for name, square in squares.items()}


def _largest(of: str, shares: Mapping[str, float | None]) -> doc.Table:
    """Return the largest shares, without those that would be displayed as 0."""
    found = [(name, share) for name, share in shares.items() if share and share >= _LEAST_SHARE]
    top = sorted(found, key=lambda item: item[1], reverse=True)[:_SHOWN]
    return doc.ranking((of, "share"), [(name, percent(share), share) for name, share in top])


def headline(analysis: Analysis) -> str:
    """Return the analysed file, its size and its digest."""
    model = analysis.model
    count = f"{model.parameters:,} trained parameters"
    return f"{model.path}  ·  {count}  ·  sha256 {model.sha256[:12]}"


def promise(analysis: Analysis) -> str:
    """Return the answer in one sentence."""
    facts, network = analysis.assumptions, analysis.network
    if network.sensitivity is None:
        trained = [item for item in analysis.parameters if item.trainable]
        lost = sum(item.grad_norm is None for item in trained)
        return (
            f"No finite sensitivity: {lost} of {len(trained)} trained tensors have no gradient "
            "bound; the diagnostics say why."
        )
    change = _CHANGE[facts.neighbours]
    return (
        f"One example, {change}, moves the released {facts.reduction} of gradients by at most "
        f"{at_most(network.sensitivity)} in 2-norm, if the assumptions hold."
    )


def assumption_rows(analysis: Analysis) -> Rows:
    """Return everything the numbers are conditional on, by its name in JSON, defaults marked."""
    facts, said = analysis.assumptions, {item.code for item in analysis.diagnostics}
    loss = loss_words({name: x for name, x in facts.loss.items() if name != "reduction"})
    evaluated = ", in eval mode" * bool(facts.eval_layers)
    is_stepwise = facts.scope == "point" and facts.is_stepwise
    members = DOCUMENT.write(facts) | {
        "input_box": _ASSUMED * ("LC104" in said) + doc.one_line(facts.input_box),
        "loss": _ASSUMED * ("LC108" in said) + loss,
        "mechanism": MECHANISMS[str(facts.mechanism["kind"])].words(facts.mechanism),
        "scope": _STEPWISE if is_stepwise else SCOPES[facts.scope],
        "batch": _NOT_PROVED if facts.batch != "proved" else _PROVED + evaluated,
    }
    if facts.eval_layers:
        members["eval_mode"] = _EVAL + ", ".join(layer.name for layer in facts.eval_layers)
    return list(doc.described(members))


def answer_rows(analysis: Analysis) -> Rows:
    """Return the bounds of the whole network; each is an upper bound."""
    network = analysis.network
    return [
        (
            "Lipschitz constant of the network",
            _tight(network.lipschitz, network.lipschitz_looseness),
        ),
        ("norm of the output", _bound(network.output_norm)),
        ("loss gradient at the output", _bound(network.loss_cotangent_norm)),
        ("per-example gradient norm G", _tight(network.grad_norm, network.grad_norm_looseness)),
        *_observed_rows(analysis),
        ("sensitivity Δ", _bound(network.sensitivity)),
        ("noise standard deviation per entry", _noise_text(analysis)),
        *noise_rows(analysis.usefulness),
    ]


def _observed_rows(analysis: Analysis) -> Rows:
    """Return the measured gradients of examples, compared with G."""
    use = analysis.usefulness
    if use is None or use.observed is None:
        return []
    seen = use.observed
    times = "" if use.slack is None else f", G is {measured(use.slack, 3)} times that"
    return [
        ("gradients were observed at", f"{seen.examples:,} examples: {seen.source}"),
        ("median of their norms", measured(seen.grad_norm_median)),
        ("largest of their norms", f"{measured(seen.grad_norm_max)}{times}"),
    ]


def noise_rows(use: Usefulness | None) -> Rows:
    """Return the noise of a release, also over the mean gradient, and that of clipping."""
    if use is None:
        return []
    of_norms = use.observed is not None and use.observed.of_norms
    over = "a gradient's norm" if of_norms else "the mean gradient"
    rows = [("noise of one release", at_most(use.noise, 4), at_most(use.clipping_noise, 4))]
    for what, own, other in (
        (f"noise over {over}", use.noise_to_signal, use.clipping_noise_to_signal),
        ("the same for the run", use.noise_to_signal_of_run, use.clipping_noise_to_signal_of_run),
    ):
        if own is not None and other is not None:
            rows.append((what, measured(own, 3), measured(other, 3)))
    return [(what, f"{own}, with clipping at C = 1: {other}") for what, own, other in rows]


def _bound(value: float | None) -> str:
    text = at_most(value)
    return text if text == NO_BOUND else f"≤ {text}"


def _tight(value: float | None, looseness: float | None) -> str:
    """Return the bound, and how close some admissible example comes to it."""
    if looseness is None:
        return _bound(value)
    if is_attained(looseness):
        return f"{_bound(value)}, attained by an admissible example"
    return f"{_bound(value)}; the true value is at least 1/{at_most(looseness, 3)} of this"


def _noise_text(analysis: Analysis) -> str:
    found = [group.noise_std for group in analysis.groups if group.noise_std is not None]
    if not found or len(found) < len(analysis.groups):
        return NO_BOUND
    low, high = at_most(min(found)), at_most(max(found))
    return low if low == high else f"{low} to {high}, by group"
