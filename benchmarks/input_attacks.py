"""Random networks of two to four inputs attacked by ascent: how many bounds do not hold.

    python -m benchmarks.input_attacks                          2,000 networks
    python -m benchmarks.input_attacks --count 60 --first 5000  others, fewer of them

Inputs are real numbers, ids and masks, each with a norm and a box of its own; about half of the
networks are bounded for all weights within constraints, and some have two outputs. Every value, the
Lipschitz constant and the gradient of every parameter, by autograd in float64, is held against its
bound. Leaves with 1 where a bound does not hold; a line with the seed says which.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter

from tests.core.adversary import found_above
from tests.core.several_inputs import several_inputs


def main(arguments: list[str] | None = None) -> int:
    """Print a line with the counts; 1 where a bound does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.input_attacks")
    parser.add_argument("--count", type=int, default=2000, help="networks")
    parser.add_argument("--first", type=int, default=100_000, help="the first seed")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args(arguments)
    start, counts = time.perf_counter(), Counter[str]()
    seeds = range(options.first, options.first + options.count)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for seed, found in pool.imap_unordered(of_seed, seeds, chunksize=4):
            counts["refused" if found is None else "exceeded" if found else "held"] += 1
            if found:
                print(f"VIOLATED  seed {seed}: {', '.join(found)}", flush=True)
    told = (f"{counts[name]} {name}" for name in ("held", "exceeded", "refused"))
    print(f"{options.count} networks of several inputs: {', '.join(told)}")
    sys.stderr.write(f"{time.perf_counter() - start:.0f} s\n")
    return 1 if counts["exceeded"] else 0


def of_seed(seed: int) -> tuple[int, list[str] | None]:
    """What is larger than its bound; None for a network that is refused."""
    return seed, found_above(seed, draw=several_inputs)


if __name__ == "__main__":
    sys.exit(main())
