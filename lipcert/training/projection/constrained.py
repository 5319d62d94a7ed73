"""Constrained parameters: where each acts, how large it may be there, and its live storage.

A parameter obeys its constraint if and only if every use is within its limit. Nothing is written
to its storage but products of every entry with one factor, or a whole new set of entries.
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
    """The kind of norm that is to be bounded."""

    EUCLIDEAN = "Euclidean norm of all entries of the parameter"
    LARGEST = "largest magnitude of an entry that the op uses"
    OPERATOR = "norm of the op as a linear map"
    ROW = "norm of the longest row of a table"


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One norm of one parameter. node, operand: where it is used; both None for the whole of it.

    limit: what the bounds assume of this norm.
    """

    parameter: str
    norm: Norm
    limit: float
    node: Node | None = None
    operand: Operand | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Constrained:
    """A parameter and everything that its constraint covers."""

    name: str
    radius: float
    uses: tuple[Use, ...]


def constrained_parameters(graph: Graph, settings: Settings) -> Mapping[str, Constrained]:
    """Every trained parameter under a constraint, by name."""
    return {
        name: Constrained(name, spec.radius, _uses(graph, name, spec))
        for name, spec in constraints_of(graph, settings).items()
        if _is_in_range(name, spec.radius)
    }


def _is_in_range(name: str, radius: float) -> bool:
    """True; UsageError for radii at which float32 numbers cannot be scaled within 2^-40."""
    if _SMALLEST <= radius <= _LARGEST:
        return True
    raise UsageError(
        f"training: the radius {radius:g} of {name!r} is outside [2^-40, 2^80], where float32 "
        "weights can be projected; rescale the network"
    )


def _uses(graph: Graph, name: str, spec: ConstraintSpec) -> tuple[Use, ...]:
    """What the constraint covers: the parameter itself, or every op that shows it.

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
    """A parameter's storage. roundoff: of its type. buffer: for what is read.

    known: what was remembered last. Where the storage lies is asked every time: sharing it between
    processes moves it.
    """

    name: str
    tensor: Tensor
    roundoff: float
    buffer: FloatArray = field(repr=False)
    known: Tensor = field(repr=False)

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> LiveTensor:
        """Of a view that shares storage with the parameter."""
        buffer = np.empty_like(tensor.numpy(force=True), dtype=np.float64)
        live = tensor.detach()
        return cls(name, live, _ROUNDOFF[tensor.dtype], buffer, torch.full_like(live, torch.nan))

    def read(self) -> FloatArray:
        """A copy of the numbers, exactly; it lasts until they are read again."""
        np.copyto(self.buffer, self.tensor.numpy(force=True))
        return self.buffer

    def remember(self) -> None:
        """The present numbers are those to compare with from now on."""
        self.known.copy_(self.tensor)

    def is_as_remembered(self) -> bool:
        """Whether the numbers are still those; NaN never is."""
        return torch.equal(self.tensor, self.known)

    def scale(self, factor: float) -> None:
        """Multiply every entry by at most `factor`, by no more than 2^-22 less.

        The factor is brought to the tensor's type first: (1 − 2^-23)·factor, rounded to nearest
        by at most 2^-24 of it, is at most the factor.
        """
        if self.tensor.dtype == torch.float32:
            factor = float(np.float32(factor * (1.0 - 2.0**-23)))
        self.tensor.mul_(factor)

    def write(self, numbers: FloatArray) -> None:
        """Replace all entries, rounded to the tensor's type."""
        self.tensor.copy_(torch.from_numpy(numbers).reshape(self.tensor.shape))


def live_tensors(
    constrained: Iterable[Constrained], tensors: Mapping[str, Tensor]
) -> Mapping[str, LiveTensor]:
    """The storage of every constrained parameter; UsageError where two have the same."""
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
