"""Losses in torch: those of torch itself, of plain code per example, of the records; labels."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from lipcert.core.losses import entries, margins
from lipcert.core.losses.focal import Focal
from lipcert.core.losses.softmax import CrossEntropy
from lipcert.errors import NoVerdictError
from lipcert.gradient_stats.labels import checked_labels
from lipcert.measure.losses import per_example_loss
from tests.plain_losses import CLASS_LOSSES, TARGET_LOSSES, loss_value

RNG = np.random.default_rng(2)
EXAMPLES, CLASSES = 6, 5
LOGITS = 3.0 * RNG.standard_normal((EXAMPLES, CLASSES))
NUMBERS = np.array([0, 4, 2, 2, 1, 3])
UNIT = RNG.uniform(0.0, 1.0, (EXAMPLES, CLASSES)) / math.sqrt(CLASSES)


def values_and_gradients(loss, logits, labels):
    z = torch.tensor(logits, requires_grad=True)
    found = per_example_loss(loss, z, torch.tensor(labels))
    (gradient,) = torch.autograd.grad(found.sum(), z)
    return found.detach(), gradient


def singly(loss, logits, targets):
    """The plain definition, one example at a time."""
    found = []
    for row, target in zip(logits, targets, strict=True):
        z = torch.tensor(row, requires_grad=True)
        value = loss_value(loss, z, torch.tensor(target).reshape(-1))
        found.append((value.detach(), *torch.autograd.grad(value, z)))
    return [torch.stack(items) for items in zip(*found, strict=True)]


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("loss", CLASS_LOSSES, ids=str)
def test_class_losses(loss):
    labels = checked_labels(loss, NUMBERS, (CLASSES,))
    found = values_and_gradients(loss, LOGITS, labels)
    for mine, plain in zip(found, singly(loss, LOGITS, np.eye(CLASSES)[NUMBERS]), strict=True):
        same(mine, plain)
    one_hot = checked_labels(loss, np.eye(CLASSES)[NUMBERS], (CLASSES,))
    assert np.array_equal(one_hot, labels)
    shaped = LOGITS.reshape(EXAMPLES, 1, CLASSES, 1)
    assert torch.equal(values_and_gradients(loss, shaped, labels)[0], found[0])


@pytest.mark.parametrize("loss", TARGET_LOSSES, ids=str)
@pytest.mark.parametrize("shape", [(CLASSES,), (1, CLASSES), (CLASSES, 1, 1)])
def test_target_losses(loss, shape):
    labels = checked_labels(loss, UNIT, shape)
    assert labels.shape == (EXAMPLES, *shape)
    found = values_and_gradients(loss, LOGITS.reshape(EXAMPLES, *shape), labels)
    plain = singly(loss, LOGITS, UNIT)
    same(found[0], plain[0])
    same(found[1].reshape(EXAMPLES, CLASSES), plain[1])


def test_torchs_own_losses():
    z, y, t = torch.tensor(LOGITS), torch.tensor(NUMBERS), torch.tensor(UNIT)

    def each(function, labels, **options):
        rows = zip(z, labels, strict=True)
        return torch.stack([function(r[None], label[None], **options) for r, label in rows])

    for loss, expected in [
        (
            CrossEntropy(2.0, 0.1),
            each(lambda a, b: functional.cross_entropy(a / 2.0, b, label_smoothing=0.1), y),
        ),
        (margins.MultiMargin(1.5), each(functional.multi_margin_loss, y, margin=1.5)),
    ]:
        same(per_example_loss(loss, z, y), expected)
    for loss, expected in [
        (entries.BinaryCrossEntropy(), each(functional.binary_cross_entropy_with_logits, t)),
        (entries.SquaredError(1.0), each(functional.mse_loss, t)),
        (entries.AbsoluteError("sum"), each(functional.l1_loss, t, reduction="sum")),
        (entries.Huber(0.7), each(functional.huber_loss, t, delta=0.7)),
    ]:
        same(per_example_loss(loss, z, t), expected)
    cosine = -functional.cosine_similarity(z, t, dim=1) * t.norm(dim=1)
    same(per_example_loss(entries.Cosine(), z, t), cosine)


def test_a_single_output():
    z, s = np.array([[2.0], [-0.25], [0.1]]), np.array([1, -1, -1])
    for loss, expected in [
        (margins.MulticlassHinge(1.0), [0.0, 0.25, 0.6]),
        (margins.MulticlassHinge(1.0, "sum"), [0.0, 0.25, 0.6]),
        (margins.KantorovichRubinstein(), [-2.0, -0.25, 0.1]),
        (margins.HingeKantorovichRubinstein(10.0, 1.0), [-2.0, 2.25, 6.1]),
    ]:
        labels = checked_labels(loss, s, (1,))
        found, _ = values_and_gradients(loss, z, labels)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14)


def test_sure_predictions_have_finite_gradients():
    z = np.array([[800.0, 0.0, -800.0], [60.0, 0.0, 1.0]])
    for loss in [CrossEntropy(), Focal(0.0), Focal(0.5), Focal(2.0)]:
        for label in range(3):
            values, gradients = values_and_gradients(loss, z, np.array([label, label]))
            assert torch.isfinite(values).all()
            assert torch.isfinite(gradients).all()
    value, gradient = values_and_gradients(Focal(2.0), z[1:], np.array([1]))
    assert value.item() == pytest.approx(60.0, rel=1e-12)
    assert gradient.norm().item() == pytest.approx(math.sqrt(2.0), rel=1e-9)


def test_a_clipped_gradient():
    z = torch.tensor(LOGITS, requires_grad=True)
    y = torch.tensor([0, 1, 0, 1, 0, 1])
    losses = [per_example_loss(CrossEntropy(), z, y, clip) for clip in (None, 0.5)]
    assert torch.equal(*losses)
    g, found = (torch.autograd.grad(item.sum(), z)[0] for item in losses)
    lengths = g.norm(dim=1, keepdim=True)
    assert (lengths > 0.5).any()
    same(found, g * (0.5 / lengths).clamp(max=1.0))


def test_no_examples():
    for loss in CLASS_LOSSES:
        labels = checked_labels(loss, np.zeros((0,), np.int64), (CLASSES,))
        assert values_and_gradients(loss, LOGITS[:0], labels)[0].shape == (0,)
    for loss in TARGET_LOSSES:
        labels = checked_labels(loss, UNIT[:0], (CLASSES,))
        assert values_and_gradients(loss, LOGITS[:0], labels)[0].shape == (0,)


def test_float32_stays_float32():
    z = torch.tensor(LOGITS, dtype=torch.float32)
    for loss in TARGET_LOSSES:
        labels = torch.tensor(checked_labels(loss, UNIT, (CLASSES,)))
        assert per_example_loss(loss, z, labels).dtype is torch.float32


def test_one_label_for_each_example():
    with pytest.raises(NoVerdictError, match="5 labels for 6 examples"):
        per_example_loss(CrossEntropy(), torch.tensor(LOGITS), torch.tensor(NUMBERS[:5]))


NAN, OVER = float("nan"), 1.0 + 1e-6
REFUSED = [
    (CrossEntropy(), [0, 1, 5], (5,), r"example 2: 5 is not a class from 0 to 4 \(1 of 3"),
    (CrossEntropy(), [0, -100, 1], (5,), "example 1: -100 is not a class"),
    (CrossEntropy(), [0.0, 1.0], (5,), "class numbers are integers"),
    (CrossEntropy(), [True, False], (2,), "class numbers are integers"),
    (CrossEntropy(), ["cat"], (5,), "are not numbers"),
    (CrossEntropy(), [[0.5, 0.5], [0.0, 1.0]], (2,), r"example 0: .* is not one-hot"),
    (CrossEntropy(), [[1, 1], [0, 1]], (2,), r"example 0: .* is not one-hot"),
    (CrossEntropy(), [[0, 0], [0, 1]], (2,), r"example 0: .* is not one-hot"),
    (CrossEntropy(), [[NAN, 1.0], [0.0, 1.0]], (2,), r"example 0: .* is not one-hot"),
    (CrossEntropy(), [[0, 1, 2]], (5,), "one class number, or one one-hot row of 5"),
    (CrossEntropy(), [0], (1,), "use the loss bce"),
    (CrossEntropy(), [0], (2, 3), "which of its axes"),
    (CrossEntropy(), 3, (5,), "is not a list of labels"),
    (entries.BinaryCrossEntropy(), [0.0, 1.25], (1,), r"example 1: \[1.25\] is outside \[0, 1\]"),
    (entries.BinaryCrossEntropy(), [[0, 1]], (3,), "one target for each output"),
    (entries.BinaryCrossEntropy(), [NAN], (1,), "not finite"),
    (margins.KantorovichRubinstein(), [1.5], (1,), "outside"),
    (margins.MulticlassHinge(), [0, 1], (1,), "neither -1 nor 1"),
    (margins.HingeKantorovichRubinstein(), [0.5], (1,), "neither -1 nor 1"),
    (margins.MultiMargin(), [1], (1,), "needs several class scores"),
    (entries.SquaredError(1.0), [[0.6, 0.8], [OVER, 0.0]], (2,), "example 1: 1.000001 is the norm"),
    (entries.SquaredError(0.0), [0.0, 1e-300], (1,), "example 1"),
    (entries.SquaredError(1.0), [[1e300, 1e300]], (2,), r"example 0: 1.414\d*e\+300 is the norm"),
    (entries.Huber(label_norm=1), [2.0], (1,), "example 0"),
    (entries.AbsoluteError(), [float("inf")], (1,), "not finite"),
    (entries.Cosine(), [[OVER, 0.0]], (2,), "larger than 1"),
]


@pytest.mark.parametrize(("loss", "labels", "shape", "message"), REFUSED)
def test_refused_labels(loss, labels, shape, message):
    with pytest.raises(NoVerdictError, match=message):
        checked_labels(loss, np.array(labels), shape)


def test_the_first_bad_label_is_counted_from_the_first_example():
    with pytest.raises(NoVerdictError, match="example 102: 7 is not a class"):
        checked_labels(CrossEntropy(), np.array([0, 1, 7]), (5,), first=100)


def test_labels_on_the_limit():
    rows = RNG.standard_normal((50, 7)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.max(np.linalg.norm(rows.astype(np.float64), axis=1)) > 1.0
    checked_labels(entries.Cosine(), rows, (7,))
    with pytest.raises(NoVerdictError, match="larger than 1"):
        checked_labels(entries.Cosine(), rows.astype(np.float64), (7,))
    checked_labels(entries.SquaredError(1.0), np.eye(7), (7,))
    checked_labels(entries.Huber(1.0, None), 1e6 * rows, (7,))
    checked_labels(entries.AbsoluteError(), 1e6 * rows, (7,))


def test_shapes_and_types_that_are_taken():
    column = NUMBERS.reshape(-1, 1).astype(np.uint8)
    assert checked_labels(CrossEntropy(), column, (1, CLASSES)).tolist() == NUMBERS.tolist()
    assert checked_labels(entries.BinaryCrossEntropy(), [True, False], (1,)).tolist() == [
        [1.0],
        [0.0],
    ]
    assert checked_labels(entries.BinaryCrossEntropy(), np.array([1, 0]), ()).tolist() == [1.0, 0.0]
