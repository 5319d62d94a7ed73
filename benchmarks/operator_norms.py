"""Tightness and time of certified operator norms, tier by tier, and a fuzz against truth.

For each layer and kind of weights: the ratio of the bound of each tier to the true norm of the
finite map, with the rung that gave it and its time; then the worst ratio on maps of 14 positions
and more, on smaller ones, and of the tight tier. The truth is the largest singular value, or that
of Lanczos (in float32 for large layers, so that ratios are good to 1e-5). `!` marks a violation.

Run `OMP_NUM_THREADS=1 python benchmarks/operator_norms.py`: a few minutes on one thread (more
threads slow small matrices down); `--quick` for the small layers only, `--others` for other
published bounds next to ours. `--fuzz 10000` compares random geometries with explicit matrices
instead: 1-D to 3-D, strides, dilations, groups, asymmetric pads, every kind of padding, kernels
larger than the input, transposed; every tier and the rungs by frequencies.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from random_weights import he_weight, peaked_weight
from scipy.sparse.linalg import LinearOperator, eigsh
from torch.nn.functional import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    pad,
)

from lipcert.training.projection.torus import circulant_norm
from lipcert.geometry import Geometry, Window
from lipcert.norms.laurent import laurent_norm
from lipcert.norms.linear_map import ConvMap, DenseMap, LinearMap, PaddedConvMap
from lipcert.norms.operator_norm import Tier, operator_norm
from lipcert.training.projection.polyphase import live_kernels
from lipcert.norms.reads import Border
from lipcert.norms.windows import largest_overlap
from lipcert.operand import Operand
from lipcert.upper import INFINITE

Array = npt.NDArray[np.float64]
_BUDGET = 1.5e12
_CONVOLUTIONS = {1: conv1d, 2: conv2d, 3: conv3d}
_TRANSPOSED = {1: conv_transpose1d, 2: conv_transpose2d, 3: conv_transpose3d}
_ROUNDING = 1e-12  # of singular values


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
    Layer("7×7/2 3→64 @112", (64, 3, 7, 7), 112, 2, 3, is_quick=False),
    Layer("depthwise 3×3 128 @28", (128, 1, 3, 3), 28, padding=1, groups=128),
    Layer("32 groups 128→128 @28", (128, 4, 3, 3), 28, padding=1, groups=32),
    Layer("3×3 dilation 2 64→64 @28", (64, 64, 3, 3), 28, padding=2, dilation=2),
    Layer("3×3/2 64→128 @28", (128, 64, 3, 3), 28, 2, 1),
    Layer("4×4/2 32→64 @14 (transposed)", (64, 32, 4, 4), 14, 2, 1),
    Layer("conv1d k9 64→64 @128", (64, 64, 9), 128, padding=4),
    Layer("conv3d 16→16 @8", (16, 16, 3, 3, 3), 8, padding=1),
    Layer("conv3d 16→16 @16", (16, 16, 3, 3, 3), 16, padding=1, is_quick=False),
    Layer("3×3 64→64 @7", (64, 64, 3, 3), 7, padding=1),
    Layer("3×3 64→64 @14", (64, 64, 3, 3), 14, padding=1),
    Layer("3×3 128→128 @28", (128, 128, 3, 3), 28, padding=1, is_quick=False),
    Layer("3×3 128→128 @14", (128, 128, 3, 3), 14, padding=1, is_quick=False),
    Layer("3×3 256→256 @14", (256, 256, 3, 3), 14, padding=1, is_quick=False),
    Layer("3×3 128→128 @7", (128, 128, 3, 3), 7, padding=1, is_quick=False),
    Layer("3×3/2 512→512 @14", (512, 512, 3, 3), 14, 2, 1, is_quick=False),
    Layer("3×3 512→512 @7", (512, 512, 3, 3), 7, padding=1, is_quick=False),
)
_LARGEST_EXACT = 2.1e10  # positions · side³ of a block: beyond, the tight tier takes minutes


def true_norm(layer: Layer, weight: Array) -> float:
    """The norm of the finite map, to 1e-9 for small layers, to 1e-6 for large ones."""
    if math.prod(layer.shape[2:]) == 1:
        return float(np.linalg.norm(weight.reshape(layer.shape[:2]), 2))
    kind = np.float64 if layer.is_quick else np.float32
    kernel, axes = torch.from_numpy(weight.astype(kind)), len(layer.shape) - 2
    shape = (1, layer.shape[1] * layer.groups, *(layer.size,) * axes)

    def gram(vector: Array) -> Array:
        image = torch.from_numpy(vector.astype(kind).reshape(shape)).requires_grad_()
        padded = pad(image, (layer.padding,) * (2 * axes))
        out = _CONVOLUTIONS[axes](
            padded, kernel, stride=layer.stride, dilation=layer.dilation, groups=layer.groups
        )
        (back,) = torch.autograd.grad(out, image, out.detach())
        return back.numpy().ravel().astype(np.float64)

    side = math.prod(shape)
    start = np.random.default_rng(0).standard_normal(side)
    operator = LinearOperator((side, side), matvec=gram, dtype=np.float64)
    accuracy = 1e-9 if layer.is_quick else 1e-4
    return math.sqrt(eigsh(operator, k=1, tol=accuracy, v0=start, ncv=20)[0][0])


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


_OTHERS = {
    "Frobenius·√overlap": frobenius,
    "reshape·√overlap": reshaped,
    "circular (unsound)": circular,
    "Gram iteration (unsound)": gram_iteration,
}


def _ratio(ratio: float, rounding: float) -> str:
    """To six digits, with a mark below 1."""
    return f"{ratio:.6f}" + (" !" if ratio < 1.0 - rounding else "")


def _tiers(layer: Layer) -> tuple[Tier, ...]:
    """The tiers to measure: on large layers the exact one takes minutes."""
    size = layer.size // layer.stride
    side = layer.shape[0] * size ** max(0, len(layer.shape) - 3)
    exact = size * side**3 <= _LARGEST_EXACT or math.prod(layer.shape[2:]) == 1
    return (Tier.QUICK, Tier.FAST, Tier.TIGHT) if exact else (Tier.QUICK, Tier.FAST)


def show_table(quick: bool, others: bool) -> None:
    """Print a row per layer and kind of weights, then the worst ratios."""
    worst: dict[str, float] = {}
    for layer, make in itertools.product(LAYERS, (he_weight, peaked_weight)):
        if quick and not layer.is_quick:
            continue
        weight = make(layer.shape, np.random.default_rng(0))
        start = time.perf_counter()
        truth = true_norm(layer, weight)
        rounding = 1e-9 if layer.is_quick or not layer.size else 1e-5
        cells = [f"{layer.name:28}", f"{make.__name__:13}", f"{truth:9.4f}"]
        cells.append(f"{time.perf_counter() - start:6.2f} s")
        for tier in _tiers(layer):
            start = time.perf_counter()
            bound = operator_norm(layer.linear_map(weight), tier)
            seconds, ratio = time.perf_counter() - start, bound.value.value / truth
            rule = bound.rule.removeprefix("norms.")
            cells.append(f"{tier.value} {_ratio(ratio, rounding)} {rule:9} {seconds:6.2f} s")
            name = _class(layer, tier)
            worst[name] = max(worst.get(name, 0.0), ratio)
        for name, other in _OTHERS.items() if others else ():
            cells.append(f"{name} {_ratio(other(layer, weight) / truth, rounding)}")
        print(" | ".join(cells), flush=True)
    for name, ratio in worst.items():
        print(f"worst ratio, {name}: {ratio:.6f}")


def _class(layer: Layer, tier: Tier) -> str:
    """What a ratio is compared with: the tier, and in the fast one also the size of the map."""
    if tier is not Tier.FAST:
        return tier.value
    outputs = layer.geometry[0].outputs if layer.size else math.inf
    return f"{tier.value}, maps of {'14 and more' if outputs >= 14 else 'fewer than 14'}"


@dataclass(frozen=True)
class Case:
    """A random map, its explicit matrix, and what the rungs for zero padding take, if any."""

    linear_map: ConvMap | PaddedConvMap
    matrix: Array
    kernels: Array | None


def fuzz(cases: int) -> int:
    """Random small convolutions against singular values; the number of violations."""
    rng = np.random.default_rng()
    violations = 0
    ratios: dict[str, list[float]] = {}
    start = time.perf_counter()
    for _ in range(cases):
        case = _random_case(rng)
        truth = float(np.linalg.norm(case.matrix, 2))
        for name, value in _bounds(case):
            if not value >= truth * (1.0 - _ROUNDING):
                violations += 1
                print(f"VIOLATION {name}: {value!r} < {truth!r} for {case.linear_map}")
            if truth:
                ratios.setdefault(name, []).append(value / truth)
    seconds = time.perf_counter() - start
    print(f"{cases} geometries, {violations} violations, {seconds:.0f} s; ratios to the truth:")
    for name, each in sorted(ratios.items()):
        finite = [ratio for ratio in each if math.isfinite(ratio)]
        print(
            f"{name:24} {len(finite):6} bounds, least {min(finite):.9f}, "
            f"median {np.median(finite):.6f}, worst {max(finite):.4f}"
        )
    return violations


def _bounds(case: Case) -> Iterator[tuple[str, float]]:
    """Every bound of a map."""
    border = getattr(case.linear_map, "border", None)
    kind = "zeros" if border is None else border.value
    for tier in Tier:
        yield f"{tier.value}, {kind}", operator_norm(case.linear_map, tier).value.value
    if case.kernels is None:
        return
    geometry = case.linear_map.geometry
    kernels = live_kernels(case.kernels, geometry)
    yield "circulant", circulant_norm(kernels, geometry, _BUDGET).bound.value
    yield "Laurent", laurent_norm(kernels, geometry, INFINITE, _BUDGET).bound.value


def _random_case(rng: np.random.Generator) -> Case:
    axes = int(rng.choice([1, 1, 2, 2, 2, 3]))
    groups, outer, inner = (int(n) for n in rng.integers(1, 4, size=3))
    kind = int(rng.integers(5))
    border = (None, None, *Border)[kind]
    largest = {1: 12, 2: 5, 3: 3}[axes]
    sizes = [int(n) for n in rng.integers(1, largest + 1, size=axes)]
    pads = [(0, 0)] * axes
    if border is not None:
        limits = [size if border is Border.REFLECT else size + 1 for size in sizes]
        pads = [(int(rng.integers(n)), int(rng.integers(n))) for n in limits]
    padded = [size + sum(each) for size, each in zip(sizes, pads, strict=True)]
    geometry = tuple(_random_window(rng, size) for size in padded)
    shape = (groups * outer, inner, *(window.taps for window in geometry))
    weight = _random_weight(rng, shape)
    if border is not None:
        linear_map = PaddedConvMap(Operand(weight), geometry, tuple(pads), border, groups)
        return Case(linear_map, _matrix(weight, geometry, groups, pads, border.value), None)
    is_transposed = bool(rng.integers(2))
    make = _transposed_matrix if is_transposed else _matrix
    kernels = weight.reshape(groups, outer, *shape[1:])
    return Case(ConvMap(Operand(weight), geometry, groups), make(weight, geometry, groups), kernels)


def _random_window(rng: np.random.Generator, size: int) -> Window:
    """Any stride, dilation and zero pads; often wider than the input."""
    while True:
        taps, stride, dilation = (int(n) for n in rng.integers(1, (5, 5, 4)))
        reach = dilation * (taps - 1) + 1
        begin, end = (int(n) for n in rng.integers(0, reach + 1, size=2))
        if size + begin + end >= reach:
            return Window(size, taps, stride, dilation, begin, end)


def _random_weight(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Gaussian, signs, non-negative, a checkerboard or sparse, of any magnitude."""
    weight = rng.standard_normal(shape)
    checkerboard = (-1.0) ** np.indices(shape[2:]).sum(axis=0)
    kinds = (weight, np.sign(weight), np.abs(weight), np.abs(weight) * checkerboard)
    weight = (*kinds, weight * (rng.random(shape) < 0.4))[int(rng.integers(5))]
    return weight * 10.0 ** float(rng.integers(-6, 7))


def _matrix(
    weight: Array,
    geometry: Geometry,
    groups: int,
    pads: Sequence[tuple[int, int]] = (),
    mode: str = "constant",
) -> Array:
    """The matrix of the map: its action on unit vectors, padded by numpy, convolved by torch."""
    axes = len(geometry)
    pads = pads or [(0, 0)] * axes
    sizes = [w.size - sum(each) for w, each in zip(geometry, pads, strict=True)]
    shape = (weight.shape[1] * groups, *sizes)
    images = np.eye(math.prod(shape)).reshape(-1, *shape)
    images = np.pad(images, [(0, 0), (0, 0), *pads], mode=mode)  # type: ignore[call-overload]
    zeros = [(w.pad_begin, w.pad_end) for w in geometry]
    images = np.pad(images, [(0, 0), (0, 0), *zeros])
    out = _CONVOLUTIONS[axes](
        torch.from_numpy(images),
        torch.from_numpy(weight),
        stride=[w.stride for w in geometry],
        dilation=[w.dilation for w in geometry],
        groups=groups,
    )
    return out.reshape(len(images), -1).numpy()


def _transposed_matrix(weight: Array, geometry: Geometry, groups: int) -> Array:
    """The matrix of the transposed convolution with this weight, whose adjoint the geometry is."""
    axes = len(geometry)
    shape = (weight.shape[0], *(w.outputs for w in geometry))
    images = np.eye(math.prod(shape)).reshape(-1, *shape)
    out = _TRANSPOSED[axes](
        torch.from_numpy(images),
        torch.from_numpy(weight),
        stride=[w.stride for w in geometry],
        dilation=[w.dilation for w in geometry],
        groups=groups,
    ).numpy()
    whole = [w.size + w.pad_begin + w.pad_end for w in geometry]
    more = [(0, max(0, n - m)) for n, m in zip(whole, out.shape[2:], strict=True)]
    out = np.pad(out, [(0, 0), (0, 0), *more])
    for axis, window in enumerate(geometry, start=2):
        out = np.take(out, range(window.pad_begin, window.pad_begin + window.size), axis=axis)
    return out.reshape(len(images), -1)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small layers only")
    parser.add_argument("--others", action="store_true", help="also other published bounds")
    parser.add_argument("--fuzz", type=int, default=0, metavar="N", help="random convolutions")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.fuzz:
        raise SystemExit(1 if fuzz(arguments.fuzz) else 0)
    show_table(arguments.quick, arguments.others)


if __name__ == "__main__":
    main()
