"""Checks of functions of the user's own: leaving one example out, and mixing of a batch."""

import numpy as np
import pytest

from lipcert.audit.checks import batch_independence, leave_one_out
from lipcert.audit.records import Verdict
from lipcert.errors import UsageError

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((16, 5))
X /= np.linalg.norm(X, axis=1, keepdims=True)
Y = np.zeros(16)


def test_a_sum_divided_by_a_constant() -> None:
    report = leave_one_out(lambda x, y: {"w": x.sum(axis=0) / 16.0}, X, Y, 1 / 16)
    assert report.verdict is Verdict.PASS
    assert report.measured == pytest.approx(1 / 16)


def test_the_sensitivity_of_a_mean_for_a_sum() -> None:
    report = leave_one_out(lambda x, y: {"w": x.sum(axis=0)}, X, Y, 1 / 16, examples=[3, 5])
    assert (report.code, report.verdict) == ("LC313", Verdict.VIOLATION)
    assert report.measured == pytest.approx(1.0)


def test_a_divisor_that_is_the_size_of_the_batch() -> None:
    """The mean of opposite gradients: 2/16 instead of 1/16 at worst."""
    x = np.concatenate([np.ones((15, 1)), -np.ones((1, 1))])
    report = leave_one_out(lambda x, y: {"w": x.mean(axis=0)}, x, Y, 1 / 16)
    assert report.verdict is Verdict.VIOLATION
    assert report.where == "example 15"


def test_tensors_count_together_and_nan_is_never_within() -> None:
    def two(x, y):
        return {"a": x.sum(axis=0), "b": x.sum(axis=0)}

    assert leave_one_out(two, X, Y, 1.2).verdict is Verdict.VIOLATION
    assert leave_one_out(two, X, Y, 1.42).verdict is Verdict.PASS
    nan = leave_one_out(lambda x, y: {"a": x.sum(axis=0) * np.nan}, X, Y, 1.0)
    assert nan.verdict is Verdict.VIOLATION


def test_no_examples_is_an_error() -> None:
    with pytest.raises(UsageError):
        leave_one_out(lambda x, y: {"a": x.sum(axis=0)}, X, Y, 1.0, examples=[])


def test_rows_by_themselves() -> None:
    weight = RANDOM.standard_normal((5, 3)).astype(np.float32)
    x = X.astype(np.float32)
    assert batch_independence(lambda x: np.tanh(x @ weight), x).verdict is Verdict.PASS


def test_a_batch_mean() -> None:
    report = batch_independence(lambda x: x - x.mean(axis=0), X)
    assert (report.code, report.verdict) == ("LC316", Verdict.VIOLATION)


def test_only_one_row_that_reads_its_neighbour() -> None:
    def leaky(x):
        out = x.copy()
        out[7] += 1e-9 * x[6]
        return out

    report = batch_independence(leaky, X)
    assert report.verdict is Verdict.VIOLATION
    assert report.where == "example 7"


def test_dropout_is_told_apart() -> None:
    random = np.random.default_rng(0)
    report = batch_independence(lambda x: x * (random.random(x.shape) < 0.5), X)
    assert report.verdict is Verdict.INCONCLUSIVE


def test_nan_rows_count_as_equal() -> None:
    assert batch_independence(lambda x: x * np.nan, X).verdict is Verdict.PASS
