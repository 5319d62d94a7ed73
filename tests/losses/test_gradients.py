"""Gradients of losses in numpy are those of torch, and those of the worst label."""

import numpy as np
import pytest
import torch

from lipcert.losses.cross_entropy import CrossEntropy, NegativeLogLikelihood
from lipcert.losses.elementwise import BinaryCrossEntropy, Cosine, OutputReduction, SquaredError
from tests.mirror import loss_value

LOGITS = 3.0 * np.random.default_rng(0).standard_normal((4, 5))


def truth(loss, logits, label):
    z = torch.tensor(logits, requires_grad=True)
    loss_value(loss, z, torch.tensor(label)).backward()
    return z.grad.numpy()


@pytest.mark.parametrize("loss", [CrossEntropy(), CrossEntropy(0.3, 0.2), NegativeLogLikelihood()])
def test_class_labels(loss):
    found = loss.gradients(LOGITS)
    assert found.shape == (5, 4, 5)
    for y in range(5):
        for i in range(4):
            assert found[y, i] == pytest.approx(truth(loss, LOGITS[i], np.eye(5)[y]))
    assert loss.gradients(LOGITS.reshape(4, 1, 5))[2, 3, 0] == pytest.approx(found[2, 3])


@pytest.mark.parametrize("reduction", list(OutputReduction))
def test_worst_labels(reduction):
    bce = BinaryCrossEntropy(0.5, reduction)
    square = SquaredError(2.0, reduction, half=reduction is OutputReduction.SUM)
    for z, by_bce, by_square in zip(
        LOGITS, bce.gradients(LOGITS)[0], square.gradients(LOGITS)[0], strict=True
    ):
        wrong = np.where(z < 0.0, 1.0, 0.0)
        assert by_bce == pytest.approx(truth(bce, z, wrong))
        assert by_square == pytest.approx(truth(square, z, -2.0 * z / np.linalg.norm(z)))


def test_unknown():
    assert Cosine(1.0).gradients(LOGITS) is None
