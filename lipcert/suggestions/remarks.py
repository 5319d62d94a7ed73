"""Remarks: sentences about a network, each with its own numbers.

They say what keeps a run from being private, which ways out there are where bounds by weights are
useless, and what rehearsals showed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lipcert.core import program as p
from lipcert.gradient_stats.measure import signal_words
from lipcert.graph.ir import Graph
from lipcert.suggestions.mechanisms import HELD
from lipcert.suggestions.records import TOPIC, Outcome, Recipe, Rehearsal, Suggestion
from lipcert.text.numbers import counted, first_of, times

_BATCH_NORM: Final = "BatchNormalization"
_NAMED: Final = 8


def stops_of(graph: Graph, recipe: Recipe) -> Iterator[str]:
    """Layers because of which a run of the file as it was trained would not be private."""
    mixing = dict.fromkeys(layer.name for layer in graph.eval_layers if layer.kind == _BATCH_NORM)
    if mixing:
        yield (
            f"BatchNorm ({first_of([*mixing], _NAMED)}) mixes the examples of a batch, so that no "
            "bound per example holds in train mode. Replace it by GroupNorm, as "
            "lipcert.training.make_trainable(module) does in a copy, or freeze it in eval mode. "
            "All numbers here are those of eval mode."
        )
    dropping = dict.fromkeys(layer.name for layer in graph.eval_layers if layer.is_dropout)
    if dropping and not recipe.settings.enforced.clips_gradients:
        yield (
            f"Dropout ({first_of([*dropping], _NAMED)}): bounds of the network hold in eval mode. "
            "Remove it, or clip gradients, under which dropout may stay."
        )


def remarks_of(
    graph: Graph,
    suggestions: Sequence[Suggestion],
    others: Sequence[Suggestion],
    recipes: Sequence[Recipe],
    *,
    of_norms: bool,
) -> Iterator[str]:
    """Where attention or normalisation leaves no useful bound by weights, and what to do."""
    held = [item for item in suggestions if item.change.topic == TOPIC]
    plain = next((item for item in held if item.mechanism in HELD), None)
    attentions = sum(isinstance(node.op, p.Attention) for node in graph.nodes)
    epsilons = [node.op.epsilon for node in graph.nodes if isinstance(node.op, p.Normalize)]
    if plain is None or plain.outcome.usable or not (attentions or epsilons):
        return
    parts = []
    if attentions:
        parts.append(counted(attentions, "attention layer"))
    if epsilons:
        least, count = min(epsilons), len(epsilons)
        stretch = f", which may stretch by 1/√ε = {least**-0.5:.3g}" if least else ""
        parts.append(f"{counted(count, 'normalisation')}{stretch}{' each' * (count > 1)}")
    bound = "unknown" if plain.outcome.grad_norm is None else times(plain.outcome.grad_norm)
    yield (
        f"No useful bound by weights alone exists for this network as it is: G is {bound} within "
        f"the constraints, because of {' and '.join(parts)}."
    )
    for recipe in recipes:
        if recipe.outcome.usable:
            made = [change.change for change in recipe.changes if change.topic != TOPIC]
            more = f" with {'; '.join(made)}" if made else ""
            numbers = _numbers(recipe.outcome, of_norms=of_norms)
            yield f"Way out: {recipe.mechanism}{more}: {numbers}."
    head = next((item for item in others if item.change.topic == "head"), None)
    if head is not None:
        numbers = _numbers(head.outcome, of_norms=of_norms)
        yield f"Way out: {head.change.change}, {head.mechanism}: {numbers}."


def rehearsal_told(found: Rehearsal) -> tuple[str, ...]:
    """One line for each short run: what it reached, and how it went."""
    lines = []
    for run in found.runs:
        if run.accuracy is None:
            lines.append(f"{run.title}: not rehearsed: {run.why}")
            continue
        curve = " ".join(f"{accuracy:.2f}" for _, accuracy in run.curve)
        than = ""
        if run.margin is not None:
            word = "better beyond doubt" if run.better else "not better beyond doubt"
            than = f", {run.margin:+.3f} against clipping: {word}"
        lines.append(
            f"{run.title}: {found.measure} {run.accuracy:.3f} after {found.steps} steps with Adam "
            f"({curve}){than}"
        )
    return tuple(lines)


def _numbers(outcome: Outcome, *, of_norms: bool) -> str:
    bound = "no bound" if outcome.grad_norm is None else f"G {times(outcome.grad_norm)}"
    if outcome.noise_to_signal is None:
        return bound
    return f"{bound}, noise {times(outcome.noise_to_signal)} × {signal_words(of_norms=of_norms)}"
