"""`make_loss` says what describes no loss; worst gradients are those of torch."""

import json
import math

import numpy as np
import pytest
import torch

from lipcert.core.losses import KINDS
from lipcert.core.losses.base import parameters_of
from lipcert.core.losses.entries import BinaryCrossEntropy, Cosine, SquaredError
from lipcert.core.losses.margins import NegativeLogLikelihood
from lipcert.core.losses.softmax import CrossEntropy
from lipcert.errors import UsageError
from lipcert.losses import loss_gradients, loss_record, make_loss, worst_gradients
from tests.plain_losses import loss_value


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_record_names_the_loss_and_is_plain(kind: str) -> None:
    loss = make_loss(kind, label_norm=1.0) if kind == "mse" else make_loss(kind)
    record = loss_record(loss)
    assert record["kind"] == kind == loss.kind
    assert json.loads(json.dumps(record)) == record
    assert record.keys() <= {"kind", *parameters_of(kind)}


def test_a_record_holds_every_parameter() -> None:
    stated = {"label_norm": 3.0, "output_reduction": "sum", "half": False}
    assert loss_record(make_loss("mse", **stated)) == {"kind": "mse", **stated}


def test_unknown_kind_lists_the_known_ones_and_names_the_nearest() -> None:
    message = r"'crossentropy' is not one of cross-entropy, bce.*did you mean 'cross-entropy'\?"
    with pytest.raises(UsageError, match=message):
        make_loss("crossentropy")


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


POSITIVE = (0.0, -1.0, math.nan, math.inf, 1e-320, 1e308), "not a positive number"
NOT_NEGATIVE = (-1e-9, math.nan, math.inf), "not a non-negative number"


@pytest.mark.parametrize(
    ("kind", "name", "values", "reason"),
    [
        *((kind, "temperature", *POSITIVE) for kind in ("cross-entropy", "bce")),
        ("huber", "huber_delta", *POSITIVE),
        ("cosine", "cosine_floor", *POSITIVE),
        *((kind, "label_norm", *NOT_NEGATIVE) for kind in ("mse", "huber")),
        ("focal", "focal_gamma", *NOT_NEGATIVE),
        ("multiclass-hinge", "margin", *NOT_NEGATIVE),
        ("hkr", "hkr_weight", *NOT_NEGATIVE),
        ("cross-entropy", "label_smoothing", (-0.1, 1.0, math.nan), "label-smoothing"),
        ("bce", "output_reduction", ("none",), "not one of mean, sum"),
    ],
)
def test_values_out_of_range(kind: str, name: str, values: tuple, reason: str) -> None:
    for value in values:
        with pytest.raises(UsageError, match=reason):
            make_loss(kind, **{name: value})


LOGITS = 3.0 * np.random.default_rng(0).standard_normal((4, 5))


def truth(loss, logits, label):
    z = torch.tensor(logits, requires_grad=True)
    loss_value(loss, z, torch.tensor(label)).backward()
    return z.grad.numpy()


@pytest.mark.parametrize("loss", [CrossEntropy(), CrossEntropy(0.3, 0.2), NegativeLogLikelihood()])
def test_class_labels(loss):
    found = worst_gradients(loss, LOGITS)
    assert found.shape == (5, 4, 5)
    for y in range(5):
        for i in range(4):
            assert found[y, i] == pytest.approx(truth(loss, LOGITS[i], np.eye(5)[y]))
    assert worst_gradients(loss, LOGITS.reshape(4, 1, 5))[2, 3, 0] == pytest.approx(found[2, 3])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_worst_labels(reduction):
    bce = BinaryCrossEntropy(0.5, reduction)
    square = SquaredError(2.0, reduction, half=reduction == "sum")
    for z, by_bce, by_square in zip(
        LOGITS, worst_gradients(bce, LOGITS)[0], worst_gradients(square, LOGITS)[0], strict=True
    ):
        wrong = np.where(z < 0.0, 1.0, 0.0)
        assert by_bce == pytest.approx(truth(bce, z, wrong))
        assert by_square == pytest.approx(truth(square, z, -2.0 * z / np.linalg.norm(z)))


def test_unknown():
    assert worst_gradients(Cosine(1.0), LOGITS) is None


def test_a_vocabulary() -> None:
    """Of so many classes those of all labels are not held; that of one is no larger than it is."""
    logits = np.zeros((1, 60_000))
    assert worst_gradients(CrossEntropy(), logits) is None
    found = loss_gradients(CrossEntropy(), logits, np.array([3]))
    assert found[0, [2, 3]] == pytest.approx([1 / 60_000, 1 / 60_000 - 1])


PARAMETERS = {
    "cross-entropy": {"temperature": 0.3, "label_smoothing": 0.2},
    "bce": {"temperature": 0.5, "output_reduction": "sum"},
    "mse": {"label_norm": 2.0},
    "huber": {"huber_delta": 0.4},
    "focal": {"focal_gamma": 1.5},
    "cosine": {"cosine_floor": 4.0},
    "multiclass-hinge": {"margin": 3.0, "output_reduction": "sum"},
    "multi-margin": {"margin": 2.0},
    "hkr": {"hkr_weight": 2.0, "margin": 3.0},
}


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("outputs", [1, 5])
def test_gradients_at_labels_are_those_of_autograd(kind, outputs):
    """Of every loss, with its parameters and with its defaults, at several kinds of outputs."""
    from lipcert.measure.losses import per_example_loss

    rng = np.random.default_rng(7)
    logits = rng.standard_normal((12, 1, outputs)) * 10.0 ** rng.uniform(-2, 1.5, (12, 1, 1))
    own = {"label_norm": 2.0} if kind == "mse" else {}
    for given in (own, PARAMETERS.get(kind, own)):
        loss = make_loss(kind, **given)
        if loss.of_classes and outputs > 1:
            labels = rng.integers(outputs, size=12)
        elif not loss.of_one_score:
            continue
        elif loss.of_classes:
            labels = rng.choice([-1.0, 1.0], size=(12, 1, 1))
        else:
            labels = rng.random(logits.shape) / outputs
        z = torch.tensor(logits, requires_grad=True)
        per_example_loss(loss, z, torch.tensor(labels)).sum().backward()
        found = loss_gradients(loss, logits, labels)
        assert found.shape == logits.shape
        np.testing.assert_allclose(found, z.grad.numpy(), rtol=1e-7, atol=1e-12)
