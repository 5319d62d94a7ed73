"""Moves of entries: which are views, and what stands around a value."""

import numpy as np
import pytest
import torch

from lipcert.graph.ir import Padding, is_arrangement, padding_of
from lipcert.measure.lowering import lowered
from lipcert.measure.lowering.move import Grid
from tests.ops import Move, evaluated

OWN = np.arange(24).reshape(2, 3, 4)


def test_random_grids_are_found_and_read():
    """Axes cut, permuted, sliced, repeated, joined and padded: always a grid, and the right one."""
    draw = np.random.default_rng(0)
    for _ in range(300):
        shape = tuple(draw.integers(1, 5, draw.integers(1, 5)))
        places = np.arange(np.prod(shape)).reshape(shape)
        places = places.transpose(draw.permutation(len(shape)))
        axis = int(draw.integers(places.ndim))
        first = int(draw.integers(places.shape[axis]))
        cut = (slice(None),) * axis + (slice(first, None, int(draw.integers(1, 3))),)
        places = places[cut]
        if draw.random() < 0.3:
            places = np.flip(places, int(draw.integers(places.ndim)))
        if draw.random() < 0.3:
            places = np.broadcast_to(places, (2, *places.shape))
        if draw.random() < 0.5:
            places = places.reshape(places.shape[0], -1)
        if draw.random() < 0.3:
            widths = [tuple(draw.integers(0, 3, 2)) for _ in places.shape]
            places = np.pad(places, widths, constant_values=-1)
        node = Move(shape, np.ascontiguousarray(places))()
        assert Grid.of(places) is not None
        x = draw.standard_normal((2, *shape))
        found = lowered(node, [torch.tensor(x)], {})
        np.testing.assert_array_equal(found.numpy(), evaluated(node, x))


def test_what_is_no_grid_is_read_entry_by_entry():
    draw = np.random.default_rng(1)
    for _ in range(50):
        node = Move((3, 4), draw.integers(-1, 12, (2, 5)))()
        x = draw.standard_normal((2, 3, 4))
        np.testing.assert_array_equal(
            lowered(node, [torch.tensor(x)], {}).numpy(), evaluated(node, x)
        )


def test_views_share_memory():
    x = torch.zeros(2, 2, 3, 4)
    for sources in (OWN.reshape(6, 4), OWN.transpose(2, 0, 1), OWN[:, 1:, ::2], OWN[1]):
        found = lowered(Move((2, 3, 4), sources)(), [x], {})
        assert found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("sources", "padding"),
    [
        (np.pad(OWN, ((0, 0), (1, 2), (0, 1)), constant_values=-1), Padding.ZEROS),
        (np.pad(OWN, ((0, 0), (1, 2), (2, 1)), mode="wrap"), Padding.WRAPPED),
        (np.pad(OWN, ((0, 0), (1, 2), (0, 1)), mode="reflect"), Padding.REPEATED),
        (np.pad(OWN, ((0, 0), (0, 0), (1, 0)), mode="edge"), Padding.REPEATED),
        (OWN, None),
        (OWN.reshape(6, 4), None),
        (OWN.repeat(2, axis=1), None),
        (OWN[:, ::-1], None),
        (OWN[:, 1:], None),
    ],
)
def test_padding(sources, padding):
    assert padding_of(Move((2, 3, 4), sources)()) is padding


def test_arrangements():
    moves = [OWN.reshape(4, 6), OWN.transpose(2, 0, 1), OWN[:, ::-1], OWN[:, 1:], OWN - 1]
    found = [is_arrangement(Move((2, 3, 4), sources)()) for sources in moves]
    assert found == [True, True, True, False, False]
