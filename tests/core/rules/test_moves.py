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
