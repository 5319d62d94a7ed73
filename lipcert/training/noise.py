"""Noise: what is added to the mean gradient of a batch before the optimizer sees it.

What enters: the gradients of the parameters, and the standard deviation of each group. What
leaves: the same gradients plus independent Gaussian numbers, in place. Invariant: a parameter
without a gradient gets one of noise alone, so that an empty batch looks like any other.

The numbers come from a counter-based generator (Philox) whose key is taken from the operating
system. torch's own generator on a CPU uses but 32 bits of its seed, few enough to try them all.
That pseudo-random numbers stand for random ones, and floating-point numbers for real ones, are
assumptions of every (ε, δ) that is stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import numpy as np
import torch
from torch import Tensor, nn

_OWN: Final = 1
"""tells this stream from those that samplers draw from the same seed"""


@final
class NoiseSource:
    """Draws from one generator; all ranks that have its seed draw the same.

    first: the number of the release that is noised first, so that a run that is gone on with never
    repeats what it drew, even from a seed that was given.
    """

    def __init__(self, seed: int, first: int = 0) -> None:
        sequence = np.random.SeedSequence(seed, spawn_key=(first, 0, _OWN))
        self.generator = np.random.Generator(np.random.Philox(sequence))

    @torch.no_grad()
    def add(self, gradients: Mapping[str, Tensor], stds: Mapping[str, float]) -> None:
        """gradients: by name; stds: likewise."""
        for name, gradient in gradients.items():
            wide = gradient.dtype is torch.float64
            drawn = self.generator.standard_normal(
                tuple(gradient.shape), dtype=np.float64 if wide else np.float32
            )
            noise = torch.from_numpy(np.asarray(drawn)).to(gradient.device, gradient.dtype)
            gradient.add_(noise, alpha=stds[name])


def with_gradients(parameters: Mapping[str, nn.Parameter]) -> Mapping[str, Tensor]:
    """The gradient of every parameter, made where there is none."""
    found: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        found[name] = parameter.grad
    return found
