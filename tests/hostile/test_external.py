"""External data that may be read: beside the model or below it, and bound by its digest."""

import hashlib

import numpy as np
import onnx
import pytest

from lipcert.core.reader import external as beside
from lipcert.core.reader import model
from lipcert.errors import ModelFileError, UnsupportedModelError
from lipcert.importer import load
from lipcert.importer.load import load_model
from tests.hostile.kinds import WEIGHT, external, matmul


def saved(folder, proto, content, location="w.bin"):
    file = folder / location
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def weight_of(imported):
    (node,) = imported.graph.nodes
    (operand,) = node.operands.values()
    return operand.array


@pytest.mark.parametrize("location", ["w.bin", "sub/w.bin", "ü [x].bin"])
def test_a_file_of_the_folder(tmp_path, location):
    content = b"head" + WEIGHT.tobytes() + b"tail"
    proto = external(location=location, offset=4, length=WEIGHT.nbytes)
    imported = load_model(saved(tmp_path, proto, content, location))
    assert imported.external == {location: hashlib.sha256(content).hexdigest()}
    inside = tmp_path / "inside.onnx"
    inside.write_bytes(matmul().SerializeToString())
    np.testing.assert_array_equal(weight_of(imported), weight_of(load_model(inside)))
    assert load_model(inside).external == {}


def test_as_onnx_writes_it(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save_model(matmul(), path, save_as_external_data=True, size_threshold=0, location="w.data")
    assert list(load_model(path).external) == ["w.data"]


def test_relative_paths_of_the_model(tmp_path, monkeypatch):
    saved(tmp_path, external(location="w.bin"), WEIGHT.tobytes())
    monkeypatch.chdir(tmp_path)
    assert list(load_model("model.onnx").external) == ["w.bin"]


def test_other_numbers_give_another_digest(tmp_path):
    path = saved(tmp_path, external(location="w.bin"), WEIGHT.tobytes())
    first = load_model(path)
    (tmp_path / "w.bin").write_bytes((2 * WEIGHT).tobytes())
    second = load_model(path)
    assert first.sha256 == second.sha256
    assert first.external != second.external


def test_data_that_change_after_the_rehearsal(tmp_path, monkeypatch):
    path = saved(tmp_path, external(location="w.bin"), WEIGHT.tobytes())
    rehearsed = load.run_in_child

    def swap(*words):
        answer = rehearsed(*words)
        (tmp_path / "w.bin").write_bytes((2 * WEIGHT).tobytes())
        return answer

    monkeypatch.setattr(load, "run_in_child", swap)
    with pytest.raises(ModelFileError, match="changed while it was read"):
        load_model(path)


def test_numbers_outside_are_checked_too(tmp_path):
    content = np.full((4, 4), np.nan, np.float32).tobytes()
    with pytest.raises(UnsupportedModelError, match="LC014"):
        load_model(saved(tmp_path, external(location="w.bin"), content))


@pytest.mark.parametrize("copies", [1, 40])
def test_the_sum_is_limited(tmp_path, monkeypatch, copies):
    """Forty tensors may not read one file forty times."""
    proto = external(location="w.bin")
    for index in range(1, copies):
        tensor = proto.graph.initializer.add()
        tensor.CopyFrom(proto.graph.initializer[0])
        tensor.name = f"w{index}"
    limit = 1000 if copies == 1 else proto.ByteSize() + 20 * WEIGHT.nbytes
    monkeypatch.setattr(model, "MAX_BYTES", limit)
    content = WEIGHT.tobytes() * (20 if copies == 1 else 1)
    with pytest.raises(UnsupportedModelError, match="LC015"):
        load_model(saved(tmp_path, proto, content))


def test_no_system_support_means_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(beside.os, "supports_dir_fd", set())
    with pytest.raises(UnsupportedModelError, match="without following links"):
        load_model(saved(tmp_path, external(location="w.bin"), WEIGHT.tobytes()))
