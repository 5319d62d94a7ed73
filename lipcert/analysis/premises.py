"""Premises: the assumptions of a planned run, as the core states and uses them.

What enters: the settings of a run, and what stands for it in the network. What leaves: `Premises`,
and the `ScopeClaim` of the weights that the bounds are about.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from lipcert.analysis.mechanism import mechanism_of
from lipcert.core.certificate import Constraint, ScopeClaim
from lipcert.core.ledger import Mechanism, Premises, Run
from lipcert.core.losses.base import Loss
from lipcert.core.losses.joint import Joint
from lipcert.graph.modes import EvalLayer
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings.settings import ConstraintSpec, Settings


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
        loss_parameters=loss.stated(),
        loss_clip=settings.loss_clip,
        loss_assumed=settings.loss == "auto",
        loss_parts=loss.stated_parts() if isinstance(loss, Joint) else (),
        mechanism=mechanism or mechanism_of(settings),
        relation=settings.neighbours,
        divisor=settings.batch_size if settings.reduction == "mean" else None,
        run=None if plan is None else _run(plan),
        eval_layers=tuple((item.kind, item.name) for item in eval_layers if not item.node),
    )


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


def delta_of(plan: TrainingPlan) -> Fraction:
    """δ as the decimal number that was meant: 1/100000 for 1e-5."""
    return Fraction(repr(plan.delta))


def _run(plan: TrainingPlan) -> Run:
    return Run(
        scheme=plan.sampling.value,
        dataset_size=plan.dataset_size,
        batch_size=plan.batch,
        steps=plan.releases,
        participations=plan.participations,
        size=plan.dataset_size_from.value,
    )
