"""Sums of losses in audits: their values and gradients, their labels, and attacks on them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from lipcert.analysis.certificate import certify
from lipcert.audit.bounds import Claims, claims_of_analysis, settings_of
from lipcert.core.certificate import read_certificate
from lipcert.errors import NoVerdictError
from lipcert.gradient_stats.examples import checked_labels
from lipcert.importer.load import load_model
from lipcert.losses import loss_gradients, worst_gradients
from lipcert.measure.losses import per_example_loss
from lipcert.settings.settings import Settings
from tests.audit.test_attack import replayed
from tests.heads import two_heads

SETTINGS = Settings(
    loss="cls=cross-entropy(temperature=0.5),reg=mse", label_norm=1.0, loss_weight={"reg": 0.25},
    input_norm=1.0,
)  # fmt: skip


@pytest.fixture(scope="module", params=[True, False], ids=["relu", "linear"])
def claims(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Claims:
    path = two_heads(tmp_path_factory.mktemp("heads") / "two.onnx", relu=request.param)
    return claims_of_analysis(load_model(path, output=SETTINGS.outputs), SETTINGS)


def test_losses_and_gradients_are_those_of_torch(claims: Claims) -> None:
    loss, random = claims.engine.loss, np.random.default_rng(0)
    z = random.standard_normal((6, 8))
    y = np.concatenate([random.integers(4, size=(6, 1)), 0.2 * random.random((6, 4))], axis=1)
    labels = checked_labels(loss, y, (8,))
    logits = torch.tensor(z, requires_grad=True)
    torch_loss = functional.cross_entropy(
        2.0 * logits[:, :4], torch.tensor(y[:, 0]).long(), reduction="none"
    ) + 0.25 * (logits[:, 4:] - torch.tensor(y[:, 1:])).square().mean(dim=1)
    found = per_example_loss(loss, logits, torch.from_numpy(labels))
    assert torch.allclose(found, torch_loss)
    (gradient,) = torch.autograd.grad(torch_loss.sum(), logits)
    assert np.allclose(loss_gradients(loss, z, labels), gradient.numpy())
    worst = worst_gradients(loss, z)
    assert worst is not None
    longest = np.linalg.norm(worst, axis=2).max(axis=0)
    assert (longest >= np.linalg.norm(gradient.numpy(), axis=1)).all()


def test_an_attack_comes_close_to_the_bounds(claims: Claims) -> None:
    """Of a linear network they are attained; nothing exceeds them."""
    is_linear = len(claims.groups) == 2
    assert min(replayed(claims, 40).values()) >= (0.97 if is_linear else 0.5)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([4.0, 0.0, 0.0, 0.0, 0.0], "output 'cls'.*not a class from 0 to 3"),
        ([0.5, 0.0, 0.0, 0.0, 0.0], "output 'cls'.*not a whole number"),
        ([0.0, 1.0, 1.0, 0.0, 0.0], "output 'reg'.*larger than the stated --label-norm"),
        ([0.0, 0.0], r"5 numbers are needed.*\(cls: 1, reg: 4\)"),
        ([0.0, np.nan, 0.0, 0.0, 0.0], "output 'reg'.*not finite"),
    ],
)
def test_labels_of_every_output_are_checked(claims: Claims, row: list[float], why: str) -> None:
    with pytest.raises(NoVerdictError, match=why):
        checked_labels(claims.engine.loss, np.array([row]), (8,))


def test_a_certificate_says_the_settings_again(tmp_path: Path) -> None:
    path = two_heads(tmp_path / "two.onnx")
    certificate = read_certificate(
        certify(load_model(path, output=SETTINGS.outputs), SETTINGS).data
    )
    again = settings_of(certificate, path)
    model = load_model(path, output=again.outputs)
    assert (
        claims_of_analysis(model, again).engine.loss
        == claims_of_analysis(model, SETTINGS).engine.loss
    )
