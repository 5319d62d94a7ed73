"""Axes of a batch on which a layer may work: all but the first, which counts the examples.

What enters: an axis as the caller wrote it. What leaves: the axis counted from the front, or a
UsageError. Invariant: it is never the axis of the examples.
"""

from __future__ import annotations

from torch import Tensor

from lipcert.errors import UsageError


def example_axis(layer: str, axis: int, x: Tensor) -> int:
    """The axis of a batch x, which is not that of the examples."""
    found = axis + x.dim() if axis < 0 else axis
    if not 0 < found < x.dim():
        raise UsageError(
            f"{layer}: axis {axis} of a batch of shape {tuple(x.shape)} is no axis of one example; "
            f"choose one of 1 to {x.dim() - 1}, or count from the last with -1"
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
