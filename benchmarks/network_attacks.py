"""Random files attacked by gradient ascent, in both scopes: how many bounds do not hold.

    python -m benchmarks.network_attacks                          1,500 files in each scope
    python -m benchmarks.network_attacks --count 60 --first 5000  others, fewer of them

The files, in turn: random models of most operators, with branches and with shared, tied and
computed weights; the same with clips of backpropagation; models whose examples are single numbers;
models that divide by norms with floors, and multiply by single numbers that are trained.
Each is attacked at its weights, and, but for those with clips, over all weights within random
constraints. Then macro layers, whose numbers in the file are a little off, are held against the
truth about the file. Leaves with 1 where a bound does not hold; a line with the seed says which.
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

from benchmarks.floored_models import floored_model
from tests.core.random_models import random_model
from tests.importer.test_own_numbers import MACROS, measured
from tests.single_numbers import random_file
from tests.test_network_attacks import found_above, random_bounds

Outcome: TypeAlias = tuple[str, int, str]
"""family and scope, seed, what does not hold: "" for nothing, `REFUSED` without an attack"""
REFUSED = "refused"
CLIPPED, SINGLE, FLOORED = "random models, clipped", "files of single numbers", "norms with floors"
FAMILIES = ("random models", CLIPPED, SINGLE, FLOORED)
CLIPS = {"mechanism": "backprop-clipping", "input_clip": 0.5, "cotangent_clip": 0.1}


def main(arguments: list[str] | None = None) -> int:
    """Print a table; 1 where a bound does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network_attacks")
    parser.add_argument("--count", type=int, default=1500, help="files in each scope")
    parser.add_argument("--first", type=int, default=100_000, help="the first seed")
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
    """Of all files, as they are found."""
    seeds = range(options.first, options.first + options.count)
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.processes, torch.set_num_threads, (1,)) as pool:
        for found in pool.imap_unordered(of_seed, seeds, chunksize=4):
            yield from found


def of_seed(seed: int) -> list[Outcome]:
    """A file in both scopes, and a macro layer."""
    family = FAMILIES[seed % len(FAMILIES)]
    with tempfile.TemporaryDirectory() as folder:
        scopes = ("point",) if family == CLIPPED else ("point", "set")
        found = [
            (f"{family}, {scope}", seed, excess(family, seed, Path(folder), scope == "set"))
            for scope in scopes
        ]
        return [*found, macro(seed, Path(folder))]


def excess(family: str, seed: int, folder: Path, constrained: bool) -> str:
    """What does not hold; a gradient that torch cannot compute is said, and counts as refused."""
    draws = {SINGLE: random_file, FLOORED: floored_model}
    proto = draws.get(family, random_model)(seed)
    clips = CLIPS if family == CLIPPED else {}
    singles = family == FLOORED
    bounds = random_bounds(proto, seed, folder, constrained=constrained, singles=singles, **clips)
    if bounds is None:
        return REFUSED
    try:
        return ", ".join(found_above(proto, bounds, seed))
    except RuntimeError as error:
        print(f"not attacked: seed {seed}: torch: {error}", flush=True)
        return REFUSED


def macro(seed: int, folder: Path) -> Outcome:
    """A macro layer whose numbers are up to 2^-20 off."""
    generator = np.random.default_rng(seed)
    name = list(MACROS)[int(generator.integers(len(MACROS)))]
    units = int(generator.integers(-8, 9))
    pairs = measured(name, units, folder / "macro.onnx")
    wrong = {
        str(k): true / bound for k, (true, bound) in enumerate(pairs) if true > bound * 1.000001
    }
    named = ", ".join(f"{what} {ratio:.6g} times its bound" for what, ratio in wrong.items())
    return "macro layers with numbers of their own, point", seed, named


if __name__ == "__main__":
    sys.exit(main())
