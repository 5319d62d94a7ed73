"""Tightness and time of certified operator norms, side by side with other published bounds.

For each layer and kind of weights: the ratio of every bound to the true norm of the finite map
(singular values, or Lanczos to 1e-9), with the rung that gave it, and its time. Ratios below 1 are
violations. `sup` is the supremum over frequencies, sampled on a fine grid, over the truth;
`Laurent` and `majorant` are these rungs by themselves, also where an exact one is affordable.

Run `python benchmarks/operator_norms.py`, with `--quick` for the small layers only, or with
`--fuzz 10000` for random geometries against explicit matrices.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table
from scipy.sparse.linalg import LinearOperator, eigsh
from torch.nn.functional import conv1d, conv2d, conv3d, pad

from lipcert.norms.geometry import Window
from lipcert.norms.laurent import laurent_norm
from lipcert.norms.linear_map import ConvMap, DenseMap, LinearMap
from lipcert.norms.operator_norm import Tier, operator_norm
from lipcert.norms.polyphase import live_kernels, polyphase
from lipcert.norms.toeplitz import majorant_norm
from lipcert.norms.windows import largest_overlap
from lipcert.operand import Operand
from lipcert.upper import INFINITE, Upper

Array = npt.NDArray[np.float64]
_BUDGET = 1.5e12
_CONVOLUTIONS = {1: conv1d, 2: conv2d, 3: conv3d}


@dataclass(frozen=True)
class Layer:
    """shape: [out, in/groups, *taps]; a dense layer has size 0."""

    name: str
    shape: tuple[int, ...]
    size: int = 0
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    is_quick: bool = True

    @property
    def geometry(self) -> tuple[Window, ...]:
        """One window per dimension."""
        return tuple(
            Window(self.size, taps, self.stride, self.dilation, self.padding, self.padding)
            for taps in self.shape[2:]
        )

    def linear_map(self, weight: Array) -> LinearMap:
        """The layer as the ladder sees it."""
        operand = Operand(weight)
        return ConvMap(operand, self.geometry, self.groups) if self.size else DenseMap(operand)


LAYERS = (
    Layer("dense 256×256", (256, 256)),
    Layer("dense 10×784", (10, 784)),
    Layer("dense 1024×1024", (1024, 1024)),
    Layer("1×1 256→64 @56", (64, 256, 1, 1), 56),
    Layer("3×3 1→16 @28", (16, 1, 3, 3), 28, padding=1),
    Layer("3×3 16→32 @28", (32, 16, 3, 3), 28, padding=1),
    Layer("3×3 64→64 @56", (64, 64, 3, 3), 56, padding=1, is_quick=False),
    Layer("7×7/2 3→64 @224", (64, 3, 7, 7), 224, 2, 3, is_quick=False),
    Layer("depthwise 3×3 128 @28", (128, 1, 3, 3), 28, padding=1, groups=128),
    Layer("3×3 dilation 2 64→64 @28", (64, 64, 3, 3), 28, padding=2, dilation=2),
    Layer("3×3/2 64→128 @28", (128, 64, 3, 3), 28, 2, 1),
    Layer("4×4/2 32→64 @14 (transposed)", (64, 32, 4, 4), 14, 2, 1),
    Layer("conv1d k9 64→64 @128", (64, 64, 9), 128, padding=4),
    Layer("conv3d 16→16 @8", (16, 16, 3, 3, 3), 8, padding=1),
    Layer("3×3 64→64 @7", (64, 64, 3, 3), 7, padding=1),
    Layer("3×3 64→64 @14", (64, 64, 3, 3), 14, padding=1),
    Layer("3×3 128→128 @14", (128, 128, 3, 3), 14, padding=1, is_quick=False),
    Layer("3×3 256→256 @7", (256, 256, 3, 3), 7, padding=1, is_quick=False),
    Layer("3×3 512→512 @14", (512, 512, 3, 3), 14, padding=1, is_quick=False),
    Layer("3×3 512→512 @7", (512, 512, 3, 3), 7, padding=1, is_quick=False),
)


def he_weight(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Gaussian with variance 2/fan-in: a flat spectrum, the worst case of the search."""
    return rng.standard_normal(shape) * math.sqrt(2.0 / math.prod(shape[1:]))


def smooth_weight(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Half of the former plus eight smooth components of falling strength, as after training."""
    weight = 0.5 * he_weight(shape, rng)
    bump = np.ones(())
    for taps in shape[2:]:
        bump = np.multiply.outer(bump, np.exp(-(np.linspace(-1, 1, taps) ** 2) / 1.5))
    for rank in range(8):
        left, right = rng.standard_normal(shape[0]), rng.standard_normal(shape[1])
        channels = np.outer(left / np.linalg.norm(left), right / np.linalg.norm(right))
        component = np.multiply.outer(channels, bump / np.linalg.norm(bump))
        weight += 2.5 / (rank + 1) ** 0.7 * component
    return weight


def true_norm(layer: Layer, weight: Array) -> float:
    """The norm of the finite map, to about 1e-9."""
    if not layer.size:
        return float(np.linalg.norm(weight, 2))
    kernel, axes = torch.from_numpy(weight), len(layer.shape) - 2
    shape = (1, layer.shape[1] * layer.groups, *(layer.size,) * axes)

    def gram(vector: Array) -> Array:
        image = torch.from_numpy(vector.reshape(shape)).requires_grad_()
        padded = pad(image, (layer.padding,) * (2 * axes))
        out = _CONVOLUTIONS[axes](
            padded, kernel, stride=layer.stride, dilation=layer.dilation, groups=layer.groups
        )
        (back,) = torch.autograd.grad(out, image, out.detach())
        return back.numpy().ravel()

    side = math.prod(shape)
    start = np.random.default_rng(0).standard_normal(side)
    operator = LinearOperator((side, side), matvec=gram, dtype=np.float64)
    return math.sqrt(eigsh(operator, k=1, tol=1e-9, v0=start, ncv=30)[0][0])


def supremum(layer: Layer, weight: Array) -> float:
    """The largest singular value of the polyphase symbol on a fine grid of frequencies."""
    kernels = weight.reshape(layer.groups, -1, *weight.shape[1:])
    phases = polyphase(kernels, layer.geometry)
    points = {1: 512, 2: 48, 3: 12}[phases.ndim - 3]
    return max(_largest_over_grid(kernel, points) for kernel in phases)


def frobenius(layer: Layer, weight: Array) -> float:
    """‖K‖_F √overlap."""
    kernels = weight.reshape(layer.groups, -1)
    return float(np.max(np.linalg.norm(kernels, axis=1))) * math.sqrt(_overlap(layer))


def reshaped(layer: Layer, weight: Array) -> float:
    """‖[out, in · taps]‖₂ √overlap."""
    kernels = weight.reshape(layer.groups, weight.shape[0] // layer.groups, -1)
    return float(np.max(np.linalg.norm(kernels, 2, axis=(1, 2)))) * math.sqrt(_overlap(layer))


def circular(layer: Layer, weight: Array) -> float:
    """The norm under circular padding and unit stride: no bound for zero padding."""
    if not layer.size:
        return float(np.linalg.norm(weight, 2))
    kernels = weight.reshape(layer.groups, -1, *weight.shape[1:])
    return max(_largest_over_grid(kernel, layer.size) for kernel in kernels)


def gram_iteration(layer: Layer, weight: Array, iterations: int = 5) -> float:
    """Gram iteration (Delattre et al. 2023) on the circular symbol, in float64."""
    kernels = weight.reshape(layer.groups, -1, *weight.shape[1:])
    best = 0.0
    for kernel in kernels:
        for matrices in _symbol_on_grid(kernel, max(layer.size, 1)):
            stack, logarithm = matrices, np.zeros(len(matrices))
            for _ in range(iterations):
                norms = np.linalg.norm(stack, axis=(1, 2))
                stack = stack / norms[:, None, None]
                stack = stack.conj().swapaxes(1, 2) @ stack
                logarithm = 2 * (logarithm + np.log(norms))
            last = np.log(np.linalg.norm(stack, axis=(1, 2))) + logarithm
            best = max(best, float(np.exp(np.max(last) / 2**iterations)))
    return best


def _overlap(layer: Layer) -> int:
    return largest_overlap(layer.geometry) if layer.size else 1


def _symbol_on_grid(kernel: Array, points: int) -> list[npt.NDArray[np.complex128]]:
    axes = range(2, kernel.ndim)
    grid = np.fft.fftn(kernel, s=(points,) * (kernel.ndim - 2), axes=axes) if axes else kernel
    matrices = np.moveaxis(grid, (0, 1), (-2, -1)).reshape(-1, *kernel.shape[:2])
    half = matrices[: len(matrices) // 2 + points]  # real kernels: the rest mirrors it
    return np.array_split(half, max(1, half.size // 4_000_000))


def _largest_over_grid(kernel: Array, points: int) -> float:
    best = 0.0
    for matrices in _symbol_on_grid(kernel, points):
        if matrices.shape[1] > matrices.shape[2]:
            gram = matrices.conj().swapaxes(1, 2) @ matrices
        else:
            gram = matrices @ matrices.conj().swapaxes(1, 2)
        best = max(best, float(np.max(np.linalg.eigvalsh(gram))))
    return math.sqrt(best)


def _timed(call: Callable[[], float]) -> tuple[float, float]:
    start = time.perf_counter()
    value = call()
    return value, time.perf_counter() - start


def _rung(layer: Layer, weight: Array, rung: Callable[..., Upper], *more: object) -> float:
    """The bound of one rung of the ladder; nan where it does not apply."""
    if not layer.size:
        return math.nan
    kernels = weight.reshape(layer.groups, -1, *weight.shape[1:])
    bound = rung(live_kernels(kernels, layer.geometry), layer.geometry, *more)
    return bound.value if bound.is_finite else math.nan


def laurent(layer: Layer, weight: Array) -> float:
    """The supremum over frequencies, certified."""
    return _rung(layer, weight, laurent_norm, INFINITE, _BUDGET)


def majorant(layer: Layer, weight: Array) -> float:
    """The finite size through a scalar majorant."""
    return _rung(layer, weight, majorant_norm, _BUDGET)


_BOUNDS = {
    "sup": supremum,
    "Laurent": laurent,
    "majorant": majorant,
    "Frob·√ov": frobenius,
    "reshape·√ov": reshaped,
    "circular (unsound)": circular,
    "Gram it. (unsound)": gram_iteration,
}


def _row(layer: Layer, kind: str, weight: Array, tiers: Sequence[Tier]) -> list[str]:
    truth, reference = _timed(lambda: true_norm(layer, weight))
    cells = [layer.name, kind, f"{reference:.2f} s"]
    for tier in tiers:
        start = time.perf_counter()
        bound = operator_norm(layer.linear_map(weight), tier)
        seconds = time.perf_counter() - start
        rule = bound.rule.removeprefix("norms.")
        cells.append(f"{_ratio(bound.value.value / truth)} {rule} {seconds:.2f} s")
    for name, other in _BOUNDS.items():
        applies = layer.size or name not in ("sup", "Laurent", "majorant")
        text = _ratio(other(layer, weight) / truth) if applies else "-"
        cells.append(text.removesuffix(" !") if name == "sup" else text)  # sampled from below
    return cells


def _ratio(ratio: float) -> str:
    """To six digits near 1, with a mark below it."""
    if math.isnan(ratio):
        return "-"
    text = f"{ratio:.6f}" if ratio < 1.0 + 1e-4 else f"{ratio:.4f}"
    return text + (" !" if ratio < 1 - 1e-9 else "")


def show_table(quick: bool, tight: bool) -> None:
    """Print the comparison, row by row as it is made, then as a table."""
    tiers = (Tier.QUICK, Tier.FAST, Tier.TIGHT) if tight else (Tier.QUICK, Tier.FAST)
    table = Table(title="bound / true norm (! = below the truth)")
    for column in ("layer", "weights", "Lanczos", *(tier.value for tier in tiers), *_BOUNDS):
        table.add_column(column)
    for layer in LAYERS:
        if quick and not layer.is_quick:
            continue
        for kind, make in (("He", he_weight), ("smooth", smooth_weight)):
            row = _row(layer, kind, make(layer.shape, np.random.default_rng(0)), tiers)
            print(" | ".join(row), flush=True)
            table.add_row(*row)
    Console(width=240).print(table)


def fuzz(cases: int) -> int:
    """Random small convolutions against singular values; the number of violations."""
    rng = np.random.default_rng()
    violations, ratios = 0, []
    for _ in range(cases):
        axes = int(rng.integers(1, 3))
        groups, outer, inner = (int(n) for n in rng.integers(1, 4, size=3))
        layer = _random_layer(rng, axes, (groups * outer, inner), groups)
        weight = rng.standard_normal(layer.shape) * 10.0 ** float(rng.integers(-6, 7))
        truth = _explicit_norm(layer, weight)
        for tier in Tier:
            value = operator_norm(layer.linear_map(weight), tier).value.value
            violations += value < truth * (1 - 1e-12)
        ratios.append(value / truth if truth else 1.0)
    median, worst = np.median(ratios), np.max(ratios)
    print(f"{cases} convolutions: {violations} violations, ratio {median:.7f} (worst {worst:.4f})")
    return violations


def _random_layer(
    rng: np.random.Generator, axes: int, channels: tuple[int, int], groups: int
) -> Layer:
    while True:
        taps, stride, dilation = (int(n) for n in rng.integers(1, 5, size=3))
        size, reach = int(rng.integers(1, 8)), dilation * (taps - 1) + 1
        padding = int(rng.integers(0, reach + 1))
        if size + 2 * padding >= reach:
            shape = (*channels, *(taps,) * axes)
            return Layer("random", shape, size, stride, padding, dilation, groups)


def _explicit_norm(layer: Layer, weight: Array) -> float:
    axes = len(layer.shape) - 2
    shape = (layer.shape[1] * layer.groups, *(layer.size,) * axes)
    basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    out = _CONVOLUTIONS[axes](
        pad(basis, (layer.padding,) * (2 * axes)),
        torch.from_numpy(weight),
        stride=layer.stride,
        dilation=layer.dilation,
        groups=layer.groups,
    )
    return float(np.linalg.norm(out.reshape(len(basis), -1).numpy(), 2))


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small layers only")
    parser.add_argument("--tight", action="store_true", help="also the tier that takes minutes")
    parser.add_argument("--fuzz", type=int, default=0, metavar="N", help="random convolutions")
    arguments = parser.parse_args()
    if arguments.fuzz:
        raise SystemExit(1 if fuzz(arguments.fuzz) else 0)
    show_table(arguments.quick, arguments.tight)


if __name__ == "__main__":
    main()
