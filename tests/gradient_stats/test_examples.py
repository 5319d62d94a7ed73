"""Batches from files: what is wrong is refused with its place, and nothing is unpickled."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from lipcert.errors import NoVerdictError
from lipcert.gradient_stats.examples import Examples, open_data, random_examples
from lipcert.losses import make_loss
from tests.domains import side_by_side

X = np.zeros((5, 2, 3), dtype=np.float32)
Y = np.arange(5)


def stored(folder: Path, **arrays: np.ndarray) -> Path:
    path = folder / "batch.npz"
    np.savez(path, **arrays)
    return path


def loaded(path: Path, shape: tuple[int, ...]) -> Examples:
    return open_data(path, shape).read(0, 100)


def test_reads_what_numpy_wrote(tmp_path: Path) -> None:
    found = loaded(stored(tmp_path, x=X + 0.5, y=Y), (2, 3))
    assert len(found) == 5
    assert np.array_equal(found.x, X + 0.5)
    assert np.array_equal(found.y, Y)
    known = open_data(tmp_path / "batch.npz", (2, 3)).identity
    assert known != open_data(stored(tmp_path, x=X, y=Y), (2, 3)).identity
    assert known.of == "the file"


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": X}, "no array 'y'"),
        ({"y": Y}, "no array 'x'"),
        ({"x": X, "y": Y[:4]}, "first axes"),
        ({"x": X.reshape(5, 6), "y": Y}, "reshape x to [examples, 2, 3]"),
        ({"x": np.array(["a"] * 5), "y": Y}, "numbers are needed"),
        ({"x": X.astype(complex), "y": Y}, "numbers are needed"),
        ({"x": X, "y": np.array([{"a": 1}] * 5)}, "is not an .npz file"),
    ],
)
def test_names_what_does_not_fit(tmp_path: Path, arrays: dict, words: str) -> None:
    with pytest.raises(NoVerdictError, match=r"batch\.npz") as caught:
        loaded(stored(tmp_path, **arrays), (2, 3))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_names_the_first_example_that_is_not_finite(tmp_path: Path, bad: float) -> None:
    x = X.copy()
    x[3, 1, 1] = bad
    with pytest.raises(NoVerdictError, match="example 3 holds NaN or infinity"):
        loaded(stored(tmp_path, x=x, y=Y), (2, 3))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x80\x04\x95pickle"])
def test_refuses_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "batch.npz"
    path.write_bytes(content)
    with pytest.raises(NoVerdictError, match=r"is not an \.npz file"):
        loaded(path, (2, 3))


def test_refuses_a_single_array_and_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "batch.npz"
    with path.open("wb") as stream:
        np.save(stream, X)
    for wanted in (path, tmp_path / "absent.npz"):
        with pytest.raises(NoVerdictError, match=r"batch|absent"):
            loaded(wanted, (2, 3))


def test_several_inputs_lie_in_their_domains_and_in_that_of_all() -> None:
    inputs = [(4, 0.5, None), (6, math.inf, (0.5, 2.0))]
    for radius in (math.inf, 1.5):
        domain = side_by_side(inputs, radius)
        drawn = random_examples((1, 10), domain, make_loss("cross-entropy"), (1, 3), 50)
        x = drawn.x.reshape(50, 10)
        assert np.linalg.norm(x[:, :4], axis=1).max() <= 0.5 * (1.0 + 1e-12)
        assert x[:, 4:].min() >= 0.5
        assert x[:, 4:].max() <= 2.0
        assert np.linalg.norm(x, axis=1).max() <= radius * (1.0 + 1e-12)
