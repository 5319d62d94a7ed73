"""Move: runs of entries."""

from __future__ import annotations

import numpy as np

from lipcert.core.program import Move
from lipcert.core.rules.facts import Fact
from tests.core.rules.cases import fact_behind


def test_runs_follow_heads() -> None:
    """Tokens split into heads and transposed: columns are parts of tokens."""
    x = Fact.of((1, 6, 8), 3.0, row_norm=2.0)
    places = np.arange(48).reshape(1, 6, 2, 4)
    heads = fact_behind(Move(places.transpose(0, 2, 1, 3).copy()), x, (1, 6, 8), (1, 2, 6, 4), {})
    assert (heads.row_norm, heads.column_norm) == (2.0, 3.0)
    keys = fact_behind(Move(places.transpose(0, 2, 3, 1).copy()), x, (1, 6, 8), (1, 2, 4, 6), {})
    assert (keys.row_norm, keys.column_norm) == (3.0, 2.0)


def test_tokens_near_one_point_stay_so_in_heads() -> None:
    """Of keys their columns. Not where heads read different tokens, nor where features mix."""
    x = Fact.of((1, 6, 8), 30.0, row_norm=20.0, row_spread=2.0)
    places = np.arange(48).reshape(1, 6, 2, 4)

    def moved(sources: np.ndarray, fact: Fact = x) -> tuple[float, float]:
        before = (1, 6, 8)
        found = fact_behind(Move(np.ascontiguousarray(sources)), fact, before, sources.shape, {})
        return found.row_spread, found.column_spread

    assert moved(places.transpose(0, 2, 1, 3)) == (2.0, 30.0)
    assert moved(places.transpose(0, 2, 3, 1)) == (30.0, 2.0)
    assert moved(places.reshape(6, 1, 8))[0] == 2.0
    assert moved(places.reshape(2, 3, 8))[0] == 2.0
    assert moved(np.flip(places.reshape(1, 6, 8), 1))[0] == 2.0
    rolled = np.stack([np.roll(np.arange(8), k) + 8 * k for k in range(6)])[None]
    assert moved(rolled)[0] == 20.0
    apart = fact_behind(Move(np.arange(48).reshape(1, 6, 8)), x, (6, 1, 8), (1, 6, 8), {})
    assert apart.row_spread == 2.0
    other = Fact.of((2, 3, 8), 30.0, row_norm=20.0, row_spread=2.0)
    mixed = np.arange(48).reshape(1, 6, 8)
    assert fact_behind(Move(mixed), other, (2, 3, 8), (1, 6, 8), {}).row_spread == 20.0
