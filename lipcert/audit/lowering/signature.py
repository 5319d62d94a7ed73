"""Function: what a step is in torch.

What enters: the values that it reads, its operands by role. What leaves: one tensor. Invariants:
examples never meet; nothing is written in place, and no input is returned; nothing depends on the
numbers in a tensor, so that autograd and `torch.func.vmap` see through everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

Tensors = Mapping[str, Tensor]
Function = Callable[[Sequence[Tensor], Tensors], Tensor]


def of_one_rank(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Values with unit axes after the first, so that all of them have as many axes."""
    rank = max(x.dim() for x in inputs)
    return [
        x if x.dim() == rank else x.reshape(x.shape[0], *[1] * (rank - x.dim()), *x.shape[1:])
        for x in inputs
    ]
