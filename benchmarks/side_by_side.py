"""Bounds beside those of others: norms of convolutions, a Lipschitz constant, accounts of a run.

    python -m benchmarks.side_by_side                        all tables, a minute on one core
    python -m benchmarks.side_by_side --update docs/benchmarks.md

norms       of random kernels at a size at which the map can be written out as a matrix, whose
            largest singular value is the truth; other ways are those of papers and libraries, in
            code of this file
lipschitz   of a shipped perceptron over [0, 1]^64, and over a box as good as all inputs; LipSDP and
            ECLipsE-Fast are in code of this file
accounting  ε of private runs by LipCert and by the accountants of Opacus, which are skipped where
            it is absent
Times are compared by `benchmarks/audit_throughput.py` and `benchmarks.private_training`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper, save
from torch.nn import functional

import lipcert
from benchmarks.random_weights import he_weight, peaked_weight
from benchmarks.reproductions.page import update
from lipcert.privacy import accounting
from lipcert.privacy.plan import Sampling, TrainingPlan

Array = npt.NDArray[np.float64]
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Convolution:
    """`weights`: flat (He-normal), peaked (as after training), or second differences; zeros at the
    borders."""

    weights: str
    before: int
    after: int
    kernel: int
    size: int
    stride: int

    def __str__(self) -> str:
        shape = f"{self.before}→{self.after}, {self.kernel}×{self.kernel}, stride {self.stride}"
        return f"{shape}, {self.size}×{self.size}, {self.weights}"

    @property
    def padding(self) -> int:
        return self.kernel // 2

    def weight(self) -> Array:
        if self.weights == "differences":
            return np.multiply.outer([-1.0, 2.0, -1.0], [-1.0, 2.0, -1.0])[None, None]
        rng = np.random.default_rng(0)
        draw = he_weight if self.weights == "flat" else peaked_weight
        shape = (self.after, self.before, self.kernel, self.kernel)
        return draw(shape, rng).astype(np.float32).astype(np.float64)


CONVOLUTIONS = (
    Convolution("peaked", 16, 16, 3, 8, 1),
    Convolution("peaked", 16, 32, 3, 8, 2),
    Convolution("peaked", 8, 8, 5, 14, 1),
    Convolution("peaked", 3, 16, 7, 16, 2),
    Convolution("flat", 16, 16, 3, 8, 1),
    Convolution("flat", 16, 32, 3, 8, 2),
    Convolution("differences", 1, 1, 3, 3, 1),
)


def truth(case: Convolution, weight: Array) -> float:
    """The largest singular value of the map as a matrix."""
    size = case.before * case.size**2
    images = torch.eye(size, dtype=torch.float64).view(size, case.before, case.size, case.size)
    columns = functional.conv2d(
        images, torch.from_numpy(weight), stride=case.stride, padding=case.padding
    )
    return float(torch.linalg.matrix_norm(columns.flatten(1), 2))


def proved(case: Convolution, weight: Array, folder: Path) -> float:
    """What `lipcert analyze` states of the file."""
    pads = [case.padding] * 4
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[case.stride] * 2, pads=pads),
        helper.make_node("Flatten", ["c"], ["y"]),
    ]
    shapes = (
        helper.make_tensor_value_info("x", 1, ["batch", case.before, case.size, case.size]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "entries"]),
    )
    stored = numpy_helper.from_array(weight.astype(np.float32), "w")
    graph = helper.make_graph(nodes, "net", [shapes[0]], [shapes[1]], [stored])
    path = folder / "conv.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    settings = lipcert.Settings(loss="mse", label_norm=1.0, input_norm=1.0)
    nodes = lipcert.analyze(lipcert.load_model(path), settings).nodes
    (norm,) = (node.operator_norm or np.inf for node in nodes if node.op == "Conv")
    return norm


def circular(case: Convolution, weight: Array) -> float:
    """Of circular padding and stride 1, by Fourier transform (Sedghi et al. 2019); the limit of
    Gram iterations in frequencies (Delattre et al. 2023)."""
    symbols = np.fft.fft2(weight, (case.size, case.size)).transpose(2, 3, 0, 1)
    return float(np.linalg.norm(symbols, 2, axis=(2, 3)).max())


def reshaped(weight: Array) -> float:
    """Of the kernel as a matrix out × (in·taps), which spectral normalisation holds."""
    return float(np.linalg.norm(weight.reshape(len(weight), -1), 2))


def overlap(case: Convolution) -> float:
    """√ of how many windows meet a pixel: times the former a bound (Tsuzuku et al. 2018)."""
    return float(-(-case.kernel // case.stride))


def norms() -> Iterator[str]:
    yield "| convolution | true norm | LipCert | Fourier, circular | kernel × √overlap | kernel |"
    yield "|---|---:|---:|---:|---:|---:|"

    with TemporaryDirectory() as folder:
        for case in CONVOLUTIONS:
            weight = case.weight()
            true = truth(case, weight)
            kernel = reshaped(weight)
            ways = (proved(case, weight, Path(folder)), circular(case, weight))
            others = (kernel * overlap(case), kernel)
            cells = " | ".join(f"{way / true:.4f}" for way in (*ways, *others))
            yield f"| {case} | {true:.4f} | {cells} |"


def lipschitz() -> Iterator[str]:
    path = ROOT / "models" / "digits_mlp.onnx"
    model = lipcert.load_model(path)
    box, wide = (
        lipcert.analyze(
            model, lipcert.Settings(input_box=ends, loss="cross-entropy")
        ).network.lipschitz
        or np.inf
        for ends in ((0.0, 1.0), (-1000.0, 1000.0))
    )
    layers = layers_of(path)
    weights = [weight for weight, _ in layers]
    product = float(np.prod([np.linalg.norm(weight, 2) for weight in weights]))
    reached = sampled(layers)
    yield "| ‖∂output/∂input‖, `digits_mlp` | over | bound | over the largest found |"
    yield "|---|---|---:|---:|"
    for name, domain, value in (
        ("LipCert", "[0, 1]⁶⁴", box),
        ("LipCert", "[−1000, 1000]⁶⁴", wide),
        ("LipSDP, one multiplier per neuron", "all inputs", by_lipsdp(weights)),
        ("ECLipsE-Fast", "all inputs", by_eclipse_fast(weights)),
        ("product of layer norms", "all inputs", product),
        ("intervals, entry by entry", "[0, 1]⁶⁴", by_intervals(layers)),
    ):
        yield f"| {name} | {domain} | {value:.2f} | {value / reached:.2f} |"


def by_eclipse_fast(weights: list[Array]) -> float:
    """The closed form of Xu and Sivaranjani (2024): one multiplier per layer."""
    return float(_bound_of([torch.tensor(t) for t in closed_form(weights[:-1])], weights).sqrt())


def closed_form(weights: list[Array]) -> list[Array]:
    """For every layer T = λI, where λ makes λ − λ²σ/4 largest, σ the norm of what comes before."""
    before, found = np.eye(weights[0].shape[1]), []
    for weight in weights:
        mapped = weight @ np.linalg.solve(before, weight.T)
        scale = 2.0 / float(np.linalg.norm(mapped, 2))
        found.append(np.full(len(weight), scale))
        before = scale * np.eye(len(weight)) - scale**2 / 4.0 * mapped
    return found


def by_lipsdp(weights: list[Array], steps: int = 300) -> float:
    """The program of Fazlyab et al. (2019) for slopes in [0, 1], diagonal multipliers T.

    Its matrix is block tridiagonal, hence positive where all its Schur complements are; these are
    minimised over T by gradients, from the closed form. Every feasible T gives a bound, and a
    solver of semidefinite programs reaches the same minimum.
    """
    logs = [torch.tensor(np.log(t)).requires_grad_() for t in closed_form(weights[:-1])]
    good, least = [t.detach().clone() for t in logs], np.inf
    adam = torch.optim.Adam(logs, lr=0.03)
    for _ in range(steps):
        adam.zero_grad()
        try:
            found = _bound_of([t.exp() for t in logs], weights)
        except torch.linalg.LinAlgError:  # not feasible: back towards what was
            with torch.no_grad():
                for t, before in zip(logs, good, strict=True):
                    t.copy_((t + 3 * before) / 4)
            continue
        if found.item() < least:
            good, least = [t.detach().clone() for t in logs], found.item()
        found.backward()
        adam.step()
    return float(np.sqrt(least))


def _bound_of(multipliers: list[torch.Tensor], weights: list[Array]) -> torch.Tensor:
    """The square of the bound that these multipliers give; LinAlgError where they give none."""
    *inner, last = (torch.tensor(weight) for weight in weights)
    before = torch.eye(len(weights[0].T), dtype=torch.float64)
    for weight, t in zip(inner, multipliers, strict=True):
        mapped = weight @ torch.linalg.solve(before, weight.T)
        before = torch.diag(t) - t[:, None] * mapped * t / 4.0
        torch.linalg.cholesky(before)
    return torch.linalg.matrix_norm(last @ torch.linalg.solve(before, last.T), 2)


def layers_of(path: Path) -> list[tuple[Array, Array]]:
    """Weights and biases in order, as torch names them."""

    stored: dict[str, Array] = {
        tensor.name: numpy_helper.to_array(tensor).astype(np.float64)
        for tensor in onnx.load(path).graph.initializer
    }
    names = ("hidden1", "hidden2", "classifier")
    return [(stored[f"{name}.weight"], stored[f"{name}.bias"]) for name in names]


def by_intervals(layers: list[tuple[Array, Array]]) -> float:
    """A norm of the matrix of largest magnitudes of the Jacobian's entries, by interval arithmetic:
    what libraries of linear relaxation fall back to where no ReLU is stable."""
    (first, bias), *rest = layers
    centre, radius = np.full(first.shape[1], 0.5), np.full(first.shape[1], 0.5)
    low, high = first, first
    centre, radius = first @ centre + bias, np.abs(first) @ radius
    for weight, bias in rest:
        active, possible = centre - radius >= 0, centre + radius > 0
        low = np.where(active[:, None], low, np.where(possible[:, None], np.minimum(low, 0), 0))
        high = np.where(active[:, None], high, np.where(possible[:, None], np.maximum(high, 0), 0))
        up, down = np.maximum(weight, 0), np.minimum(weight, 0)
        low, high = up @ low + down @ high, up @ high + down @ low
        below, above = np.maximum(centre - radius, 0), np.maximum(centre + radius, 0)
        centre, radius = (below + above) / 2, (above - below) / 2
        centre, radius = weight @ centre + bias, np.abs(weight) @ radius
    return float(np.linalg.norm(np.maximum(np.abs(low), np.abs(high)), 2))


def sampled(layers: list[tuple[Array, Array]]) -> float:
    """The largest norm of the Jacobian at 4,000 random inputs, dense and sparse ones."""
    rng, largest = np.random.default_rng(0), 0.0
    for _ in range(4000):
        x = rng.random(64) * (rng.random(64) < rng.random())
        jacobian, value = np.eye(64), x
        for number, (weight, bias) in enumerate(layers):
            jacobian, value = weight @ jacobian, weight @ value + bias
            if number + 1 < len(layers):
                jacobian, value = jacobian * (value > 0)[:, None], np.maximum(value, 0)
        largest = max(largest, float(np.linalg.norm(jacobian, 2)))
    return largest


RUNS = (
    (60_000, 512, 10, 1.1),
    (60_000, 256, 20, 0.8),
    (1_437, 128, 20, 3.9),
    (50_000, 4096, 100, 6.0),
)


def accounting_of_runs() -> Iterator[str]:
    yield "| run (Poisson, δ = 1e-5) | LipCert | its Rényi | Opacus PRV | Opacus RDP |"
    yield "|---|---:|---:|---:|---:|"
    for size, batch, epochs, sigma in RUNS:
        steps = -(-size * epochs // batch)
        plan = TrainingPlan(
            dataset_size=size, batch_size=batch, steps=steps, sampling=Sampling.POISSON, delta=1e-5
        )
        found = [
            accounting.epsilon(plan, sigma, way)
            for way in (accounting.Accountant.PLD, accounting.Accountant.RDP)
        ]
        cells = [f"{value:.4f}" for value in (*found, *by_opacus(sigma, batch / size, steps))]
        run = f"N = {size:,}, B = {batch:,}, {epochs} epochs, σ = {sigma}"
        yield f"| {run} | {' | '.join(cells)} |"


def by_opacus(sigma: float, rate: float, steps: int) -> list[float]:
    try:
        from opacus.accountants import PRVAccountant, RDPAccountant
    except ImportError:
        return [float("nan")] * 2
    found = []
    for kind in (PRVAccountant, RDPAccountant):
        accountant: Any = kind()
        accountant.history = [(sigma, rate, steps)]
        found.append(float(accountant.get_epsilon(delta=1e-5)))
    return found


TABLES = {"norms": norms, "lipschitz": lipschitz, "accounting": accounting_of_runs}


def main() -> None:
    parser = argparse.ArgumentParser(description="Bounds beside those of others.")
    parser.add_argument("tables", nargs="*", default=[], help=f"of: {', '.join(TABLES)}")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="write them into this page")
    arguments = parser.parse_args()
    found = {name: list(TABLES[name]()) for name in arguments.tables or TABLES}
    for name, lines in found.items():
        print(f"{name}\n", *lines, sep="\n")
    if arguments.update is not None:
        update(arguments.update, found)


if __name__ == "__main__":
    main()
