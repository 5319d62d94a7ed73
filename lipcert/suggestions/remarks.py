"""Remarks: sentences about a network, each with its own numbers.

What enters: the structure of a network, and what became of it by changes. What leaves: what is no
private run at all, where no useful bound by weights exists the ways out, and what rehearsals
showed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from lipcert.analysis.usefulness import times
from lipcert.gradient_stats.measure import signal_words
from lipcert.graph.ir import Graph
from lipcert.suggestions.mechanisms import HELD
from lipcert.suggestions.records import Outcome, Recipe, Rehearsal, Suggestion
from lipcert.suggestions.structure import Structure, named

_BATCH_NORM: Final = "BatchNormalization"


def stops_of(graph: Graph, recipe: Recipe) -> Iterator[str]:
    """Layers that make a run as the file was trained no private one, or no run of the recipe."""
    mixing = [layer.name for layer in graph.eval_layers if layer.kind == _BATCH_NORM]
    if mixing:
        separated = any(change.separates for change in recipe.changes)
        done = "the recipe replaces it" if separated else "replace it, or freeze it in eval mode"
        yield (
            f"BatchNorm ({named(mixing, 8)}) mixes the examples of a batch, so that no bound per "
            f"example holds in train mode: {done}. Other numbers are those of eval mode."
        )
    dropping = [layer.name for layer in graph.eval_layers if layer.is_dropout]
    if dropping and not recipe.settings.enforced.clips_gradients:
        yield (
            f"Dropout ({named(dropping, 8)}): bounds of the network hold in eval mode. Remove it, "
            "or clip gradients, which may drop what they like."
        )


def remarks_of(
    structure: Structure,
    suggestions: Sequence[Suggestion],
    others: Sequence[Suggestion],
    recipes: Sequence[Recipe],
    *,
    of_norms: bool,
) -> Iterator[str]:
    """Where attention or normalisation leaves no useful bound by weights, and what to do."""
    held = [item for item in suggestions if item.change.topic == "mechanism"]
    plain = next((item for item in held if item.mechanism in HELD), None)
    if plain is None or plain.outcome.usable or not (structure.norms or structure.attentions):
        return
    parts = []
    if structure.attentions:
        count = len(structure.attentions)
        parts.append(f"{count} attention layer{'s' * (count > 1)}")
    if structure.norms:
        epsilon = min(norm.op.epsilon for norm in structure.norms)
        count = len(structure.norms)
        stretch = f", which may stretch by 1/√ε = {epsilon**-0.5:.3g}" if epsilon else ""
        parts.append(f"{count} normalisation{'s' * (count > 1)}{stretch}{' each' * (count > 1)}")
    bound = "unknown" if plain.outcome.grad_norm is None else times(plain.outcome.grad_norm)
    yield (
        f"No useful bound by weights alone exists for this network as it is: G is {bound} within "
        f"the constraints, because of {' and '.join(parts)}."
    )
    numbers = partial(_numbers, of_norms=of_norms)
    is_held = False
    for recipe in recipes:
        made = [change.change for change in recipe.changes if change.topic != "mechanism"]
        if not recipe.outcome.usable or (is_held and recipe.mechanism in HELD):
            continue
        is_held |= recipe.mechanism in HELD
        network = "" if recipe.keeps_function else ", another network"
        yield f"Way out: {recipe.mechanism}{_with(made)}: {numbers(recipe.outcome)}{network}."
    head = next((item for item in others if item.change.topic == "head"), None)
    if head is not None:
        yield f"Way out: {head.change.change}, {head.mechanism}: {numbers(head.outcome)}."


def rehearsal_told(found: Rehearsal) -> Iterator[str]:
    """One line for each short run: what it reached, and how its curve went."""
    for run in found.runs:
        if run.accuracy is None:
            yield f"{run.title}: not rehearsed: {run.why}"
            continue
        curve = " ".join(f"{accuracy:.2f}" for _, accuracy in run.curve)
        than = ""
        if run.margin is not None:
            word = "better beyond doubt" if run.better else "not better beyond doubt"
            than = f", {run.margin:+.3f} against clipping: {word}"
        yield f"{run.title}: {run.accuracy:.3f} after {found.steps} steps ({curve}){than}"


def _with(made: list[str]) -> str:
    return f" with {'; '.join(made)}" if made else ""


def _numbers(outcome: Outcome, *, of_norms: bool) -> str:
    bound = "no bound" if outcome.grad_norm is None else f"G {times(outcome.grad_norm)}"
    if outcome.noise_to_signal is None:
        return bound
    return f"{bound}, noise {times(outcome.noise_to_signal)} × {signal_words(of_norms=of_norms)}"
