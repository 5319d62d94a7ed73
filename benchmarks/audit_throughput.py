"""What per-example gradient norms cost: `python benchmarks/audit_throughput.py [NETWORK ...]`.

For each network: the time of a plain forward and backward pass of torch, and how many times longer
the norms of every parameter of every example take: by this package, with and without the norms of
all values, and by Opacus, which is skipped where it is absent. A plain pass is also timed with the
channels of each pixel together in memory, and on the lowered graph. Opacus needs no torchvision:

    pip install --no-deps opacus opt_einsum

Everything runs in one process, the competitors taking turns, on one CPU thread; medians count.
Peak memory is measured in a process of its own for each. `--device cuda` runs the same in float32,
TF32 and bfloat16.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert import load_model
from lipcert.audit.replay import plain_step as plain_step_of
from lipcert.errors import NoVerdictError
from lipcert.measure.arithmetic import Arithmetic
from lipcert.measure.gradient_norms import NormEngine
from lipcert.measure.lowering import LoweredNetwork
from lipcert.measure.precision import Precision

CLASSES = 10
ROUNDS = 5
Step = Callable[[], dict[str, np.ndarray] | None]
PLAIN, PIXELS, LOWERED = "plain", "plain, by pixels", "plain, lowered"
OURS, ONLY_PARAMETERS = "norms and values", "norms only"
HOOKS, GHOST = "Opacus hooks", "Opacus ghost"


class Block(nn.Module):
    """Two 3×3 convolutions with GroupNorm, and a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(8, after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(8, after)
        self.between, self.last = nn.ReLU(), nn.ReLU()
        self.shortcut = (
            nn.Identity()
            if before == after and stride == 1
            else nn.Conv2d(before, after, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.between(self.first_norm(self.first(x)))
        return self.last(self.second_norm(self.second(inner)) + self.shortcut(x))


def resnet(width: int, depths: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.GroupNorm(8, width),
        nn.ReLU(),
    ]
    before = width
    for stage, depth in enumerate(depths):
        after = width * 2**stage
        for block in range(depth):
            layers.append(Block(before, after, 2 if stage > 0 and block == 0 else 1))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


def mlp() -> nn.Module:
    hidden = [layer for _ in range(2) for layer in (nn.Linear(512, 512), nn.ReLU())]
    first = [nn.Flatten(), nn.Linear(784, 512), nn.ReLU()]
    return nn.Sequential(*first, *hidden, nn.Linear(512, CLASSES))


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((1, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, 1, 1), nn.ReLU()]
        layers += [nn.Conv2d(after, after, 3, 1, 1), nn.ReLU(), nn.AvgPool2d(2)]
    layers += [nn.Conv2d(64, 128, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, CLASSES))


def small_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, 3), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, CLASSES)),
    )


@dataclass(frozen=True)
class Network:
    """How to build it, the shape of an example, the batch size, and the targeted ratio."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    target: float


NETWORKS = {
    "mlp 784-512³-10": Network(mlp, (1, 28, 28), 256, 1.0),
    "resnet-18 w64": Network(lambda: resnet(64, (2, 2, 2, 2)), (3, 32, 32), 32, 1.0),
    "vgg 28×28": Network(vgg, (1, 28, 28), 128, 1.0),
    "resnet-20 w16": Network(lambda: resnet(16, (3, 3, 3)), (3, 32, 32), 64, 1.5),
    "mnist cnn": Network(small_cnn, (1, 28, 28), 256, 1.5),
}


def data_of(network: Network, device: torch.device) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    module = network.build()
    with torch.no_grad():  # exporters merge parameters that are equal, as fresh scales are
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.01)
    module = module.to(device)
    x = torch.randn(network.batch, *network.shape, device=device)
    return module, x, torch.randint(CLASSES, (network.batch,), device=device)


def plain_step(module: nn.Module, x: Tensor, y: Tensor) -> Step:
    def step() -> None:
        module.zero_grad()
        functional.cross_entropy(module(x), y).backward()

    return step


def lowered_of(module: nn.Module, x: Tensor) -> LoweredNetwork:
    """Through a file, as every audited model comes."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            module.cpu().eval(),
            (x[:2].cpu(),),
            path,
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
            opset_version=21,
            verbose=False,
        )
        graph = load_model(path, trusted=True).graph
    module.to(x.device)
    return LoweredNetwork.of(graph, torch.float32, x.device)


def norms_step(network: LoweredNetwork, x: Tensor, y: Tensor, values: bool) -> Step:
    engine = NormEngine(network, watch_values=values)

    def losses_of(logits: Tensor) -> Tensor:
        return functional.cross_entropy(logits, y, reduction="none")

    def step() -> dict[str, np.ndarray]:
        found = engine.measure(x, losses_of).parameters
        return {name: measured.norm for name, measured in found.items()}

    return step


def opacus_step(module: nn.Module, x: Tensor, y: Tensor, ghost: bool) -> Step | None:
    try:
        from opacus.grad_sample import GradSampleModule
        from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
            GradSampleModuleFastGradientClipping,
        )
    except ImportError:
        return None
    if ghost:
        hooked = GradSampleModuleFastGradientClipping(
            module, loss_reduction="sum", max_grad_norm=1.0, use_ghost_clipping=True
        )
    else:
        hooked = GradSampleModule(module, loss_reduction="sum")

    def norm_of(parameter: nn.Parameter) -> Tensor:
        if ghost:
            return parameter._norm_sample
        return parameter.grad_sample.flatten(1).norm(dim=1)

    def step() -> dict[str, np.ndarray]:
        hooked.zero_grad()
        functional.cross_entropy(hooked(x), y, reduction="sum").backward()
        named = hooked._module.named_parameters()
        return {name: norm_of(p).detach().float().cpu().numpy() for name, p in named}

    return step


def step_of(name: str, network: Network, device: torch.device) -> Step | None:
    module, x, y = data_of(network, device)
    match name:
        case "plain":
            return plain_step(module, x, y)
        case "plain, by pixels":
            last = torch.channels_last
            return plain_step(module.to(memory_format=last), x.to(memory_format=last), y)
        case "plain, lowered":
            lowered = lowered_of(module, x)
            return lambda: plain_step_of(lowered, x, lambda z: functional.cross_entropy(z, y))
        case "Opacus hooks" | "Opacus ghost":
            return opacus_step(module, x, y, name == GHOST)
        case _:
            return norms_step(lowered_of(module, x), x, y, name == OURS)


def seconds(step: Step, arithmetic: Arithmetic) -> float:
    """Of this process alone on a CPU; by the clock where a GPU works as well."""
    clock = time.process_time if arithmetic.device.type == "cpu" else time.perf_counter
    arithmetic.synchronise()
    start = clock()
    step()
    arithmetic.synchronise()
    return clock() - start


def peak_of(name: str, network: str, device: str) -> float:
    """Megabytes that three steps add to a process of their own."""
    command = [sys.executable, __file__, "--peak", name, "--device", device, network]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def print_peak(name: str, network: Network, device: torch.device) -> None:
    step = step_of(name, network, device)
    if step is None:
        print(json.dumps(float("nan")))
        return
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = _resident("VmRSS")
    for _ in range(3):
        step()
    after = torch.cuda.max_memory_allocated() if device.type == "cuda" else _resident("VmHWM")
    print(json.dumps((after - before) / 2**20))


def _resident(entry: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(entry):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {entry} in /proc/self/status")


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def disagreement(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> str:
    """Largest relative difference over parameters that both name."""
    shared = sorted(one.keys() & other.keys())
    if not shared:
        return "no names in common"
    largest = max(float(np.max(np.abs(one[n] - other[n]) / (other[n] + 1e-9))) for n in shared)
    return f"{largest:.1e} over {len(shared)} of {len(other)} parameters"


def benchmark(name: str, arithmetic: Arithmetic, peers: bool, memory: bool) -> None:
    network, device = NETWORKS[name], arithmetic.device
    steps: dict[str, Step] = {}
    kinds = (PLAIN, PIXELS, LOWERED, OURS, ONLY_PARAMETERS, *((HOOKS, GHOST) if peers else ()))
    for kind in kinds:
        step = step_of(kind, network, device)
        if step is not None:
            steps[kind] = step
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    with arithmetic.active(), _quiet():
        found = {kind: step() for kind, step in steps.items()}
        for _ in range(ROUNDS):
            for kind, step in steps.items():
                times[kind].append(seconds(step, arithmetic))
    print(f"\n{name}, batch {network.batch}, {arithmetic.precision.value} on {device}")
    plain_peak = peak_of(PLAIN, name, str(device)) if memory else float("nan")
    for kind, taken in times.items():
        median = statistics.median(taken)
        ratio = statistics.median(mine / his for mine, his in zip(taken, times[PLAIN], strict=True))
        peak = plain_peak
        if memory and kind != PLAIN:
            peak = peak_of(kind, name, str(device))
        verdict = ""
        if kind in {OURS, ONLY_PARAMETERS}:
            verdict = "within target" if ratio <= network.target else f"target {network.target}"
        rate = network.batch / median
        print(
            f"  {kind:18} {median * 1e3:9.1f} ms {rate:9.0f} /s   × {ratio:6.2f} {verdict:15}"
            f" peak {peak:7.0f} MB × {peak / plain_peak:5.2f}"
        )
    for kind in (HOOKS, GHOST):
        norms = found.get(kind)
        if norms is not None and found[OURS] is not None:
            print(f"  differs from {kind} by {disagreement(found[OURS], norms)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", default=[], help=f"of: {', '.join(NETWORKS)}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    names = arguments.networks or list(NETWORKS)
    device = torch.device(arguments.device)
    if arguments.peak:
        with _quiet():
            print_peak(arguments.peak, NETWORKS[names[0]], device)
        return
    precisions = [Precision.FLOAT32]
    if device.type == "cuda":
        precisions += [Precision.TF32, Precision.BFLOAT16]
    for precision in precisions:
        try:
            arithmetic = Arithmetic(device, precision)
        except NoVerdictError as error:
            print(error)
            continue
        for name in names:
            benchmark(name, arithmetic, not arguments.no_peers, not arguments.no_memory)


if __name__ == "__main__":
    main()
