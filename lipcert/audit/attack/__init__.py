"""Attacks: examples, and weights, constructed to come close to the bounds of an audit.

Given claims, weights and a few examples, `proposals` yields the best admissible examples and labels
found for every group. An attack proves nothing and judges nothing: its proposals are replayed like
any other examples. The procedure: choose starts; ascend over examples; take the best of every
group; if weights move, repeat for every group with weights of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import torch

from lipcert.audit.attack.ascent import Best, Field, Rows, SearchSpace, climb, starting_rows
from lipcert.audit.attack.weights import WeightSet, climb_weights, weight_starts
from lipcert.audit.bounds import Claims
from lipcert.audit.weight_norms import replay_weights
from lipcert.core.program import FloatArray
from lipcert.gradient_stats.examples import Examples
from lipcert.gradient_stats.labels import label_set
from lipcert.graph.domain import Domain

__all__ = ["Progress", "Proposal", "proposals"]

Progress = Callable[[str, int, int], None]
"""Called with what is done, how many steps of it are done, and how many there are."""

_ROWS: Final = 16
_SOURCE: Final = "attack"


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """Examples worth replaying.

    weights: the weights to replay them at; None for the weights that the attack was given.
    """

    examples: Examples
    weights: Mapping[str, FloatArray] | None


def proposals(
    claims: Claims,
    weights: Mapping[str, FloatArray] | None,
    start: Examples,
    steps: int,
    *,
    move_weights: bool,
    device: torch.device,
    observe: Progress = lambda _what, _done, _steps: None,
    seed: int = 0,
) -> Iterator[Proposal]:
    """Attack the bounds of every group.

    If weights move, nothing is proposed at given weights that violate their constraints.

    Args:
        start: examples to begin with; those outside the domain are moved into it.
        steps: the number of steps of every ascent.

    Raises:
        UsageError: if weights are to move but the bounds apply only to one set of weights.
    """
    movable = WeightSet.of(claims) if move_weights else None
    engine = claims.engine
    labels = label_set(engine.loss, engine.graph.output_shape, engine.at_output.norm)
    domain = engine.domain.window()
    field = Field(claims, weights, device)
    space = SearchSpace(field, domain, labels, np.random.default_rng(seed))
    best = Best(field.objectives)
    x = np.asarray(start.x, dtype=np.float64)
    rows = starting_rows(space, (x, labels.checked(start.y, 0)), best, _ROWS)
    observed = partial(_observed, observe, "examples", steps)
    climb(space, rows, best, steps, observed)
    if movable is None or replay_weights(claims, weights).admissible:
        yield _proposal(domain, best.rows(), None)
    if movable is None:
        return
    starts = weight_starts(space, movable, best.rows())
    for objective in range(field.objectives):
        observed = partial(_observed, observe, f"weights for {_name(claims, objective)}", steps)
        first = max(starts, key=lambda start, k=objective: start.best.norms[k])  # type: ignore[misc]
        moved, found = climb_weights(space, movable, first, (objective, steps), observed)
        yield _proposal(domain, found, moved)


def _name(claims: Claims, objective: int) -> str:
    return claims.groups[objective].name if objective < len(claims.groups) else "the network"


def _proposal(domain: Domain, rows: Rows, weights: Mapping[str, FloatArray] | None) -> Proposal:
    return Proposal(Examples(domain.settled(rows.x), rows.labels, _SOURCE), weights)


def _observed(watch: Progress, what: str, steps: int, done: int) -> None:
    watch(what, done, steps)
