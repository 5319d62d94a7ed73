"""Networks of ImageNet scale: time, memory and bounds of nine classic topologies.

The topologies come with the onnx package, with constants for weights; seeded random weights are
written in their place. Each network is imported and analysed in a process of its own.

    python benchmarks/imagenet.py [--tier quick] [--weights peaked] [--only NAME] [--per-layer]

weights    flat: He-normal kernels, the worst case of the search for a norm; peaked: half of that
           plus eight spatially smooth components of falling strength, as after training
import     seconds to read and check the file, two thirds of it in a child process
analyse    seconds of `analyze` with one example in [0, 1] and the default loss; both are wall-clock
           time, without remembered norms
peak       largest resident memory of the process, weights included
nodes      how many have a bound of their output and of their cotangent, of all
G          bound of the norm of the whole per-example gradient, or the reason why there is none
lipschitz  bound of the Lipschitz constant from input to class probabilities

Random weights say nothing about trained networks: G compares one version of LipCert with another.
With --per-layer, each certified norm is held against a Lanczos estimate from below of the true
norm of the finite operator, and the largest quotient is printed; one below 1 is a violation.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper
from random_weights import he_weight, peaked_weight

Array = npt.NDArray[np.float64]
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = (
    "bvlc_alexnet",
    "zfnet512",
    "vgg19",
    "squeezenet",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "densenet121",
    "shufflenet",
)


@dataclass(frozen=True)
class Result:
    """What became of one network. worst: largest quotient of norm and estimate, and its node."""

    import_seconds: float
    analyse_seconds: float
    peak_bytes: int
    nodes: int
    bounded: int
    grad_norm: str
    lipschitz: str
    worst: tuple[float, str] | None = None


def slots(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """(name, kind) of every parameter: kernel, factor, variance or shift."""
    sources = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Unsqueeze"}
    kinds = {
        "Conv": ("", "kernel", "shift"),
        "Gemm": ("", "kernel", "shift"),
        "BatchNormalization": ("", "factor", "shift", "shift", "variance"),
        "Mul": ("", "factor"),
        "Add": ("", "shift"),
    }
    for node in graph.node:
        for name, kind in zip(node.input, kinds.get(node.op_type, ()), strict=False):
            if kind:
                yield sources.get(name, name), kind


def write_network(name: str, weights: str, folder: Path) -> Path:
    """The topology with random weights, in a file with external data."""
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    graph = model.graph
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    shapes = {key: value.shape for key, value in known.items()}
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shapes[node.output[0]] = tuple(int(size) for size in known[node.input[0]])
    rng = np.random.default_rng(0)
    kernel = peaked_weight if weights == "peaked" else he_weight
    draw: dict[str, Callable[[tuple[int, ...]], Array]] = {
        "kernel": lambda shape: kernel(shape, rng),
        "factor": lambda shape: rng.uniform(0.8, 1.2, shape),
        "variance": lambda shape: rng.uniform(0.7, 1.4, shape),
        "shift": lambda shape: 0.05 * rng.standard_normal(shape),
    }
    drawn = {slot: draw[kind](shapes[slot]) for slot, kind in slots(graph) if slot in shapes}
    kept = [tensor for tensor in graph.initializer if tensor.name not in drawn]
    nodes = [node for node in graph.node if node.output[0] not in drawn]
    inputs = [value for value in graph.input if value.name not in drawn]
    for field, content in (("initializer", kept), ("node", nodes), ("input", inputs)):
        graph.ClearField(field)
        getattr(graph, field).extend(content)
    for slot, array in drawn.items():
        graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), slot))
    file = folder / f"{name}.onnx"
    onnx.save_model(model, file, save_as_external_data=True, location=f"{name}.onnx.data")
    return file


def examined(file: Path, tier: str, per_layer: bool) -> Result:
    """Import and analyse one file, in this process."""
    from lipcert.analysis.pipeline import analyze
    from lipcert.errors import LipCertError
    from lipcert.importer.load import load_model
    from lipcert.settings.settings import Settings

    started = time.perf_counter()
    try:
        model = load_model(file)
    except LipCertError as error:
        return Result(time.perf_counter() - started, 0.0, peak(), 0, 0, f"refused: {error}", "-")
    imported = time.perf_counter()
    analysis = analyze(model, Settings(tier=tier))
    done = time.perf_counter()
    memory = peak()
    network, nodes = analysis.network, analysis.nodes
    bounded = [node for node in nodes if None not in (node.output_norm, node.cotangent_norm)]
    reasons = [item.message for item in analysis.diagnostics if network.grad_norm is None]
    norms = {node.name: node.operator_norm for node in nodes}
    return Result(
        imported - started,
        done - imported,
        memory,
        len(nodes),
        len(bounded),
        shown(network.grad_norm, "; ".join(reasons)),
        shown(network.lipschitz, "none"),
        worst_quotient(model, norms) if per_layer else None,
    )


def shown(bound: float | None, reason: str) -> str:
    """A bound, or the reason why there is none."""
    return reason if bound is None else f"{bound:.6g}"


def peak() -> int:
    """Largest resident memory of this process so far, in bytes (Linux counts in KiB)."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def worst_quotient(model: object, norms: dict[str, float | None]) -> tuple[float, str]:
    """The largest certified norm over the estimate of the true one, over all linear layers."""
    from lipcert.core.program import Dense
    from lipcert.core.window_kinds import Conv

    quotients = []
    for node in model.graph.nodes:
        certified = norms.get(node.name)
        if isinstance(node.op, Conv | Dense) and certified is not None:
            estimate = estimated_norm(node)
            if certified < estimate:
                raise SystemExit(f"{node.name}: {certified} is below {estimate}")
            quotients.append((certified / estimate, node.name))
    return max(quotients, default=(1.0, "-"))


def estimated_norm(node: object, steps: int = 40) -> float:
    """√ of the largest Ritz value of TᵀT after some Lanczos steps: at most the norm, up to 1e-9."""
    import torch

    from lipcert.core.window_kinds import Conv

    weight = torch.from_numpy(node.operands["weight"].array.copy())

    def image(x: torch.Tensor) -> torch.Tensor:
        if not isinstance(node.op, Conv):
            return x @ weight.T
        windows = node.geometry
        pads = [pad for w in reversed(windows) for pad in (w.pad_begin, w.pad_end)]
        padded = torch.nn.functional.pad(x, pads)
        strides, dilations = [w.stride for w in windows], [w.dilation for w in windows]
        whole = torch.nn.functional.conv2d(
            padded, weight, None, strides, 0, dilations, node.op.groups
        )
        return whole[..., : windows[0].outputs, : windows[1].outputs]

    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(1, *node.given[0][1:], generator=generator, dtype=torch.float64)
    vector, before, beta = vector / vector.norm(), torch.zeros_like(vector), 0.0
    diagonal, beside = [], []
    for _ in range(steps):
        x = vector.clone().requires_grad_()
        y = image(x)
        (back,) = torch.autograd.grad(y, x, y.detach())
        alpha = float((back * vector).sum())
        back = back - alpha * vector - beta * before
        beta = float(back.norm())
        diagonal.append(alpha)
        beside.append(beta)
        if beta < 1e-9 * alpha:
            break
        before, vector = vector, back / beta
    inner = beside[: len(diagonal) - 1]
    tridiagonal = np.diag(diagonal) + np.diag(inner, 1) + np.diag(inner, -1)
    return float(np.sqrt(np.linalg.eigvalsh(tridiagonal)[-1])) * (1.0 - 1e-9)


def row(name: str, found: Result) -> str:
    """One line of the table."""
    nodes = f"{found.bounded}/{found.nodes}"
    worst = "" if found.worst is None else f"  worst {found.worst[0]:.4f} ({found.worst[1]})"
    return (
        f"{name:13} {found.import_seconds:7.1f} {found.analyse_seconds:8.1f} "
        f"{found.peak_bytes / 2**20:8.0f} {nodes:>8} {found.grad_norm:>13} "
        f"{found.lipschitz:>13}{worst}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tier", default="fast", choices=("quick", "fast", "tight"))
    parser.add_argument("--weights", default="flat", choices=("flat", "peaked"))
    parser.add_argument("--only", choices=NAMES, action="append", help="a network (repeatable)")
    parser.add_argument("--per-layer", action="store_true", help="hold norms against estimates")
    options = parser.parse_args()
    print(f"{options.weights} weights, tier {options.tier}")
    print("network      import s analyse s peak MiB    nodes             G     lipschitz")
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, context, max_tasks_per_child=1) as workers,
    ):
        for name in options.only or NAMES:
            file = workers.submit(write_network, name, options.weights, Path(folder)).result()
            found = workers.submit(examined, file, options.tier, options.per_layer).result()
            print(row(name, found), flush=True)
            for part in Path(folder).iterdir():
                part.unlink()


if __name__ == "__main__":
    main()
