"""What private training costs.

    python -m benchmarks.private_training [NETWORK …]    steps, about ten minutes on one core
    python -m benchmarks.private_training --slack        how often weight clipping bounds anew

For each network and batch size: how many times longer than a plain step of SGD a step takes under
each mechanism of this package, and under Opacus, which is skipped where it is absent. A step is
zero_grad, forward pass, cross-entropy, backward pass, and the optimizer's step, on one batch that
is in memory: the loader is left out on both sides. Everything runs in one process on one CPU
thread, the competitors taking turns; what counts is the median over the rounds of the ratio within
a round, of the processor's time and of the clock's. `--device cuda` runs the same on a GPU, where
the processor waits for the device at the end of each measurement. Opacus needs no torchvision:

    pip install --no-deps opacus opt_einsum
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from lipcert.training import (
    BackpropClipping,
    Clipless,
    FixedWeightNorm,
    GradientClipping,
    Loss,
    Private,
    TrainingMechanism,
    WeightClipping,
    enforcement,
    make_private,
)
from lipcert.training.calibration import Calibration, recalibrated
from lipcert.training.layers import MaxMin, ScaledL2NormPool2d
from models.data import digit_images

__all__ = ["main"]

CLASSES: Final = 10
RATE: Final = 0.05
CLIP: Final = 1.0
SIGMA: Final = 1.0
MEASURED_SECONDS: Final = 0.03
"""a competitor's turn takes at least as long"""
PLAIN: Final = "plain SGD"
SIZES: Final = (256, 1024)
STEPS: Final = 300
SLACKS: Final = (0.0, 0.01, 0.03, 0.05, 0.1)
Step = Callable[[Tensor, Tensor], None]


@dataclass(frozen=True)
class Network:
    """How to build it, and the shape of an example."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


def mlp(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def digits_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(32, CLASSES)),
    )


def digits_lipschitz_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 2, stride=2, bias=False), MaxMin()),
        *(nn.Conv2d(16, 16, 1, bias=False), MaxMin()),
        *(nn.Conv2d(16, 64, 2, stride=2, bias=False), MaxMin()),
        *(ScaledL2NormPool2d(2), nn.Flatten(), nn.Linear(64, CLASSES, bias=False)),
    )


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, CLASSES))


NETWORKS: Final = {
    "mlp 64-32-10": Network(lambda: mlp(64, 32, CLASSES), (64,)),
    "mlp 64-128-64-10": Network(lambda: mlp(64, 128, 64, CLASSES), (64,)),
    "mlp 784-512-256-10": Network(lambda: mlp(784, 512, 256, CLASSES), (784,)),
    "digits_cnn": Network(digits_cnn, (1, 8, 8)),
    "digits_lipschitz_cnn": Network(digits_lipschitz_cnn, (1, 8, 8)),
    "vgg 32×32": Network(vgg, (3, 32, 32)),
}
LOSS: Final = Loss("cross-entropy")
HELD: Final[dict[str, Any]] = {"loss": LOSS, "input_norm": 1.0, "bias_norm": 1.0}
FREE: Final[dict[str, Any]] = {"loss": LOSS, "input_norm": 1.0}


@dataclass(frozen=True)
class Way:
    """One of this package. in_folder: with a ledger on the disk; traced: and a trace."""

    mechanism: TrainingMechanism
    in_folder: bool = False
    traced: bool = False


WAYS: Final = {
    "clipless": Way(Clipless(**HELD)),
    "clipless, folder": Way(Clipless(**HELD), in_folder=True),
    "clipless, folder, trace": Way(Clipless(**HELD), in_folder=True, traced=True),
    "weight-clipping": Way(WeightClipping(**HELD)),
    "weight-clipping, folder": Way(WeightClipping(**HELD), in_folder=True),
    "fixed-weight-norm": Way(FixedWeightNorm(**HELD)),
    "backprop-clipping": Way(BackpropClipping(**FREE)),
    "gradient-clipping, flat": Way(GradientClipping(clip_norm=CLIP, **FREE)),
    "gradient-clipping, group": Way(GradientClipping(clip_norm=CLIP, clip_scope="group", **FREE)),
}
OPACUS: Final = {"Opacus, hooks": ("hooks", "flat"), "Opacus, ghost": ("ghost", "flat"),
                 "Opacus, hooks, per layer": ("hooks", "per_layer")}  # fmt: skip


def model_of(network: Network, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return network.build().to(device)


def data_of(network: Network, examples: int) -> tuple[Tensor, Tensor]:
    """Examples well within the unit ball."""
    torch.manual_seed(1)
    x = torch.randn(examples, *network.shape)
    lengths = x.flatten(1).norm(dim=1).reshape(-1, *[1] * len(network.shape))
    return 0.999 * x / lengths, torch.randint(CLASSES, (examples,))


def plain_step(network: Network, device: torch.device) -> Step:
    model = model_of(network, device)
    optimizer = SGD(model.parameters(), lr=RATE)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def private_of(
    network: Network, way: Way, examples: int, folder: Path, device: torch.device
) -> Private:
    model = model_of(network, device)
    return make_private(
        model,
        SGD(model.parameters(), lr=RATE),
        DataLoader(TensorDataset(*data_of(network, 4 * examples)), batch_size=examples),
        way.mechanism,
        delta=1e-5,
        noise_multiplier=SIGMA,
        steps=100_000,
        dataset_size=4 * examples,
        folder=folder / "run" if way.in_folder else None,
        record_every=200 if way.traced else None,
    )


def private_step(private: Private) -> Step:
    """As in the loop of the documentation; a batch is announced as the loader does it."""
    model, optimizer = private.model, private.optimizer
    drawn = torch.arange(max(SIZES)).numpy()

    def step(x: Tensor, y: Tensor) -> None:
        private.release.hooks.drawn(drawn[: len(x)])
        optimizer.zero_grad()
        private.criterion(model(x), y).backward()
        optimizer.step()

    return step


def opacus_step(
    network: Network, mode: str, clipping: str, examples: int, device: torch.device
) -> Step | None:
    try:
        from opacus import PrivacyEngine  # type: ignore[import-untyped]
    except ImportError:
        sys.stderr.write("Opacus is not installed, so nothing is compared with it\n")
        return None
    model = model_of(network, device)
    clips: Any = CLIP
    if clipping == "per_layer":
        count = len(list(model.parameters()))
        clips = [CLIP / count**0.5] * count
    parts = PrivacyEngine().make_private(
        module=model,
        optimizer=SGD(model.parameters(), lr=RATE),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(*data_of(network, examples)), batch_size=examples),
        noise_multiplier=SIGMA,
        max_grad_norm=clips,
        clipping=clipping,
        grad_sample_mode=mode,
        poisson_sampling=False,
    )
    wrapped, optimizer = parts[0], parts[1]
    criterion = parts[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        criterion(wrapped(x), y).backward()
        optimizer.step()

    return step


@dataclass(frozen=True)
class Taken:
    """Seconds of a step: of the processor, and by the clock."""

    work: float
    wall: float


def taken(step: Step, x: Tensor, y: Tensor, repeats: int) -> Taken:
    work, wall = time.process_time(), time.perf_counter()
    for _ in range(repeats):
        step(x, y)
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
    return Taken((time.process_time() - work) / repeats, (time.perf_counter() - wall) / repeats)


def measured(steps: dict[str, Step], x: Tensor, y: Tensor, rounds: int) -> dict[str, list[Taken]]:
    """The competitors take turns."""
    repeats: dict[str, int] = {}
    for name, step in steps.items():
        taken(step, x, y, 3)
        repeats[name] = max(1, round(MEASURED_SECONDS / taken(step, x, y, 3).work))
    found: dict[str, list[Taken]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            found[name].append(taken(step, x, y, repeats[name]))
    return found


def steps_of(
    network: Network, chosen: list[str], folder: Path, stack: ExitStack, device: torch.device
) -> dict[str, Step]:
    steps: dict[str, Step] = {PLAIN: plain_step(network, device)}
    for name, way in WAYS.items():
        if name in chosen:
            private = private_of(network, way, 1024, folder / name.replace(" ", ""), device)
            steps[name] = private_step(stack.enter_context(private))
    for name, (mode, clipping) in OPACUS.items():
        if name not in chosen:
            continue
        peer = opacus_step(network, mode, clipping, 1024, device)
        if peer is not None:
            steps[name] = peer
    return steps


def line(*cells: str) -> None:
    """A row of a table."""
    sys.stdout.write(f"| {' | '.join(cells)} |\n")
    sys.stdout.flush()


def median(values: list[float]) -> float:
    return statistics.median(values)


def benchmark(
    name: str, batches: list[int], chosen: list[str], rounds: int, device: torch.device
) -> None:
    network = NETWORKS[name]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        steps = steps_of(network, chosen, Path(folder), stack, device)
        for batch in batches:
            x, y = (item.to(device) for item in data_of(network, batch))
            found = measured(steps, x, y, rounds)
            plain = found[PLAIN]
            line(f"{name}, batch {batch}", "ms", "ratio", "ratio by the clock")
            line("---", "---:", "---:", "---:")
            for kind, mine in found.items():
                work = median([a.work / b.work for a, b in zip(mine, plain, strict=True)])
                wall = median([a.wall / b.wall for a, b in zip(mine, plain, strict=True)])
                ms = median([item.work for item in mine]) * 1e3
                line(kind, f"{ms:.2f}", f"{work:.2f}", f"{wall:.2f}")
            sys.stdout.write("\n")


@dataclass
class SlackRun:
    """How many times bounds were made, and the seconds for that; seconds of all steps; for each
    step the bound of the gradient of one example, all groups together."""

    made: int = 0
    making: float = 0.0
    whole: float = 0.0
    bounds: list[float] = field(default_factory=list)


def slack_run(slack: float) -> SlackRun:
    """Weight clipping on the digits of scikit-learn."""
    found = SlackRun()

    def timed(before: Calibration, radii: Mapping[str, float]) -> Calibration:
        start = time.process_time()
        calibration = recalibrated(before, radii)
        found.made += 1
        found.making += time.process_time() - start
        return calibration

    digits = digit_images((64,))
    x = digits.images / digits.images.norm(dim=1, keepdim=True).clamp(min=1.0)
    loader = DataLoader(TensorDataset(x, digits.labels), batch_size=256)
    model = model_of(NETWORKS["mlp 64-128-64-10"], torch.device("cpu"))
    private = make_private(
        model,
        SGD(model.parameters(), lr=0.02, momentum=0.9),
        loader,
        WeightClipping(slack=slack, **HELD),
        delta=1e-5,
        target_epsilon=3.0,
        steps=STEPS,
        dataset_size=len(loader.dataset),
        seed=0,
    )
    with private, patch.object(enforcement, "recalibrated", timed):
        start = time.process_time()
        for images, labels in private.loader:
            groups = private.release.enforcement.present().groups
            found.bounds.append(math.hypot(*(group.grad_norm for group in groups)))
            private.step(images, labels)
        found.whole = time.process_time() - start
    return found


def slack_table() -> None:
    """What slack saves, and what it costs in noise."""
    line("slack", f"bounds made in {STEPS} steps", "share of the time", "noise")
    line("---:", "---:", "---:", "---:")
    runs = {slack: slack_run(slack) for slack in SLACKS}
    least = statistics.mean(runs[0.0].bounds)
    for slack, run in runs.items():
        noise = statistics.mean(run.bounds) / least
        line(f"{slack:g}", f"{run.made}", f"{run.making / run.whole:.0%}", f"{noise:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", default=[], help=f"of: {', '.join(NETWORKS)}")
    parser.add_argument("--batch", type=int, nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="*", default=[*WAYS, *OPACUS])
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--slack", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("opacus").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if arguments.slack:
            slack_table()
            return
        for name in arguments.networks or NETWORKS:
            benchmark(name, arguments.batch, arguments.only, arguments.rounds, arguments.device)


if __name__ == "__main__":
    main()
