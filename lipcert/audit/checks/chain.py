"""Chain (LC321): whether recorded weights follow from recorded steps, and from nothing else.

Statement: the weights from which a step starts are bit for bit those that the step before left,
frozen parameters and buffers included; the weights that a step leaves are what its optimizer
computes from its gradient, its state and its hyper-parameters, and untrained tensors do not change;
and the state with which it begins the next step is what this one left, or 0, or empty; so is that
of the first step. Between the optimizer and the next step a constrained parameter may have been
projected (`is_projection`). After an interruption a run may go back to any weights that it had
before: those were released. Without one this is inconclusive, since the choice may be private; so
is an optimizer whose steps cannot be repeated, where an ε is claimed. Post-processing of released
weights is private if its numbers are; nothing shows that they are, so what looks like it is
inconclusive: a projection that no constraint accounts for, entries set to 0, and between steps all
tensors on lines through one of the last 12 recorded weights, as after averaging (Lookahead). A
second optimizer leaves these lines: its direction is not that of the recorded updates.
Compared: weights of neighbouring steps; and, at detailed steps of an optimizer of `torch.optim`,
the weights a after it with r, what torch computes from the recorded tensors (see below):

    ‖a − r‖ ≤ 8·‖r − r'‖ + 16·u·(‖w‖ + ‖r‖)

for each tensor of the weights, buffers and state, r computed in float64 and r' in the recorded
type, u its unit roundoff, w the weights before. Kernels differ in the order of a few operations on
each entry. False alarms: none, unless the run changes weights by something other than its optimizer
and these forms, or averages them with weights that were not recorded. Two more cases are
inconclusive: a convolution with a spectral constraint, which may have been projected in another
way, and buffers, which the bounds cover only as far as they are constants of the file. Statistics
of a layer that normalises by its batch are a violation (LC316): examples of a batch influence each
other.

Not seen: steps between recorded ones. The report counts them.

`updates_of` repeats an update. From a recorded step, with the weights that it starts from, the
gradients that the optimizer took, its class, hyper-parameters and state, it returns the weights
after the step, and the state, as torch itself computes them, in the recorded type and in float64;
or why that cannot be done. Invariant: no optimizer is imitated: the class is one of `torch.optim`,
by its full name, and every hyper-parameter that it takes is the recorded one.
"""

import inspect
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from lipcert.analysis.premises import constraints_of
from lipcert.audit.checks.functions import MIXING
from lipcert.audit.checks.run_check import FEW, Finding, exact, norm_of, run_check, stored_roundoff
from lipcert.audit.recorded import STATISTICS, RecordedRun
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.trace.blobs import Array, Blob
from lipcert.audit.trace.records import OptimizerRecord, Resume, Step
from lipcert.core.program import FloatArray

_EXCLUDED: Final = frozenset({"LBFGS", "Muon", "Optimizer", "SparseAdam"})
"""Optimizers of torch.optim whose step is not a function of one gradient for each parameter, or
rounds so coarsely that kernels differ."""
_KERNELS: Final = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Options that choose among kernels of the same function."""
_TYPES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, eq=False)
class Updated:
    """A weight, or a part of the state, after its update.

    exact: computed in float64; rounded: in the recorded type.
    """

    exact: FloatArray
    rounded: FloatArray


def updates_of(step: Step, place: str = "") -> Mapping[str, Updated] | CheckReport | str:
    """Repeat the update of a step, and return every recorded parameter and the state after it.

    Parameters are named as recorded, and parts of the state as in traces, "key@parameter". If the
    update cannot be repeated, a sentence says why, or a report where there is no good reason.
    place: the name of the step.
    """
    record, applied = step.optimizer, step.gradients.applied
    if record is None:
        return "the trace does not hold the optimizer and its state; record the run again"
    kind = _class(record.kind)
    if kind is None:
        return f"{record.kind} is not an optimizer of torch.optim whose steps can be repeated"
    if record.unwritten:
        return f"{record.kind} has options or state that are not numbers ({record.unwritten[0]})"
    if step.weights_before is None or applied is None:
        return "the step does not record its weights and the gradients that the optimizer took"
    weights, gradients = step.weights_before.tensors(), applied.tensors()
    if any(gradients[name].dtype != weights[name].dtype for name in gradients):
        text = f"at {place} a gradient has another type than its parameter"
        return _CHECK.failed(text, place, verdict=Verdict.INCONCLUSIVE)
    state = {} if record.state is None else record.state.tensors()
    own = _TYPES.get("" if step.arithmetic is None else step.arithmetic.dtype)
    try:
        exact, rounded = (
            _stepped(kind, record, (weights, gradients, state), dtype)
            for dtype in (torch.float64, own)
        )
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        return f"{record.kind} does not accept what was recorded of it ({str(error)[:120]})"
    return {name: Updated(exact[name], rounded[name]) for name in exact.keys() & rounded.keys()}


def _class(name: str) -> Any:
    """Return the optimizer of torch of this full name."""
    own = name.rpartition(".")[2]
    kind: Any = vars(torch.optim).get(own)
    is_class = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    is_named = is_class and f"{kind.__module__}.{kind.__qualname__}" == name
    return kind if is_named and own not in _EXCLUDED else None


def _stepped(
    kind: Any,
    record: OptimizerRecord,
    recorded: tuple[Mapping[str, Array], Mapping[str, Array], Mapping[str, Array]],
    dtype: torch.dtype | None,
) -> dict[str, FloatArray]:
    """Take the step in this dtype.

    recorded: weights, gradients and state. dtype: None for that of each array.
    """
    weights, gradients, state = recorded
    parameters = {
        name: nn.Parameter(_tensor(weights[name], dtype), requires_grad=False)
        for group in record.groups
        for name in group.parameters
    }
    if not parameters:
        return {}
    groups = [
        {"params": [parameters[name] for name in group.parameters], **_options(kind, group.options)}
        for group in record.groups
        if group.parameters
    ]
    optimizer = kind(groups)
    for name, parameter in parameters.items():
        parameter.grad = _tensor(gradients[name], dtype) if name in gradients else None
        is_single = parameter.ndim == 0  # as are parts of its state
        own = {
            key: _tensor(item, dtype if item.ndim or (is_single and key != "step") else None)
            for (key, _, owner), item in ((full.partition("@"), x) for full, x in state.items())
            if owner == name
        }
        if own:
            optimizer.state[parameter] = own
    with torch.no_grad():
        optimizer.step()
    found = {name: item.detach() for name, item in parameters.items()}
    for name, parameter in parameters.items():
        for key, item in optimizer.state.get(parameter, {}).items():
            if isinstance(item, Tensor):
                found[f"{key}@{name}"] = item.detach()
    return {name: item.double().numpy() for name, item in found.items()}


def _options(kind: Any, options: Mapping[str, tuple[float, ...]]) -> dict[str, Any]:
    """Return the recorded options that the class takes, in its types."""
    taken = inspect.signature(kind).parameters
    own = options.keys() & taken.keys()
    found = {name: _cast(taken[name].default, options[name]) for name in own}
    return found | dict.fromkeys(_KERNELS & taken.keys(), False)


def _cast(default: object, numbers: tuple[float, ...]) -> object:
    if not numbers or isinstance(default, tuple):
        return numbers or None
    if isinstance(default, bool):
        return bool(numbers[0])
    is_whole = isinstance(default, int) and numbers[0].is_integer()
    return int(numbers[0]) if is_whole else numbers[0]


def _tensor(array: Array, dtype: torch.dtype | None) -> Tensor:
    found = torch.from_numpy(np.array(array))
    return found if dtype is None or not found.is_floating_point() else found.to(dtype)


_CHECK: Final = Check(
    "LC321",
    "chain",
    "change weights only by the recorded optimizer and by projections; a second optimizer, or "
    "replaced weights, release what no noise hides",
)
_REPEATED: Final = replace(_CHECK, remedy="train with SGD, AdamW or the like of torch.optim")
_MOVING: Final = ("_u", "_v")
"""buffers of power iterations"""
_RECENT: Final = 12
"""Most weights, the latest, that are tried as the other end of an average."""
_PROJECTED: Final = ", as a projection onto a constraint would, but none is accounted for"
_PRUNED: Final = ", as setting entries to 0 would, but nothing shows how they were chosen"
_AVERAGED: Final = ", as averaging with earlier weights would, but nothing shows with what factor"
_FACTOR: Final = 8.0
_ROUNDINGS: Final = 16.0


@run_check(_CHECK, most=FEW)
def chain(run: RecordedRun) -> Iterator[Finding]:
    """Report each place where weights do not follow, or one pass, with the gaps."""
    found = _Chain(run)
    ranks = run.trace.ranks if any(step.weights_before for step in run.steps) else ()
    reports = [item for rank in ranks for item in found.followed(rank)]
    yield from reports
    if found.updates or found.links:
        yield _CHECK.passed(found.message())
    elif not reports:
        yield (
            "no two neighbouring steps record their weights, and no step its optimizer; use "
            "every=1 and detail=… of the recorder"
        )


def _longest(numbers: list[int]) -> list[int]:
    """Return the longest run of consecutive numbers."""
    runs = groupby(enumerate(numbers), key=lambda item: item[1] - item[0])
    return max(([number for _, number in run] for _, run in runs), key=len, default=[])


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """A tensor where it should be and where it is; slack: a distance that rounding explains."""

    name: str
    source: FloatArray
    target: FloatArray
    unit: float
    slack: float = 0.0

    @property
    def off(self) -> float:
        """The distance between the two."""
        return _distance(self.target, self.source)

    @np.errstate(invalid="ignore")
    def is_towards(self, other: FloatArray) -> bool:
        """Whether the target lies on the line to other weights, but for 16 roundings."""
        way, moved = (x.reshape(1, -1) - self.source.reshape(1, -1) for x in (other, self.target))
        allowed = _ROUNDINGS * self.unit * (norm_of(other) + norm_of(self.target))
        return norm_of(moved - _factors(way, moved)) <= allowed


class _Chain:
    """Follows the steps of each rank, one after another, and counts what could be compared.

    lost: steps whose update could not be repeated; reasons: why, each once.
    """

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._known: dict[str, Blob] = {}
        self._last: Step | None = None
        self._state: Mapping[str, Updated] = {}
        self._resumed = False
        self.updates = self.links = self.projected = 0
        self.lost: list[int] = []
        self.reasons: set[str] = set()
        self._kinds = {
            run.names[name].recorded: constraint.kind
            for name, constraint in constraints_of(run.graph, run.settings).items()
            if name in run.names
        }

    def followed(self, rank: int) -> Iterator[Finding]:
        """Report each place where something else happened."""
        self._known, self._last, self._state, self._resumed = {}, None, {}, False
        for event in self._run.trace.events(rank):
            if isinstance(event, Resume):
                self._resumed = True
            elif isinstance(event, Step):
                yield from self._between(event)
                yield from self._state_kept(event)
                yield from self._within(event)
                for blob in (event.weights_before, event.weights_start, event.weights_after):
                    self._known |= {} if blob is None else {blob.sha256: blob}
                self._last, self._resumed = event, False

    def message(self) -> str:
        """Say what was compared, and what was not."""
        steps = len(self._run.steps)
        text = (
            f"the optimizer's update was repeated at {self.updates} of {steps} steps, and "
            f"{self.links} steps start from the weights that the step before left"
        )
        if self.projected:
            text += f" ({self.projected} tensors moved into their constraint)"
        lost = _longest(self.lost)
        if lost:
            text += (
                f"; gaps: for {len(self.lost)} steps nothing shows what changed the weights; the "
                f"longest gap has {len(lost)} steps (from step {lost[0]} to step {lost[-1]})"
            )
        return text

    def _between(self, step: Step) -> Iterator[Finding]:
        """Compare the end of the previous step with the beginning of this one."""
        last, start = self._last, step.weights_before or step.weights_start
        if last is None or last.weights_after is None or start is None:
            return
        place = f"between {self._run.name(last)} and {self._run.name(step)}"
        faults = list(self._compared(last.weights_after, start, place, step))
        if faults and start.sha256 in self._known:
            if not self._resumed:
                why = "starts from weights of an earlier step, which a private loss may have chosen"
                yield self._undecided(step, why)
            return
        if faults and self._resumed:
            why = "starts, after an interruption, from weights that match no recorded step"
            yield (f"{self._run.name(step)} {why}" if self.lost else self._undecided(step, why))
            return
        self.links += not faults
        yield from faults

    def _state_kept(self, step: Step) -> Iterator[CheckReport]:
        """Compare the state of the optimizer with that at the end of the previous step."""
        record, last = step.optimizer, self._last
        expected, self._state = self._state, {}
        if record is None or record.state is None:
            return
        state = record.state.tensors()
        counts = [array for name, array in state.items() if name.startswith("step@")]
        begun = any(np.any(array) for array in counts or state.values())
        if last is None and (begun or any(np.ptp(exact(x)) for x in state.values() if x.size)):
            text = f"starts from a state of {record.kind} after steps that are not recorded"
            yield self._undecided(step, text, "go on with the trace of these steps, in its folder")
        if last is None or self._resumed:
            return
        if last.number + 1 != step.number or last.weights_after != step.weights_before:
            return
        for name, array in state.items():
            found = exact(array)
            if name not in expected or not np.any(found):
                continue
            update = expected[name]
            slack = _slack(update, update.exact, stored_roundoff(step, array))
            off = norm_of(found - update.exact) if found.shape == update.exact.shape else math.inf
            if off > slack:
                key, _, parameter = name.partition("@")
                place = f"between {self._run.name(last)} and {self._run.name(step)}"
                yield _CHECK.failed(
                    f"{key} of {parameter!r}, a state of {record.kind}, changed {place}, by "
                    f"{off:.4g} where rounding explains {slack:.2g}: it may carry values without "
                    "noise into later steps",
                    f"{place}, {parameter}",
                    (off, slack),
                    remedy="let nothing but the optimizer change its state",
                )

    def _undecided(self, step: Step, text: str, remedy: str = "") -> CheckReport:
        name, verdict = self._run.name(step), Verdict.INCONCLUSIVE
        return _CHECK.failed(f"{name} {text}", name, verdict=verdict, remedy=remedy)

    def _compared(self, end: Blob, start: Blob, place: str, step: Step) -> Iterator[CheckReport]:
        if end == start:
            return
        first, second = end.tensors(), start.tensors()
        changes = [
            _Change(name, exact(first[name]), exact(array), stored_roundoff(step, array))
            for name, array in second.items()
            if first[name].tobytes() != array.tobytes()
            and not self._counts(name, first[name], array, step)
        ]
        found = [(change, why) for change in changes if (why := self._form(change)) is not None]
        recent = list(self._known.values())[-_RECENT:] if "" in dict(found).values() else []
        for earlier in map(Blob.tensors, recent):
            if all(change.is_towards(exact(earlier[change.name])) for change, _ in found):
                found = [(change, _AVERAGED) for change, _ in found]
        for change, why in found:
            text = f"{change.name!r} changed {place}, by {change.off:.4g} of "
            yield self._fault(change, place, f"{text}{norm_of(change.source):.4g}", why)

    def _within(self, step: Step) -> Iterator[Finding]:
        """Compare the end of a step with the update computed from its beginning."""
        before, after = step.weights_before, step.weights_after
        if before is None or after is None:
            self.lost.append(step.number)
            return
        place = self._run.name(step)
        updates = updates_of(step, place)
        first, second = before.tensors(), after.tensors()
        skipped: Collection[str] = ()
        if isinstance(updates, CheckReport | str):
            self.lost.append(step.number)
            if isinstance(updates, CheckReport):
                yield updates
            elif updates not in self.reasons:
                self.reasons.add(updates)
                yield self._run.unshown(_REPEATED, updates)
            skipped = step.trained or self._run.trace.manifest.parameters
            updates = {}
        else:
            self.updates += 1
            self._state = {name: item for name, item in updates.items() if "@" in name}
        for name in first:
            if name in skipped or self._counts(name, first[name], second[name], step):
                continue
            source, slack, unit = exact(first[name]), 0.0, stored_roundoff(step, second[name])
            what = "what it was, though the optimizer does not train it"
            if name in updates and step.optimizer is not None:
                slack, source = _slack(updates[name], source, unit), updates[name].exact
                what = f"what {step.optimizer.kind} computes from its gradient"
            change = _Change(name, source, exact(second[name]), unit, slack)
            if change.off <= slack or (why := self._form(change)) is None:
                continue
            text = f"after {place} {name!r} is {change.off:.4g} away from {what}, where rounding "
            yield self._fault(change, place, f"{text}explains {slack:.2g}", why)

    def _form(self, change: _Change) -> str | None:
        """Return which post-processing explains a change; None if a constraint accounts for it."""
        source, target = change.source, change.target
        if is_projection(source, target, change.unit, change.slack):
            self.projected += change.name in self._kinds
            return None if change.name in self._kinds else _PROJECTED
        kept = target != 0.0
        return _PRUNED if _distance(target[kept], source[kept]) <= change.slack else ""

    def _counts(self, name: str, before: Array, after: Array, step: Step) -> bool:
        """Whether it is a buffer of `_MOVING`, or counts steps or passes, at all places alike."""
        whole = before.dtype.kind in "iu"
        added = set(np.unique(after - before).tolist()) if whole else {None}
        known = len(added) == 1 and added <= {1, len(step.batches)}
        return name not in self._run.trace.manifest.parameters and (known or name.endswith(_MOVING))

    def _fault(self, change: _Change, place: str, message: str, why: str) -> CheckReport:
        """Report a fault; why: which post-processing explains it, if any does."""
        name = change.name
        mixes = name.endswith(STATISTICS)
        is_coarse = change.source.ndim > 2 and self._kinds.get(name) == "spectral"
        odd = why or is_coarse or name not in self._run.trace.manifest.parameters
        return (MIXING if mixes else _CHECK).failed(
            message + why,
            f"{place}, {name}",
            (change.off, change.slack),
            verdict=Verdict.INCONCLUSIVE if odd and not mixes else Verdict.VIOLATION,
        )


def _distance(target: FloatArray, source: FloatArray) -> float:
    """Return the norm of the difference; equal infinities, as in attention masks, are 0 apart."""
    differs = target != source
    return norm_of(target[differs] - source[differs])


def _slack(update: Updated, before: FloatArray, unit: float) -> float:
    """Return the distance from an update that rounding explains."""
    moved = _FACTOR * norm_of(update.rounded - update.exact)
    return moved + _ROUNDINGS * unit * (norm_of(before) + norm_of(update.exact))


def is_projection(source: FloatArray, target: FloatArray, unit: float, slack: float = 0.0) -> bool:
    """Whether one tensor is the projection of another one onto a constraint.

    Accepted forms: multiples of the whole tensor, or of its rows of several entries (the radius of
    a norm, rows of fixed length); entries cut off at one magnitude; other singular values with the
    same singular vectors, T = U f(Σ) Vᵀ for S = UΣVᵀ, as clipping them or orthogonalising leaves:
    then S Tᵀ and Sᵀ T are symmetric; all with ⟨S, T⟩ ≥ 0. Rounding of a projection: 16 roundings of
    every entry, by the Euclidean norm; of singular vectors √n times as much, n the longer side.

    Args:
        unit: unit roundoff of the type that the target is stored in.
        slack: a distance by which the source may be off.
    """
    if not 0.0 <= np.vdot(source, target) < math.inf:
        return False
    allowed = _ROUNDINGS * unit * norm_of(target) + slack
    rows = source.reshape(len(source), -1) if source.ndim > 1 else source.reshape(1, -1)
    ends = target.reshape(rows.shape)
    largest = float(np.max(np.abs(ends), initial=0.0))
    return (
        norm_of(ends - _factors(rows.reshape(1, -1), ends.reshape(1, -1)).reshape(rows.shape))
        <= allowed
        or (rows.shape[1] > 1 and norm_of(ends - _factors(rows, ends)) <= allowed)
        or norm_of(ends - np.clip(rows, -largest, largest)) <= allowed
        or (source.ndim > 1 and _shares_vectors(rows, ends, allowed))
    )


def _factors(source: FloatArray, target: FloatArray) -> FloatArray:
    """Return the multiple of each source row that is nearest to the target's row."""
    squares = np.sum(source * source, axis=1, keepdims=True)
    products = np.sum(source * target, axis=1, keepdims=True)
    found: FloatArray = source * np.divide(
        products, squares, out=np.zeros_like(products), where=squares > 0.0
    )
    return found


def _shares_vectors(source: FloatArray, target: FloatArray, allowed: float) -> bool:
    """Whether the singular vectors agree: moving T by E moves S Tᵀ − T Sᵀ by at most 2‖S‖_F
    ‖E‖_F."""
    reach = 2.0 * math.sqrt(max(source.shape)) * allowed * float(np.linalg.norm(source, 2))
    return all(
        norm_of(product - product.T) <= reach for product in (source @ target.T, source.T @ target)
    )
