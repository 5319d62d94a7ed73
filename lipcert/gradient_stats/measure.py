"""Measure: the norms of per-example gradients, and of the mean gradient after clipping.

`met` takes a network as a mechanism runs it, how the mechanism clips, and examples; `observed_of`
makes an `Observed` of the result. All is computed in float64, up to rounding: nothing here is
certified.

`Network.of` takes an `ir.Graph` with the numbers of its operands. It holds a core `Program` of the
same values, and a `View` for each operand that shows a parameter. `parameter_gradients` takes a
stack of examples and the gradients of their losses at the output. It returns for each parameter a
`ParameterGradient`, which gives norms of per-example gradients and weighted sums over them; exact,
up to rounding, for parameters that several steps use, whole or in part.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from lipcert.core import program as p
from lipcert.core import token_kinds
from lipcert.core.ledger.updates import GradientClipping
from lipcert.core.losses.base import Loss
from lipcert.core.program import FloatArray, IndexArray, Shape
from lipcert.gradient_stats.examples import Examples
from lipcert.gradient_stats.labels import checked_labels
from lipcert.graph.evaluate import evaluate_batch
from lipcert.graph.ir import ROLES, Graph, Node, Operand, PlaceArray
from lipcert.losses import loss_gradients
from lipcert.search.operand_gradients import OperandGradient, operand_gradients
from lipcert.search.pullbacks import cotangents, pulls, squares


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """An operand as scale·θ[places], or as the reciprocals of that (`divisor`: θ[places]).

    size: entries of θ. places: as in `ir.Operand`, flat; None for θ in its own order.
    is_whole: whether every entry of θ is shown exactly once, and multiplied only by scale.
    """

    parameter: str
    size: int
    places: PlaceArray | None
    scale: float
    divisor: FloatArray | None
    is_whole: bool = field(init=False)

    def __post_init__(self) -> None:
        places, counts = self.places, None
        if places is not None and places.size == self.size and places.min(initial=0) >= 0:
            counts = np.bincount(places, minlength=self.size)
        is_whole = places is None or (counts is not None and bool((counts == 1).all()))
        object.__setattr__(self, "is_whole", is_whole and self.divisor is None)

    def back(self, gradients: FloatArray) -> FloatArray:
        """Turn gradients by the operand [rows, *shape] into gradients by θ, [rows, size]."""
        flat: FloatArray = self.scale * gradients
        if self.divisor is not None:
            flat = -flat / self.divisor**2
        flat = flat.reshape(len(flat), -1)
        if self.places is None:
            return flat
        shown = self.places >= 0
        rows = (self.size * np.arange(len(flat)))[:, np.newaxis] + self.places[shown]
        whole = np.bincount(rows.ravel(), flat[:, shown].ravel(), self.size * len(flat))
        return np.asarray(whole.reshape(len(flat), self.size), np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A program, and views of trained parameters by step output and operand field.

    output_shape: of one example, without the batch axis.
    """

    program: p.Program
    views: Mapping[str, Mapping[str, View]]
    input_shape: Shape
    output_shape: Shape

    @classmethod
    def of(cls, graph: Graph) -> Self:
        """Return the steps of a graph with the numbers of its operands.

        Raises:
            NoVerdictError: see `Graph.check_shown`.
        """
        graph.check_shown()
        shapes = {graph.input_name: (1, *graph.input_shape)}
        steps: list[p.Step] = []
        views: dict[str, Mapping[str, View]] = {}
        for node in graph.nodes:
            shapes |= dict(zip(node.inputs, node.given, strict=True))
            for step, operands in _steps(node):
                shapes[step.output] = step.shape
                steps.append(step)
                views[step.output] = dict(_views(graph, operands))
        program = p.Program(
            graph.input_name, graph.output_name, shapes, tuple(steps), None, covered=()
        )
        return cls(program, views, graph.input_shape, graph.output_shape)


def _steps(node: Node) -> Iterator[tuple[p.Step, Mapping[str, tuple[str, Operand]]]]:
    """Yield the steps of a node, each with its operands by field of the op, and their slots."""
    step, operands = node.step, node.operands
    if isinstance(step.op, token_kinds.Scale) and "bias" in operands:
        between = replace(step, output=f"{step.output}#scaled")
        shift = p.Step(
            token_kinds.Shift(step.op.factor), (between.output,), step.output, step.shape, 0
        )
        yield _step(between, operands)
        yield _step(shift, operands)
    else:
        yield _step(step, operands)


def _step(
    step: p.Step, operands: Mapping[str, Operand]
) -> tuple[p.Step, Mapping[str, tuple[str, Operand]]]:
    found: dict[str, tuple[str, Operand]] = {}
    for item in fields(step.op):
        slot = ROLES.get(item.name, "")
        slot = "divisor" if slot == "scale" and "divisor" in operands else slot
        if slot in operands:
            found[item.name] = (slot, operands[slot])
    numbers = {name: _exact(slot, operand) for name, (slot, operand) in found.items()}
    return replace(step, op=replace(step.op, **numbers)), found


def _exact(slot: str, operand: Operand) -> p.Operand:
    array = 1.0 / operand.array if slot == "divisor" else operand.array
    return p.Operand(array, array)


def _views(graph: Graph, operands: Mapping[str, tuple[str, Operand]]) -> Iterator[tuple[str, View]]:
    for name, (slot, operand) in operands.items():
        known = graph.parameters.get(operand.parameter or "")
        if known is not None and known.trainable:
            places = None if operand.places is None else operand.places.reshape(-1)
            divisor = operand.array if slot == "divisor" else None
            yield name, View(known.name, known.size, places, operand.scale, divisor)


_NUMBERS: Final = 1 << 22
"""Most numbers held at once, for all examples of a stack."""
_MOST: Final = 256

Seeds = Callable[[FloatArray], FloatArray]
"""From outputs [examples, *shape] to the gradients of the losses by them."""


@dataclass(frozen=True, slots=True, eq=False)
class ParameterGradient:
    """The gradients of several examples by one parameter, from all operands that show it."""

    shown: tuple[tuple[View, OperandGradient], ...]

    def squares(self) -> FloatArray:
        """Return ‖·‖² of each example."""
        if len(self.shown) == 1 and self.shown[0][0].is_whole:
            view, gradient = self.shown[0]
            return np.asarray(view.scale**2 * gradient.squares())
        parts = [view.back(gradient.each()) for view, gradient in self.shown]
        return squares(np.sum(parts, axis=0))

    def total(self, weights: FloatArray) -> FloatArray:
        """Return Σ weight·gradient over the examples: [entries of the parameter]."""
        parts = [view.back(gradient.total(weights)[np.newaxis])[0] for view, gradient in self.shown]
        return np.asarray(np.sum(parts, axis=0))


Values = Mapping[str, FloatArray]
"""Output of a step → its values, [examples, *shape]."""


def passed(
    program: p.Program, x: FloatArray, output_shape: Shape, seeds: Seeds
) -> tuple[Values, Values]:
    """Return all values at a stack of examples, and the gradients of the losses by them."""
    values = evaluate_batch(program, x.reshape(len(x), *program.shapes[program.input]))
    output = values[program.output]
    at_output = seeds(output.reshape(len(x), *output_shape)).reshape(output.shape)
    return values, cotangents(program, pulls(program, values), {program.output: at_output})


def parameter_gradients(
    network: Network, x: FloatArray, seeds: Seeds
) -> Mapping[str, ParameterGradient]:
    """Return the gradients by each parameter that the output depends on."""
    program = network.program
    values, found = passed(program, x, network.output_shape, seeds)
    shown: dict[str, list[tuple[View, OperandGradient]]] = {}
    for step in program.steps:
        views = network.views[step.output]
        if views and step.output in found:
            gradients = operand_gradients(step, values[step.inputs[0]], found[step.output])
            for name, gradient in gradients:
                if name in views:
                    shown.setdefault(views[name].parameter, []).append((views[name], gradient))
    return {name: ParameterGradient(tuple(parts)) for name, parts in shown.items()}


def stack_size(network: Network) -> int:
    """Return how many examples to take at once, so that their numbers fit in memory."""
    numbers = numbers_held(network.program)
    numbers += sum(view.size for views in network.views.values() for view in views.values())
    return max(1, min(_NUMBERS // max(numbers, 1), _MOST))


def numbers_held(program: p.Program) -> int:
    """Return roughly how many numbers one example needs: values, slopes, cotangents of steps."""
    return 3 * sum(map(program.size, program.shapes))


RIVAL: Final = GradientClipping(1.0)
"""The baseline for other mechanisms: gradient clipping at C = 1, all parameters together."""


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """Measurements of parameters that are noised together; see `Observed`."""

    name: str
    grad_norm_median: float
    grad_norm_max: float
    signal: float
    clipped_signal: float


@dataclass(frozen=True, slots=True)
class Observed:
    """Measured per-example gradients; nothing here is certified.

    source: what the examples are.
    is_private: they were read from data, which costs privacy that no ε of the run covers.
    grad_norm_*: norms of per-example gradients, as the mechanism's backpropagation computes them,
    before the whole gradient is clipped.
    signal: norm of the mean over the examples of what the mechanism releases of each: clipped
    gradients if it clips whole gradients.
    clipped_signal: the same for gradient clipping at C = 1 of the network without any other clip or
    constraint.
    of_norms: the examples were drawn, so their labels are random and their gradients cancel;
    signals are means of norms instead, which no mean gradient exceeds.
    parameters: the largest gradient norm by each trained parameter.

    Signals are of means: a released sum is larger by the number of examples in its batch.
    """

    source: str
    is_private: bool
    examples: int
    grad_norm_median: float
    grad_norm_max: float
    signal: float
    clipped_signal: float
    groups: tuple[ObservedGroup, ...]
    parameters: Mapping[str, float] = field(default_factory=dict)
    of_norms: bool = False

    @property
    def words(self) -> str:
        """The baseline with which noise is compared."""
        return signal_words(of_norms=self.of_norms)


def signal_words(*, of_norms: bool) -> str:
    """Return what a signal is, in words; see `Observed`."""
    return "the gradient of an example" if of_norms else "the mean gradient"


Groups = Mapping[str, Sequence[str]]
"""Name of the group → names of the parameters that are noised together."""


@dataclass(frozen=True, slots=True, eq=False)
class Met:
    """Gradients of examples through one network.

    norms: of per-example gradients, [groups, examples]. largest: norm by each parameter. signals:
    by the requested clips; for drawn examples that of any clip follows from the norms.
    """

    examples: Examples
    groups: Groups
    norms: FloatArray
    largest: Mapping[str, float]
    signals: Mapping[GradientClipping | None, tuple[float, FloatArray]]

    def knows(self, clip: GradientClipping | None) -> bool:
        """Whether the signal after this clip is known."""
        return self.examples.is_drawn or clip in self.signals

    def signal(self, clip: GradientClipping | None) -> tuple[float, FloatArray]:
        """Return the signal after this clip, which must be known, and that of each group.

        It is the norm of the mean of clipped gradients, or the mean norm if labels are random.
        """
        if self.examples.is_drawn:
            left = _weights(clip, self.norms) * self.norms
            whole = np.mean(np.sqrt(np.sum(left**2, axis=0)))
            return float(whole), np.mean(left, axis=1)
        return self.signals[clip]


@np.errstate(all="ignore")
def met(
    graph: Graph,
    groups: Groups,
    loss: Loss,
    examples: Examples,
    *,
    loss_clip: float | None = None,
    clips: Sequence[GradientClipping | None] = (),
) -> Met | None:
    """Return gradients of these examples; None without examples.

    Args:
        graph: the network with the clips of the mechanism, at the weights to measure at.
        groups: names of the parameters that are noised together, by group.
        loss: the loss.
        examples: inputs and labels.
        loss_clip: the norm to which training clips the gradient at the output.
        clips: the clips of the whole gradient of which signals are wanted.

    Raises:
        NoVerdictError: for labels that the loss does not admit.
        TypeError: for a loss whose gradient is not known.
    """
    labels = checked_labels(loss, examples.y, graph.output_shape)
    count, names = len(labels), list(groups.values())
    if not count:
        return None
    norms = np.zeros((len(names), count))
    largest = {name: 0.0 for group in names for name in group}
    kept = () if examples.is_drawn else tuple(dict.fromkeys(clips))
    sums = {clip: dict.fromkeys(largest, _NOTHING) for clip in kept}
    for part, found, lengths in _passes(
        graph, names, loss, examples.x, labels, loss_clip=loss_clip
    ):
        norms[:, part] = lengths
        for name in largest.keys() & found.keys():
            largest[name] = max(largest[name], math.sqrt(np.max(found[name].squares())))
        for clip, totals in sums.items():
            _add(totals, found, _weights(clip, lengths), names)
    signals = {}
    for clip, totals in sums.items():
        by_group = [math.hypot(*(_length(totals[name]) for name in group)) for group in names]
        found_by_group = np.array(by_group) / count
        signals[clip] = math.hypot(*found_by_group), found_by_group
    return Met(examples, groups, norms, largest, signals)


@np.errstate(all="ignore")
def observed_of(own: Met, clip: GradientClipping | None, plain: Met) -> Observed | None:
    """Compare a mechanism's gradients with those of its rival; None if one is not finite.

    plain: gradients of the same examples through the network that gradient clipping at C = 1 would
    run, by `RIVAL` among others.
    """
    (signal, by_group), (rival, of_rival) = own.signal(clip), plain.signal(RIVAL)
    norms, examples = own.norms, own.examples
    whole = np.sqrt(np.sum(norms**2, axis=0))
    numbers = (whole, norms, by_group, of_rival)
    if not all(np.isfinite(item).all() for item in numbers):
        return None
    return Observed(
        source=examples.source,
        is_private=examples.is_private,
        examples=len(examples),
        grad_norm_median=_median(whole),
        grad_norm_max=float(np.max(whole)),
        signal=signal,
        clipped_signal=rival,
        groups=tuple(
            ObservedGroup(name, _median(row), float(np.max(row)), *map(float, ends))
            for name, row, *ends in zip(own.groups, norms, by_group, of_rival, strict=True)
        ),
        parameters=own.largest,
        of_norms=examples.is_drawn,
    )


def _add(
    totals: dict[str, FloatArray],
    found: Mapping[str, ParameterGradient],
    weights: FloatArray,
    groups: Sequence[Sequence[str]],
) -> None:
    """Add what is released of some examples, by parameter. weights: [groups, examples]."""
    for weight, group in zip(weights, groups, strict=True):
        for name in found.keys() & set(group):
            totals[name] = totals[name] + found[name].total(weight)


@np.errstate(all="ignore")
def released_mean(
    graph: Graph,
    groups: Groups,
    loss: Loss,
    examples: Examples,
    *,
    loss_clip: float | None = None,
    clip: GradientClipping | None = None,
) -> Mapping[str, FloatArray]:
    """Return the mean over the examples of what a mechanism releases of each, flat by parameter.

    For arguments see `met`; the labels must be the result of `checked_labels`.
    """
    names = list(groups.values())
    totals = {name: _NOTHING for group in names for name in group}
    passes = _passes(graph, names, loss, examples.x, examples.y, loss_clip=loss_clip)
    for _, found, norms in passes:
        _add(totals, found, _weights(clip, norms), names)
    return {name: total / len(examples) for name, total in totals.items()}


_NOTHING: Final[FloatArray] = np.zeros(1)
_Pass = tuple[slice, Mapping[str, ParameterGradient], FloatArray]
"""Some examples, their gradients, and the norms of these by group."""


def _passes(
    graph: Graph,
    groups: Sequence[Sequence[str]],
    loss: Loss,
    x: npt.NDArray[Any],
    labels: FloatArray | IndexArray,
    *,
    loss_clip: float | None,
) -> Iterator[_Pass]:
    """Yield passes through a graph, with as many examples at a time as memory allows."""
    network, x = Network.of(graph), np.asarray(x, np.float64)
    most = stack_size(network)
    for start in range(0, len(x), most):
        part = slice(start, start + most)

        def seeds(logits: FloatArray, part: slice = part) -> FloatArray:
            found = loss_gradients(loss, logits, labels[part])
            if loss_clip is None:
                return found
            axes = tuple(range(1, found.ndim))
            length = np.sqrt(np.sum(found * found, axis=axes, keepdims=True))
            clipped: FloatArray = found * (loss_clip / np.maximum(length, loss_clip))
            return clipped

        found = parameter_gradients(network, x[part], seeds)
        norms = np.zeros((len(groups), len(x[part])))
        for row, group in zip(norms, groups, strict=True):
            row[:] = np.sqrt(sum(found[name].squares() for name in group if name in found))
        yield part, found, norms


def _weights(clip: GradientClipping | None, norms: FloatArray) -> FloatArray:
    """Return the factor by which each gradient is scaled: [groups, examples], as the norms."""
    if clip is None:
        return np.ones_like(norms)
    if clip.clip_scope == "group":
        radius = clip.clip_norm / math.sqrt(len(norms))
        return radius / np.maximum(norms, radius)
    whole = np.sqrt(np.sum(norms**2, axis=0))
    return np.broadcast_to(clip.clip_norm / np.maximum(whole, clip.clip_norm), norms.shape)


def _length(part: FloatArray) -> float:
    return float(np.linalg.norm(part))


def _median(numbers: FloatArray) -> float:
    """Return the median; that of numpy loads masked arrays, slower than most measurements."""
    ordered = np.sort(numbers)
    return float(0.5 * (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]))
