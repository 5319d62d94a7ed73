"""A published sensitivity that was too small by the batch size, found from one recorded step.

    python examples/backprop_clipping_bug.py

Backpropagation clipping holds each layer's input to β and its cotangent to C. The loss is a mean,
but the clips act behind its division by B: an example moves the gradient by up to βC, not βC/B.
"""

import math
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert import Settings, export, load_model
from lipcert.audit.bounds import claims_of_analysis
from lipcert.audit.checks import Checked, check_recorded_run
from lipcert.audit.recorder import Recorder
from lipcert.audit.trace.reading import read_trace
from lipcert.measure.lowering.functions import with_clipped_cotangent

BETA, C, B, SIGMA = 1.0, 0.01, 512, 2.0


class Layer(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)  # what is exported: the analysis adds the clips itself
        short = torch.clamp(BETA / x.norm(dim=1, keepdim=True).clamp_min(1e-12), max=1.0)
        return with_clipped_cotangent(super().forward(short * x), C)


def exported(path: Path) -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(Layer(784, 128, bias=False), nn.ReLU(), Layer(128, 10, bias=False))
    network[0].weight.data.mul_(30.0)  # far from the start of training: some are very wrong
    network[2].weight.data.mul_(30.0)
    export(network, torch.rand(2, 784), path)
    return network


def audited(network: nn.Module, path: Path, trace: Path, *, divided: bool) -> Checked:
    """Record one step with noise for βC/B (the bug) or βC; hold it against what it claims."""
    x, y = torch.rand(B, 784), torch.randint(10, (B,))
    std = SIGMA * math.sqrt(2) * BETA * C / (B if divided else 1)
    network.zero_grad()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    with Recorder(trace, network, optimizer, store_data=True) as recorder:
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
    claims = claims_of_analysis(load_model(str(path)), settings)
    return check_recorded_run(claims, read_trace(trace))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model.onnx")
        trained = exported(model)
        for claim, divided in (("βC/B, as published", True), ("βC, as corrected", False)):
            print(f"sensitivity {claim}:")
            trace = Path(folder, "bug" if divided else "right")
            for report in audited(trained, model, trace, divided=divided).reports:
                print(f"  {report.verdict.value:9} {report.name}: {report.message}")
