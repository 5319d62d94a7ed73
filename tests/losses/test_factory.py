"""`make_loss` accepts what describes a loss and says what is wrong with everything else."""

from __future__ import annotations

import json
import math

import pytest

from lipcert.errors import UsageError
from lipcert.losses import LOSS_PARAMETERS, make_loss


@pytest.mark.parametrize("kind", sorted(LOSS_PARAMETERS))
def test_record_names_the_loss_and_is_plain(kind: str) -> None:
    loss = make_loss(kind, label_norm=1.0) if kind == "mse" else make_loss(kind)
    record = loss.record()
    assert record["kind"] == kind == loss.kind
    assert json.loads(json.dumps(record)) == record
    assert {name.replace("_", "-") for name in record} <= LOSS_PARAMETERS[kind] | {"kind"}


def test_records_hold_every_parameter() -> None:
    assert make_loss("cross-entropy", temperature=2.0).record() == {
        "kind": "cross-entropy",
        "temperature": 2.0,
        "label_smoothing": 0.0,
    }
    assert make_loss("mse", label_norm=3.0, half=True, output_reduction="sum").record() == {
        "kind": "mse",
        "label_norm": 3.0,
        "output_reduction": "sum",
        "half": True,
    }


def test_unknown_kind_lists_the_known_ones_and_names_the_nearest() -> None:
    message = r"'crossentropy' is not one of cross-entropy, bce.*did you mean 'cross-entropy'\?"
    with pytest.raises(UsageError, match=message):
        make_loss("crossentropy")


@pytest.mark.parametrize("kind", ["kr-batch", "hkr-batch"])
def test_batch_weighted_losses_are_refused_with_the_reason(kind: str) -> None:
    with pytest.raises(UsageError, match=r"class counts of its batch.*use h?kr, which"):
        make_loss(kind)


def test_label_norm_is_needed_for_mse() -> None:
    with pytest.raises(UsageError, match="label-norm"):
        make_loss("mse")


def test_irrelevant_parameters_are_errors() -> None:
    with pytest.raises(UsageError, match="margin: the loss cross-entropy takes label-smoothing"):
        make_loss("cross-entropy", margin=1.0)
    with pytest.raises(UsageError, match="temperature: the loss kr has no parameter"):
        make_loss("kr", temperature=1.0)
    with pytest.raises(UsageError, match="output-reduction"):
        make_loss("hkr", output_reduction="sum")
    with pytest.raises(UsageError, match="half"):
        make_loss("mae", half=True)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e-320, 1e308])
def test_positive_parameters(value: float) -> None:
    for build in (
        lambda: make_loss("cross-entropy", temperature=value),
        lambda: make_loss("bce", temperature=value),
        lambda: make_loss("huber", huber_delta=value),
        lambda: make_loss("cosine", cosine_floor=value),
    ):
        with pytest.raises(UsageError, match="not a positive number"):
            build()


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_nonnegative_parameters(value: float) -> None:
    for build in (
        lambda: make_loss("mse", label_norm=value),
        lambda: make_loss("huber", label_norm=value),
        lambda: make_loss("focal", focal_gamma=value),
        lambda: make_loss("multiclass-hinge", margin=value),
        lambda: make_loss("hkr", hkr_weight=value),
    ):
        with pytest.raises(UsageError, match="not a non-negative number"):
            build()


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan])
def test_label_smoothing_range(value: float) -> None:
    with pytest.raises(UsageError, match="label-smoothing"):
        make_loss("cross-entropy", label_smoothing=value)


def test_reduction_words() -> None:
    with pytest.raises(UsageError, match="not one of mean, sum"):
        make_loss("bce", output_reduction="none")  # type: ignore[arg-type]
