"""Real files that nobody here wrote: imported as onnxruntime sees them, or refused."""

import pytest

from lipcert.errors import ModelFileError, UnsupportedModelError
from lipcert.importer.load import load_model
from tests.zoo import ZOO, or_skipped, rows

REFUSED = {"self_attention": "onnxruntime rejects it"}
"""files of label `net` that onnxruntime itself does not accept"""


def load(row):
    """Import; where there are several outputs, the first."""
    path = ZOO / row["path"]
    try:
        return load_model(path)
    except UnsupportedModelError as error:
        if error.refusals[0].code != "LC012":
            raise
        return load_model(path, output=row["outputs"].split(":")[0])


@pytest.mark.sample(25)
@pytest.mark.parametrize("row", or_skipped(rows()), ids=lambda row: row["path"][-60:])
def test_file(row):
    expected = next((why for name, why in REFUSED.items() if name in row["path"]), None)
    imported, reason = None, ""
    try:
        imported = load(row)
    except (ModelFileError, UnsupportedModelError) as error:
        reason = str(error)
    if reason.startswith("[LC028]"):
        pytest.skip(reason)  # the importer understands it, the core does not yet
    if imported is None:
        assert reason.startswith("[LC0")
        assert row["label"] != "net" or (expected is not None and expected in reason)
    else:
        assert row["label"] != "out"
        assert imported.verification.max_difference <= 2e-4
        if "noopt" in row["path"]:  # every parameter under its own name
            assert not any(item.folded for item in imported.graph.parameters.values())
            assert {item.code for item in imported.diagnostics} <= {"LC026"}  # batch normalization
