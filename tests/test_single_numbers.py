"""Examples that are single numbers, [N]: every verb answers, or refuses with a documented code."""

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lipcert.training import BackpropClipping, Clipless, GradientClipping, Loss, make_private
from tests.commands import lipcert
from tests.single_numbers import random_file
from tests.test_network_attacks import found_above, random_bounds

NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
"""a smaller seed is no smaller file"""


def runs(folder, *words: str, allowed: tuple[int, ...]) -> int:
    """The exit code, which is no internal error, and is explained where it is not 0."""
    result = lipcert(words, folder)
    assert result.exit_code in allowed, (words, result.exit_code, result.output[-800:])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "LC901" not in result.output
    return result.exit_code


@settings(max_examples=3, phases=NO_SHRINKING)
@given(seed=st.integers(0, 10**6))
def test_bounds_withstand_an_attack(tmp_path_factory, seed: int) -> None:
    proto, folder = random_file(seed), tmp_path_factory.getbasetemp()
    for constrained in (False, True):
        found = random_bounds(proto, seed, folder, constrained=constrained)
        assert found is None or not found_above(proto, found, seed)


class Scorer(nn.Module):
    """A single logit, as most people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.score = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[examples]."""
        return self.score(torch.relu(self.hidden(x))).squeeze(-1)


BCE, MSE = Loss("bce"), Loss("mse", label_norm=1.0)
MECHANISMS = {
    "clipless": Clipless(radius=1.0, bias_norm=1.0, loss=MSE, loss_clip=0.5, input_norm=1.0),
    "gradient clipping": GradientClipping(clip_norm=1.0, loss=BCE, input_norm=1.0),
    "backprop clipping": BackpropClipping(
        input_clip=1.0, cotangent_clip=0.1, loss=BCE, input_norm=1.0
    ),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_single_logit_is_trained_privately_and_audited(name: str, tmp_path) -> None:
    torch.manual_seed(0)
    model, folder = Scorer(), tmp_path / "run"
    x = nn.functional.normalize(torch.randn(24, 4))
    data = DataLoader(TensorDataset(x, (torch.rand(24) > 0.5).float()), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_private(
        model, optimizer, data, MECHANISMS[name],
        noise_multiplier=1.0, delta=1e-3, epochs=1, folder=folder, record_every=1,
        record_data=True,
    ) as private:  # fmt: skip
        for inputs, labels in private.loader:
            optimizer.zero_grad()
            private.criterion(model(inputs), labels).backward()
            optimizer.step()
    runs(folder, "check", "model.lipcert.json", "--model", "model.onnx", allowed=(3,))
    trace = ["--model", "model.onnx", "--trace", "trace", "--report", "json=audit.json"]
    runs(folder, "audit", "model.lipcert.json", *trace, allowed=(0,))
    runs(folder, "report", "audit.json", "-o", "audit.html", allowed=(0,))
