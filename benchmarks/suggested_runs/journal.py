"""Journal: runs as lines of JSON, so that a benchmark that was stopped goes on.

What enters: runs. What leaves: the same, by what they were. Invariant: a line is written when its
run has ended, and no run is made twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import final

from benchmarks.suggested_runs.methods import RATES, Method
from benchmarks.suggested_runs.problems import Problem
from benchmarks.suggested_runs.runs import TUNING_SEED, Run, trained

__all__ = ["HOPELESS", "Journal", "chance"]

HOPELESS = 0.05
"""above chance: a method that reaches less at one ε is not run at a smaller one"""


def chance(problem: Problem) -> float:
    """Accuracy of the answer that is right most often."""
    labels = problem.split().test_labels
    return float(labels.bincount().max()) / len(labels)


@final
class Journal:
    """Runs in a file, made where they are missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._runs = {_key(run): run for run in (_read(line) for line in lines)}

    @property
    def reported(self) -> Sequence[Run]:
        """All runs but those that chose a learning rate."""
        return [run for run in self._runs.values() if run.seed != TUNING_SEED]

    def make(
        self, problem: Problem, method: Method, epsilons: Iterable[float], seeds: Iterable[int]
    ) -> None:
        """The runs of a method on a problem; the largest ε comes first."""
        for epsilon in sorted(epsilons, reverse=True):
            tried = [self._run(problem, method, epsilon, each, TUNING_SEED) for each in RATES]
            best = max(tried, key=lambda run: run.accuracy)
            made = [self._run(problem, method, epsilon, best.rate, seed) for seed in seeds]
            if max(run.accuracy for run in made) < chance(problem) + HOPELESS:
                break

    def _run(self, problem: Problem, method: Method, epsilon: float, rate: float, seed: int) -> Run:
        key = (problem.name, method.name, epsilon, rate, seed)
        if key not in self._runs:
            run = trained(problem, method, epsilon, rate, seed)
            self._runs[key] = run
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(run), ensure_ascii=False) + "\n")
        return self._runs[key]


def _key(run: Run) -> tuple[str, str, float, float, int]:
    return run.network, run.method, run.epsilon, run.rate, run.seed


def _read(line: str) -> Run:
    given = json.loads(line)
    return Run(**given | {"changes": tuple(given.get("changes", ()))})
