"""The node tests of the onnx project: whatever of them is claimed agrees with onnxruntime."""

from collections import Counter
from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from lipcert.errors import ModelFileError, UnsupportedModelError
from lipcert.importer.load import load_model
from tests.importer.models import saved

FIRST_INPUT_IS_DATA, PARTS = 1, 16


def as_network(case):
    """All inputs but the first become initializers; None where that is not possible."""
    proto = ModelProto()
    proto.CopyFrom(case.model)
    arrays, _ = case.data_sets[0]
    declared = list(proto.graph.input)
    for item, array in list(zip(declared, arrays, strict=False))[FIRST_INPUT_IS_DATA:]:
        if not isinstance(array, np.ndarray):
            return None
        proto.graph.initializer.append(numpy_helper.from_array(array, item.name))
        proto.graph.input.remove(item)
    return proto if declared and proto.graph.output else None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.sample(2)
@pytest.mark.parametrize("part", range(PARTS))
def test_node_tests(tmp_path, part):
    from onnx.backend.test.case import node

    known = len(node._NodeTestCases)
    for module in [*iter_modules(node.__path__)][::-1][part::PARTS]:
        import_module(f"{node.__name__}.{module.name}")  # which adds its cases to the list
    outcomes: Counter[str] = Counter()
    disagreements = []
    for case in node._NodeTestCases[known:]:
        proto = as_network(case)
        if proto is None:
            continue
        try:
            load_model(saved(proto, tmp_path), output=proto.graph.output[0].name, trusted=True)
            outcomes["imported"] += 1
        except ModelFileError as error:
            outcomes[error.code] += 1  # onnxruntime does not run it either
        except UnsupportedModelError as error:
            outcomes[error.refusals[0].code] += 1
            if "differs from onnxruntime" in str(error):
                disagreements.append((case.name, str(error)))
    assert disagreements == []
    assert outcomes["imported"] + outcomes["LC028"] >= 10, outcomes
