"""The handwritten digits of scikit-learn (1,797 images of 8×8), as images in [0, 1]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import interpolate

__all__ = ["Split", "digit_images"]

TEST_EXAMPLES: Final = 360


@final
@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Images [n, *shape] and labels [n], for training and for testing."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digit_images(shape: tuple[int, ...]) -> Split:
    """The digits in the shape a network wants: (64,), (1, 8, 8), or enlarged to (c, h, w)."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy((pixels / 16.0).astype(np.float32)).reshape(-1, 1, 8, 8)
    if len(shape) == 3 and shape != (1, 8, 8):
        channels, height, width = shape
        images = interpolate(images, (height, width), mode="bilinear", align_corners=False)
        images = images.expand(-1, channels, -1, -1)
    images = images.reshape(-1, *shape).contiguous()
    targets = torch.from_numpy(labels)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_EXAMPLES], order[TEST_EXAMPLES:]
    return Split(images[train], targets[train], images[test], targets[test])
