"""Hold the checker's reading of random odd graphs against onnxruntime; exit 1 on a difference.

Usage: `python benchmarks/reading_fuzz.py [--graphs 8000] [--seed 0]`.

Operators, attributes, operator sets, constants and batches are drawn as an attacker would write
them. Each graph runs in onnxruntime; where the checker makes a program of it, all its values are
compared for one example, and its output for three examples at once where the batch is free.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

from onnx import printer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.core.lower.odd_graphs import outcomes


def main() -> None:
    """Print every difference with its graph, a line per operator, and totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    totals: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    compared: Counter[str] = Counter()
    for number, proto, found in outcomes(options.seed, options.graphs):
        kinds = {node.op_type for node in proto.graph.node}
        seen.update(kinds)
        totals[found if found in {"refused", "undefined"} else "differ" if found else "agree"] += 1
        if not found:
            compared.update(kinds)
        elif found not in {"refused", "undefined"}:
            print(f"graph {number}: {found}\n{printer.to_text(proto.graph)}\n")
    for kind, count in sorted(seen.items()):
        print(f"{kind:28} compared in {compared[kind]:6} of {count:6} graphs")
    print(f"\n{options.graphs} graphs: {dict(totals)}; differences: {totals['differ']}")
    sys.exit(1 if totals["differ"] else 0)


if __name__ == "__main__":
    main()
