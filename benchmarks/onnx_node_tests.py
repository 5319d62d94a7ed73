"""Run the node tests of the onnx project through the importer and print what became of them.

Usage: `python benchmarks/onnx_node_tests.py [--op NAME]`.

All inputs of a test but the first become constants, so that each is a network of one node. The
importer compares every network with onnxruntime; a disagreement is a fault, and ends in exit 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from onnx import ModelProto, numpy_helper

from lipcert.errors import ModelFileError, UnsupportedModelError
from lipcert.importer.load import load_model


def networks(op: str | None) -> Iterator[tuple[str, str, ModelProto]]:
    """(test, operator, model) of every test whose data inputs can be reduced to one."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        proto = ModelProto()
        proto.CopyFrom(case.model)
        kind = proto.graph.node[0].op_type if len(proto.graph.node) else ""
        arrays, _ = case.data_sets[0]
        declared = list(proto.graph.input)
        if op not in {None, kind} or not declared or not proto.graph.output:
            continue
        if not all(isinstance(array, np.ndarray) for array in arrays):
            continue
        for item, array in list(zip(declared, arrays, strict=False))[1:]:
            proto.graph.initializer.append(numpy_helper.from_array(array, item.name))
            proto.graph.input.remove(item)
        yield case.name, kind, proto


def outcome(proto: ModelProto, path: Path) -> tuple[str, str]:
    """("imported" or the code of the refusal, the reason)."""
    path.write_bytes(proto.SerializeToString())
    try:
        load_model(path, output=proto.graph.output[0].name, trusted=True)
    except UnsupportedModelError as error:
        return error.refusals[0].code, error.refusals[0].reason
    except ModelFileError as error:  # onnxruntime does not run it
        return "LC016", str(error)
    return "imported", ""


def main() -> None:
    """Print a line per operator, the refusals of one operator if it is named, and totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", default=None, help="only this operator, test by test")
    options = parser.parse_args()
    table: dict[str, Counter[str]] = {}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, kind, proto in networks(options.op):
            code, reason = outcome(proto, Path(folder) / "model.onnx")
            table.setdefault(kind, Counter())[code] += 1
            if options.op:
                print(f"{name:60} {code:9} {reason[:200]}")
            if "differs from onnxruntime" in reason:
                wrong.append(name)
    for kind, counts in sorted(table.items()):
        listed = "  ".join(f"{code} {count}" for code, count in sorted(counts.items()))
        print(f"{kind:28} {listed}")
    totals = sum(table.values(), Counter())
    print(f"\n{totals.total()} tests: {dict(totals.most_common())}")
    print(f"disagreements with onnxruntime: {len(wrong)} {' '.join(wrong)}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
