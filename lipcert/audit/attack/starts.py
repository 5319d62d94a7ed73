"""Where the ascent starts: for every objective, promising examples with promising labels.

What enters: examples given, a field. What leaves: rows, a few per objective, of different examples
and labels. Whatever is tried on the way is remembered.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lipcert.audit.attack.ascent import Best, Ground, Rows
from lipcert.audit.attack.label_sets import Labels
from lipcert.upper import FloatArray

_TRIED: Final = 640
"""so many pairs of an example and a label are tried"""
_ALIKE: Final = 2
"""so many rows of an objective start from one example, or from one label"""


def starting_rows(
    ground: Ground, given: tuple[FloatArray, Labels], best: Best, per_objective: int
) -> Rows:
    """The best pairs of an example and a label, of those given, those farther out, and random ones.

    given: examples and their own labels, all of which are tried with those labels.
    """
    field, domain, random = ground.field, ground.domain, ground.random
    x, own = domain.projected(given[0]), given[1]
    if len(x):
        best.meet(x, own, field.norms(x, own))
    examples = np.concatenate([x, domain.outward(x), domain.drawn(max(len(x), 32), random)])
    choices = len(ground.labels.promising(field.logits(examples[:1]), random))
    examples = _spread(examples, max(_TRIED // choices, per_objective))
    tried = ground.labels.promising(field.logits(examples), random)
    pairs, targets = np.concatenate([examples] * len(tried)), np.concatenate(tried)
    sources = np.tile(np.arange(len(examples)), len(tried))
    norms = field.norms(pairs, targets)
    best.meet(pairs, targets, norms)
    kinds = np.repeat(np.arange(len(tried)), len(examples)) if targets.ndim > 1 else targets
    picked = [_picked(row, sources, kinds, per_objective) for row in norms]
    wanted = np.repeat(np.arange(field.objectives), [len(rows) for rows in picked])
    chosen = np.concatenate(picked)
    return Rows(pairs[chosen], targets[chosen], wanted)


def _spread(examples: FloatArray, count: int) -> FloatArray:
    """At most so many, evenly from all."""
    if len(examples) <= count:
        return examples
    return examples[np.linspace(0, len(examples) - 1, count).astype(np.int64)]


def _picked(
    norms: FloatArray, sources: Labels, kinds: Labels, count: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The largest norms, few of one example or one label; all others after those."""
    order = np.argsort(-np.nan_to_num(norms, nan=np.inf), kind="stable")
    uses: dict[tuple[str, int], int] = {}
    fresh, spare = [], []
    for place in order:
        keys = (("example", int(sources[place])), ("label", int(kinds[place])))
        if all(uses.get(key, 0) < _ALIKE for key in keys):
            fresh.append(int(place))
            for key in keys:
                uses[key] = uses.get(key, 0) + 1
        else:
            spare.append(int(place))
        if len(fresh) == count:
            break
    return np.array((fresh + spare)[:count], dtype=np.int64)
