"""Whether noise drowns the gradient is said before the first release, and costs nothing."""

import math
import re
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from lipcert.errors import UsageError
from lipcert.training import GradientClipping, calibration
from lipcert.training.calibration import NoiseWarning
from tests.training.runs import BATCH, CLASSES, FEATURES, STEPS, Small, clipless, data, private_run


class Short(Small):
    """Of weights well inside their constraints, so that projection leaves them alone."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(0.5 / parameter.norm())


def warned(**changes):
    """The message of the run's NoiseWarning, if any, and its noise by group."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with private_run(record_every=None, **changes) as private:
            groups = private.calibration.groups
    found = [str(item.message) for item in caught if item.category is NoiseWarning]
    assert len(found) <= 1
    return (found[0] if found else ""), groups


def gradients(x, y, temperature):
    torch.manual_seed(0)
    module = Short()
    rows = []
    for example, label in zip(x, y, strict=True):
        logits = module(example.unsqueeze(0)) / temperature
        loss = nn.functional.cross_entropy(logits, label.unsqueeze(0))
        found = torch.autograd.grad(loss, list(module.parameters()))
        rows.append(torch.cat([part.reshape(-1) for part in found]))
    return torch.stack(rows).double()


def numbers(message):
    return [float(found) for found in re.findall(r"([\d.]+(?:e\d+)?) times", message)]


def test_the_numbers_are_those_of_autograd_and_of_the_run():
    x, y = data(3).tensors
    message, groups = warned(network=Short, noise_multiplier=300.0, public=(x, y))
    sizes = {"hidden": 5 * FEATURES + 5, "head": CLASSES * 5 + CLASSES}
    energy = {group.name: sizes[group.name] * group.noise_std**2 for group in groups}
    noise = math.sqrt(sum(energy.values()) / STEPS)
    own = gradients(x, y, 4.0)
    expected = noise / float(own.mean(dim=0).norm())
    norms = own.norm(dim=1, keepdim=True)
    clipped = (own / norms.clamp(min=1.0)).mean(dim=0).norm()
    rival = 300.0 / BATCH * math.sqrt(sum(sizes.values()) / STEPS) / float(clipped)
    said = numbers(message)
    assert said[0] == pytest.approx(expected, rel=0.06)
    assert said[1] == pytest.approx(rival, rel=0.06)
    assert f"all {STEPS} releases" in message
    assert f"{len(x)} public examples" in message
    assert "ask for more examples or epochs" in message  # clipping would drown as well
    share, name = re.search(r"(\d+)% of the energy .* from the group '(\w+)'", message).groups()
    assert int(share) == pytest.approx(100 * energy[name] / sum(energy.values()), abs=1)


class Narrow(nn.Module):
    """A normalisation of large slope between linear maps: bounds far above gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.norm = nn.LayerNorm(FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.head(self.norm(self.first(x)))


def test_a_loose_bound_is_told_from_clipping_which_would_do():
    run = {"network": Narrow, "noise_multiplier": 0.5}
    message, _ = warned(**run)
    said = numbers(message)
    assert said[0] > 10.0 * said[1]
    assert f"GradientClipping(clip_norm=1.0) would have {said[1]:g} times" in message
    assert said[1] < 3.0
    assert "random admissible inputs" in message
    assert "lipcert.suggest(model, x)" in message
    clipping, _ = warned(mechanism=GradientClipping(clip_norm=1.0, input_norm=1.0), **run)
    assert not clipping


def test_nothing_is_said_of_a_run_that_can_learn():
    assert not warned(network=Short, noise_multiplier=0.05)[0]


def test_a_softmax_before_cross_entropy_is_named_once():
    class Chances(Small):
        def forward(self, x):
            return super().forward(x).softmax(-1)

    with pytest.warns(UserWarning, match="Softmax, and cross-entropy is applied") as found:
        private_run(network=Chances, record_every=None).close()
    (said,) = (item for item in found if "Softmax" in str(item.message))
    assert said.filename.endswith("runs.py")


def test_private_examples_are_not_looked_at():
    """Whatever they are, the same is said."""
    told = set()
    for seed in range(3):
        x, y = data(seed).tensors
        examples = TensorDataset(x * 0.1**seed, torch.zeros_like(y) + seed)
        told.add(warned(examples=examples, noise_multiplier=300.0)[0])
    assert len(told) == 1
    assert "" not in told


def test_public_examples_have_to_be_examples():
    x, y = data(1).tensors
    for public, words in (
        (x, r"give \(x, y\)"),
        ((x[:, :2], y), "the model reads"),
        ((x[:5], y), "first axes"),
        ((x, y + CLASSES), "is not a class"),
    ):
        with pytest.raises(UsageError, match=rf"training: public examples.*{words}"):
            private_run(public=public)


def test_no_run_fails_for_it(monkeypatch):
    def overflow(*unused):
        raise OverflowError

    x, y = data(1).tensors
    for observed in (overflow, lambda *unused: None):  # None: of a network that takes long
        monkeypatch.setattr(calibration, "observed_at_random", observed)
        assert not warned(noise_multiplier=300.0)[0]
    assert warned(noise_multiplier=300.0, public=(x, y))[0]


def test_a_run_that_is_gone_on_with_is_not_told_again(tmp_path):
    changes = {"mechanism": clipless(), "noise_multiplier": 300.0, "folder": tmp_path / "run"}
    assert warned(**changes)[0]
    assert not warned(resume=True, **changes)[0]
