"""Twin runs: what they cost over the runs themselves, and how often they blame a right one.

    python -m benchmarks.twins cost      CPU seconds of two runs, and of a twin run, side by side
    python -m benchmarks.twins alarms    right runs of all mechanisms and samplings, and of Opacus

Data and networks lie on the CPU, or on `--device cuda`.
A right run that is blamed is an error: the second command then exits with 1.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lipcert
from lipcert.audit.opacus import attach_opacus
from lipcert.audit.twins import TwinReport
from lipcert.training import (
    BackpropClipping,
    Clipless,
    FixedWeightNorm,
    GradientClipping,
    TrainingMechanism,
    WeightClipping,
    make_private,
)

Data = tuple[Tensor, Tensor]
Train = Callable[[Data], object]
MECHANISMS: Final[Mapping[str, TrainingMechanism]] = {
    "gradient-clipping": GradientClipping(clip_norm=1.0),
    "clipless": Clipless(radius=1.0, input_norm=4.0),
    "backprop-clipping": BackpropClipping(input_clip=1.0, cotangent_clip=1.0),
    "weight-clipping": WeightClipping(radius=1.0, input_norm=4.0),
    "fixed-weight-norm": FixedWeightNorm(input_norm=4.0),
}
RELATIONS: Final = {
    "poisson": "add-remove",
    "balls-in-bins": "add-remove",
    "shuffle": "zero-out",
    "without-replacement": "replace-one",
}
"""samplings, and a relation that each is accounted for"""
_RATE: Final = 0.1
_ROUNDS: Final = 5


def examples(count: int, width: int, device: str = "cpu") -> Data:
    """Of norm 4 at most, in three classes."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, width, generator=generator)
    x = 4.0 * x / x.norm(dim=1, keepdim=True).clamp(min=4.0)
    return x.to(device), torch.randint(0, 3, (count,), generator=generator).to(device)


def network(width: int, hidden: int) -> nn.Module:
    """Without biases, which not all mechanisms bound."""
    return nn.Sequential(
        nn.Linear(width, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, 3, bias=False)
    )


def by_lipcert(
    mechanism: TrainingMechanism, sampling: str, *, hidden: int, batch: int, steps: int, n: int
) -> Train:
    """A loop of `make_private`."""
    own = replace(mechanism, neighbours=RELATIONS[sampling])  # type: ignore[type-var]

    def train(data: Data) -> object:
        model = network(data[0].shape[1], hidden).to(data[0].device)
        optimizer = torch.optim.SGD(model.parameters(), lr=_RATE, momentum=0.9)
        loader = DataLoader(TensorDataset(*data), batch_size=batch)
        with make_private(
            model, optimizer, loader, own, noise_multiplier=1.0, delta=1e-5, steps=steps,
            dataset_size=n, sampling=sampling, progress=False,
        ) as private:  # fmt: skip
            for x, y in private.loader:
                private.step(x, y)
        return model

    return train


def by_opacus(*, hidden: int, batch: int, epochs: int) -> Train:
    """A recorded loop of Opacus."""

    def train(data: Data) -> object:
        from opacus import PrivacyEngine

        model = network(data[0].shape[1], hidden).to(data[0].device)
        private, optimizer, loader = PrivacyEngine().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=_RATE),
            data_loader=DataLoader(TensorDataset(*data), batch_size=batch),
            noise_multiplier=1.0, max_grad_norm=1.0,
        )  # fmt: skip
        with lipcert.Recorder(_folder(), private, optimizer, every=1000) as recorder:
            attach_opacus(recorder, optimizer, loader)
            for _ in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(private(x), y).backward()
                    optimizer.step()
        return model

    return train


def _folder() -> str:
    return f"{tempfile.mkdtemp()}/trace"


def cost(device: str) -> int:
    """Medians of the CPU seconds of two runs, and of a twin run of two runs, taken in turn."""
    small, large = (2048, 64), (2048, 256)
    words: dict[str, Any] = {"batch": 256, "steps": 40, "n": 2048}
    cases = {
        f"{name}, {hidden} hidden": (
            by_lipcert(MECHANISMS[name], "balls-in-bins", hidden=hidden, **words), data,
        )
        for name in ("gradient-clipping", "clipless")
        for hidden, data in ((64, small), (1024, large))
    } | {
        f"Opacus, {hidden} hidden": (by_opacus(hidden=hidden, batch=256, epochs=5), small)
        for hidden in (64, 256)
    }  # fmt: skip
    print(f"{'run':32} {'two runs':>9} {'twin':>9} {'ratio':>6}")
    for name, (train, shape) in cases.items():
        data = examples(*shape, device)
        pairs = []
        for _ in range(_ROUNDS):
            plain = _seconds(lambda: (train(data), train(data)))  # noqa: B023
            watched = _seconds(
                lambda: lipcert.audit.twin(train, data, count=1, far=False)  # noqa: B023
            )
            pairs.append((plain, watched))
        plain, watched = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(after / before for before, after in pairs)
        print(f"{name:32} {plain:8.2f}s {watched:8.2f}s {ratio:6.2f}", flush=True)
    return 0


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def alarms(seeds: int, device: str) -> int:
    """Right runs of every mechanism under every sampling, and of Opacus; how many are blamed."""
    data = examples(64, 6, device)
    words: dict[str, Any] = {"hidden": 8, "batch": 12, "steps": 8, "n": 64}
    loops = {
        f"{name}, {sampling}": by_lipcert(mechanism, sampling, **words)
        for name, mechanism in MECHANISMS.items()
        for sampling in RELATIONS
    } | {"Opacus": by_opacus(hidden=8, batch=12, epochs=1)}
    runs, blamed, start = 0, [], time.process_time()
    for name, train in loops.items():
        for seed in range(seeds * 4 if name == "Opacus" else seeds):
            report: TwinReport = lipcert.audit.twin(train, data, count=1, seed=seed)
            runs += 1
            if not report.passed:
                blamed.append(f"{name}, seed {seed}: {report}")
    for found in blamed:
        print(found)
    seconds = time.process_time() - start
    print(f"{len(blamed)} of {runs} right runs are blamed; {seconds:.0f} CPU seconds")
    return 1 if blamed else 0


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("cost", "alarms"))
    parser.add_argument("--seeds", type=int, default=5, help="of each loop (default 5)")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.what == "cost":
        return cost(options.device)
    return alarms(options.seeds, options.device)


if __name__ == "__main__":
    sys.exit(main())
