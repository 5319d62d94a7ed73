"""Layout: in which order the entries of a tensor lie in memory, and which order suits a network.

Input: tensors [examples, *shape]. Output: the same entries; only strides differ. Images are
[examples, channels, rows, columns]; "channels last" means that the channels of one pixel are
neighbours in memory, as the fastest convolutions of torch have it. Norms do not depend on the
order.
"""

from __future__ import annotations

from math import prod
from typing import Final

import torch
from torch import Tensor

from lipcert.core.program import Conv, Normalize
from lipcert.graph.ir import Graph

_PRODUCTS_PER_ENTRY: Final = 500


def is_channels_last(tensor: Tensor) -> bool:
    """Whether the channels of an image are neighbours; true of both orders where they agree."""
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def dense(tensor: Tensor) -> Tensor:
    """The tensor itself if it lies in memory in either order; otherwise a copy that does."""
    return tensor if is_channels_last(tensor) else tensor.contiguous()


def memory_order(tensor: Tensor) -> list[int]:
    """The axes but the first, neighbours in memory last."""
    return sorted(range(1, tensor.dim()), key=tensor.stride, reverse=True)


def in_memory_order(tensor: Tensor) -> Tensor:
    """With its axes permuted, so that flattening what lies densely copies nothing."""
    return tensor if tensor.is_contiguous() else tensor.permute(0, *memory_order(tensor))


def channels_last(images: Tensor) -> Tensor:
    """The images with channels last, in strides as well, where one channel would leave a choice."""
    pixels = images.permute(0, 2, 3, 1).contiguous()
    _, rows, columns, channels = pixels.shape
    line = columns * channels
    return pixels.as_strided(images.shape, (rows * line, 1, line, channels))


def prefers_channels_last(graph: Graph, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether torch works faster on images with channels last.

    On a CPU its convolutions in float32 do, its normalisations of groups do not: what counts is how
    many products the convolutions have for each entry that is normalised. A convolution of one
    channel with windows in a single column reads beyond its input there (torch 2.13), where its
    stride along the rows is not 1.
    """
    if device.type != "cpu" or dtype is not torch.float32 or len(graph.input_shape) != 3:
        return False
    products = normalised = 0
    for node in graph.nodes:
        match node.op:
            case Conv(weight=weight, transposed=False) as op if len(node.shape) == 3:
                if weight.shape[1] == 1 and node.shape[2] == 1 and op.window.strides[1] > 1:
                    return False
                products += prod(node.shape) * prod(weight.shape[1:])
            case Normalize():
                normalised += prod(node.shape)
    return products > _PRODUCTS_PER_ENTRY * normalised
