"""The scope of a planned run: which constraint each trained parameter obeys.

What enters: a graph and the settings. What leaves: the constraint of each parameter, and the scope
of weight clipping at the weights of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lipcert.core.certificate import Constraint, ScopeClaim
from lipcert.core.coverage import tensors
from lipcert.core.lower.errors import Unsupported
from lipcert.core.membership import constraint_faults
from lipcert.core.norm_evidence import ENGINES
from lipcert.core.program import Program
from lipcert.core.reader.records import Model
from lipcert.graph.ir import Graph
from lipcert.settings.settings import ConstraintSpec, Settings


def scaled_down(scope: ScopeClaim, model: Model, program: Program) -> ScopeClaim:
    """The scope of weight clipping at the weights of the file.

    Weights within their radius stay as they are; of the others all that is used is that their norm
    is then the radius.
    """
    exceeding = [item for item in scope.constraints if not _is_within(item, model, program)]
    if not exceeding:
        return scope
    return replace(
        scope,
        kind="constraint-set",
        trained=tuple(sorted(item.tensor for item in exceeding)),
        constraints=tuple(exceeding),
    )


def _is_within(constraint: Constraint, model: Model, program: Program) -> bool:
    """Of a bias of zeros that the file leaves out: yes."""
    if constraint.tensor not in tensors(model):
        return True
    try:
        return not any(constraint_faults([constraint], model, program, {}, ENGINES["float"]))
    except Unsupported:
        return False


def constraints_of(graph: Graph, settings: Settings) -> Mapping[str, ConstraintSpec]:
    """The constraint of each trained parameter that has one.

    A parameter's own entry wins; otherwise biases obey `bias_norm` (a Euclidean norm) and all
    others `constraint`. A tensor that is a bias at one node and a weight at another obeys the
    weight's, because the rules would otherwise apply a constraint that nobody declared for it.
    """
    found: dict[str, ConstraintSpec] = {}
    slots: dict[str, set[str]] = {}
    for use in graph.trained_uses():
        slots.setdefault(use.parameter, set()).add(use.slot)
    for name, used in slots.items():
        spec = settings.own_constraint(name)
        if spec is None and used == {"bias"}:
            if settings.bias_norm is not None:
                spec = ConstraintSpec("frobenius", settings.bias_norm)
        elif spec is None:
            spec = settings.constraint
        if spec is not None:
            found[name] = spec
    return found
