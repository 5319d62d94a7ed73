"""Findings: what a reader must know besides the numbers of an analysis.

`Absence` finds the step at which the bound of a value, a cotangent or a parameter is lost, and says
what to do about it. `findings` yields what was assumed, absent or steep; `unexplained` reports the
numbers of a finished analysis that are absent although all that they follow from is known. Nothing
here bounds anything.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from lipcert.analysis.bounded import Bounded
from lipcert.analysis.premises import assumed_loss, doubt_of_loss, last_node
from lipcert.analysis.records import GroupReport, NetworkReport, ParameterReport
from lipcert.analysis.release import layer_of
from lipcert.core import kinds, token_kinds
from lipcert.core.coverage import tensors_read
from lipcert.core.program import Activation, Program, Step, operands
from lipcert.diagnostics import EXPORT, Diagnostic, Level
from lipcert.graph.ir import Graph
from lipcert.search.prover import Derived
from lipcert.settings.settings import Settings


class Why(NamedTuple):
    """A reason and a remedy."""

    reason: str
    remedy: str


_OVERFLOW: Final = Why(
    "the bound exceeds the range of float64",
    "declare a smaller input domain or constraints, or clip: --mechanism gradient-clipping",
)
_EXCEEDS: Final = "exceeds the range of float64, though every bound that it is made of is finite"
_SHARED: Final = Why(
    "the file stores it once with numbers that no rule takes for trained ones, as an optimiser "
    "does with a scale and a running variance that are both 1",
    f"export with {EXPORT}, which keeps them apart",
)
_COMPUTED: Final = Why(
    "the file computes numbers from it, and how much these change with it is not known",
    "train plain weights (torch.nn.utils.parametrize.remove_parametrizations), and export with "
    f"{EXPORT}",
)
_NUMBER: Final = Why(
    "it enters as a plain number, for which there is no rule: a limit, an exponent, a slope inside "
    "of an activation, or a factor of other trained numbers",
    "--freeze it, or make it a buffer, if it is not trained; or take one number for each entry",
)
_NO_INPUT: Final = Why("no norm of the input is declared", "give --input-norm")
_DOMAIN: Final = "state an input domain (--input-norm, --input-box)"
_OWN: Final = {"Softmax": ("cross-entropy", "focal", "nll"), "Sigmoid": ("bce", "cross-entropy")}
_NEEDS: Final = {
    "log": "positive inputs",
    "sqrt": "inputs away from 0",
    "reciprocal": "inputs away from 0",
    "power": "inputs away from 0",
}


@dataclass(frozen=True, eq=False)
class Absence:
    """Reasons why something has no bound.

    free: why nothing is known of a tensor, for such tensors. loss: why its gradient has no bound.
    """

    program: Program
    derived: Derived
    free: Mapping[str, str]
    loss: Why

    @cached_property
    def _values(self) -> Mapping[str, tuple[Step, Why]]:
        """For each value without a norm, the step at which it is lost first."""
        found: dict[str, tuple[Step, Why]] = {}
        for step in self.program.steps:
            if math.isfinite(self.derived.facts[step.output].norm):
                continue
            above = next((found[name] for name in step.inputs if name in found), None)
            reads = self.program.input in step.inputs
            why = self.value(self.program.input) if reads else None
            found[step.output] = above or (step, self._at(step, why))
        return found

    @cached_property
    def _cotangents(self) -> Mapping[str, tuple[Step | None, Why]]:
        """For each value without a bounded cotangent, the step at which it is lost first."""
        program, cotangents = self.program, self.derived.cotangents
        found: dict[str, tuple[Step | None, Why]] = {}
        if not math.isfinite(cotangents[program.output].norm):
            found[program.output] = (None, self._of_loss())
        for step in reversed(program.steps):
            for name in step.inputs:
                if name in cotangents and not math.isfinite(cotangents[name].norm):
                    found.setdefault(name, found.get(step.output) or (step, self.at(step)))
        return found

    def _of_loss(self) -> Why:
        output = self.value(self.program.output)
        if output is None:
            return self.loss
        return Why(f"{self.loss.reason}: {output.reason}", output.remedy)

    def value(self, name: str) -> Why | None:
        """Return why a value has no norm; None if it has one."""
        if name == self.program.input:
            return None if math.isfinite(self.derived.facts[name].norm) else _NO_INPUT
        return self._values[name][1] if name in self._values else None

    def cotangent(self, name: str) -> Why | None:
        """Return why a cotangent has no norm; None if it has one."""
        return self._cotangents[name][1] if name in self._cotangents else None

    def first_values(self) -> Iterator[tuple[Step, Why]]:
        """Yield the steps whose output has no norm although all that they read has one."""
        for step in self.program.steps:
            norms = [self.derived.facts[name].norm for name in step.inputs]
            if step.output in self._values and all(map(math.isfinite, norms)):
                yield step, self._values[step.output][1]

    def gradient(self, tensors: tuple[str, ...]) -> Why:
        """Return why the gradient of some tensors has no bound."""
        for step in self.program.steps:
            if not tensors_read([step]).intersection(tensors):
                continue
            behind = self.cotangent(step.output)
            if behind is not None:
                return behind
            for name in step.inputs:
                read = self.value(name)
                if read is not None:
                    return read
            if any(self._is_computed(step, name) for name in tensors):
                return _COMPUTED
        if self.program.untracked.intersection(tensors):
            return _NUMBER
        return _SHARED if self._plain.intersection(tensors) else _OVERFLOW

    def _is_computed(self, step: Step, tensor: str) -> bool:
        return any(
            operand.sources.get(tensor, 0.0) == math.inf and tensor not in operand.slopes
            for operand in operands(step.op)
        )

    @cached_property
    def _plain(self) -> frozenset[str]:
        """The tensors that enter as plain numbers, even if they are operands elsewhere."""
        norms = [step.op for step in self.program.steps if isinstance(step.op, kinds.BatchNorm)]
        fixed = (item.sources for op in norms for item in (op.mean, op.inverse))
        return frozenset[str]().union(*fixed)

    def lipschitz(self) -> Why:
        """Return why the network has no Lipschitz constant."""
        beside = any(not part.whole for part in self.program.parts)
        idle = (kinds.Embedding, kinds.Compare) if beside else ()  # by ids, which stay the same
        whys = (self.at(step) for step in self.program.steps if not isinstance(step.op, idle))
        return next((why for why in whys if why is not _OVERFLOW), _OVERFLOW)

    def at(self, step: Step) -> Why:
        """Return why a step may have lost a bound."""
        return self._at(
            step, next((why for name in step.inputs if (why := self.value(name))), None)
        )

    def _at(self, step: Step, unbounded: Why | None) -> Why:
        """Return the same. unbounded: why a value that it reads has no norm, if one has none."""
        free = sorted(tensors_read([step]).intersection(self.free))
        if free:
            return Why(
                self.free[free[0]],
                "declare a constraint (--constraint, --bias-norm or a [constraints] table) or "
                "--freeze it",
            )
        because = "" if unbounded is None else f" ({unbounded.reason})"
        match step.op:
            case token_kinds.Multiply() | token_kinds.MatMul():
                if unbounded is not None:
                    return Why(
                        "a product of two values has no Lipschitz bound unless both are bounded"
                        f"{because}",
                        "state an input domain, or bound the factor (sigmoid gate, normalization, "
                        "clip)",
                    )
            case kinds.Divide():
                low, high = self._range(step.inputs[1])
                if low <= 0.0 <= high:
                    return Why(
                        "a quotient has a bound where the divisor stays away from 0, but its "
                        f"entries are only known to lie in [{low:.4g}, {high:.4g}]",
                        "add a positive constant to a divisor that is not negative, clip it, or "
                        "state bounds of the inputs that keep it away from 0",
                    )
            case token_kinds.Attention():
                if unbounded is not None:
                    return Why(
                        "dot-product attention has no Lipschitz bound on unbounded tokens"
                        f"{because}",
                        f"{_DOMAIN}, or normalise the tokens (LayerNorm)",
                    )
            case kinds.Embedding() | kinds.Compare():
                return Why(
                    "the input chooses rows of a table, and numbers that do so have no neighbours",
                    "no gradient bound depends on it; for a constant in embedded inputs, export "
                    "the network behind its embedding",
                )
            case token_kinds.Normalize(_, epsilon, _) if epsilon == 0.0:
                return _flat("epsilon is 0")
            case kinds.DivideByNorm(floor=floor) if not floor.lo.any():
                return _flat("the norm that is divided by has no floor")
            case Activation(name, numbers):
                low, high = self._range(step.inputs[0])
                steep = name in _NEEDS and low <= 0.0 and (*numbers, 0.0)[0] < 1.0
                if steep or not (math.isfinite(low) and math.isfinite(high)):
                    return Why(
                        f"{name} needs {_NEEDS.get(name, 'bounded inputs')}, but its entries are "
                        f"only known to lie in [{low:.4g}, {high:.4g}]",
                        "state bounds of the inputs that imply it (--input-box, --input-norm), or "
                        "put a Clip before it",
                    )
        return unbounded or _OVERFLOW

    def _range(self, value: str) -> tuple[float, float]:
        box = self.derived.facts[value].box
        return float(np.min(box.lo)), float(np.max(box.hi))


def _flat(what: str) -> Why:
    return Why(
        f"{what}, so the slope grows without limit as the input's spread vanishes",
        "export the layer with a positive epsilon",
    )


def unexplained(
    parameters: Sequence[ParameterReport],
    groups: Sequence[GroupReport],
    network: NetworkReport,
    lipschitz: Why,
    found: Sequence[Diagnostic],
) -> Iterator[Diagnostic]:
    """Yield what absent numbers still need said. lipschitz: why there may be no constant."""
    if network.lipschitz is None and not any(item.code in {"LC101", "LC107"} for item in found):
        message = f"the network has no finite Lipschitz constant: {lipschitz.reason}"
        yield Diagnostic("LC101", Level.WARNING, "", message, lipschitz.remedy)
    missing = {item.name for item in parameters if item.grad_norm is None}
    for parameter in parameters:
        if parameter.group is not None and _is_lost(parameter.grad_norm, parameter.sensitivity):
            yield _overflow(f"parameter {parameter.name!r}: the sensitivity")
    for group in groups:
        if group.grad_norm is None and missing.isdisjoint(group.parameters):
            yield _overflow(f"group {group.name!r}: the joint gradient norm")
        if _is_lost(group.grad_norm, group.sensitivity):
            yield _overflow(f"group {group.name!r}: the sensitivity")
    if network.grad_norm is None and all(item.grad_norm is not None for item in groups):
        yield _overflow("network: the joint gradient norm")
    if any(item.sensitivity is None for item in groups):
        return
    if network.sensitivity is None:
        yield _overflow("network: the joint sensitivity")
    if any(item.noise_std is None for item in groups):
        yield _overflow("network: the noise, or its energy,")


def _is_lost(before: float | None, after: float | None) -> bool:
    return before is not None and after is None


def _overflow(what: str) -> Diagnostic:
    return Diagnostic("LC102", Level.WARNING, "", f"{what} {_EXCEEDS}", _OVERFLOW.remedy)


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
    yield from applied_twice(found)
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


def applied_twice(found: Bounded) -> Iterator[Diagnostic]:
    """Yield that the network ends in what the loss applies itself."""
    last = last_node(found.graph)
    if last is not None and found.loss.kind in _OWN.get(last.kind, ()):
        logits, way = last.inputs[0], f"export the network without the final {last.kind}"
        way = f"use --output {logits}" if logits in found.reading.model.computed else way
        said = f"the network ends in {last.kind}, and {found.loss.kind} is applied to its output"
        way += " if the loss takes logits"
        yield Diagnostic("LC103", Level.WARNING, last.name, said, way)


def _absent_bounds(found: Bounded, absence: Absence) -> Iterator[Diagnostic]:
    """Yield one finding per step where a bound is lost first."""
    for step, why in absence.first_values():
        yield Diagnostic("LC101", Level.WARNING, found.name_of(step), *why)
    of_loss = absence.cotangent(found.program.output)
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
        case token_kinds.Normalize():
            what = "the normalization may stretch by {stretch}: where an example's variance "
            remedy = "train with a larger epsilon (1e-1, say), or with a floor on the deviation"
            return _STEEP, f"{what}vanishes, its slope is 1/sqrt(epsilon)", remedy
        case kinds.DivideByNorm(floor=floor):
            what = "the division by a norm may stretch by {stretch}: where the norm vanishes, its "
            what += f"slope is one over the floor, which is {floor.lo.item():.3g}"
            return _STEEP, what, _FLOOR
        case kinds.LocalResponse(floor=floor):
            what = "the local response normalization may stretch by {stretch}, with a floor of "
            return _STEEPER, f"{what}{floor:.3g}", _FLOOR
        case kinds.Divide():
            what = "the quotient may stretch by {stretch}: its divisor may be as small as "
            return _STEEPER, f"{what}{_least(found, step.inputs[1]):.3g}", _FLOOR
        case Activation(name=name, numbers=numbers) if name in _POLES or (
            name == "power" and numbers[0] < 1.0
        ):
            what = f"{name} may stretch by {{stretch}}: its argument may be as close to 0 as "
            return _STEEPER, f"{what}{_least(found, step.inputs[0]):.3g}", _OFFSET
    return None


def _least(found: Bounded, value: str) -> float:
    """Return the least distance of an entry from 0, or less for a box that holds 0."""
    box = found.derived.facts[value].box
    return float(np.min(np.maximum(box.lo, -box.hi), initial=math.inf))
