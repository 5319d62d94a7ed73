"""Constrained parameters: where each is used, how large it may be there, and its live storage.

A parameter obeys its constraint if and only if every use is within its limit. Its storage is only
ever multiplied by one factor for all entries, or replaced by a complete new set of entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np
import torch
from torch import Tensor

from lipcert.analysis.premises import constraints_of
from lipcert.core.program import FloatArray
from lipcert.errors import UsageError
from lipcert.graph.ir import Graph, Node, Operand
from lipcert.settings.settings import ConstraintSpec, Settings

_SMALLEST: Final = 2.0**-40
_LARGEST: Final = 2.0**80


class Norm(Enum):
    """The kind of norm that must be bounded."""

    EUCLIDEAN = "Euclidean norm of all entries of the parameter"
    LARGEST = "largest magnitude of an entry that the op uses"
    OPERATOR = "norm of the op as a linear map"
    ROW = "norm of the longest row of a table"


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One norm of one parameter.

    limit: the value of this norm that the bounds assume. node, operand: where the parameter is
    used; both are None for the parameter as a whole.
    """

    parameter: str
    norm: Norm
    limit: float
    node: Node | None = None
    operand: Operand | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Constrained:
    """A parameter with every norm that its constraint covers."""

    name: str
    radius: float
    uses: tuple[Use, ...]


def constrained_parameters(graph: Graph, settings: Settings) -> Mapping[str, Constrained]:
    """Return every trained parameter under a constraint, by name."""
    return {
        name: Constrained(name, spec.radius, _uses(graph, name, spec))
        for name, spec in constraints_of(graph, settings).items()
        if _is_in_range(name, spec.radius)
    }


def _is_in_range(name: str, radius: float) -> bool:
    """Return True; raise UsageError for radii at which float32 numbers cannot be scaled within
    2^-40."""
    if _SMALLEST <= radius <= _LARGEST:
        return True
    raise UsageError(
        f"training: the radius {radius:g} of {name!r} is outside [2^-40, 2^80], where float32 "
        "weights can be projected; rescale the network"
    )


def _uses(graph: Graph, name: str, spec: ConstraintSpec) -> tuple[Use, ...]:
    """Return what the constraint covers: the parameter itself, or every op that reads it.

    A spectral constraint assumes r·max(1, gain of the view) of each op, as `ConstraintScope` does.
    """
    if spec.kind == "frobenius":
        return (Use(name, Norm.EUCLIDEAN, spec.radius),)
    found = []
    for use in graph.uses(name):
        plain = Norm.ROW if use.is_table else Norm.LARGEST
        norm = Norm.OPERATOR if use.is_linear_map else plain
        limit = spec.radius * max(1.0, use.operand.gain)
        found.append(Use(name, norm, limit, use.node, use.operand))
    return tuple(found)


_ROUNDOFF: Final = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}


@dataclass(frozen=True, slots=True, eq=False)
class LiveTensor:
    """The storage of a parameter.

    roundoff: the unit roundoff of its dtype. buffer: receives the numbers that are read. known: the
    numbers that were remembered last. The address of the storage is asked for every time, because
    sharing it between processes moves it.
    """

    name: str
    tensor: Tensor
    roundoff: float
    buffer: FloatArray = field(repr=False)
    known: Tensor = field(repr=False)

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> LiveTensor:
        """Wrap a view that shares storage with the parameter."""
        buffer = np.empty_like(tensor.numpy(force=True), dtype=np.float64)
        live = tensor.detach()
        return cls(name, live, _ROUNDOFF[tensor.dtype], buffer, torch.full_like(live, torch.nan))

    def read(self) -> FloatArray:
        """Return an exact copy of the numbers; it is overwritten by the next read."""
        np.copyto(self.buffer, self.tensor.numpy(force=True))
        return self.buffer

    def remember(self) -> None:
        """Remember the present numbers for later comparison."""
        self.known.copy_(self.tensor)

    def is_as_remembered(self) -> bool:
        """Whether the numbers are unchanged since `remember`; never true for NaN."""
        return torch.equal(self.tensor, self.known)

    def scale(self, factor: float) -> None:
        """Multiply every entry by at most `factor`, and by at most 2^-22 of it less.

        The factor is converted to the tensor's dtype first: (1 − 2^-23)·factor, rounded to nearest
        by at most 2^-24 of it, is at most the factor.
        """
        if self.tensor.dtype == torch.float32:
            factor = float(np.float32(factor * (1.0 - 2.0**-23)))
        self.tensor.mul_(factor)

    def write(self, numbers: FloatArray) -> None:
        """Replace all entries, rounded to the tensor's dtype."""
        self.tensor.copy_(torch.from_numpy(numbers).reshape(self.tensor.shape))


def live_tensors(
    constrained: Iterable[Constrained], tensors: Mapping[str, Tensor]
) -> Mapping[str, LiveTensor]:
    """Return the storage of every constrained parameter; raise UsageError if two share one."""
    found: dict[str, LiveTensor] = {}
    owners: dict[tuple[torch.device, int], str] = {}
    for each in constrained:
        tensor = tensors[each.name]
        owner = owners.setdefault((tensor.device, tensor.data_ptr()), each.name)
        if owner != each.name and tensor.numel():
            raise UsageError(
                f"training: {owner!r} and {each.name!r} are one tensor under two names, and each "
                "would be projected; constrain one of them, or untie them"
            )
        found[each.name] = LiveTensor.of(each.name, tensor)
    return found
