"""Budgets grow with the data that a model really refers to."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from lipcert.core.reader import MAX_BYTES
from lipcert.importer.child import Budget
from tests.hostile.kinds import matmul

MIB = 1 << 20


def model(folder: Path, place: str) -> Path:
    path = folder / "net.onnx"
    whole = matmul(np.ones((1024, 1024), np.float32))
    onnx.save_model(whole, path, save_as_external_data=True, location=place, size_threshold=0)
    return path


@pytest.mark.parametrize("place", ["net.onnx.data", "weights.bin", "größe.bin"])
def test_external_data_counts_whatever_its_name(tmp_path: Path, place: str) -> None:
    path = model(tmp_path, place)
    size = path.stat().st_size + 4 * MIB
    assert Budget.of_path(path) == Budget.of_file(size)


def test_files_that_the_model_does_not_name_do_not_count(tmp_path: Path) -> None:
    path = model(tmp_path, "weights.bin")
    before = Budget.of_path(path)
    (tmp_path / "other.bin").write_bytes(b"\0" * (8 * MIB))
    assert Budget.of_path(path) == before


def test_what_is_no_file_gets_the_least_budget(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    assert Budget.of_path(pipe) == Budget.of_file(0)
    assert Budget.of_path(tmp_path / "absent.onnx") == Budget.of_file(0)
    assert Budget.of_path(Path("/dev/zero")) == Budget.of_file(0)


def test_no_budget_is_beyond_that_of_the_largest_file(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(4 * MAX_BYTES)
    assert Budget.of_path(path) == Budget.of_file(MAX_BYTES)


def test_budgets_grow_with_the_file():
    small, large = Budget.of_file(1000), Budget.of_file(1 << 28)
    assert small.bytes < (2 << 30) + (1 << 20)
    assert small.seconds <= 8 < large.seconds
    assert large.bytes > 16 << 28
