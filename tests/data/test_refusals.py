"""Data that are wrong are refused by name, on one line, and with what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import Dataset

from lipcert.data.opening import open_source
from lipcert.data.source import Columns
from lipcert.errors import LipCertError, NoVerdictError, UsageError
from lipcert.gradient_stats.examples import DataSet
from tests.data import written
from tests.data.written import ROWS, SHAPE, X, Y


def read(where: object, x: str | None = None, y: str | None = None) -> None:
    data = DataSet(open_source(where, SHAPE, Columns.of(x, y)), SHAPE)
    at = 0
    while some := len(data.read(at, at + 10)):
        at += some


def refused(where: object, x: str | None = None, y: str | None = None) -> str:
    with pytest.raises(LipCertError) as caught:
        read(where, x, y)
    text = str(caught.value)
    assert "\n" not in text
    return text


class Unpickled:
    """Notices that it is unpickled."""

    done = False

    def __setstate__(self, state: object) -> None:
        Unpickled.done = True

    def __getstate__(self) -> object:
        return {"a": 1}


OBJECTS = np.array([Unpickled()] * ROWS, dtype=object)


def npy(folder: Path, x: np.ndarray = X, y: np.ndarray = Y) -> Path:
    for number, (some, labels) in enumerate([(X, Y), (x, y)]):
        np.save(folder / f"x_{number}.npy", some)
        np.save(folder / f"y_{number}.npy", labels)
    return folder


def without(folder: Path, name: str) -> Path:
    (npy(folder) / name).unlink()
    return folder


def npz_and_other(folder: Path, **arrays: np.ndarray) -> Path:
    written.npz(folder)
    np.savez(folder / "other.npz", **arrays)
    return folder


def parquet(folder: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def cut_short(folder: Path, made: Callable[[Path], Path]) -> Path:
    path = made(folder)
    file = path if path.is_file() else max(path.iterdir(), key=lambda file: file.stat().st_size)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return path


FLAT = list(X.reshape(ROWS, 6))
NESTED = [[1.0] * 6] * 3
HALF = [[1.0] * 6, [1.0] * 5]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda f: f / "absent.npz", "absent.npz does not exist"),
        (lambda f: f, "holds no examples; what is read: .npz and"),
        (lambda f: without(f, "y_1.npy"), "x_1.npy has no labels: there is no y_1.npy"),
        (lambda f: without(f, "x_1.npy"), "y_1.npy: .npy files come in pairs"),
        (lambda f: npy(f) / "x_0.npy", "is one array; give the folder"),
        (lambda f: npy(f, X[:, :1]), "x_1.npy and y_1.npy holds examples x [1, 3] of float32"),
        (lambda f: npy(f, X.astype(np.int32)), "all shards must hold examples of one shape"),
        (lambda f: npy(f, X[:9]), "first axes"),
        (lambda f: npy(f, X, OBJECTS), "y_1.npy is not an .npy file of numbers"),
        (lambda f: npz_and_other(f, x=X, y=OBJECTS), "other.npz is not an .npz file of arrays"),
        (lambda f: npz_and_other(f, x=X), "other.npz has no array 'y'"),
        (lambda f: written.parquet(written.npz(f).parent).parent, "several kinds (.npz, .parquet)"),
        (lambda f: cut_short(f, written.npz), "is not an .npz file of arrays x and y"),
        (lambda f: cut_short(f, written.npy_pairs), "x_11.npy is not an .npy file of numbers"),
        (lambda f: cut_short(f, written.parquet), "is not a Parquet file"),
        (lambda f: parquet(f, x=NESTED), "has no array 'y'; it has 'x'"),
        (lambda f: parquet(f, x=HALF, y=[1, 2]), "column 'x' holds lists of 6 and of 5 values"),
        (lambda f: parquet(f, x=[*NESTED, None], y=[1] * 4), "1 values are missing"),
        (lambda f: parquet(f, x=NESTED, y=["a"] * 3), "column 'y' is of type string"),
        (lambda f: parquet(f, image=[{"bytes": b""}], y=[1]), "images and texts are not decoded"),
        (lambda f: parquet(f, image=NESTED, img=NESTED, y=[1] * 3), "'image' and 'img': choose"),
        (lambda f: parquet(f, x=[[1.0] * 5], y=[1]), "holds examples of shape [5], but the model"),
        (
            lambda f: (npy(f) / "x_0.npy").rename(f / "a.tar").parent / "a.tar",
            "is not an .npz file of arrays x and y; what is read",
        ),
        (lambda _: "s3://bucket/a.npz?signature=secret", "s3://bucket/a.npz is a URL; what is"),
        (lambda _: "no.such.module:function", "cannot be imported: ModuleNotFoundError"),
        (lambda _: "tests.data.written:none", "has no 'none'"),
        (lambda _: "tests.data.written:X", "is not a function"),
        (lambda _: "tests.data.written:failing", "failed: KeyError: 'no such split'"),
        (lambda _: "tests.data.written:failing_on_its_way", "RuntimeError: worker died"),
        (lambda _: "tests.data.written:npz", "failed: TypeError"),
    ],
)
def test_files_and_functions(tmp_path: Path, made: Callable[[Path], object], words: str) -> None:
    assert words in refused(made(tmp_path))
    assert not Unpickled.done


class Failing(Dataset[object]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, number: int) -> object:
        if number == 13:
            raise FileNotFoundError("image_13.png")
        return X[number], Y[number]


class Image:
    """What a data set without transforms gives."""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([X[0], X[1], X[2]], "gives ndarray as an example; a pair (x, y)"),
        ([(X[0], 1, 2)], "gives 3 parts as an example"),
        ([{"image": X[0]}], "has no array 'y'; it has 'image'"),
        ([(Image(), 1)], "gives a Image, and an array, tensor or number is needed"),
        ([([1.0, [2.0]], 1)], "gives lists of several lengths"),
        ([(X[0], 1), (X[0, 0], 1)], "example 1 has x [3] and y [], the first x [2, 3]"),
        (Failing(), "failed at example 13: FileNotFoundError: image_13.png"),
        ((X, Y[:9]), "first axes"),
        ((X, OBJECTS), "numbers are needed"),
        (3, "give arrays (x, y), a torch Dataset"),
    ],
)
def test_objects(given: object, words: str) -> None:
    assert words in refused(given)


def test_names_that_are_not_there(tmp_path: Path) -> None:
    path = written.npz(tmp_path)
    assert "has no array 'z'; it has 'x', 'y': name it with --data-x" in refused(path, "z")
    assert "only columns of a table" in refused(path, "x,y")
    with pytest.raises(UsageError, match="a name is empty"):
        read(path, "x,,y")


def test_names_that_are_there(tmp_path: Path) -> None:
    rows = {f"f{i}": X.reshape(ROWS, 6)[:, i] for i in range(6)}
    path = parquet(tmp_path, id=np.arange(ROWS), **rows, price=Y)
    every = {"x": ",".join(rows), "y": "price"}
    found = open_source(path, SHAPE, Columns.of(**every))
    assert np.array_equal(np.concatenate([x for x, _ in found.blocks()]), X)
    path = parquet(tmp_path, **rows, price=Y)
    found = open_source(path, SHAPE, Columns.of("*", "price"))
    assert np.array_equal(np.concatenate([x for x, _ in found.blocks()]), X)


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = written.parquet(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # type: ignore[arg-type]
    text = refused(where)
    assert "Parquet is read by pyarrow, which is not installed" in text
    assert text.endswith('pip install "lipcert[data]"')


def test_a_shard_that_changed_while_it_was_read(tmp_path: Path) -> None:
    found = open_source(written.npz_shards(tmp_path), SHAPE, Columns())
    np.savez(tmp_path / "part-10.npz", x=X[:3], y=Y[:3])
    with pytest.raises(NoVerdictError, match=r"part-10\.npz held 23 examples, and now 3"):
        list(found.blocks())


def test_data_that_changed_have_another_identity(tmp_path: Path) -> None:
    folder = written.npy_pairs(tmp_path)
    before = open_source(folder, SHAPE, Columns()).identity()
    assert before == open_source(folder, SHAPE, Columns()).identity()
    file = folder / "x_8.npy"
    os.utime(file, ns=(1, 1))
    assert before != open_source(folder, SHAPE, Columns()).identity()
    changed = X.copy()
    changed[0] += 1.0
    for one, other in (((X, Y), (changed, Y)), ((X, Y), (X, Y + 1))):
        of = [open_source(item, SHAPE, Columns()).identity() for item in (one, other)]
        assert of[0] != of[1]


def test_half_precision_of_the_brain(tmp_path: Path) -> None:
    x = torch.from_numpy(X).bfloat16()
    ((found, _),) = open_source((x, Y), SHAPE, Columns()).blocks()
    assert np.array_equal(found, x.double().numpy())
