"""Findings: what a reader must know besides the numbers of an analysis, such as missing bounds."""

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from lipcert.analysis.bounded import Bounded
from lipcert.analysis.premises import assumed_loss, doubt_of_loss
from lipcert.analysis.release import layer_of
from lipcert.analysis.why_unbounded import Absence, Why
from lipcert.core.kinds import Divide, DivideByNorm, LocalResponse
from lipcert.core.program import Activation, Step, operands
from lipcert.core.token_kinds import Normalize, Softmax
from lipcert.diagnostics import EXPORT, Diagnostic, Level
from lipcert.graph.ir import Graph
from lipcert.settings.settings import Settings

_STEEP: Final = 30.0
_STEEPER: Final = 1e3
"""Slopes worth reporting, for layers that usually have a small one and for others."""
_POLES: Final = frozenset({"log", "reciprocal", "sqrt"})
_FLOOR: Final = (
    "choose a floor (or epsilon) that the data justify, below the smallest norm that occurs but not"
    " far below, or divide the inputs before the network and state their norm (--input-norm 1)"
)
_OFFSET: Final = (
    "add a larger constant before it (an epsilon that the data justify), or state inputs that keep"
    " it away from 0 (--input-box)"
)
_WHOLE: Final = (
    f"export with {EXPORT}, or state that these very tensors are what is trained (--as-exported)"
)

_FREE_WEIGHTS: Final = Diagnostic(
    "LC107",
    Level.INFO,
    "",
    "trained weights are free under this mechanism: norms that depend on them have no bound, and "
    "gradients are bounded by the clips and by what holds whatever the weights are",
    "declare constraints, if training enforces any, for bounds of activations too",
)


def findings(found: Bounded, absence: Absence, settings: Settings) -> Iterator[Diagnostic]:
    """Yield what a reader must know besides the numbers."""
    yield from unstated(found.graph, settings)
    yield from _softmax_end(found)
    if settings.weights_are_free and settings.scope == "constraint-set":
        yield _FREE_WEIGHTS
    else:
        yield from _absent_bounds(found, absence)
    yield from absent_gradients(found, absence)
    yield from _steep_steps(found)


def absence_of(found: Bounded) -> Absence:
    """Return why bounds of this network are absent."""
    scope = found.scope
    held = {item.tensor for item in scope.constraints}
    used = [operand.sources for step in found.program.steps for operand in operands(step.op)]
    mixed = {tensor for sources in used if len(sources) > 1 for tensor in sources}
    names = {tensor: name for name, tensors in found.tensors.items() for tensor in tensors}
    sums = "bounds what is computed from it and other numbers, such as 1 + w"
    free = {
        tensor: f"parameter {names.get(tensor, tensor)!r} is trained but no constraint "
        f"{sums if tensor in held else 'is declared for it'}"
        for tensor in scope.trained
        if scope.kind == "constraint-set" and (tensor not in held or tensor in mixed)
    }
    loss = Why(
        f"the gradient of the loss {found.loss.kind} has no bound at such outputs",
        "bound the output, or use a loss with bounded gradient",
    )
    return Absence(found.program, found.derived, free, loss)


def unstated(graph: Graph, settings: Settings) -> Iterator[Diagnostic]:
    """Yield what was assumed because it was not stated: the input domain, the loss."""
    if settings.input_is_assumed:
        yield Diagnostic(
            "LC104",
            Level.WARNING,
            "",
            "no input domain was given: every input entry is assumed to lie in [0, 1]",
            "state what the pipeline enforces with --input-norm and/or --input-box",
        )
    if settings.loss == "auto":
        per_token = settings.per_token is not None
        kind = assumed_loss(graph, per_token=per_token)
        doubt, fitting = doubt_of_loss(graph, per_token=per_token)
        message = f"no loss was given: {kind} is assumed"
        remedy = f"confirm it with --loss {kind}, or state the one that training uses"
        if doubt:
            message += f", although {doubt}"
            remedy = f"state the training loss with --loss; {fitting} would fit"
        yield Diagnostic("LC108", Level.WARNING, "", message, remedy)


def _softmax_end(found: Bounded) -> Iterator[Diagnostic]:
    for step in found.program.steps[-1:]:
        if isinstance(step.op, Softmax) and not step.op.logarithm:
            logits, way = step.inputs[0], "export the network without the final Softmax"
            way = f"use --output {logits}" if logits in found.reading.model.computed else way
            yield Diagnostic(
                "LC103",
                Level.WARNING,
                found.name_of(step),
                "the network ends in Softmax, and the loss is applied to its output",
                f"{way} if the loss takes logits",
            )


def _absent_bounds(found: Bounded, absence: Absence) -> Iterator[Diagnostic]:
    """Yield one finding per step where a bound is lost first."""
    for step, why in absence.first_values():
        yield Diagnostic("LC101", Level.WARNING, found.name_of(step), *why)
    of_loss = absence.loss_gradient()
    if of_loss is not None:
        yield Diagnostic("LC101", Level.WARNING, "", *of_loss)


def absent_gradients(found: Bounded, absence: Absence) -> Iterator[Diagnostic]:
    """Yield one finding per trained parameter without a bound."""
    for name, bound in found.clipped_grad_norms.items():
        if not found.graph.parameters[name].trainable or math.isfinite(bound):
            continue
        reason, remedy = absence.gradient(found.tensors.get(name, ()))
        if name in found.silent:
            reason, remedy = found.silent[name], _WHOLE
        elif found.premises.layer_clip is not None:
            reason = f"what its layer reads has no bound and is not clipped: {reason}"
            remedy = (
                f"clip it: a radius for {layer_of(name, '')!r} in the [input-clips] table, or "
                "--input-clip for all layers; or freeze the layers before it: a normalisation "
                "whose scale and shift are not trained has bounded outputs, as has an input with "
                "a domain (--input-norm, --input-box)"
            )
        yield Diagnostic("LC102", Level.WARNING, name, f"no gradient bound: {reason}", remedy)


def unknown_of(found: Bounded) -> str:
    """Return why it is unknown what is trained, and what to do; "" if it is known."""
    trained = [name for group in found.groups for name in group.parameters]
    lost = [name for name in trained if name in found.silent]
    if not lost:
        return ""
    return (
        f"what is trained is not in the file: nothing is known of {len(lost)} of {len(trained)} "
        f"parameters, such as {lost[0]!r} ({found.silent[lost[0]]}); {_WHOLE}"
    )


def _steep_steps(found: Bounded) -> Iterator[Diagnostic]:
    """Yield steps that stretch by one over a small epsilon or floor, as loose bounds often do."""
    for step in found.program.steps:
        steep = _steepness(found, step)
        if steep is None:
            continue
        limit, what, remedy = steep
        stretch = max(found.stretches(step), default=0.0)
        if limit < stretch < math.inf:
            message = what.format(stretch=f"{stretch:.3g}")
            yield Diagnostic("LC105", Level.WARNING, found.name_of(step), message, remedy)


def _steepness(found: Bounded, step: Step) -> tuple[float, str, str] | None:
    """Return the least slope worth reporting, a text with a place for the slope, and what to do.

    The result is None for a step that does not divide.
    """
    match step.op:
        case Normalize():
            what = "the normalization may stretch by {stretch}: where an example's variance "
            remedy = "train with a larger epsilon (1e-1, say), or with a floor on the deviation"
            return _STEEP, f"{what}vanishes, its slope is 1/sqrt(epsilon)", remedy
        case DivideByNorm(floor=floor):
            what = "the division by a norm may stretch by {stretch}: where the norm vanishes, its "
            return _STEEP, f"{what}slope is one over the floor, which is {floor:.3g}", _FLOOR
        case LocalResponse(floor=floor):
            what = "the local response normalization may stretch by {stretch}, with a floor of "
            return _STEEPER, f"{what}{floor:.3g}", _FLOOR
        case Divide():
            box = found.derived.facts[step.inputs[1]].box
            least = float(np.min(np.maximum(box.lo, -box.hi), initial=math.inf))
            what = "the quotient may stretch by {stretch}: its divisor may be as small as "
            return _STEEPER, f"{what}{least:.3g}", _FLOOR
        case Activation(name=name, numbers=numbers) if name in _POLES or (
            name == "power" and numbers[0] < 1.0
        ):
            box = found.derived.facts[step.inputs[0]].box
            least = float(np.min(np.maximum(box.lo, -box.hi), initial=math.inf))
            what = f"{name} may stretch by {{stretch}}: its argument may be as close to 0 as "
            return _STEEPER, f"{what}{least:.3g}", _OFFSET
    return None
