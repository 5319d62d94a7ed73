"""Results: runs over seeds, beside what was predicted of them, as tables of the page.

What enters: runs, and predictions by network and method. What leaves: lines of Markdown. Invariant:
every number of a table is computed here from runs alone; none is kept between benchmarks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

from scipy.stats import spearmanr

from benchmarks.reproductions.sample import Sample
from benchmarks.suggested_runs.runs import Run

__all__ = ["PREDICTORS", "Cell", "accuracy_table", "cells", "correlation_table", "cost_table"]

RIVAL: Final = "dp-sgd"
LIMITS: Final = (1.5, 3.0, 10.0, 30.0, 100.0, math.inf)
"""of relative cost, between the rows of its table"""

Key = tuple[str, str]


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """A method on a network at an ε: its runs, and what was predicted (infinite: no number).

    of_run: noise to signal of all steps together; relative: over that of gradient clipping at
    C = 1; noise_ratio: of both noises alone.
    """

    network: str
    method: str
    epsilon: float
    accuracy: Sample
    rate: float
    of_run: float
    relative: float
    noise_ratio: float


PREDICTORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "of_run": "noise to signal of the run",
        "relative": "relative cost: noise to signal over that of clipping",
        "noise_ratio": "noise over that of clipping, no signal",
    }
)


def cells(runs: Iterable[Run]) -> tuple[Cell, ...]:
    """Of all methods that were run over two seeds or more, in the order of the runs."""
    found: dict[tuple[str, str, float], list[Run]] = {}
    for run in runs:
        found.setdefault((run.network, run.method, run.epsilon), []).append(run)
    return tuple(_cell(group) for group in found.values() if len(group) > 1)


def _cell(runs: Sequence[Run]) -> Cell:
    first = runs[0]
    noise = _number(first.noise_to_signal)
    return Cell(
        first.network,
        first.method,
        first.epsilon,
        Sample.of([run.accuracy for run in runs]),
        first.rate,
        of_run=noise,
        relative=noise / _number(first.clipping_noise_to_signal),
        noise_ratio=_number(first.noise_ratio),
    )


def accuracy_table(found: Sequence[Cell], titles: Mapping[Key, str]) -> Iterator[str]:
    """A row for each method on each network, and how far it is from plain DP-SGD."""
    epsilons = sorted({cell.epsilon for cell in found})
    yield (
        f"| network | method | noise ÷ clipping | noise ÷ signal of the run, ε = {epsilons[0]:g} | "
        + (" | ".join(f"ε = {epsilon:g}" for epsilon in epsilons) + " |")
    )
    yield "|---|---|---:|---:|" + "---:|" * len(epsilons)
    known = {(cell.network, cell.method, cell.epsilon): cell for cell in found}
    for network, method in dict.fromkeys((cell.network, cell.method) for cell in found):
        row = [known.get((network, method, epsilon)) for epsilon in epsilons]
        least = row[0]
        predicted = (
            ("–", "–") if least is None else (_short(least.noise_ratio), _short(least.of_run))
        )
        parts = (
            f"`{network}`",
            titles[network, method],
            *predicted,
            *(_accuracy(cell, known) for cell in row),
        )
        yield f"| {' | '.join(parts)} |"


def _accuracy(cell: Cell | None, known: Mapping[tuple[str, str, float], Cell]) -> str:
    if cell is None:
        return "–"
    shown = f"{100.0 * cell.accuracy.mean:.1f} ± {100.0 * cell.accuracy.error:.1f}"
    rival = known.get((cell.network, RIVAL, cell.epsilon))
    if rival is None or rival is cell:
        return shown
    return f"{shown} ({100.0 * (cell.accuracy.mean - rival.accuracy.mean):+.1f})"


def correlation_table(found: Sequence[Cell], chances: Mapping[str, float]) -> Iterator[str]:
    """Spearman's rank correlation of each predictor with the accuracy that was reached.

    Between networks, accuracy counts as a share of the way from chance to the best of its network.
    """
    networks = list(dict.fromkeys(cell.network for cell in found))
    yield f"| predictor | {' | '.join(f'`{name}`' for name in networks)} | all, {len(found)} cells |"
    yield "|---|" + "---:|" * (len(networks) + 1)
    best = {name: max(c.accuracy.mean for c in found if c.network == name) for name in networks}

    def reached(cell: Cell) -> float:
        low = chances[cell.network]
        return (cell.accuracy.mean - low) / (best[cell.network] - low)

    for name, title in PREDICTORS.items():
        ranks = [
            _spearman([(getattr(c, name), c.accuracy.mean) for c in found if c.network == network])
            for network in networks
        ]
        ranks.append(_spearman([(getattr(cell, name), reached(cell)) for cell in found]))
        yield f"| {title} | {' | '.join(f'{rank:+.2f}' for rank in ranks)} |"


def cost_table(found: Sequence[Cell]) -> Iterator[str]:
    """What methods of a relative cost lose against plain DP-SGD at the same ε, in points."""
    rivals = {(c.network, c.epsilon): c.accuracy.mean for c in found if c.method == RIVAL}
    yield "| relative cost | cells | points on DP-SGD: median | worst | best |"
    yield "|---|---:|---:|---:|---:|"
    low = 0.0
    for high in LIMITS:
        gains = [
            100.0 * (cell.accuracy.mean - rivals[cell.network, cell.epsilon])
            for cell in found
            if cell.method != RIVAL and low < cell.relative <= high
            if (cell.network, cell.epsilon) in rivals
        ]
        if gains:
            middle = statistics.median(gains)
            words = f"{low:g} to {high:g}" if math.isfinite(high) else f"above {low:g}"
            yield f"| {words} | {len(gains)} | {middle:+.1f} | {min(gains):+.1f} | {max(gains):+.1f} |"
        low = high


def _spearman(pairs: Sequence[tuple[float, float]]) -> float:
    first, second = zip(*pairs, strict=True)
    return float(spearmanr(first, second).statistic)


def _number(value: float | None) -> float:
    return math.inf if value is None else value


def _short(value: float) -> str:
    """Two digits, large numbers as powers of ten."""
    if not math.isfinite(value):
        return "no number"
    if value >= 1e4:
        head, _, power = f"{value:.0e}".partition("e+")
        return f"{head}e{int(power)}"
    return f"{float(f'{value:.2g}'):g}"
