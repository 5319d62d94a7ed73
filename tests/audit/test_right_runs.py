"""Right runs of every mechanism, with other data, weights, noise and optimizers: no false alarm.

All tests by chance of one run together may blame it once in a million runs; what is no matter of
chance never may.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from lipcert.audit.records import AuditReport, Verdict
from tests.audit.mechanism_runs import audited
from tests.audit.test_mechanisms import RIGHT_WAYS

SEEDS = 25
OPTIMIZERS = (
    torch.optim.SGD,
    partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01),
    torch.optim.Adam,
    torch.optim.RMSprop,
    partial(torch.optim.SGD, momentum=0.5, nesterov=True),
)


def run(folder: Path, name: str, seed: int) -> AuditReport:
    """Of a seed, with an optimizer that follows from it, recorded in full.

    Ranks take turns in one process, so that the first one has to begin also without an example.
    """
    optimizer = OPTIMIZERS[seed % len(OPTIMIZERS)]
    rate = 0.03 if optimizer in {torch.optim.Adam, torch.optim.RMSprop} else 0.2
    way = RIGHT_WAYS[name]
    changes = {"empty_pass": True} if way.ranks > 1 else {}
    way = replace(way, seed=seed, detail=1, optimizer=optimizer, learning_rate=rate, **changes)
    return audited(folder, way)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "seed"), [("clipless, custom", 2), ("flat clip", 1), ("weight clipping", 4)]
)
def test_a_right_run_passes(name: str, seed: int, tmp_path: Path) -> None:
    report = run(tmp_path / "t", name, seed)
    assert (report.verdict, report.reasons) == (Verdict.PASS, ())


@pytest.mark.nightly
@pytest.mark.parametrize("name", RIGHT_WAYS)
def test_no_right_run_is_blamed(name: str, tmp_path: Path) -> None:
    """25 of each of 13 ways: 325 runs."""
    found = {seed: run(tmp_path / f"{seed}", name, seed) for seed in range(SEEDS)}
    blamed = {s: r.reasons for s, r in found.items() if r.verdict is not Verdict.PASS}
    assert blamed == {}
