"""Pooling against torch: overlaps, strides, dilation, pads, and what a mean divides by."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from lipcert.graph.geometry import Window
from tests.measure.lowering.cases.case import Case
from tests.ops import AveragePool, LpPool, MaxPool


def patches(x: torch.Tensor, geometry, padding: float) -> torch.Tensor:
    """[examples, channels, *outputs, taps], by torch's own unfold."""
    for axis, window in enumerate(geometry, start=2):
        pads = [0, 0] * (x.dim() - 1 - axis) + [window.pad_begin, window.pad_end]
        x = functional.pad(x, pads, value=padding)
        reach = window.dilation * (window.taps - 1) + 1
        x = x.unfold(axis, reach, window.stride)[..., :: window.dilation]
    return x.flatten(2 + len(geometry))


def max_case(name, channels, geometry, box=None) -> Case:
    return Case(
        name=f"max_pool_{name}",
        op=MaxPool(geometry),
        inputs=((channels, *(w.size for w in geometry)),),
        reference=lambda inputs, _: patches(inputs[0], geometry, -math.inf).amax(-1),
        box=box,
    )


def average_case(name, channels, geometry, count_pads) -> Case:
    def reference(inputs, _):
        windows = patches(inputs[0], geometry, 0.0)
        if count_pads:
            return windows.mean(-1)
        counted = patches(torch.ones_like(inputs[0]), geometry, 0.0)
        return windows.sum(-1) / counted.sum(-1)

    return Case(
        name=f"average_pool_{name}",
        op=AveragePool(geometry, count_pads),
        inputs=((channels, *(w.size for w in geometry)),),
        reference=reference,
    )


def lp_case(name, channels, geometry, p) -> Case:
    def reference(inputs, _):
        windows = patches(inputs[0], geometry, 0.0)
        return torch.linalg.vector_norm(windows, ord=p, dim=-1)

    return Case(
        name=f"lp_pool_{name}",
        op=LpPool(geometry, p),
        inputs=((channels, *(w.size for w in geometry)),),
        reference=reference,
    )


CASES = [
    max_case("2_2", 2, (Window(4, 2, 2), Window(4, 2, 2))),
    max_case("3_1_1", 1, (Window(3, 3, 1, 1, 1, 1),) * 2),
    max_case("3_2_boxed", 2, (Window(5, 3, 2),) * 2, box=(-0.5, 0.25)),
    max_case("dilated", 1, (Window(7, 2, 1, 3),)),
    max_case("volume", 1, (Window(3, 2), Window(4, 2, 2), Window(3, 3))),
    average_case("2_2", 2, (Window(4, 2, 2), Window(6, 3, 3)), True),
    average_case("3_1_1", 1, (Window(4, 3, 1, 1, 1, 1),) * 2, True),
    average_case("3_1_1_unpadded_count", 1, (Window(4, 3, 1, 1, 1, 1),) * 2, False),
    average_case("line", 3, (Window(7, 3, 2, 1, 1, 0),), False),
    average_case("volume", 1, (Window(3, 2), Window(4, 2, 2), Window(3, 3)), True),
    lp_case("disjoint_2", 2, (Window(4, 2, 2), Window(6, 3, 3)), 2),
    lp_case("overlap_2", 1, (Window(4, 3, 1, 1, 1, 1),) * 2, 2),
    lp_case("disjoint_1", 1, (Window(6, 3, 3),), 1),
    lp_case("overlap_1", 1, (Window(5, 2), Window(4, 2)), 1),
]
