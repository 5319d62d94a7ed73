"""Moves of entries against the torch functions that they stand for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tests.measure.lowering.cases.case import Case
from tests.ops import Move


def move(name, shape, function) -> Case:
    """function: of tensors [examples, *shape]; its sources are what it does to flat indices."""
    indices = torch.arange(1.0, np.prod(shape) + 1.0).reshape(1, *shape)
    sources = function(indices)[0].numpy().astype(np.int64) - 1
    return Case(f"move {name}", Move(shape, sources), (shape,), lambda x, _: function(x[0]))


def gathered(places) -> object:
    def apply(x: Tensor) -> Tensor:
        return x.flatten(1)[:, torch.tensor(places)]

    return apply


def pad(mode, *widths):
    return lambda x: functional.pad(x, widths, mode=mode)


def shuffled(x: Tensor) -> Tensor:
    return functional.pixel_shuffle(x, 2)


CASES: list[Case] = [
    move("reshape", (2, 6), lambda x: x.reshape(len(x), 3, 4)),
    move("of one number", (1, 1), lambda x: x.reshape(len(x))),
    move("transpose", (2, 3, 4), lambda x: x.permute(0, 3, 1, 2)),
    move("transpose and flatten", (2, 3, 4), lambda x: x.permute(0, 2, 1, 3).flatten(1)),
    move("heads", (5, 6), lambda x: x.reshape(len(x), 5, 2, 3).permute(0, 2, 3, 1)),
    move("slice", (4, 5), lambda x: x[:, 1:3, ::2]),
    move("slice and flatten", (4, 5, 2), lambda x: x[:, 1:3, ::2].flatten(1)),
    move("one row", (4, 5), lambda x: x[:, 2]),
    move("one entry", (4, 5), lambda x: x[:, 2, 3]),
    move("backwards", (4, 5), lambda x: x.flip(2)),
    move("gather along an axis", (4, 5), lambda x: x[:, :, [4, 0, 0, 2, 3, 3]]),
    move("gather two axes", (4, 5), lambda x: x[:, [2, 0, 3]][:, :, [4, 0, 1]]),
    move("gather of pairs", (4, 5), gathered([3, 3, 17, 0, 9, 11, 2])),
    move("expand", (3, 1), lambda x: x.unsqueeze(1).expand(len(x), 2, 3, 4)),
    move("repeat", (3, 2), lambda x: x.repeat(1, 2, 3)),
    move("upsample", (2, 3, 2), lambda x: functional.interpolate(x, scale_factor=2.0)),
    move("shuffle", (8, 3, 2), shuffled),
    move("unshuffle", (2, 4, 6), lambda x: functional.pixel_unshuffle(x, 2)),
    move("patches", (2, 4, 6), lambda x: functional.unfold(x, 2, stride=2)),
    move("overlapping patches", (2, 4, 5), lambda x: functional.unfold(x, 2)),
    move("pad", (2, 3, 3), pad("constant", 1, 2, 0, 1)),
    move("pad and transpose", (2, 3, 3), lambda x: functional.pad(x, (1, 0, 2, 1)).mT),
    move("reflect", (2, 3, 4), pad("reflect", 2, 1, 1, 1)),
    move("repeat the border", (2, 3, 4), pad("replicate", 2, 1, 1, 0)),
    move("wrap", (2, 3, 4), pad("circular", 1, 2, 1, 1)),
    move("roll", (4, 6), lambda x: x.roll((1, -2), (1, 2))),
    move("zeros between", (3,), lambda x: torch.stack([x, 0 * x], 2).flatten(1)),
    move("diagonal", (3, 3), lambda x: x.diagonal(dim1=1, dim2=2)),
    move("nothing but zeros", (2,), lambda x: 0 * x),
]
