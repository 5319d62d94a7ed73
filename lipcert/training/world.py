"""World: the processes that train together.

What enters: the default process group, if there is one. What leaves: this process's rank, one
secret that all share, and checks that all are there and hold the same. Invariant: without a
process group everything here is the identity.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, final

import torch
import torch.distributed as dist
from torch import Tensor

from lipcert.errors import NoVerdictError, UsageError

__all__ = ["World"]

_PATIENCE: Final = 120.0
"""seconds that ranks wait for one another"""
_BITS: Final = 256


@final
@dataclass(frozen=True, slots=True)
class World:
    """This process among all; group: over which ranks talk to each other on the CPU."""

    rank: int = 0
    ranks: int = 1
    group: Any = None
    patience: float = _PATIENCE

    @classmethod
    def here(cls, patience: float = _PATIENCE) -> World:
        """The default process group, or this process alone."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=patience))
        return cls(dist.get_rank(), dist.get_world_size(), group, patience)

    @property
    def is_first(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    def shared_secret(self, seed: int | None) -> int:
        """One number for all ranks: the seed if one is given, else the first rank's secret."""
        return self.from_first(secrets.randbits(_BITS) if seed is None else seed)

    def from_first(self, value: int) -> int:
        """The first rank's value."""
        if self.group is None:
            return value
        held: list[Any] = [value if self.is_first else None]
        dist.broadcast_object_list(held, src=0, group=self.group)
        return int(held[0])

    def assemble(self, step: int) -> None:
        """Wait until all ranks are at this step; NoVerdictError naming those that are not."""
        if self.group is None:
            return
        try:
            dist.monitored_barrier(
                self.group, timeout=timedelta(seconds=self.patience), wait_all_ranks=True
            )
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise NoVerdictError(
                f"training: not all {self.ranks} ranks came to step {step}, so nothing is "
                f"released: {reason}; start all of them again with resume=True"
            ) from error

    def agree(self, what: str, value: str) -> None:
        """UsageError unless all ranks have the same value."""
        if self.group is None:
            return
        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, value, group=self.group)
        if len(set(values)) > 1:
            raise UsageError(
                f"training: the ranks differ in {what}; give all of them the same model, "
                "mechanism and data, and leave the weights to the optimizer"
            )

    def fingerprint(self, tensors: list[Tensor]) -> None:
        """UsageError unless all ranks have the same numbers."""
        if self.group is None:
            return
        sums = [float(item.detach().double().sum()) for item in tensors]
        sums += [float(item.detach().double().square().sum()) for item in tensors]
        own = torch.tensor(sums, dtype=torch.float64)
        least, most = own.clone(), own.clone()
        dist.all_reduce(least, op=dist.ReduceOp.MIN, group=self.group)
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self.group)
        if not torch.equal(least, most):
            raise UsageError(
                "training: the weights differ between ranks: wrap the model in "
                "DistributedDataParallel before make_private, and let the optimizer alone move it"
            )

    def total(self, tensors: Iterable[Tensor]) -> None:
        """Every tensor becomes its sum over the ranks."""
        if self.group is None:
            return
        for tensor in tensors:
            dist.all_reduce(tensor)
