"""Uses: where each constrained parameter acts, and how large it may be there.

What enters: a graph and settings. What leaves: for every constrained parameter its radius and all
of its uses, each with the norm that bounds assume of it. Invariant: a parameter obeys its
constraint if and only if every use is within its limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, final

from lipcert.analysis.premises import constraints_of
from lipcert.errors import UsageError
from lipcert.graph.ir import Graph, Node
from lipcert.graph.operand import Operand
from lipcert.settings.settings import ConstraintSpec, Settings

_SMALLEST: Final = 2.0**-40
_LARGEST: Final = 2.0**80


class Norm(Enum):
    """Of what is to be bounded."""

    EUCLIDEAN = "Euclidean norm of all entries of the parameter"
    LARGEST = "largest magnitude of an entry that the op uses"
    OPERATOR = "norm of the op as a linear map"
    ROW = "norm of the longest row of a table"


@final
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


@final
@dataclass(frozen=True, slots=True, eq=False)
class Constrained:
    """A parameter and everything that its constraint speaks of."""

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
    """What the constraint speaks of: the parameter itself, or every op that shows it.

    A spectral constraint assumes r·max(1, gain of the view) of each op, as `ConstraintScope` does.
    """
    if spec.kind == "frobenius":
        return (Use(name, Norm.EUCLIDEAN, spec.radius),)
    found = []
    for use in graph.uses(name):
        plain = Norm.ROW if use.is_table else Norm.LARGEST
        norm = Norm.OPERATOR if use.is_linear_map else plain
        limit = spec.radius * max(1.0, use.operand.gain.value)
        found.append(Use(name, norm, limit, use.node, use.operand))
    return tuple(found)
