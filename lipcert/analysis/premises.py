"""Premises: the assumptions of a planned run, as the core states and uses them.

The settings of a run and what stands for it in the network make `Premises`, the constraint of each
trained parameter, and the `ScopeClaim` of the weights that the bounds are about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.arithmetic import divide_down
from lipcert.core.certificate import Constraint, ScopeClaim
from lipcert.core.coverage import tensors as stored_tensors
from lipcert.core.interval import largest_magnitude, norm_up
from lipcert.core.ledger.mechanism import Mechanism, names_of
from lipcert.core.ledger.premises import Premises
from lipcert.core.ledger.run import Run
from lipcert.core.losses.base import Loss
from lipcert.core.losses.joint import Joint
from lipcert.core.lower.errors import Unsupported
from lipcert.core.membership import constraint_faults
from lipcert.core.norms import ENGINES
from lipcert.core.program import FloatArray, Program, Shape
from lipcert.core.reader.records import Model
from lipcert.errors import UsageError
from lipcert.graph.ir import EvalLayer, Graph
from lipcert.losses import stated, stated_parts
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings.settings import ConstraintSpec, Settings

_CLEARLY: Final = 1.0 + 2.0**-40
_TINY: Final = 2.0**-900


def mechanism_of(settings: Settings) -> Mechanism:
    """The mechanism that the settings name, with what it enforces."""
    found = settings.enforced
    given = {name: getattr(settings, name) for name in names_of(found)}
    return found(**{name: value for name, value in given.items() if value is not None})


def premises_of(
    settings: Settings,
    loss: Loss,
    *,
    mechanism: Mechanism | None = None,
    plan: TrainingPlan | None = None,
    eval_layers: tuple[EvalLayer, ...] = (),
) -> Premises:
    """Every assumption that is a number or a name. mechanism: with the layers that clip."""
    return Premises(
        input_norm=settings.input_norm,
        input_box=settings.effective_input_box,
        input_parts=settings.input_parts,
        loss=loss.kind,
        loss_parameters=stated(loss),
        loss_clip=settings.loss_clip,
        loss_assumed=settings.loss == "auto",
        loss_parts=stated_parts(loss) if isinstance(loss, Joint) else (),
        mechanism=mechanism or mechanism_of(settings),
        relation=settings.neighbours,
        divisor=settings.batch_size if settings.reduction == "mean" else None,
        run=None if plan is None else _run(plan),
        eval_layers=tuple((item.kind, item.name) for item in eval_layers if not item.node),
    )


def delta_of(delta: float) -> Fraction:
    """δ as the decimal number that was meant: 1/100000 for 1e-5."""
    return Fraction(repr(delta))


def _run(plan: TrainingPlan) -> Run:
    return Run(
        scheme=plan.sampling.value,
        dataset_size=plan.dataset_size,
        batch_size=plan.batch,
        steps=plan.releases,
        participations=plan.participations,
        size=plan.dataset_size_from.value,
    )


def check_domain(shape: Shape, settings: Settings) -> None:
    """UsageError where no input of the box is as short as the declared norm."""
    box, least = settings.effective_input_box, 0.0
    for part in settings.input_parts:
        least = math.hypot(least, _least(part.shape, part.norm, part.box, f" {part.name!r}"))
    if box is not None:
        _least(shape, settings.input_norm, box)
    elif settings.input_norm is not None and least > settings.input_norm * _CLEARLY:
        raise UsageError(
            f"input-norm: no example has a 2-norm of at most {settings.input_norm}; the boxes of "
            f"its inputs leave at least {least:.6g}"
        )


def _least(
    shape: Shape, radius: float | None, box: tuple[float, float] | None, name: str = ""
) -> float:
    """The least norm that the box leaves an input."""
    if box is None:
        return 0.0
    low, high = box
    least = norm_down(np.full(shape, np.clip(0.0, low, high)))
    if radius is not None and least > radius:
        what = f"input{name}" if name else "example"
        raise UsageError(
            f"input-norm: no {what} of shape {list(shape)} with entries in [{low}, {high}] has a "
            f"2-norm of at most {radius}; the least is {least:.6g}"
        )
    return least


def norm_down(array: FloatArray) -> float:
    """A float64 ≤ √Σ x² of finite numbers; 0 where all are tiny.

    Proof: of n numbers, scaled so that the largest is at least 1/2, `norm_up` computes Σ x² with a
    relative error of γ_n at most, and adds less than (n + 4)·2^-52 of it; the root halves both, and
    is rounded up twice, in proportion where it is a normal number. So `norm_up` exceeds the norm by
    less than (n + 8)·2^-52 of it.
    """
    if largest_magnitude(array) < _TINY:
        return 0.0
    return divide_down(norm_up(array), 1.0 + (array.size + 8) * 2.0**-52)


def scope_claim(
    kind: str,
    tensors: Mapping[str, tuple[str, ...]],
    constraints: Mapping[str, ConstraintSpec],
) -> ScopeClaim:
    """The trained tensors and what holds them. tensors: of the trained parameters."""
    held = {
        tensor: constraints[name]
        for name, names in tensors.items()
        if name in constraints
        for tensor in names
    }
    return ScopeClaim(
        kind=kind,
        trained=tuple(sorted({tensor for names in tensors.values() for tensor in names})),
        constraints=tuple(
            Constraint(tensor, spec.kind, spec.radius) for tensor, spec in sorted(held.items())
        ),
    )


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
    """Whether the numbers obey it; True for a bias of zeros that the file leaves out."""
    if constraint.tensor not in stored_tensors(model):
        return True
    try:
        return not any(constraint_faults([constraint], model, program, {}, ENGINES["float"]))
    except Unsupported:
        return False


def constraints_of(graph: Graph, settings: Settings) -> Mapping[str, ConstraintSpec]:
    """The constraint of each trained parameter that has one.

    A parameter's own entry wins; otherwise biases obey `bias_norm` (a Euclidean norm) and all
    others `constraint`. A tensor that is a bias at one node and a weight at another obeys the
    weight's, because the rules would otherwise apply a constraint that was not declared for it.
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
