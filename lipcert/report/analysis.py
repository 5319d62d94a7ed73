"""Analysis: `lipcert analyze` as a document for readers, as CSV, and as findings for CI systems.

The first lines of the document are the answer, and the assumptions come before everything that
rests on them. A missing bound is an error for CI systems, never a pass: it was not decided.
Rankings are for orientation: they are ratios of certified bounds, not bounds themselves. Names of a
model are in sentences verbatim: the writers make them safe.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from lipcert.analysis.records import (
    Analysis,
    Assumptions,
    NodeReport,
    ParameterReport,
    Usefulness,
    VerdictName,
    is_attained,
)
from lipcert.core.ledger.mechanism import MECHANISMS
from lipcert.core.ledger.premises import InputPart
from lipcert.diagnostics import Level
from lipcert.gradient_stats.examples import RANDOM
from lipcert.gradient_stats.measure import Observed
from lipcert.report import document as doc
from lipcert.report.ci import (
    CiReport,
    Finding,
    by_level,
    gate_findings,
    gate_sentence,
    gate_statements,
)
from lipcert.report.document import csv_text, diagnostic_lines
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
_MOST_NAMES: Final = 4
_ASSUMED: Final = "ASSUMED, because nothing was stated: "
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
_OBSERVED: Final = doc.Column("observed", True, rank=6)
"""The largest gradient norm of an example by a parameter."""
COTANGENT: Final = (
    "‖cotangent‖",
    "norm of the gradient of the loss with respect to the layer's output",
)
_PARAMETER_COLUMNS: Final = (
    doc.Column("parameter", least=20),
    doc.Column("shape", rank=4),
    doc.Column("G", True),
    _OBSERVED,
    doc.Column("Δ", True, rank=1),
    doc.Column("noise std", True, rank=2),
    doc.Column("of G²", True, rank=3),
    doc.Column("group", least=10, most=24, rank=5),
)
_ALLOCATION_COLUMNS: Final = (
    doc.Column("allocation"),
    doc.Column("noise energy Σ d·s²", True),
    doc.Column("relative", True),
)


def analysis_document(analysis: Analysis, most: int | None = None) -> doc.Document:
    """Return an analysis as a document; tables have at most `most` rows."""
    run = analysis.privacy
    nodes, parameters = nodes_table(analysis, most), parameters_table(analysis, most)
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
    # the table of parameters shows the shares of G², unless it is folded
    largest = gradient_shares(analysis) if parameters.hidden else {}
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
                nodes,
                doc.Statements.of([COTANGENT] if nodes.rows else []),
            ),
            ("Parameters", parameters),
            ("Ways to split the noise, at the same privacy", _allocations(analysis)),
            ("Where the bound is lost: largest stretch", stretches(analysis)),
            ("Largest shares of G²", _largest(largest)),
            ("Largest shares of the noise energy", _largest(noise)),
            ("Diagnostics", doc.Findings(diagnostic_lines(analysis.diagnostics))),
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
    use, found = analysis.usefulness, []
    if use is not None:
        found.append(doc.Answer(use.sentence, VERDICTS[use.verdict]))
    for result in analysis.gates:
        if result.outcome is not GateOutcome.HOLDS:
            is_over = result.outcome is GateOutcome.EXCEEDED
            tone = doc.Tone.BAD if is_over else doc.Tone.OPEN
            found.append(doc.Answer(f"Gate: {gate_sentence(result)}.", tone))
    return found


def nodes_table(analysis: Analysis, most: int | None = None) -> doc.Table:
    """Return nodes with their bounds; of many, those that stretch nothing are left out first."""
    nodes: Sequence[NodeReport] = analysis.nodes
    if most is not None and len(nodes) > most:
        nodes = [node for node in nodes if _is_telling(node)]
    rows = [[column.cell(node) for column in _NODE_COLUMNS] for node in nodes]
    return _folded(_NODE_COLUMNS, rows, most, len(analysis.nodes))


def parameters_table(analysis: Analysis, most: int | None = None) -> doc.Table:
    """Return parameters with what is released of them, and their share of the bound."""
    shares = gradient_shares(analysis)
    observed = _observed(analysis)
    rows = [_parameter(item, shares.get(item.name), observed) for item in analysis.parameters]
    columns = [item for item in _PARAMETER_COLUMNS if observed is not None or item is not _OBSERVED]
    return _folded(columns, rows, most, len(rows))


def _observed(analysis: Analysis) -> Mapping[str, float] | None:
    """Return the largest gradient norm by each parameter, if examples were given."""
    use = analysis.usefulness
    if use is None or use.observed is None or use.observed.source == RANDOM:
        return None
    return use.observed.parameters


def _parameter(
    item: ParameterReport, share: float | None, observed: Mapping[str, float] | None
) -> tuple[doc.Cell, ...]:
    name, shape = item.name, shape_text(item.shape)
    seen = [] if observed is None else [measured(observed.get(item.name)) if item.trainable else ""]
    if not item.trainable:
        return (name, shape, "frozen", *seen, "", "", "", "")
    released = (item.sensitivity, item.noise_std, percent(share))
    return (name, shape, item.grad_norm, *seen, *released, item.group or "")


def _folded(
    columns: Sequence[doc.Column],
    rows: Sequence[Sequence[doc.Cell]],
    most: int | None,
    count: int,
) -> doc.Table:
    """Return the first and last rows of `count`; diagnostics name all that has no bound."""
    shown = list(rows)
    if most is not None and len(rows) > most:
        gap = ("…", *[""] * (len(columns) - 1))
        shown = [*rows[: most // 2], gap, *rows[len(rows) - most // 2 :]]
        return doc.table(columns, shown, count - 2 * (most // 2))
    return doc.table(columns, shown, count - len(rows))


def _is_telling(node: NodeReport) -> bool:
    stretches = any(bound is None or bound > 1.0 for bound in node.input_lipschitz)
    return stretches or node.operator_norm is not None


def _allocations(analysis: Analysis) -> doc.Table:
    least = min((item.noise_energy for item in analysis.allocations), default=0.0)
    rows = [
        (
            item.name + (" (chosen)" if item.chosen else ""),
            at_most(item.noise_energy),
            f"{item.noise_energy / least:.3g}×",
        )
        for item in analysis.allocations
        if least > 0.0
    ]
    return doc.table(_ALLOCATION_COLUMNS, rows)


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


def stretches(analysis: Analysis) -> doc.Ranking:
    """Return the nodes with the largest Lipschitz constants above 1; bars are logarithmic."""
    factors = [(_stretch(node), node) for node in analysis.nodes]
    found = [item for item in factors if item[0] >= _LEAST_STRETCH]
    top = sorted(found, key=lambda item: item[0], reverse=True)[:_SHOWN]
    longest = max((math.log(factor) for factor, _ in top), default=0.0)
    return doc.Ranking(
        tuple(
            doc.Bar(node.name, f"{at_most(factor)}×", math.log(factor) / longest, node.op)
            for factor, node in top
        )
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


def _largest(shares: Mapping[str, float | None]) -> doc.Ranking:
    """Return the largest shares, without those that would be displayed as 0."""
    found = [(share, name) for name, share in shares.items() if (share or 0.0) >= _LEAST_SHARE]
    top = sorted(found, key=lambda item: item[0] or 0.0, reverse=True)[:_SHOWN]
    return doc.Ranking(tuple(doc.Bar(name, percent(share), share or 0.0) for share, name in top))


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
    """Return everything the numbers are conditional on, with defaults marked, the input first."""
    facts = analysis.assumptions
    rows = [
        ("input", _input_text(analysis)),
        ("loss", _loss_text(analysis)),
        ("mechanism", MECHANISMS[str(facts.mechanism["kind"])].words(facts.mechanism)),
        ("weights", _scope_text(facts)),
        *kept_rows(facts.frozen, facts.fixed),
        ("released", _release_text(facts)),
        ("noise", f"multiplier σ = {facts.noise_multiplier:.12g}, split {facts.allocation}"),
        ("examples", _batch_text(facts)),
        *_eval_rows(facts),
        ("arithmetic", facts.arithmetic),
        ("effort", f"norms of weights certified with tier {facts.tier}"),
    ]
    return rows + [("note", note) for note in facts.notes]


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
    seen, times = use.observed, ""
    if use.slack is not None:
        times = f", G is {measured(use.slack, 3)} times that"
    return [
        ("gradients were observed at", f"{seen.examples:,} {_examples_of(seen)}"),
        ("median of their norms", measured(seen.grad_norm_median)),
        ("largest of their norms", f"{measured(seen.grad_norm_max)}{times}"),
    ]


def _examples_of(seen: Observed) -> str:
    return seen.source if seen.source == RANDOM else f"examples of {seen.source}"


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


def _input_text(analysis: Analysis) -> str:
    facts = analysis.assumptions
    if facts.input_norm is None:
        return "every example is admitted: the mechanism bounds gradients for any input"
    norm = f"2-norm ≤ {at_most(facts.input_norm)}"
    if facts.input_parts:
        text = f"{'; '.join(map(_part_text, facts.input_parts))}; in all {norm}"
        return f"{_ASSUMED}{text}" if _is_said(analysis, "LC104") else text
    if facts.input_box is None:
        return f"every example with {norm}"
    low, high = facts.input_box
    if facts.input_ids:
        return (
            f"whole numbers from {low:.12g} to {high:.12g}, each of which chooses a row of a table"
        )
    text = f"every entry in [{low:.12g}, {high:.12g}], hence {norm}"
    return f"{_ASSUMED}{text}" if _is_said(analysis, "LC104") else text


def _part_text(part: InputPart) -> str:
    found = []
    if part.norm is not None:
        found.append(f"2-norm ≤ {at_most(part.norm)}")
    if part.box is not None:
        low, high = part.box
        found.append(f"entries in [{low:.12g}, {high:.12g}]")
    return f"{part.name} {list(part.shape[1:])} with {' and '.join(found) or 'any entries'}"


def _loss_text(analysis: Analysis) -> str:
    facts = analysis.assumptions
    text = loss_words({name: x for name, x in facts.loss.items() if name != "reduction"})
    return f"{_ASSUMED}{text}" if _is_said(analysis, "LC108") else text


def _is_said(analysis: Analysis, code: str) -> bool:
    return any(diagnostic.code == code for diagnostic in analysis.diagnostics)


def _scope_text(facts: Assumptions) -> str:
    if facts.scope == "constraint-set" and not facts.constraints:
        return "any: the bounds hold for all values of the trained weights"
    if facts.scope == "point" and facts.is_stepwise:
        return "those in the file, clipped: the bounds must be computed again before every step"
    if facts.scope == "point":
        return "these weights only (scope point): bounds change as soon as training moves them"
    users: dict[str, list[str]] = {}
    for name, value in facts.constraints.items():
        users.setdefault(value, []).append(name)
    constraints = "; ".join(f"{value} on {_names(names)}" for value, names in users.items())
    return f"all that satisfy the constraints (scope {facts.scope}): {constraints}"


def kept_rows(frozen: Sequence[str], fixed: Mapping[str, str]) -> Rows:
    """Return what is not trained, and how that is known."""
    rows = []
    if frozen:
        text = "needed no gradient when the file was exported, and keep their values"
        rows.append(("frozen", f"{_names(frozen)}: {text}"))
    reasons: dict[str, list[str]] = {}
    for name, why in fixed.items():
        reasons.setdefault(why, []).append(name)
    if reasons:
        told = [f"{_names(names, 'tensors')} ({why})" for why, names in reasons.items()]
        rows.append(("fixed", f"not trained: {'; '.join(told)}"))
    return rows


def _names(names: Sequence[str], what: str = "parameters") -> str:
    return ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} {what}"


def _release_text(facts: Assumptions) -> str:
    neighbours = f"neighbouring data sets: {facts.neighbours}"
    if facts.batch_size is not None and facts.reduction == "mean":
        return f"sum of gradients / {facts.batch_size} (a public constant); {neighbours}"
    return f"sum of the gradients of a batch; {neighbours}"


def _batch_text(facts: Assumptions) -> str:
    if facts.batch == "proved":
        mode = ", in eval mode" if facts.eval_layers else ""
        return f"independent of each other in a batch: proved on the graph{mode}"
    return "the file holds one example; it is ASSUMED that each example of a batch passes alone"


def _eval_rows(facts: Assumptions) -> Rows:
    """Return what is assumed of the mode of training, if the file shows that it matters."""
    if not facts.eval_layers:
        return []
    names = [f"{layer.name} ({layer.kind})" for layer in facts.eval_layers]
    listed = ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} layers"
    text = "ASSUMED to stay in eval mode, statistics frozen and nothing dropped: "
    return [("training", text + listed)]


def _noise_text(analysis: Analysis) -> str:
    found = [group.noise_std for group in analysis.groups if group.noise_std is not None]
    if not found or len(found) < len(analysis.groups):
        return NO_BOUND
    low, high = at_most(min(found)), at_most(max(found))
    return low if low == high else f"{low} to {high}, by group"
