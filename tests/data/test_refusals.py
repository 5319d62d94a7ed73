"""Data that are wrong are refused by name, on one line, and with what to do."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from lipcert.data.opening import open_source
from lipcert.data.source import Columns
from lipcert.errors import LipCertError, UsageError
from lipcert.gradient_stats.examples import DataSet
from tests.data import written
from tests.data.written import ROWS, SHAPE, X, Y


def read(where: object, x: str | None = None, y: str | None = None) -> None:
    data = DataSet(open_source(where, Columns.of(x, y)), SHAPE)
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


def with_arrays(folder, **arrays: np.ndarray):
    np.savez(folder / "other.npz", **arrays)
    return folder / "other.npz"


def spoiled(number: float) -> np.ndarray:
    x = X.copy()
    x[3, 1, 1] = number
    return x


def of_bytes(folder, content: bytes):
    (folder / "other.npz").write_bytes(content)
    return folder / "other.npz"


def cut_short(folder):
    whole = written.npz(folder).read_bytes()
    return of_bytes(folder, whole[: len(whole) // 2])


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda f: f / "absent.npz", "absent.npz does not exist"),
        (lambda f: f, "is not an .npz file of arrays x and y; what is read: .npz files"),
        (lambda f: with_arrays(f, x=X, y=OBJECTS), "other.npz is not an .npz file of arrays"),
        (lambda f: with_arrays(f, x=X), "other.npz has no array 'y'"),
        (lambda f: with_arrays(f, y=Y), "other.npz has no array 'x'"),
        (lambda f: with_arrays(f, x=X, y=Y[:4]), "first axes must count the same examples"),
        (lambda f: with_arrays(f, x=X.reshape(ROWS, 6), y=Y), "reshape x to [examples, 2, 3]"),
        (lambda f: with_arrays(f, x=X.astype(complex), y=Y), "numbers are needed"),
        (lambda f: with_arrays(f, x=np.array(["a"] * ROWS), y=Y), "numbers are needed"),
        *(
            (lambda f, bad=bad: with_arrays(f, x=spoiled(bad), y=Y), "x: example 3 holds NaN or")
            for bad in (np.nan, np.inf, -np.inf)
        ),
        (lambda f: with_arrays(f, image=X, img=X, y=Y), "'image' and 'img': choose"),
        (lambda f: with_arrays(f, x=X[..., :2], y=Y), "holds examples of shape [2, 2], but the"),
        (cut_short, "is not an .npz file of arrays x and y"),
        *(
            (lambda f, content=content: of_bytes(f, content), "is not an .npz file of arrays")
            for content in (b"", b"PK\x03\x04 no archive", b"\x80\x04\x95pickle", b"\x93NUMPY")
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
def test_files_and_functions(tmp_path, made, words: str) -> None:
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


def test_names_that_are_not_there(tmp_path) -> None:
    path = written.npz(tmp_path)
    assert "has no array 'z'; it has 'x', 'y': name it with --data-x" in refused(path, "z")
    assert "names 2 arrays, and the model has one input" in refused(path, "x,y")
    with pytest.raises(UsageError, match="a name is empty"):
        read(path, "x,,y")


def test_data_that_changed_have_another_identity(tmp_path) -> None:
    changed = X.copy()
    changed[0] += 1.0
    files = written.npz(tmp_path), with_arrays(tmp_path, x=changed, y=Y)
    for one, other in (((X, Y), (changed, Y)), ((X, Y), (X, Y + 1)), files):
        of = [open_source(item, Columns()).identity() for item in (one, other)]
        assert of[0] != of[1]
    assert of[0].of == "the file"


def test_mapped_arrays_are_those_of_their_file(tmp_path) -> None:
    np.save(tmp_path / "x.npy", X)
    mapped = open_source((np.load(tmp_path / "x.npy", mmap_mode="r"), Y), Columns())
    assert mapped.identity() == open_source((X, Y), Columns()).identity()
    ((x, _),) = mapped.blocks()
    assert np.array_equal(x, X)


def test_half_precision_of_the_brain() -> None:
    x = torch.from_numpy(X).bfloat16()
    ((found, _),) = open_source((x, Y), Columns()).blocks()
    assert np.array_equal(found, x.double().numpy())
