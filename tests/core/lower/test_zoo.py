"""The models in the zoo and the shipped ones: lowered, and compared with onnxruntime."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from lipcert.core.reader.model import read_model
from lipcert.core.reader.records import ModelReadError
from lipcert.graph.evaluate import evaluate
from tests.core.models import SHIPPED
from tests.zoo import ZOO, or_skipped, rows

ort.set_default_logger_severity(4)
LARGEST = 400_000
"""parameters; the evaluator is slow"""


def _files(label: str) -> list[Path]:
    return sorted({ZOO / row["path"] for row in rows(label, LARGEST)})


def _plain(path: Path, folder: Path) -> Path:
    if path.suffix != ".gz":
        return path
    target = folder / "model.onnx"
    target.write_bytes(gzip.decompress(path.read_bytes()))
    return target


@pytest.mark.sample(33)
@pytest.mark.parametrize("path", [*SHIPPED, *_files("net")], ids=lambda path: path.name)
def test_a_network_is_lowered_to_what_it_computes(path, tmp_path):
    plain = _plain(path, tmp_path)
    try:
        session = ort.InferenceSession(str(plain))
    except Exception:  # noqa: BLE001 (onnxruntime has no common type of error)
        pytest.skip("onnxruntime does not load it")
    model = read_model(plain)
    program = lower(model, model.outputs[0])
    (source,) = [item for item in session.get_inputs() if item.name == program.input]
    dtype = np.float64 if "double" in source.type else np.float32
    shape = program.shapes[program.input]
    batch = source.shape[0] if isinstance(source.shape[0], int) else 3
    count = batch // shape[0]
    x = np.random.default_rng(0).standard_normal((count, *shape)).astype(dtype)
    (found,) = session.run([model.outputs[0]], {program.input: x.reshape(batch, *shape[1:])})
    parts = found.reshape(count, *program.shapes[program.output])
    for example, expected in zip(x, parts, strict=True):
        ours = evaluate(program, example)[program.output]
        assert np.abs(ours - expected).max() <= 1e-3 * (np.abs(expected).max() + 1e-6)


@pytest.mark.parametrize("path", or_skipped(_files("out")), ids=lambda path: path.name)
def test_what_is_out_of_scope_is_refused_in_one_line(path, tmp_path):
    message = ""
    try:
        model = read_model(_plain(path, tmp_path))
        lower(model, model.outputs[0])
    except (ModelReadError, Unsupported) as error:
        message = str(error)
    assert message.isprintable()
