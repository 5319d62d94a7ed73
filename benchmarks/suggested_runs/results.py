"""Results: runs over seeds, beside what was predicted of them, as tables of the page.

What enters: runs. What leaves: lines of Markdown. Invariant: every number of a table is computed
here from runs alone; none is kept between benchmarks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

from scipy.stats import spearmanr

from benchmarks.suggested_runs.runs import Run

__all__ = [
    "PREDICTORS",
    "Cell",
    "accuracy_table",
    "cells",
    "correlation_table",
    "cost_table",
    "noise_table",
    "recipe_table",
]

RIVAL: Final = "dp-sgd"
COSTS: Final = (1.25, 2.0, 3.0, 5.0, 10.0, 30.0, math.inf)
NOISES: Final = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 6.0, math.inf)
"""of relative cost and of noise to signal, between the rows of their tables"""
LEARNS: Final = 0.5
"""share of a gain over chance, from which on a run has learned"""


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """A method on a network at an ε: its runs, and what was predicted (infinite: no number).

    accuracy, spread: mean and standard deviation over the seeds; predictions are medians. of_run:
    noise to signal of all steps together; relative: over that of gradient clipping at C = 1;
    noise_ratio: of both noises alone.
    """

    network: str
    method: str
    epsilon: float
    accuracy: float
    spread: float
    of_run: float
    relative: float
    noise_ratio: float


PREDICTORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "of_run": "noise to signal of the run",
        "relative": "relative cost: the same over that of clipping",
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
    accuracies = [run.accuracy for run in runs]
    return Cell(
        first.network,
        first.method,
        first.epsilon,
        statistics.fmean(accuracies),
        statistics.stdev(accuracies),
        **{name: statistics.median(_predictors(run)[name] for run in runs) for name in PREDICTORS},
    )


def _predictors(run: Run) -> Mapping[str, float]:
    noise = _number(run.noise_to_signal)
    return {
        "of_run": noise,
        "relative": noise / _number(run.clipping_noise_to_signal),
        "noise_ratio": _number(run.noise_ratio),
    }


def accuracy_table(found: Sequence[Cell], titles: Mapping[str, str]) -> Iterator[str]:
    """A row for each method on each network, and how far it is from plain DP-SGD."""
    epsilons = sorted({cell.epsilon for cell in found})
    columns = [f"ε = {epsilon:g}" for epsilon in epsilons]
    yield f"| network | method | relative cost | noise ÷ signal | {' | '.join(columns)} |"
    yield "|---|---|---:|---:|" + "---:|" * len(epsilons)
    known = {(cell.network, cell.method, cell.epsilon): cell for cell in found}
    for network, method in dict.fromkeys((cell.network, cell.method) for cell in found):
        row = [known.get((network, method, epsilon)) for epsilon in epsilons]
        least = next(cell for cell in row if cell is not None)
        parts = (
            f"`{network}`",
            titles[method],
            _short(least.relative),
            _short(least.of_run),
            *(_accuracy(cell, known) for cell in row),
        )
        yield f"| {' | '.join(parts)} |"


def _accuracy(cell: Cell | None, known: Mapping[tuple[str, str, float], Cell]) -> str:
    if cell is None:
        return "–"
    shown = f"{100.0 * cell.accuracy:.1f} ± {100.0 * cell.spread:.1f}"
    rival = known.get((cell.network, RIVAL, cell.epsilon))
    if rival is None or rival is cell:
        return shown
    return f"{shown} ({100.0 * (cell.accuracy - rival.accuracy):+.1f})"


def recipe_table(runs: Iterable[Run], networks: Mapping[str, str]) -> Iterator[str]:
    """What `suggest` proposed for each network."""
    yield "| network | recipe |"
    yield "|---|---|"
    for network, changes in dict.fromkeys((r.network, r.changes) for r in runs if r.changes):
        yield f"| `{network}`, {networks[network]} | {'; '.join(changes)} |"


def correlation_table(
    runs: Sequence[Run], found: Sequence[Cell], chances: Mapping[str, float]
) -> Iterator[str]:
    """Spearman's rank correlation of each predictor with the accuracy that was reached, over cells
    and over single runs; between networks accuracy counts as `_shares` has it."""
    networks = list(dict.fromkeys(cell.network for cell in found))
    names = " | ".join(f"`{name}`" for name in networks)
    yield f"| predictor | {names} | all {len(found)} cells | all {len(runs)} runs |"
    yield "|---|" + "---:|" * (len(networks) + 2)
    share = _shares(found, chances)
    for name, title in PREDICTORS.items():
        ranks = [
            _spearman([(getattr(c, name), c.accuracy) for c in found if c.network == network])
            for network in networks
        ]
        ranks.append(_spearman([(getattr(c, name), share(c.network, c.accuracy)) for c in found]))
        single = [(_predictors(run)[name], share(run.network, run.accuracy)) for run in runs]
        ranks.append(_spearman(single))
        yield f"| {title} | {' | '.join(f'{rank:+.2f}' for rank in ranks)} |"


def cost_table(found: Sequence[Cell], chances: Mapping[str, float]) -> Iterator[str]:
    """What is left, at a relative cost, of what plain DP-SGD gains over chance at the same ε."""
    rivals = {(c.network, c.epsilon): c.accuracy for c in found if c.method == RIVAL}
    yield from _binned(
        "relative cost",
        COSTS,
        [
            (
                cell.relative,
                (cell.accuracy - chances[cell.network])
                / (rivals[cell.network, cell.epsilon] - chances[cell.network]),
            )
            for cell in found
            if cell.method != RIVAL and (cell.network, cell.epsilon) in rivals
        ],
    )


def noise_table(found: Sequence[Cell], chances: Mapping[str, float]) -> Iterator[str]:
    """What is left, at a noise to signal of the run, of the gain of the best cell of a network."""
    share = _shares(found, chances)
    gains = [(cell.of_run, share(cell.network, cell.accuracy)) for cell in found]
    yield from _binned("noise ÷ signal of the run", NOISES, gains)


def _binned(
    title: str, limits: Iterable[float], gains: Sequence[tuple[float, float]]
) -> Iterator[str]:
    yield f"| {title} | cells | gain left: median | least | most | cells with half of it |"
    yield "|---|---:|---:|---:|---:|---:|"
    low = 0.0
    for high in limits:
        left = [gain for number, gain in gains if low < number <= high]
        if left:
            words = f"{low:g} to {high:g}" if math.isfinite(high) else f"above {low:g}"
            numbers = (statistics.median(left), min(left), max(left))
            shown = " | ".join(f"{100.0 * number:.0f} %" for number in numbers)
            half = sum(gain >= LEARNS for gain in left)
            yield f"| {words} | {len(left)} | {shown} | {half} |"
        low = high


def _shares(found: Sequence[Cell], chances: Mapping[str, float]) -> Callable[[str, float], float]:
    """Accuracy as a share of the way from chance to the best cell of its network."""
    best: dict[str, float] = {}
    for cell in found:
        best[cell.network] = max(cell.accuracy, best.get(cell.network, 0.0))

    def share(network: str, accuracy: float) -> float:
        return (accuracy - chances[network]) / (best[network] - chances[network])

    return share


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
