"""Members of a fact that are chosen to break a bound."""

import numpy as np
import torch

SLACK = 1e-9
"""of what float64 evaluation itself may err by, relative to the largest number in sight"""


def holds(fact, x, slack: float = 0.0) -> bool:
    """Whether a value satisfies everything that a fact states."""
    room = slack * (1.0 + float(np.max(np.abs(x), initial=0.0)))
    runs = [np.linalg.norm(x)]
    runs += [
        np.max(np.linalg.norm(x, axis=axis), initial=0.0) if x.ndim >= -axis else 0.0
        for axis in (-1, -2)
    ]
    runs += [0.5 * apart for apart, _ in map(distances, grouped(x))]
    tokens = np.moveaxis(x, -2, 0).reshape(x.shape[-2], -1) if x.ndim > 1 else x.reshape(1, -1)
    runs += [np.max(np.linalg.norm(tokens, axis=1), initial=0.0)]
    limits = (fact.norm, fact.row_norm, fact.column_norm, fact.row_spread, fact.column_spread)
    limits += (fact.token_norm,)
    inside = all(n <= limit + slack * (1.0 + n) for n, limit in zip(runs, limits, strict=True))
    box = fact.box.broadcast(x.shape)
    return bool(inside and (x >= box.lo - room).all() and (x <= box.hi + room).all())


def grouped(x):
    """[group, run, entry]: the runs along the last axis, and those along the last axis but one,
    that are near one point each."""
    if x.ndim < 2:
        return x.reshape(1, 1, -1), x.reshape(1, 1, -1)
    long = [axis for axis in range(x.ndim - 1) if x.shape[axis] > 1]
    rows = np.moveaxis(x, long[-1] if long else x.ndim - 2, -2)
    columns = np.swapaxes(x, -1, -2)
    return rows.reshape(-1, *rows.shape[-2:]), columns.reshape(-1, *columns.shape[-2:])


def distances(groups) -> tuple[float, float]:
    """The largest distance of two runs of a group, and that of a run from the mean."""
    groups = np.asarray(groups, dtype=np.float64)  # of truth values, too
    apart = np.linalg.norm(groups[:, :, None] - groups[:, None], axis=-1)
    off = np.linalg.norm(groups - groups.mean(axis=1, keepdims=True), axis=-1)
    return float(np.max(apart, initial=0.0)), float(np.max(off, initial=0.0))


def _is_near(fact, x) -> bool:
    """Whether it holds, and the means of runs are points such as the fact is about."""
    spreads = (fact.row_spread, fact.column_spread)
    norms = (fact.row_norm, fact.column_norm)
    return holds(fact, x) and all(
        spread >= norm or distances(groups)[1] <= spread
        for groups, spread, norm in zip(grouped(x), spreads, norms, strict=True)
    )


def towards(fact, member, aim):
    """The furthest member on the way from one to an aim (facts are convex)."""
    box = fact.box.broadcast(member.shape)
    aim = np.clip(aim, box.lo, box.hi)
    low, high = 0.0, 1.0
    if _is_near(fact, aim):
        return aim
    for _ in range(24):
        middle = 0.5 * (low + high)
        trial = member + middle * (aim - member)
        low, high = (middle, high) if _is_near(fact, trial) else (low, middle)
    return np.asarray(member + low * (aim - member), dtype=np.float64)


def members(
    rng: np.random.Generator,
    facts,
    known,
    compute,
):
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


def _scaled(gradient: torch.Tensor, x):
    found = gradient.numpy()
    largest = np.max(np.abs(found), initial=0.0)
    return np.zeros_like(x) if largest == 0.0 else found / largest * (1.0 + np.max(np.abs(x)))
