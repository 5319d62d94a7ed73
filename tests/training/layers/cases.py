"""Case: one record per layer, with what it is to compute and the constants it states."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lipcert.training import layers

Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """A layer of examples of one shape.

    reference: of one example, in numpy. lipschitz: in x. reach: the output norm for inputs up to a
    norm. keeps_norm: whether both are attained by every input.
    """

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    reference: Callable[[Array], Array]
    lipschitz: float = 1.0
    reach: Callable[[float], float] = lambda norm: norm
    keeps_norm: bool = False

    def layer(self) -> nn.Module:
        torch.manual_seed(1)
        return self.make().double()


def group_sort(size: int, axis: int) -> Callable[[Array], Array]:
    def reference(x: Array) -> Array:
        lines = np.moveaxis(x, axis, -1).copy()
        for start in range(0, lines.shape[-1], size):
            lines[..., start : start + size] = np.sort(lines[..., start : start + size], axis=-1)
        return np.moveaxis(lines, -1, axis)

    return reference


def max_min(x: Array) -> Array:
    half = len(x) // 2
    return np.concatenate([np.maximum(x[:half], x[half:]), np.minimum(x[:half], x[half:])])


def householder(direction: tuple[float, ...]) -> Callable[[Array], Array]:
    v = np.array(direction) / np.linalg.norm(direction)

    def reference(x: Array) -> Array:
        groups, y = len(x) // len(v), x.copy()
        for group in range(groups):
            for rest in np.ndindex(x.shape[1:]):
                where = (slice(group, None, groups), *rest)
                z = x[where]
                y[where] = z if v @ z >= 0 else z - 2 * (v @ z) * v
        return y

    return reference


def lengths(high: int, wide: int) -> Callable[[Array], Array]:
    def reference(x: Array) -> Array:
        rows, columns = x.shape[1] // high, x.shape[2] // wide
        y = np.zeros((x.shape[0], rows, columns))
        for c, i, j in np.ndindex(y.shape):
            window = x[c, i * high : (i + 1) * high, j * wide : (j + 1) * wide]
            y[c, i, j] = math.sqrt(float((window**2).sum()))
        return y

    return reference


def centred(*axes: int) -> Callable[[Array], Array]:
    return lambda x: x - x.mean(axis=axes or None, keepdims=True)


def group_norm(groups: int, floor: float, scale: float = 1.0) -> Callable[[Array], Array]:
    def reference(x: Array) -> Array:
        blocks = x.reshape(groups, -1)
        moved = blocks - blocks.mean(axis=1, keepdims=True)
        deviation = np.sqrt((moved**2).mean(axis=1, keepdims=True))
        return scale * (moved / np.maximum(floor, deviation)).reshape(x.shape)

    return reference


def layer_norm(floor: float) -> Callable[[Array], Array]:
    def reference(x: Array) -> Array:
        moved = x - x.mean(axis=-1, keepdims=True)
        return moved / np.maximum(floor, np.sqrt((moved**2).mean(axis=-1, keepdims=True)))

    return reference


def unit_norm(x: Array) -> Array:
    moved = x - x.mean(axis=-1, keepdims=True)
    return moved / np.sqrt((moved**2).sum(axis=-1, keepdims=True) + 1.0)


def clipped(radius: float) -> Callable[[Array], Array]:
    return lambda x: x * min(1.0, radius / max(float(np.linalg.norm(x)), 1e-300))


def normalised(radius: float, floor: float) -> Callable[[Array], Array]:
    return lambda x: radius * x / max(float(np.linalg.norm(x)), floor)


YIQ = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
SHRINK = 0.7


class Shrink(nn.Module):
    """A branch of Lipschitz constant 0.7."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return SHRINK * x


class Biased(nn.Module):
    """AddBias with a bias that is not 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layers.AddBias(2)
        nn.init.constant_(self.layer.bias, 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Scaled(nn.Module):
    """BoundedGroupNorm with a weight that is not 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layers.BoundedGroupNorm(2, 4, 0.5, affine=True)
        nn.init.constant_(self.layer.weight, 3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def mixer(x: Array) -> Array:
    torch.manual_seed(1)
    block = layers.MixerBlock(4, 6).double()
    for half in (block.token_mixing, block.feature_mixing):
        first, second = (part.weight.detach().numpy() for part in (half.first, half.second))
        lines = x.T if half is block.token_mixing else x
        mixed = np.stack([second @ max_min(first @ line) for line in lines])
        x = mixed.T if half is block.token_mixing else mixed
    return x


CASES = [
    Case("group_sort", lambda: layers.GroupSort(3), (6,), group_sort(3, 0), keeps_norm=True),
    Case("group_sort_maps", lambda: layers.GroupSort(2), (4, 2, 2), group_sort(2, 0),
         keeps_norm=True),
    Case("group_sort_last", lambda: layers.GroupSort(4, -1), (2, 4), group_sort(4, 1),
         keeps_norm=True),
    Case("max_min", layers.MaxMin, (6, 2), max_min, keeps_norm=True),
    Case("householder", layers.Householder, (6,), max_min, keeps_norm=True),
    Case("householder_of_three", lambda: layers.Householder((1.0, 2.0, -0.5)), (6, 2),
         householder((1.0, 2.0, -0.5)), keeps_norm=True),
    Case("l2_pool", lambda: layers.ScaledL2NormPool2d(2), (2, 4, 4), lengths(2, 2)),
    Case("l2_pool_rest", lambda: layers.ScaledL2NormPool2d((2, 3)), (1, 5, 4), lengths(2, 3)),
    Case("centering", layers.LayerCentering, (2, 3), centred()),
    Case("centering_channels", lambda: layers.LayerCentering((1,)), (3, 2, 2), centred(0)),
    Case("group_norm", lambda: layers.BoundedGroupNorm(2, 4, 0.5), (4, 2, 2), group_norm(2, 0.5),
         2.0, lambda norm: min(4.0, norm / 0.5)),
    Case("group_norm_affine", Scaled, (4, 2), group_norm(2, 0.5, 3.0),
         6.0, lambda norm: 3.0 * min(math.sqrt(8), norm / 0.5)),
    Case("layer_norm_tokens", lambda: layers.BoundedLayerNorm(4, 0.25), (3, 4), layer_norm(0.25),
         4.0, lambda norm: min(math.sqrt(12), norm / 0.25)),
    Case("unit_norm_tokens", lambda: layers.UnitLayerNorm(4), (3, 4), unit_norm,
         1.0, lambda norm: min(math.sqrt(3), norm)),
    Case("unit_norm", lambda: layers.UnitLayerNorm((2, 3)), (2, 3),
         lambda x: unit_norm(x.reshape(-1)).reshape(x.shape), 1.0, lambda norm: min(1.0, norm)),
    Case("unit_norm_groups", lambda: layers.UnitGroupNorm(2, 4), (4, 2, 2),
         lambda x: unit_norm(x.reshape(2, -1)).reshape(x.shape),
         1.0, lambda norm: min(math.sqrt(2), norm)),
    Case("input_clip", lambda: layers.InputClip(0.8), (2, 3), clipped(0.8),
         1.0, lambda norm: min(0.8, norm)),
    Case("input_norm", lambda: layers.InputNormalization(2.0, 0.5), (6,), normalised(2.0, 0.5),
         4.0, lambda norm: min(2.0, 4.0 * norm)),
    Case("residual", lambda: layers.Residual(Shrink()), (5,), lambda x: x + SHRINK * x,
         1.7, lambda norm: 1.7 * norm),
    Case("half_residual", lambda: layers.HalfResidual(Shrink()), (5,),
         lambda x: 0.5 * (x + SHRINK * x), 0.85, lambda norm: 0.85 * norm),
    Case("scaled_residual", lambda: layers.ScaledResidual(Shrink(), 2), (5,),
         lambda x: x + 0.25 * SHRINK * x, 1.175, lambda norm: 1.175 * norm),
    Case("add_bias", Biased, (2, 2, 3), lambda x: x + 0.5,
         1.0, lambda norm: norm + math.sqrt(6) * math.sqrt(0.5)),
    Case("mixer", lambda: layers.MixerBlock(4, 6), (4, 6), mixer, keeps_norm=True),
    Case("colour", lambda: layers.ColourSpace("yiq"), (3, 2, 2),
         lambda x: np.einsum("ij,jkl->ikl", YIQ, x), 0.8572, lambda norm: 0.8572 * norm),
]  # fmt: skip
IDS = [case.name for case in CASES]
