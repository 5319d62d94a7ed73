"""Premises of a certificate, from the settings of an analysis and what it made of them."""

from __future__ import annotations

from fractions import Fraction

from lipcert.analysis.mechanism import mechanism_of
from lipcert.analysis.records import Analysis
from lipcert.core.certificate.records import Constraint, ScopeClaim
from lipcert.core.ledger import Premises, Run
from lipcert.core.program import Program
from lipcert.issue.layers import clip_of
from lipcert.privacy.mechanisms import BackpropClipping
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings import ConstraintSpec, Settings


def premises_of(settings: Settings, analysis: Analysis, program: Program) -> Premises:
    """Every assumption of the analysis that is a number or a name."""
    assumed, mechanism = analysis.assumptions, mechanism_of(settings)
    layered = mechanism if isinstance(mechanism, BackpropClipping) else None
    run = None if analysis.privacy is None else _run(analysis.privacy.plan)
    moving = run is not None and (settings.mechanism, settings.scope) == _STEPWISE
    numbers = {name: value for name, value in assumed.loss.items() if name not in _NOT_OF_LOSS}
    return Premises(
        input_norm=settings.input_norm,
        input_box=settings.effective_input_box,
        loss=str(assumed.loss["kind"]),
        loss_parameters=tuple(sorted((name, _plain(value)) for name, value in numbers.items())),
        loss_clip=settings.loss_clip,
        loss_assumed=settings.loss == "auto",
        mechanism=settings.mechanism,
        clip=_clip(analysis),
        relation=settings.neighbours,
        divisor=settings.batch_size if settings.reduction == "mean" else None,
        run=run,
        layer_clip=None if layered is None else clip_of(layered, analysis, program),
        stepwise=assumed.noise_multiplier if moving else None,
        eval_layers=tuple((item.kind, item.name) for item in assumed.eval_layers if not item.node),
    )


def scope_claim(
    settings: Settings, tensors: dict[str, str], constraints: dict[str, ConstraintSpec]
) -> ScopeClaim:
    """The trained tensors and what holds them. tensors: of the trained parameters."""
    held = {tensors[name]: spec for name, spec in constraints.items() if name in tensors}
    return ScopeClaim(
        kind=settings.scope,
        trained=tuple(sorted(set(tensors.values()))),
        constraints=tuple(
            Constraint(tensor, spec.kind, spec.radius) for tensor, spec in sorted(held.items())
        ),
    )


def delta_of(plan: TrainingPlan) -> Fraction:
    """δ as the decimal number that was meant: 1/100000 for 1e-5."""
    return Fraction(repr(plan.delta))


_STEPWISE = ("weight-clipping", "point")
_NOT_OF_LOSS = frozenset({"kind", "reduction", "clip"})


def _plain(value: object) -> float | str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return float(value)
        case _:
            return str(value)


def _clip(analysis: Analysis) -> tuple[float, str, str] | None:
    mechanism = analysis.assumptions.mechanism
    if mechanism["kind"] != "gradient-clipping":
        return None
    return (
        float(mechanism["clip_norm"]),
        str(mechanism["clip_scope"]),
        str(mechanism["decay"]),
    )


def _run(plan: TrainingPlan) -> Run:
    return Run(
        scheme=plan.sampling.value,
        dataset_size=plan.dataset_size,
        batch_size=plan.batch,
        steps=plan.releases,
        participations=plan.participations,
        size=plan.dataset_size_from.value,
    )
