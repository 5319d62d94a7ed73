"""Membership: weights within the constraints of a certificate, outside, or not decided."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from lipcert import ConstraintSpec, Settings, load_model
from lipcert.checker.procedure import Choices, check
from lipcert.checker.verdict import Verdict
from lipcert.issue.certify import certify

MODEL = Path(__file__).resolve().parents[2] / "models" / "digits_mlp.onnx"


def certificate(kind: str, radius: float) -> bytes:
    settings = Settings(constraint=ConstraintSpec(kind, radius), bias_norm=radius)
    return certify(load_model(MODEL), settings).data


def norms() -> tuple[float, float]:
    tensors = [numpy_helper.to_array(t) for t in onnx.load(MODEL).graph.initializer]
    matrices = [t.astype(float) for t in tensors if t.ndim == 2]
    spectral = max(np.linalg.norm(matrix, 2) for matrix in matrices)
    return float(spectral), float(max(np.linalg.norm(t) for t in tensors if t.ndim))


def scaled(folder: Path, factor: float) -> Path:
    model = onnx.load(MODEL)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor) * np.float32(factor)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, folder / "scaled.onnx")
    return folder / "scaled.onnx"


@pytest.mark.parametrize("engine", ["float", "exact"])
@pytest.mark.parametrize("kind", ["spectral", "frobenius"])
def test_weights_are_within_or_outside(kind: str, engine: str, tmp_path: Path) -> None:
    spectral, frobenius = norms()
    radius = 1.01 * (spectral if kind == "spectral" else frobenius)
    data = certificate(kind, radius)
    within = check(data, MODEL, Choices(engine, weights=MODEL))
    assert within.verdict is Verdict.CONDITIONAL, within.reasons
    outside = check(data, MODEL, Choices(engine, weights=scaled(tmp_path, 1.05)))
    assert outside.verdict is Verdict.INVALID
    assert any("is not within" in reason for reason in outside.reasons)


def test_safetensors_are_read(tmp_path: Path) -> None:
    data = certificate("frobenius", norms()[1] * 1.01)
    tensors = {t.name: numpy_helper.to_array(t) for t in onnx.load(MODEL).graph.initializer}
    header, body = {}, b""
    for name, array in tensors.items():
        if array.dtype == np.float32:
            raw = np.ascontiguousarray(array).tobytes()
            offsets = [len(body), len(body) + len(raw)]
            header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": offsets}
            body += raw
    text = json.dumps(header).encode()
    path = tmp_path / "weights.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    assert check(data, MODEL, Choices(weights=path)).verdict is Verdict.CONDITIONAL
    path.write_bytes(struct.pack("<Q", len(text)) + text + body[:-4])
    assert check(data, MODEL, Choices(weights=path)).verdict is Verdict.UNKNOWN
