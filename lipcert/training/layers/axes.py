"""What layers ask of a batch and of the moment: axes of an example, and whether there is an export.

Axes: as the caller wrote them, counted from the front, or a UsageError; never that of the examples.
Exports: a layer may compute the same function in two ways: for the exporter in nodes that an
importer recognises as a whole, and otherwise in the operations that are fastest, backwards too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipcert.errors import UsageError


def example_axis(layer: str, axis: int, x: Tensor) -> int:
    """The axis of a batch x, which is not that of the examples."""
    found = axis + x.dim() if axis < 0 else axis
    if not 0 < found < x.dim():
        raise UsageError(
            f"{layer}: axis {axis} of a batch of shape {tuple(x.shape)} is not an axis of one "
            f"example; choose one of 1 to {x.dim() - 1}, or count from the last with -1"
        )
    return found


def divided(layer: str, what: str, size: int, parts: int) -> int:
    """size / parts, which must be whole."""
    if size % parts:
        raise UsageError(f"{layer}: {size} {what} do not divide into parts of {parts}")
    return size // parts


def unflattened(x: Tensor, axis: int, *sizes: int) -> Tensor:
    """One axis as several of these sizes."""
    return x.reshape(*x.shape[:axis], *sizes, *x.shape[axis + 1 :])


def is_exporting() -> bool:
    """Whether torch.onnx or torch.export is tracing."""
    return bool(torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export())
