"""External data that may be read: beside the model or below it, and bound by its digest."""

import numpy as np
import pytest

from lipcert.core.reader import external as beside
from lipcert.errors import ModelFileError, UnsupportedModelError
from lipcert.importer import load
from lipcert.importer.load import load_model
from tests.hostile.kinds import WEIGHT, external


def saved(folder, proto, content, location="w.bin"):
    file = folder / location
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


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


def test_no_system_support_means_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(beside.os, "supports_dir_fd", set())
    with pytest.raises(UnsupportedModelError, match="without following links"):
        load_model(saved(tmp_path, external(location="w.bin"), WEIGHT.tobytes()))
