"""Clips of an input."""

from __future__ import annotations

import torch

from tests.measure.lowering.cases.case import Case
from tests.ops import InputClip


def clip(x: torch.Tensor, radius: float) -> torch.Tensor:
    length = x.flatten(1).norm(dim=1).reshape(-1, *[1] * (x.dim() - 1))
    return torch.where(length > radius, radius * x / length.clamp_min(1e-300), x)


def case(name: str, radius: float, **options) -> Case:
    op = InputClip(radius)
    return Case(name, op, ((2, 3),), lambda x, _: clip(x[0], radius), **options)


CASES: list[Case] = [
    case("input clip inside the ball", 0.5),
    case("input clip that never clips", 5.0),
    case("input clip of a box", 0.5, box=(-0.25, 1.0)),
    case("input clip of a box without zero", 0.5, box=(0.25, 1.0)),
]
