"""Every mechanism on every shipped network it supports: trained, certified, checked, audited.

    python -m benchmarks.private_runs                         the whole table, about an hour
    python -m benchmarks.private_runs digits_mlp digits_cnn   these networks
    python -m benchmarks.private_runs --only clipless         this mechanism

`digits_vit_positions` is digits_vit with its learned positions in a layer, as backpropagation
clipping asks for. Each row is one short private run of `lipcert.training` on digits at ε = 3 in a
folder of its own, and what is said of the files in it: the checker's verdict on the certificate,
the audit's verdict over every recorded step, and the ε of the ledger. docs/training.md shows what
this prints.
Leaves with 1 unless every run that was made passes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lipcert.audit.job import Job
from lipcert.audit.records import AuditReport
from lipcert.audit.run import audit
from lipcert.core.check import Choices, check
from lipcert.errors import LipCertError
from lipcert.settings.settings import Settings
from lipcert.training import (
    BackpropClipping,
    Clipless,
    FixedWeightNorm,
    GradientClipping,
    Loss,
    TrainingMechanism,
    WeightClipping,
    make_private,
)
from lipcert.training.layers import AddBias
from models.architectures import ARCHITECTURES, DigitsVit
from models.data import digit_images

__all__ = ["MECHANISMS", "NETWORKS", "DigitsVitPositions", "Outcome", "main", "outcome_of"]

BATCH: Final = 64
STEPS: Final = 6
_INSIDE: Final = 1.0 - 2.0**-20
"""of the declared norm: room for the rounding to float32"""
EPSILON: Final = 3.0
_HELD: Final = {"bias_norm": 1.0, "input_norm": 1.0, "loss": Loss("cross-entropy", temperature=0.5)}

MECHANISMS: Final[dict[str, TrainingMechanism]] = {
    "clipless": Clipless(**_HELD),
    "clipless, loss clip, global": Clipless(loss_clip=0.1, allocation="global", **_HELD),
    "weight-clipping": WeightClipping(radius=2.0, **_HELD),
    "fixed-weight-norm": FixedWeightNorm(norm="frobenius", radius=2.0, **_HELD),
    "backprop-clipping": BackpropClipping(input_clip=1.0, cotangent_clip=0.1, input_norm=1.0),
    "backprop-clipping, l2": BackpropClipping(
        input_clip=1.0, cotangent_clip=0.1, conv_clip="l2", input_norm=1.0
    ),
    "gradient-clipping": GradientClipping(clip_norm=0.5, input_norm=1.0),
    "gradient-clipping, groups": GradientClipping(
        clip_norm=0.5, clip_scope="group", allocation="per-layer", input_norm=1.0
    ),
    "gradient-clipping, decay": GradientClipping(
        clip_norm=0.5, decay="inside", weight_decay=0.1, input_norm=1.0
    ),
}


class DigitsVitPositions(DigitsVit):
    """digits_vit whose positions are a layer that the network calls."""

    def __init__(self) -> None:
        super().__init__()
        start = self.position.detach()[0]
        del self.position
        self.added = AddBias(*start.shape)
        with torch.no_grad():
            self.added.bias.copy_(start)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block2(self.block1(self.added(self.patches(x))))
        logits: Tensor = self.classifier(self.norm(x).mean(dim=1))
        return logits


NETWORKS: Final[dict[str, Callable[[], nn.Module]]] = {
    **ARCHITECTURES,
    "digits_vit_positions": DigitsVitPositions,
}


@dataclass(frozen=True)
class Outcome:
    """What became of one run; refusal: why there was none."""

    certificate: str = ""
    audit: str = ""
    epsilon: float = 0.0
    reasons: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def is_right(self) -> bool:
        """Refused with a reason, or everything passes and ε is the plan's."""
        if self.refusal:
            return True
        passes = self.certificate in {"valid", "conditional", "none"} and self.audit == "pass"
        return passes and 0.99 * EPSILON <= self.epsilon <= EPSILON


def outcome_of(name: str, mechanism: TrainingMechanism, folder: Path) -> Outcome:
    """Train, certify, check, audit."""
    torch.manual_seed(0)
    network = NETWORKS[name]()
    try:
        epsilon, settings = _trained(network, mechanism, folder)
    except LipCertError as error:
        return Outcome(refusal=str(error))
    model = folder / "model.onnx"
    certificate = folder / "model.lipcert.json"
    is_issued = certificate.exists()
    verdict = _checked(certificate, model) if is_issued else "none"
    report: AuditReport = audit(
        Job(
            str(model),
            settings,
            certificate=str(certificate) if is_issued else None,
            trace=str(folder / "trace"),
        )
    )
    return Outcome(verdict, report.verdict.value, epsilon, report.reasons)


def _trained(
    network: nn.Module, mechanism: TrainingMechanism, folder: Path
) -> tuple[float, Settings]:
    shape = network.input_shape
    if not isinstance(shape, tuple):
        raise TypeError("the network has no input shape")
    digits = digit_images(shape)
    images = digits.images.double()
    norms = images.flatten(1).norm(dim=1).reshape(-1, *[1] * len(shape))
    x = (_INSIDE * images / norms).float()
    data = TensorDataset(x[:600], digits.labels[:600])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with make_private(
        network,
        optimizer,
        DataLoader(data, batch_size=BATCH),
        mechanism,
        target_epsilon=EPSILON,
        delta=1e-5,
        steps=STEPS,
        dataset_size=len(data),
        folder=folder,
        record_every=1,
        record_data=True,
    ) as private:
        for images, labels in private.loader:
            optimizer.zero_grad()
            private.criterion(network(images), labels).backward()
            optimizer.step()
        return private.epsilon, private.settings


def _checked(certificate: Path, model: Path) -> str:
    return check(certificate.read_bytes(), model, Choices("float")).verdict.value


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 0 where every run passes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--only", action="append", choices=sorted(MECHANISMS))
    chosen = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    start, wrong = time.perf_counter(), 0
    print("| network | mechanism | certificate | audit | ε |")
    print("|---|---|---|---|---:|")
    for name in chosen.networks:
        for label in chosen.only or MECHANISMS:
            with tempfile.TemporaryDirectory() as folder:
                found = outcome_of(name, MECHANISMS[label], Path(folder))
            wrong += not found.is_right
            print(_row(name, label, found), flush=True)
            for reason in () if found.is_right else found.reasons:
                sys.stderr.write(f"    {reason}\n")
    sys.stderr.write(f"{time.perf_counter() - start:.0f} s\n")
    return 1 if wrong else 0


def _row(name: str, label: str, found: Outcome) -> str:
    if found.refusal:
        reason = " ".join(found.refusal.split()).partition(": give ")[0]
        return f"| `{name}` | {label} | refused: {reason} | | |"
    return f"| `{name}` | {label} | {found.certificate} | {found.audit} | {found.epsilon:.4f} |"


if __name__ == "__main__":
    sys.exit(main())
