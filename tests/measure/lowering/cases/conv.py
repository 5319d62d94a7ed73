"""Convolutions and transposed convolutions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lipcert.graph.geometry import Window
from lipcert.graph.operand import Operand
from tests.measure.lowering.cases.case import Case
from tests.ops import Conv, ConvTranspose

RNG = np.random.default_rng(12)


def pads_of(geometry: tuple[Window, ...]) -> list[int]:
    """In the order of torch.nn.functional.pad: last dimension first."""
    return [pad for window in reversed(geometry) for pad in (window.pad_begin, window.pad_end)]


def correlate(x: Tensor, kernel: Tensor, geometry: tuple[Window, ...], groups: int) -> Tensor:
    run = (functional.conv1d, functional.conv2d, functional.conv3d)[len(geometry) - 1]
    return run(
        functional.pad(x, pads_of(geometry)),
        kernel,
        stride=tuple(window.stride for window in geometry),
        dilation=tuple(window.dilation for window in geometry),
        groups=groups,
    )


def adjoint(y: Tensor, kernel: Tensor, geometry: tuple[Window, ...], groups: int) -> Tensor:
    """torch's own transposed convolution, with its output_padding, then cropped by the pads."""
    run = (
        functional.conv_transpose1d,
        functional.conv_transpose2d,
        functional.conv_transpose3d,
    )[len(geometry) - 1]
    full = run(
        y,
        kernel,
        stride=tuple(window.stride for window in geometry),
        dilation=tuple(window.dilation for window in geometry),
        groups=groups,
    )
    for axis, window in enumerate(geometry, start=2):
        missing = window.pad_begin + window.size - full.shape[axis]
        if missing > 0:
            shape = (*full.shape[:axis], missing, *full.shape[axis + 1 :])
            full = torch.cat([full, torch.zeros(shape, dtype=full.dtype)], dim=axis)
        full = full.narrow(axis, window.pad_begin, window.size)
    return full


def with_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    return y if bias is None else y + bias.reshape(-1, *[1] * (y.dim() - 2))


def conv(name, channels, geometry, groups=1, bias=True, kernel=None, **options) -> Case:
    inputs, outputs = channels
    if kernel is None:
        taps = tuple(window.taps for window in geometry)
        kernel = RNG.normal(size=(outputs, inputs // groups, *taps))
    op = Conv(
        Operand(kernel, "weight"),
        Operand(RNG.normal(size=outputs), "bias") if bias else None,
        geometry,
        groups,
    )

    def reference(x: list[Tensor], constants: dict[str, Tensor]) -> Tensor:
        image = correlate(x[0], constants["weight"], geometry, groups)
        return with_bias(image, constants.get("bias"))

    shape = (inputs, *(window.size for window in geometry))
    return Case(name, op, (shape,), reference, **options)


def transposed(name, channels, geometry, groups=1, bias=True, **options) -> Case:
    inputs, outputs = channels
    taps = tuple(window.taps for window in geometry)
    op = ConvTranspose(
        Operand(RNG.normal(size=(inputs, outputs // groups, *taps)), "weight"),
        Operand(RNG.normal(size=outputs), "bias") if bias else None,
        geometry,
        groups,
    )

    def reference(x: list[Tensor], constants: dict[str, Tensor]) -> Tensor:
        image = adjoint(x[0], constants["weight"], geometry, groups)
        return with_bias(image, constants.get("bias"))

    shape = (inputs, *(window.outputs for window in geometry))
    return Case(name, op, (shape,), reference, **options)


def square(size: int, taps: int, **attributes: int) -> tuple[Window, Window]:
    return (Window(size, taps, **attributes), Window(size, taps, **attributes))


SAME = square(5, 3, pad_begin=1, pad_end=1)
PATCHES = square(6, 2, stride=2)
LOPSIDED = (Window(6, 3, 2, 1, 0, 2), Window(5, 2, 1, 3, 2, 0))

CASES: list[Case] = [
    conv("conv 3x3", (2, 3), SAME),
    conv("conv 3x3 in a box", (2, 3), SAME, box=(0.0, 1.0)),
    conv("conv in an offset box", (2, 3), SAME, box=(0.5, 1.0)),
    conv("conv lopsided", (2, 2), LOPSIDED),
    conv("conv patches", (1, 3), PATCHES),
    conv("conv depthwise", (3, 3), SAME, groups=3, box=(-1.0, 1.0)),
    conv("conv depthwise doubled", (2, 4), SAME, groups=2, bias=False),
    conv("conv groups", (4, 6), SAME, groups=2),
    conv("conv 1x1", (3, 4), square(3, 1)),
    conv("conv 1d", (2, 3), (Window(9, 4, 2, 1, 1, 2),)),
    conv("conv 3d", (1, 2), (Window(3, 2), Window(4, 3, 1, 1, 1, 1), Window(3, 2, 2))),
    conv("conv wider than the image", (2, 2), square(2, 5, pad_begin=2, pad_end=2)),
    conv("conv dilated", (1, 2), square(6, 3, dilation=2, pad_begin=2, pad_end=2)),
    conv("conv one output", (2, 1), square(3, 3)),
    conv("conv zero kernel", (2, 2), SAME, kernel=np.zeros((2, 2, 3, 3))),
    conv("conv negative kernel", (2, 2), SAME, kernel=-np.ones((2, 2, 3, 3)), box=(0.0, 1.0)),
    conv(
        "conv box filter",
        (1, 1),
        square(12, 3, pad_begin=1, pad_end=1),
        kernel=np.full((1, 1, 3, 3), 1 / 9),
        box=(0.0, 1.0),
    ),
    transposed("conv transpose", (3, 2), SAME),
    transposed("conv transpose strided", (2, 3), square(8, 4, stride=2, pad_begin=1, pad_end=1)),
    transposed("conv transpose in a box", (2, 3), PATCHES, box=(0.25, 1.0)),
    transposed("conv transpose lopsided", (2, 2), LOPSIDED, box=(-1.0, 2.0)),
    transposed("conv transpose groups", (4, 6), PATCHES, groups=2),
    transposed("conv transpose 1d gaps", (2, 1), (Window(11, 2, 4),), box=(0.5, 1.0)),
    transposed("conv transpose output padding", (1, 2), square(6, 3, stride=2)),
    transposed("conv transpose 3d", (1, 2), (Window(3, 2), Window(4, 2, 2), Window(3, 1))),
]
