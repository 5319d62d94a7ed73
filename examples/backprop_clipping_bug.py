"""A published sensitivity that was too small by the batch size, found from one recorded step.

    python examples/backprop_clipping_bug.py

Backpropagation clipping holds each layer's input to β and its cotangent to C. The loss is a mean,
but the clips act behind its division by B: an example moves the gradient by up to βC, not βC/B.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert import Settings, load_model
from lipcert.audit.bounds import claims_of_analysis
from lipcert.audit.checks import Checked, check_recorded_run
from lipcert.audit.lowering.clips import with_clipped_cotangent
from lipcert.audit.recorder import Recorder
from lipcert.audit.trace.reading import read_trace

BETA, C, B, SIGMA = 1.0, 0.01, 512, 2.0


class Network(nn.Module):
    """Two linear layers; in training each stands between the two clips."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(784, 128, bias=False), nn.Linear(128, 10, bias=False)
        for layer in (self.first, self.last):
            nn.init.normal_(layer.weight)

    def layer(self, layer: nn.Linear, x: Tensor) -> Tensor:
        if not self.training:
            return layer(x)
        short = torch.clamp(BETA / x.norm(dim=1, keepdim=True).clamp_min(1e-12), max=1.0)
        return with_clipped_cotangent(layer(short * x), C)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.last, self.layer(self.first, x).relu())


def audited(folder: Path, *, divided: bool) -> Checked:
    """One recorded step with noise for βC/B (the bug) or βC, held against what it claims."""
    torch.manual_seed(0)
    network, x, y = Network(), torch.rand(B, 784), torch.randint(10, (B,))
    path = str(folder / "model.onnx")
    torch.onnx.export(network.eval(), (x[:2],), path, dynamo=True, optimize=False, verbose=False,
                      dynamic_shapes=({0: torch.export.Dim("batch")},))  # fmt: skip
    std = SIGMA * math.sqrt(2) * BETA * C / (B if divided else 1)
    optimizer = torch.optim.SGD(network.train().parameters(), lr=0.1)
    with Recorder(folder / "trace", network, optimizer) as recorder:
        recorder.wrap_loss(functional.cross_entropy)(network(x), y).backward()
        grads = {name: weight.grad for name, weight in network.named_parameters()}
        recorder.gradients(clean=grads)
        recorder.noise(dict.fromkeys(grads, std))
        for grad in grads.values():
            grad.add_(std * torch.randn_like(grad))
        recorder.gradients(noised=grads)
        optimizer.step()
    settings = Settings(mechanism="backprop-clipping", input_clip=BETA, cotangent_clip=C,
                        noise_multiplier=SIGMA, batch_size=B if divided else None)  # fmt: skip
    claims = claims_of_analysis(load_model(path), settings)
    return check_recorded_run(claims, read_trace(folder / "trace"))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for divided in (True, False):
        print(f"sensitivity {'βC/B, as published' if divided else 'βC, as corrected'}:")
        with tempfile.TemporaryDirectory() as folder:
            for report in audited(Path(folder), divided=divided).reports:
                print(f"  {report.verdict.value:9} {report.name}: {report.message}")
