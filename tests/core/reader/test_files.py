"""External data: read where it may lie, refused everywhere else, unread."""

import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from lipcert.core.certificate import ExternalFile
from lipcert.core.reader import Folder
from lipcert.core.reader.external import external_content
from lipcert.core.reader.model import read_model
from lipcert.core.reader.records import ModelReadError
from tests.core.lower.cases import read
from tests.core.models import gated, saved_outside


def outside(location="data.bin", **entries):
    proto = gated()
    tensor = proto.graph.initializer[1]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return proto


def test_numbers_come_from_the_file(tmp_path):
    model = saved_outside(gated(), tmp_path)
    for tensor in gated().graph.initializer:
        expected = numpy_helper.to_array(tensor).astype(np.float64)
        assert np.array_equal(model.initializers[tensor.name].values(), expected)
    content = (tmp_path / "model.data").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert model.external == (ExternalFile("model.data", digest, len(content)),)


def test_part_of_a_file_in_a_folder_below(tmp_path):
    numbers = np.arange(20, dtype="<f4")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "data.bin").write_bytes(numbers.tobytes())
    model = read(outside("deep/er/data.bin", offset="8", length="64"), tmp_path)
    assert np.array_equal(model.initializers["b"].values(), numbers[2:18])


@pytest.mark.parametrize(
    "location",
    [
        "",
        ".",
        "..",
        "../data.bin",
        "sub/../../data.bin",
        "sub/../data.bin",
        "./data.bin",
        "sub//data.bin",
        "/etc/hostname",
        "//etc/hostname",
        "C:\\data.bin",
        "..\\data.bin",
        "data.bin\0.txt",
        "absent.bin",
        "sub",
        "sub/",
        "link.bin",
        "hard.bin",
        "loop/data.bin",
        "fifo",
        "a" * 5000,
        "data.bin/data.bin",
    ],
)
def test_places_that_are_not_read(tmp_path, location):
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    secret = tmp_path / "data.bin"
    secret.write_bytes(bytes(64))
    (folder / "data.bin").write_bytes(bytes(64))
    (folder / "link.bin").symlink_to(secret)
    (folder / "loop").symlink_to(tmp_path, target_is_directory=True)
    os.link(secret, folder / "hard.bin")
    os.mkfifo(folder / "fifo")
    assert not read(outside("data.bin"), folder).initializers["b"].values().any()
    with pytest.raises(ModelReadError, match="tensor 'b'"):
        read(outside(location), folder)


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "-1"},
        {"offset": "1"},
        {"offset": "1125899906842624"},
        {"offset": "9" * 30},
        {"length": "1125899906842624"},
        {"length": "63"},
        {"length": "65"},
        {"offset": "٣"},
        {"offset": "0x0"},
        {"offset": " 0"},
        {"offset": ""},
        {"unknown": "1"},
    ],
)
def test_parts_that_are_not_there(tmp_path, entries):
    (tmp_path / "data.bin").write_bytes(bytes(64))
    with pytest.raises(ModelReadError, match="tensor 'b'"):
        read(outside(**entries), tmp_path)


def test_a_key_given_twice(tmp_path):
    (tmp_path / "data.bin").write_bytes(bytes(64))
    proto = outside()
    proto.graph.initializer[1].external_data.add(key="location", value="other.bin")
    with pytest.raises(ModelReadError, match="twice"):
        read(proto, tmp_path)


def test_the_budget_counts_files_and_tensors(tmp_path):
    def tensor(**entries):
        return outside(**entries).graph.initializer[1]

    (tmp_path / "data.bin").write_bytes(bytes(64))
    with pytest.raises(ModelReadError, match="more than"):
        external_content(tensor(), Folder(tmp_path, 63))
    folder = Folder(tmp_path, 100)
    assert len(external_content(tensor(), folder)) == 64
    assert len(external_content(tensor(length="36"), folder)) == 36
    with pytest.raises(ModelReadError, match="more than"):
        external_content(tensor(length="1"), folder)
    (tmp_path / "more.bin").write_bytes(bytes(64))
    folder = Folder(tmp_path, 100)
    external_content(tensor(length="1"), folder)
    with pytest.raises(ModelReadError, match="more than"):
        external_content(tensor(location="more.bin", length="1"), folder)


@pytest.mark.parametrize("name", ["absent.onnx", ".", "\0", "a\x1b[31m\nb"])
def test_paths_without_a_model(tmp_path, name):
    with pytest.raises(ModelReadError) as caught:
        read_model(tmp_path / name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["digits_mlp", "digits_cnn"])
def test_a_compressed_model_is_the_model(tmp_path, name):
    plain = Path(__file__).resolve().parents[3] / "models" / f"{name}.onnx"
    packed = tmp_path / f"{name}.onnx.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_model(packed) == read_model(plain)


def test_compressed_files_that_are_not_one_model(tmp_path):
    plain = (Path(__file__).resolve().parents[3] / "models" / "digits_mlp.onnx").read_bytes()
    path = tmp_path / "model.onnx.gz"
    bomb = gzip.compress(bytes(1 << 28))
    for content in (gzip.compress(plain)[:-9], gzip.compress(plain) + b"x", b"\x1f\x8b rest", bomb):
        path.write_bytes(content)
        with pytest.raises(ModelReadError):
            read_model(path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "model.onnx"
    os.mkfifo(pipe)
    code = "from pathlib import Path; from lipcert.core.reader import read_model_bytes as read"
    words = [sys.executable, "-c", f"{code}; read(Path({str(pipe)!r}))"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert "is not a regular file" in done.stderr
