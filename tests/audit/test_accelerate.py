"""Recording a loop that Accelerate prepared: model, optimizer and loader are wrapped."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lipcert
from lipcert.audit.trace.reading import read_trace
from tests.audit.checks.runs import check_applied

accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.rand(120, 5, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (120,), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_prepared_loop_is_recorded(tmp_path, accumulated: int) -> None:
    """The applied gradient is that of the recorded examples at the recorded weights."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
    network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    model, optimizer, loader = accelerator.prepare(
        network,
        torch.optim.SGD(network.parameters(), 0.1, momentum=0.9),
        DataLoader(TensorDataset(X, Y), batch_size=20, shuffle=True),
    )
    with lipcert.Recorder(tmp_path / "t", model, optimizer, every=1) as recorder:
        loss_fn = recorder.wrap_loss(nn.CrossEntropyLoss())
        for x, y in recorder.wrap_loader(loader, sampler="shuffle"):
            with accelerator.accumulate(model):
                accelerator.backward(loss_fn(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
    steps = list(read_trace(tmp_path / "t").steps())
    assert len(steps) == 6 // accumulated
    assert {len(batch.index) for step in steps for batch in step.batches} == {20}
    check_applied(steps, network, X, Y)
