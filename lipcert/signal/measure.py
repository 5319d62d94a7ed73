"""measure: how long the gradients of single examples are, and how long their mean.

What enters: a network as a mechanism runs it, how that clips, and examples. What leaves: an
`Observed`. Measured in float64 and up to rounding: nothing here is certified.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np

from lipcert.core.ledger import GradientClipping
from lipcert.core.losses.base import Loss
from lipcert.core.program import FloatArray, IndexArray
from lipcert.ir import Graph
from lipcert.losses import loss_gradients
from lipcert.signal.examples import Examples
from lipcert.signal.gradients import ParameterGradient, parameter_gradients, stack_size
from lipcert.signal.labels import checked_labels
from lipcert.signal.network import Network

RIVAL: Final = GradientClipping(1.0)
"""what other mechanisms are held against: gradient clipping at C = 1, all parameters together"""


@final
@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """Of parameters that are noised together; see `Observed`."""

    name: str
    grad_norm_median: float
    grad_norm_max: float
    signal: float
    clipped_signal: float


@final
@dataclass(frozen=True, slots=True)
class Observed:
    """Gradients of single examples, as they were met; nothing of it is certified.

    source: what the examples are. is_private: they were read from data, which costs privacy that no
    ε of the run covers. grad_norm_*: norms of the gradients of single examples, as backpropagation
    of the mechanism finds them and before a clip of the whole gradient. signal: norm of the mean
    over the examples of what the mechanism releases of each: where it clips whole gradients, the
    clipped ones. clipped_signal: the same for gradient clipping at C = 1 of the network without
    any other clip or constraint. Signals are of means: a released sum is as many times longer as
    its batch has examples. parameters: the largest gradient norm by each trained parameter.
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


Groups = Mapping[str, Sequence[str]]
"""Names of the parameters that are noised together, by the name of the group."""


def measure(
    graph: Graph,
    groups: Groups,
    loss: Loss,
    examples: Examples,
    *,
    loss_clip: float | None = None,
    clip: GradientClipping | None = None,
    rival: Graph | None = None,
) -> Observed | None:
    """What the examples show of a mechanism; None where a gradient is not finite.

    graph: with the clips of the mechanism, at the weights to be measured at. loss_clip: to which
    training clips the gradient at the output. clip: of the whole gradient. rival: the network that
    gradient clipping at C = 1 would run, where that is another than `graph`. Raises NoVerdictError
    for labels that the loss does not admit, TypeError for a loss whose gradient is not known.
    """
    labels = checked_labels(loss, examples.y, graph.output_shape)
    if not len(labels):
        return None
    is_same = rival is None and loss_clip is None
    batch = _Batch(loss, np.asarray(examples.x, np.float64), labels)
    with np.errstate(all="ignore"):
        found = batch.seen(graph, groups, loss_clip, (clip, RIVAL) if is_same else (clip,))
        clipped = found.signals[-1]
        if not is_same:
            (clipped,) = batch.seen(rival or graph, groups, None, (RIVAL,)).signals
        norms, signals = found.norms, found.signals[0]
        whole = np.sqrt(np.sum(norms**2, axis=0))
    if not all(np.isfinite(numbers).all() for numbers in (whole, norms, signals, clipped)):
        return None
    return Observed(
        source=examples.source,
        is_private=examples.is_private,
        examples=len(examples),
        grad_norm_median=_median(whole),
        grad_norm_max=float(np.max(whole)),
        signal=math.hypot(*signals),
        clipped_signal=math.hypot(*clipped),
        groups=tuple(
            ObservedGroup(name, _median(row), float(np.max(row)), *map(float, ends))
            for name, row, *ends in zip(groups, norms, signals, clipped, strict=True)
        ),
        parameters=found.largest,
    )


def released_mean(
    graph: Graph,
    groups: Groups,
    loss: Loss,
    examples: Examples,
    *,
    loss_clip: float | None = None,
    clip: GradientClipping | None = None,
) -> Mapping[str, FloatArray]:
    """The mean over the examples of what a mechanism releases of each, as in `measure`, flat by
    parameter; y: labels that `checked_labels` gave."""
    batch = _Batch(loss, np.asarray(examples.x, np.float64), examples.y)
    with np.errstate(all="ignore"):
        return batch.seen(graph, groups, loss_clip, (clip,)).means[0]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """By group: norms of single examples [groups, examples]; by clip, norms of means [groups].

    largest: norm of a gradient by each parameter. means: by clip and parameter, flat.
    """

    norms: FloatArray
    largest: Mapping[str, float]
    signals: tuple[FloatArray, ...]
    means: tuple[Mapping[str, FloatArray], ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Examples with their labels, as the loss reads them."""

    loss: Loss
    x: FloatArray
    labels: FloatArray | IndexArray

    def seen(
        self,
        graph: Graph,
        groups: Groups,
        loss_clip: float | None,
        clips: Sequence[GradientClipping | None],
    ) -> _Seen:
        """Gradients through a graph, and the length of their mean under each clip."""
        network, names = Network.of(graph), list(groups.values())
        count, rows = len(self.x), stack_size(network)
        nothing: FloatArray = np.zeros(1)
        totals = [[dict.fromkeys(group, nothing) for group in names] for _ in clips]
        norms, largest = (
            np.zeros((len(names), count)),
            {name: 0.0 for group in names for name in group},
        )
        for start in range(0, count, rows):
            part = slice(start, start + rows)
            found = self._gradients(network, part, loss_clip)
            for row, group in zip(norms, names, strict=True):
                known = {name: found[name].squares() for name in group if name in found}
                row[part] = np.sqrt(sum(known.values(), start=np.zeros(len(row[part]))))
                for name, squares in known.items():
                    largest[name] = max(largest[name], math.sqrt(np.max(squares)))
            for clip, sums in zip(clips, totals, strict=True):
                weights = _weights(clip, norms[:, part])
                for weight, total in zip(weights, sums, strict=True):
                    for name in total.keys() & found.keys():
                        total[name] = total[name] + found[name].total(weight)
        lengths = [np.array([_length(total.values()) for total in sums]) for sums in totals]
        means = tuple(
            {name: part / count for total in sums for name, part in total.items()}
            for sums in totals
        )
        return _Seen(norms, largest, tuple(length / count for length in lengths), means)

    def _gradients(
        self, network: Network, part: slice, loss_clip: float | None
    ) -> Mapping[str, ParameterGradient]:
        def seeds(logits: FloatArray) -> FloatArray:
            found = loss_gradients(self.loss, logits, self.labels[part])
            if loss_clip is None:
                return found
            axes = tuple(range(1, found.ndim))
            length = np.sqrt(np.sum(found * found, axis=axes, keepdims=True))
            clipped: FloatArray = found * (loss_clip / np.maximum(length, loss_clip))
            return clipped

        return parameter_gradients(network, self.x[part], seeds)


def _weights(clip: GradientClipping | None, norms: FloatArray) -> FloatArray:
    """By what the gradient of each example is scaled: [groups, examples], as the norms."""
    if clip is None:
        return np.ones_like(norms)
    if clip.clip_scope == "group":
        radius = clip.clip_norm / math.sqrt(len(norms))
        return radius / np.maximum(norms, radius)
    whole = np.sqrt(np.sum(norms**2, axis=0))
    return np.broadcast_to(clip.clip_norm / np.maximum(whole, clip.clip_norm), norms.shape)


def _length(parts: Iterable[FloatArray]) -> float:
    return math.hypot(*(float(np.linalg.norm(part)) for part in parts))


def _median(numbers: FloatArray) -> float:
    """That of numpy loads masked arrays, which takes longer than most measurements."""
    ordered = np.sort(numbers)
    return float(0.5 * (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]))
