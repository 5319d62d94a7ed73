"""Members of a fact that are chosen to break a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from lipcert.core.program import FloatArray
from lipcert.core.rules.facts import Fact

SLACK = 1e-9
"""of what float64 evaluation itself may err by, relative to the largest number in sight"""


def holds(fact: Fact, x: FloatArray, slack: float = 0.0) -> bool:
    """Whether a value satisfies everything that a fact states."""
    room = slack * (1.0 + float(np.max(np.abs(x), initial=0.0)))
    runs = [np.linalg.norm(x)]
    runs += [
        np.max(np.linalg.norm(x, axis=axis), initial=0.0) if x.ndim >= -axis else 0.0
        for axis in (-1, -2)
    ]
    limits = (fact.norm, fact.row_norm, fact.column_norm)
    inside = all(n <= limit + slack * (1.0 + n) for n, limit in zip(runs, limits, strict=True))
    box = fact.box.broadcast(x.shape)
    return bool(inside and (x >= box.lo - room).all() and (x <= box.hi + room).all())


def towards(fact: Fact, member: FloatArray, aim: FloatArray) -> FloatArray:
    """The furthest member on the way from one to an aim (facts are convex)."""
    box = fact.box.broadcast(member.shape)
    aim = np.clip(aim, box.lo, box.hi)
    low, high = 0.0, 1.0
    if holds(fact, aim):
        return aim
    for _ in range(40):
        middle = 0.5 * (low + high)
        trial = member + middle * (aim - member)
        low, high = (middle, high) if holds(fact, trial) else (low, middle)
    return np.asarray(member + low * (aim - member), dtype=np.float64)


def members(
    rng: np.random.Generator,
    facts: Sequence[Fact],
    known: Sequence[Sequence[FloatArray]],
    compute: Callable[..., torch.Tensor],
) -> Iterator[list[FloatArray]]:
    """Inputs as given, and driven towards large outputs and large single entries."""
    for start in zip(*known, strict=True):
        yield list(start)
        for whole in (True, False):
            point = list(start)
            for _ in range(2):
                leaves = [torch.tensor(x, requires_grad=True) for x in point]
                y = compute(*leaves).reshape(-1)
                if not len(y):
                    break
                entry = int(rng.integers(len(y)))
                goal = (y * y).sum() if whole else y[entry] * rng.choice([-1.0, 1.0])
                if not goal.requires_grad:
                    break
                slopes = torch.autograd.grad(goal, leaves, allow_unused=True)
                point = [
                    x if g is None else towards(f, x, x + 1e6 * _scaled(g, x))
                    for f, x, g in zip(facts, point, slopes, strict=True)
                ]
            yield point


def _scaled(gradient: torch.Tensor, x: FloatArray) -> FloatArray:
    found = gradient.numpy()
    largest = np.max(np.abs(found), initial=0.0)
    return np.zeros_like(x) if largest == 0.0 else found / largest * (1.0 + np.max(np.abs(x)))
