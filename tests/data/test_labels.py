"""Labels of several outputs: in rows, whatever the data are kept in."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lipcert.data.opening import open_source, source_of_object
from lipcert.data.source import Columns
from lipcert.errors import NoVerdictError
from lipcert.gradient_stats.examples import DataSet

ROWS = 7
X = np.random.default_rng(0).random((ROWS, 3))
CLASSES = np.arange(ROWS) % 3
NUMBERS = np.random.default_rng(1).random((ROWS, 2))
MATRIX = np.concatenate([CLASSES[:, None], NUMBERS], axis=1)


class Pairs(Dataset[Any]):
    def __init__(self, *, named: bool = False) -> None:
        self.named = named

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        if index >= ROWS:
            raise IndexError
        label = (int(CLASSES[index]), torch.tensor(NUMBERS[index]))
        return X[index], dict(zip(("cls", "reg"), label, strict=True)) if self.named else label


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return (Pairs()[index] for index in range(ROWS))


def npz(folder):
    np.savez(folder / "data.npz", x=X, cls=CLASSES, reg=NUMBERS)
    return folder / "data.npz"


FORMS = {
    "npz": (npz, "cls,reg"),
    "data set": (lambda _: Pairs(), None),
    "data set by names": (lambda _: Pairs(named=True), "cls,reg"),
    "loader": (lambda _: DataLoader(Pairs(), batch_size=2), None),
    "loader of one": (lambda _: DataLoader(Pairs(), batch_size=1), None),
    "loader of a stream": (lambda _: DataLoader(Stream(), batch_size=2), None),
    "stream": (lambda _: Stream(), None),
    "arrays": (lambda _: (X, (CLASSES, NUMBERS)), None),
    "arrays by name": (lambda _: (X, {"reg": NUMBERS, "cls": CLASSES}), "cls,reg"),
    "a matrix": (lambda _: (X, MATRIX), None),
}


@pytest.mark.parametrize("form", FORMS)
def test_labels_of_several_outputs_are_rows(form: str, tmp_path) -> None:
    given, names = FORMS[form]
    source = open_source(given(tmp_path), Columns.of(None, names))
    found = DataSet(source, (3,)).read(0, ROWS)
    assert np.array_equal(found.x, X)
    assert np.array_equal(found.y, MATRIX)
    if source.count is not None:
        assert np.array_equal(source.take(np.array([5, 1]))[1], MATRIX[[5, 1]])


@pytest.mark.parametrize("form", ["npz", "data set by names", "arrays by name"])
def test_labels_named_after_outputs_have_their_order(form: str, tmp_path) -> None:
    outputs = Columns.of(None, None, (), ("cls", "reg"))
    (block,) = open_source(FORMS[form][0](tmp_path), outputs).blocks()
    assert np.array_equal(block[1], MATRIX)


def test_a_usual_name_of_labels_comes_before_those_of_outputs(tmp_path) -> None:
    np.savez(tmp_path / "data.npz", x=X, cls=CLASSES, reg=NUMBERS, y=2.0 * MATRIX)
    outputs = Columns.of(None, None, (), ("cls", "reg"))
    (block,) = open_source(tmp_path / "data.npz", outputs).blocks()
    assert np.array_equal(block[1], 2.0 * MATRIX)


@pytest.mark.parametrize("form", ["data set by names", "arrays by name"])
def test_an_order_is_never_guessed(form: str, tmp_path) -> None:
    source = FORMS[form][0](tmp_path)
    with pytest.raises(NoVerdictError, match="--data-y in the order"):
        next(iter(open_source(source, Columns()).blocks()))


def test_arrays_of_another_length_are_refused(tmp_path) -> None:
    np.savez(tmp_path / "data.npz", x=X, cls=CLASSES, reg=NUMBERS[:5])
    with pytest.raises(NoVerdictError, match="first axes must count the same examples"):
        open_source(tmp_path / "data.npz", Columns.of(None, "cls,reg"))
    with pytest.raises(NoVerdictError, match="no array 'regs'"):
        open_source(npz(tmp_path), Columns.of(None, "cls,regs"))


TWO = Columns(inputs=(("a", (2,)), ("b", (3,))))
PARTS = (np.ones((5, 2)), 2.0 * np.ones((5, 3)), np.arange(5), np.arange(10.0).reshape(5, 2))


@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize("whole", [True, False])
def test_inputs_and_labels_one_after_the_other(count: int, whole: bool) -> None:
    """As nested ones, of whole arrays and of examples."""
    parts = PARTS[:count]
    labels = parts[2] if count == 3 else parts[2:]
    one = [tuple(part[i] for part in parts) for i in range(5)]
    flat, nested = (parts, ((parts[0], parts[1]), labels)) if whole else (
        one, [((item[0], item[1]), item[2] if count == 3 else item[2:]) for item in one]
    )  # fmt: skip
    found, expected = (
        list(source_of_object(item, "data", TWO).blocks()) for item in (flat, nested)
    )
    for (x, y), (own, label) in zip(found, expected, strict=True):
        assert np.array_equal(x, own)
        assert np.array_equal(y, label)
