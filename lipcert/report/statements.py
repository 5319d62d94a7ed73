"""Statements: assumptions and answers as pairs (topic, sentence), shared by text and markdown.

They contain names of a model verbatim: the writers make them safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lipcert.analysis.records import Analysis, Assumptions, is_attained
from lipcert.core.ledger.mechanism import MECHANISMS
from lipcert.core.ledger.premises import InputPart
from lipcert.gradient_stats.examples import RANDOM
from lipcert.gradient_stats.measure import Observed
from lipcert.settings.loss_spec import loss_words
from lipcert.text.numbers import NO_BOUND, at_most, measured

_MOST_NAMES: Final = 4
_ASSUMED: Final = "ASSUMED, because nothing was stated: "
Rows = list[tuple[str, str]]

_CHANGE: Final = {
    "add-remove": "added or removed",
    "replace-one": "replaced by another",
    "zero-out": "left out",
}


def headline(analysis: Analysis) -> str:
    """The analysed file, its size and its digest."""
    model = analysis.model
    count = f"{model.parameters:,} trained parameters"
    return f"{model.path}  ·  {count}  ·  sha256 {model.sha256[:12]}"


def promise(analysis: Analysis) -> str:
    """The answer in one sentence."""
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


def verdict_sentence(analysis: Analysis) -> str:
    """What the bounds are good for; "" of an analysis that does not say it."""
    return "" if analysis.usefulness is None else analysis.usefulness.sentence


def assumption_rows(analysis: Analysis) -> Rows:
    """Everything the numbers are conditional on, defaults marked as such, the input first."""
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
    """The bounds of the whole network; each is an upper bound."""
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
        *_noise_rows(analysis),
    ]


def _observed_rows(analysis: Analysis) -> Rows:
    """What gradients of examples were met beside G."""
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


def _noise_rows(analysis: Analysis) -> Rows:
    """The noise of a release, and over the mean gradient, beside that of gradient clipping."""
    use = analysis.usefulness
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
    """The bound, and how near to it some admissible example comes."""
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
    if facts.scope == "point" and is_stepwise(facts.mechanism):
        return "those in the file, clipped: the bounds must be computed again before every step"
    if facts.scope == "point":
        return "these weights only (scope point): bounds change as soon as training moves them"
    users: dict[str, list[str]] = {}
    for name, value in facts.constraints.items():
        users.setdefault(value, []).append(name)
    constraints = "; ".join(f"{value} on {_names(names)}" for value, names in users.items())
    return f"all that satisfy the constraints (scope {facts.scope}): {constraints}"


def kept_rows(frozen: Sequence[str], fixed: Mapping[str, str]) -> Rows:
    """What is not trained, and how that is known."""
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
    """What is assumed of the mode of training, where the file shows that it matters."""
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


def is_stepwise(record: Mapping[str, object]) -> bool:
    """Whether the mechanism of a record takes bounds at the weights that a step starts from."""
    found = MECHANISMS.get(str(record.get("kind")))
    return found is not None and found.weights == "stepwise"
