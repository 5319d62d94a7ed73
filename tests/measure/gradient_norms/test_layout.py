"""Orders in memory: the same entries, and views where views are possible."""

from __future__ import annotations

import pytest
import torch

from lipcert.graph.geometry import Window
from lipcert.measure.gradient_norms.layout import (
    channels_last,
    dense,
    in_memory_order,
    is_channels_last,
    prefers_channels_last,
)
from tests.measure.gradient_norms.oracle import CPU
from tests.networks import chain, group_norm, trained
from tests.ops import Conv


@pytest.mark.parametrize("shape", [(2, 1, 3, 4), (1, 3, 1, 4), (2, 3, 4, 5), (3, 2, 1, 1)])
def test_channels_last_keeps_every_entry(shape: tuple[int, ...]) -> None:
    images = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    found = channels_last(images)
    _, channels, rows, columns = shape
    assert torch.equal(found, images)
    assert is_channels_last(found)
    assert found.stride() == (rows * columns * channels, 1, columns * channels, channels)


def test_flattening_in_memory_order_copies_nothing() -> None:
    images = torch.randn(2, 3, 4, 5)
    for tensor in (images, channels_last(images), images[:, 0], images.flatten(1)):
        flat = in_memory_order(tensor).reshape(2, -1)
        assert torch.equal(flat.sort().values, tensor.flatten(1).sort().values)
        assert tensor.dim() == 3 or flat.data_ptr() == tensor.data_ptr()


def test_dense_copies_only_what_has_gaps() -> None:
    images = torch.randn(2, 3, 4, 5)
    last = channels_last(images)
    assert dense(images) is images
    assert dense(last) is last
    assert dense(images[:, :2]).is_contiguous()
    assert dense(images.new_zeros(1).expand(2, 3)).is_contiguous()


def test_group_normalisation_weighs_against_channels_last() -> None:
    window = Window(5, 3, 1, 1, 1, 1)
    kernel = torch.randn(4, 3, 3, 3).numpy().astype("float64")
    scale = torch.randn(4).numpy().astype("float64")
    conv = Conv(trained("k", kernel), None, (window, window))
    alone = chain((3, 5, 5), conv)
    both = chain((3, 5, 5), conv, *group_norm((4, 5, 5), 2, 1e-3, trained("s", scale)))
    line = chain((4, 5), *group_norm((4, 5), 2, 1e-3, trained("s", scale)))
    assert prefers_channels_last(alone, torch.float32, CPU)
    assert not prefers_channels_last(both, torch.float32, CPU)
    assert not prefers_channels_last(alone, torch.float64, CPU)
    assert not prefers_channels_last(line, torch.float32, CPU)
