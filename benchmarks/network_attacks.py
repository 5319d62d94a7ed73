"""Random networks attacked by gradient ascent, in both scopes: how many bounds do not hold.

    python -m benchmarks.network_attacks                          1,500 networks in each scope
    python -m benchmarks.network_attacks --count 60 --first 5000  others, fewer of them

The networks, in turn: graphs of every op, with BatchNorm in eval mode, branches and shared weights;
the same with gates of their own numbers and values of one number; ONNX files whose examples are
single numbers. Each is attacked at its weights, and over all weights within random constraints.
Then macro layers, whose numbers in the file are a little off, are held against the truth about the
file. Leaves with 1 where a bound does not hold; a line with the seed says which.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from lipcert.norms.operator_norm import Tier
from lipcert.scope import PointScope, Scope
from tests.imported import imported_case
from tests.importer.test_own_numbers import MACROS, measured
from tests.random_networks import Case, random_case
from tests.single_numbers import random_file
from tests.test_network_attacks import Constraints, attacked

Outcome: TypeAlias = tuple[str, int, str]
"""family and scope, seed, what does not hold: "" for nothing, `REFUSED` without an attack"""
REFUSED = "refused"
FAMILIES = ("every op", "own gates and single numbers", "files of single numbers")


def main(arguments: list[str] | None = None) -> int:
    """Print a table; 1 where a bound does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network_attacks")
    parser.add_argument("--count", type=int, default=1500, help="networks in each scope")
    parser.add_argument("--first", type=int, default=100_000, help="the first seed")
    parser.add_argument("--steps", type=int, default=10, help="steps of an ascent")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args(arguments)
    start, tried, wrong = time.perf_counter(), Counter[str](), Counter[str]()
    refused: Counter[str] = Counter()
    for family, seed, found in outcomes(options):
        if found == REFUSED:
            refused[family] += 1
            continue
        tried[family] += 1
        wrong[family] += bool(found)
        if found:
            print(f"VIOLATED  {family}, seed {seed}: {found}", flush=True)
    print(f"{'family':<52} {'attacked':>9} {'refused':>8} {'violations':>11}")
    for family in sorted(tried | refused):
        print(f"{family:<52} {tried[family]:>9} {refused[family]:>8} {wrong[family]:>11}")
    print(f"{'all':<52} {tried.total():>9} {refused.total():>8} {wrong.total():>11}")
    sys.stderr.write(f"{time.perf_counter() - start:.0f} s\n")
    return 1 if wrong.total() else 0


def outcomes(options: argparse.Namespace) -> Iterator[Outcome]:
    """Of all networks, as they are found."""
    work = [(seed, options.steps) for seed in range(options.first, options.first + options.count)]
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.processes, torch.set_num_threads, (1,)) as pool:
        for found in pool.imap_unordered(of_seed, work, chunksize=4):
            yield from found


def of_seed(work: tuple[int, int]) -> list[Outcome]:
    """A network in both scopes, and a macro layer."""
    seed, steps = work
    family = FAMILIES[seed % len(FAMILIES)]
    with tempfile.TemporaryDirectory() as folder:
        case = case_of(family, seed, Path(folder))
        if case is None:
            found = [(f"{family}, {scope}", seed, REFUSED) for scope in ("point", "set")]
        else:
            constraints = Constraints(case, seed)
            found = [
                (f"{family}, {scope}", seed, excess(case, held, seed, steps, weights))
                for scope, held, weights in (
                    ("point", PointScope(Tier.FAST), None),
                    ("set", constraints.scope(), constraints),
                )
            ]
        return [*found, macro(seed, Path(folder))]


def excess(case: Case, scope: Scope, seed: int, steps: int, constraints: Constraints | None) -> str:
    """What does not hold; a gradient that torch cannot compute is said, and counts as refused."""
    try:
        return named(attacked(case, scope, seed, steps, constraints).excess())
    except RuntimeError as error:
        print(f"not attacked: seed {seed}: torch: {error}", flush=True)
        return REFUSED


def case_of(family: str, seed: int, folder: Path) -> Case | None:
    """The network of a seed; None for a file that is refused."""
    match family:
        case "every op":
            return random_case(seed)
        case "own gates and single numbers":
            return random_case(seed, wide=True)
    return imported_case(random_file(seed), seed, folder)


def macro(seed: int, folder: Path) -> Outcome:
    """A macro layer whose numbers are up to 2^-20 off."""
    generator = np.random.default_rng(seed)
    name = list(MACROS)[int(generator.integers(len(MACROS)))]
    units = int(generator.integers(-8, 9))
    pairs = measured(name, units, folder / "macro.onnx")
    wrong = {
        str(k): true / bound for k, (true, bound) in enumerate(pairs) if true > bound * 1.000001
    }
    return "macro layers with numbers of their own, point", seed, named(wrong)


def named(excess: dict[str, float]) -> str:
    """What does not hold, and by how much."""
    return ", ".join(f"{what} {ratio:.6g} times its bound" for what, ratio in excess.items())


if __name__ == "__main__":
    sys.exit(main())
