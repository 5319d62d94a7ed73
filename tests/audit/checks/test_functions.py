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


OPPOSITE = np.concatenate([np.ones((15, 1)), -np.ones((1, 1))])
NAN = {"w": np.full(5, np.nan)}
SUMS = {
    "a sum divided by a constant": (lambda x, y: {"w": x.sum(axis=0) / 16}, X, 1 / 16, 1 / 16, ""),
    "the sensitivity of a mean": (lambda x, y: {"w": x.sum(axis=0)}, X, 1 / 16, 1.0, "example"),
    "a mean over the batch": (lambda x, y: {"w": x.mean(axis=0)}, OPPOSITE, 1 / 16, 2 / 16, "15"),
    "two tensors": (lambda x, y: dict.fromkeys("ab", x.sum(axis=0)), X, 1.42, 2**0.5, ""),
    "two tensors together": (lambda x, y: dict.fromkeys("ab", x.sum(axis=0)), X, 1.2, 2**0.5, "e"),
    "no number": (lambda x, y: NAN, X, 1.0, np.inf, "example"),
}
"""a function of the examples, them, its claim, what one example moves it by; what shows more"""


@pytest.mark.parametrize("name", SUMS)
def test_leaving_one_example_out(name: str) -> None:
    """Divided by its size, a mean of opposite gradients moves by 2/16; NaN is never within."""
    function, x, claim, moved, where = SUMS[name]
    report = leave_one_out(function, x, Y, claim)
    verdict = Verdict.VIOLATION if where else Verdict.PASS
    assert (report.code, report.verdict) == ("LC313", verdict)
    assert report.measured == pytest.approx(moved)
    assert where in report.where


def test_some_examples_are_left_out_or_at_least_one() -> None:
    def total(x, y):
        return {"w": x.sum(axis=0)}

    few = leave_one_out(total, X, Y, 1 / 16, examples=[3, 5])
    assert few.measured == pytest.approx(1.0)
    assert few.where in {"example 3", "example 5"}
    with pytest.raises(UsageError):
        leave_one_out(total, X, Y, 1.0, examples=[])


WEIGHT = RANDOM.standard_normal((5, 3))
SEVENTH = np.eye(16)[7][:, None]
ROWS = {
    "rows by themselves": (lambda x: np.tanh(x.astype("f4") @ WEIGHT.astype("f4")), Verdict.PASS),
    "NaN": (lambda x: x * np.nan, Verdict.PASS),
    "less the mean": (lambda x: x - x.mean(axis=0), Verdict.VIOLATION),
    "one reads its neighbour": (
        lambda x: x + 1e-9 * np.roll(x, 1, axis=0) * SEVENTH[: len(x)],
        Verdict.VIOLATION,
    ),
    "dropout": (lambda x: x * (RANDOM.random(x.shape) < 0.5), Verdict.INCONCLUSIVE),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_a_batch(name: str) -> None:
    function, verdict = ROWS[name]
    report = batch_independence(function, X)
    assert (report.code, report.verdict) == ("LC316", verdict)
    assert name != "one reads its neighbour" or report.where == "example 7"
