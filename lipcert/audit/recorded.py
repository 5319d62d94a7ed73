"""Recorded runs: the weights and batches of a trace, by the names that units of work use.

Weights are translated to the names of the bounded graph. A NoVerdictError says how trace and graph
do not belong together. Invariant: what the graph treats as constant, that is frozen parameters and
statistics, has exactly the numbers of the file.

A set of weights is called "step 200": those from which step 200 started; with several ranks "step
200, rank 1". The weights "after step 200" are those that the optimizer left. They are not
checkpoints: a projection onto constraints follows the optimizer, so that no bound applies to them.

`matched` finds which recorded tensor is which parameter of the graph, from the shapes that a trace
records and, if names do not suffice, from the recorded numbers. It returns for each parameter the
recorded name and its orientation, or raises a NoVerdictError that names what could not be matched.
Invariant: nothing is guessed: a name agrees up to a prefix, or the numbers agree exactly and with
one tensor only.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hmac import compare_digest
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.analysis.release import known_plan, planned_multiplier
from lipcert.audit.bounds import Claims
from lipcert.audit.records import Check, CheckReport, Recording, Verdict
from lipcert.audit.trace.blobs import Blob, ExamplesKey, StoredTensor, key_path, stored_as
from lipcert.audit.trace.reading import Trace
from lipcert.audit.trace.records import Batch, Declaration, Noise, Step
from lipcert.audit.weight_norms import ReplayWeights, replay_weights
from lipcert.core.kinds import BatchNorm
from lipcert.core.program import FloatArray, Shape
from lipcert.diagnostics import EXPORT
from lipcert.errors import NoVerdictError
from lipcert.gradient_stats.examples import DRAWN_IN, Examples, Readable, checked_examples, settled
from lipcert.graph.ir import Graph, is_shown
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings.settings import Settings
from lipcert.text.numbers import first_of

Snapshot: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""Recorded tensors by name."""
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Match:
    """A recorded tensor, and whether the file holds it transposed."""

    recorded: str
    transposed: bool = False

    def numbers(self, snapshot: Snapshot) -> FloatArray:
        """Return the numbers in the graph's orientation; float64 holds every recorded number
        exactly."""
        array = snapshot[self.recorded].astype(np.float64)
        return array.T if self.transposed else array


def matched(
    graph: Graph,
    recorded: Mapping[str, Shape],
    snapshots: Callable[[], Iterable[Snapshot]],
) -> Mapping[str, Match]:
    """Return the recorded tensor of every trained parameter, and of other parameters that have one.

    Names are compared first: they are equal, or one ends in the other after a dot
    ("module.fc.weight"). For names that an exporter made up ("onnx::MatMul_12"), the numbers
    decide: some recorded set of weights must equal that of the file, number by number.
    """
    _refuse_folded(graph)
    found = {
        name: Match(candidates[0])
        for name, parameter in graph.parameters.items()
        if len(candidates := _by_name(name, parameter.shape, recorded)) == 1
    }
    if len({match.recorded for match in found.values()}) < len(found):
        raise _unmatched(graph, sorted(found), "several of them share one recorded tensor")
    missing = [name for name in graph.parameters if name not in found]
    trained = [name for name in missing if graph.parameters[name].trainable]
    if not trained:
        return found
    taken = {match.recorded for match in found.values()}
    for snapshot in snapshots():
        others = {name: item for name, item in snapshot.items() if name not in taken}
        by_numbers = _by_numbers(graph, trained, others)
        if by_numbers is not None:
            return {**found, **by_numbers}
    raise _unmatched(
        graph, trained, "no recorded tensor has their name, or at any step their numbers"
    )


def _by_name(name: str, shape: Shape, recorded: Mapping[str, Shape]) -> list[str]:
    """Return recorded tensors of this name and shape; an identical name takes precedence."""
    if recorded.get(name) == tuple(shape):
        return [name]
    return [
        other
        for other, its_shape in recorded.items()
        if its_shape == tuple(shape) and (other.endswith(f".{name}") or name.endswith(f".{other}"))
    ]


def _by_numbers(graph: Graph, names: list[str], others: Snapshot) -> Mapping[str, Match] | None:
    """Match all these names by numbers; None if one has no tensor, or several."""
    found: dict[str, Match] = {}
    for name in names:
        shape = graph.parameters[name].shape
        candidates = [
            match
            for other, item in others.items()
            for match in (Match(other), Match(other, transposed=True))
            if _fits(match, item.shape, shape) and is_shown(graph, name, match.numbers(others))
        ]
        if len({match.recorded for match in candidates}) != 1:
            return None
        found[name] = candidates[0]
    distinct = {match.recorded for match in found.values()}
    return found if len(distinct) == len(found) else None


def _fits(match: Match, recorded: Shape, shape: Shape) -> bool:
    if match.transposed:
        return len(shape) == 2 and recorded == tuple(shape[::-1])
    return recorded == tuple(shape)


def _refuse_folded(graph: Graph) -> None:
    folded = [name for name, item in graph.parameters.items() if item.folded and item.trainable]
    if folded:
        raise NoVerdictError(
            f"[LC319] the file holds {first_of([*map(repr, folded)], _NAMED)} computed from "
            "trained tensors, so weights of a run cannot be put in their place; train plain "
            "weights (torch.nn.utils.parametrize.remove_parametrizations), and export with "
            f"{EXPORT}"
        )


def _unmatched(graph: Graph, names: list[str], why: str) -> NoVerdictError:
    shapes = [f"{name} {list(graph.parameters[name].shape)}" for name in names]
    return NoVerdictError(
        "[LC319] the trace cannot be matched with the parameters "
        f"{first_of([*map(repr, shapes)], _NAMED)} of the model: {why}; export with {EXPORT}, or "
        "record the run that starts from the exported weights"
    )


INPUT: Final = "input"
LABELS: Final = "labels"
_AFTER: Final = "after "
STATISTICS: Final = ("running_mean", "running_var")


_MOST_NUMBERS: Final = 2**24
"""Largest number of weight entries that are remembered."""


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """The tensors that a trace holds: sets of weights in order, and steps with whole batches.

    named: steps whose examples are not stored, but have a name and indices. detailed: names of
    other steps with weights that record gradients, and no examples.
    """

    weights: dict[str, Blob] = field(default_factory=dict)
    batches: dict[str, Step] = field(default_factory=dict)
    named: dict[str, Step] = field(default_factory=dict)
    detailed: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A recorded run and the claims about it: its weights and batches by name.

    The trace is read once, and units use one step each.

    device: where gradients are computed. data: the data set, in which examples that the trace only
    names are looked up.
    """

    claims: Claims
    trace: Trace
    device: str = "cpu"
    data: Readable | None = None

    @property
    def settings(self) -> Settings:
        """The settings on which the claims depend.

        Examples were moved into their domain, if the trace says so; they are then, up to a
        rounding, what the network read.
        """
        return self.claims.settings

    @property
    def graph(self) -> Graph:
        """The network as the run evaluates it, including clips."""
        return self.claims.engine.graph

    def name(self, step: Step) -> str:
        """Return the name of the weights and the batch of a step."""
        return f"step {step.number}" + (f", rank {step.rank}" if len(self.trace.ranks) > 1 else "")

    @property
    def checkpoints(self) -> list[str]:
        """Every set of weights from which a step started, in order; equal ones under one name."""
        return [name for name in self._first.values() if not name.startswith(_AFTER)]

    @property
    def batch_sizes(self) -> Mapping[str, int]:
        """The number of examples of every step whose weights and whole batch are known."""
        return {name: step.examples for name, step in {**self._held.batches, **self._found}.items()}

    @property
    def gap(self) -> str | None:
        """Why steps that are recorded with their gradients cannot be replayed, and what to do."""
        named, detailed = len(self._held.named), len(self._held.detailed)
        if self.trace.manifest.examples_key is None:
            return None
        if named and self.data is None:
            return (
                f"the examples of {named} steps are not in the trace, as is its default; give the "
                "data set with --data FILE (arrays x and y, in the order of the recorded indices), "
                "or record with store_data=True"
            )
        if named and self._key is None:
            return (
                f"without the key of the trace, {key_path(self.trace.folder)}, it is not known "
                "whether the examples of --data are those of the run: put it back"
            )
        others = named - len(self._found)
        if others:
            return (
                f"at {others} of {named} steps the examples of --data are not those that the "
                "network read: give the data set in the order of the recorded indices, exactly as "
                "the network is fed; where examples are changed at random, record with "
                "store_data=True"
            )
        if detailed:
            return (
                f"{detailed} steps do not say which examples they had; use "
                "recorder.wrap_loader(…) or recorder.batch(index=…), and recorder.wrap_loss(…), or "
                "record with store_data=True"
            )
        return None

    @cached_property
    def names(self) -> Mapping[str, Match]:
        """The recorded tensor that matches each parameter of the graph."""
        recorded = self._held.weights

        def snapshots() -> Iterator[Snapshot]:
            ends = list(dict.fromkeys([*list(recorded)[:1], *list(recorded)[-1:]]))
            yield from (recorded[name].tensors() for name in ends)

        self.graph.check_shown()
        return matched(self.graph, self.trace.manifest.parameters, snapshots)

    def weights(self, name: str) -> Mapping[str, FloatArray]:
        """Return a set of weights by the names, and in the shapes, of the graph's parameters."""
        graph, blob = self.graph, self._held.weights.get(name)
        if blob is None:
            raise NoVerdictError(
                f"[LC319] the trace {self.trace.folder} has no weights at {name!r}"
            )
        snapshot, names = blob.tensors(), self.names
        self._require_statistics(snapshot, name)
        found: dict[str, FloatArray] = {}
        for parameter, match in names.items():
            numbers = match.numbers(snapshot)
            if not np.all(np.isfinite(numbers)):
                raise NoVerdictError(
                    f"[LC306] the weight {match.recorded!r} recorded at {name} holds NaN or "
                    "infinity: training had diverged, and no bound applies to such weights"
                )
            is_frozen = not graph.parameters[parameter].trainable
            if is_frozen and not is_shown(graph, parameter, numbers):
                raise NoVerdictError(
                    f"[LC319] {match.recorded!r} recorded at {name} is not that of the model, "
                    "which treats it as frozen; export again, or name it with --trainable"
                )
            found[parameter] = numbers
        return found

    def _require_statistics(self, snapshot: Snapshot, where: str) -> None:
        """Raise NoVerdictError unless the stored statistics of normalisation layers are those of
        the file.

        They are constants of the bounds, and are matched by the name of the layer's scale; if it
        has none, or if the file spells the layer out in several nodes, by their numbers, or by
        their names with a tensor that the file holds, from which constants are computed.
        """
        statistics = {
            name: item.astype(np.float64).reshape(-1)
            for name, item in snapshot.items()
            if name.rpartition(".")[2] in STATISTICS
        }
        constants = [
            operand.array.reshape(-1)
            for node in self.graph.nodes
            for operand in node.operands.values()
            if operand.parameter is None
        ]
        for node in self.graph.nodes:
            if not isinstance(node.op, BatchNorm):
                continue
            stored = [node.operands.get(role) for role in ("mean", "variance")]
            match = self.names.get(node.operands["scale"].parameter or "")
            prefix = None if match is None else match.recorded.rpartition(".")[0]
            for kind, operand in zip(STATISTICS, stored, strict=True):
                array = None if operand is None else operand.array
                if prefix is None or f"{prefix}.{kind}" not in statistics:
                    values = [item for key, item in statistics.items() if key.endswith(kind)]
                    known = any(_is_equal(item, array) for item in values)
                else:
                    known = _is_equal(statistics.pop(f"{prefix}.{kind}"), array)
                if not known:
                    raise _other_statistics(f"the {kind} of node {node.name!r}", where)
        held = self.claims.engine.reading.model.initializers
        sizes = {name: (tensor.size,) for name, tensor in held.items()}
        for name, item in statistics.items():
            namesakes = [
                held[own].values().reshape(-1) for own in _by_name(name, item.shape, sizes)
            ]
            if not any(np.array_equal(item, known) for known in (*constants, *namesakes)):
                raise _other_statistics(repr(name), where)

    def examples(self, name: str) -> Examples:
        """Return the batch of a step as the network read it, its micro-batches one after
        another."""
        shape, step = self.graph.input_shape, self._held.batches.get(name)
        if step is None and self.data is not None and name in self._found:
            source = f"{self.data.source} at the indices of {name}"
            x, y = _found_examples(self._found[name], self.data, self.settings, source)
            return checked_examples(x, y, shape, source)
        if step is None:
            raise NoVerdictError(
                f"[LC319] the trace {self.trace.folder} has no whole batch at {name!r}"
            )
        blobs = [batch.tensors for batch in step.batches if batch.tensors is not None]
        held = [blob.tensors() for blob in blobs]
        source = f"{self.trace.folder}, {name}"
        more = sorted({key for part in held for key in part if key.startswith(f"{INPUT}.")})
        if more:
            raise NoVerdictError(
                f"[LC319] {source}: the network was called with a further input {more[0]!r}, but "
                "the bounds are for a network with one input"
            )
        x, y = (_joined([part[key] for part in held], source, key) for key in (INPUT, LABELS))
        return checked_examples(x, y, shape, source)

    @property
    def _key(self) -> ExamplesKey | None:
        """The key under which examples are named, if it lies beside the trace."""
        key, stated = ExamplesKey.read(self.trace.folder), self.trace.manifest.examples_key
        return key if key is not None and key.digest == stated else None

    @cached_property
    def _held(self) -> _Held:
        trace, found = self.trace, _Held()
        for rank in trace.ranks:
            last: Step | None = None
            for step in trace.steps(rank):
                name = self.name(step)
                if step.weights_before is not None:
                    found.weights[name] = step.weights_before
                    if _is_whole(step):
                        found.batches[name] = step
                    elif step.filled and all(b.name and b.index is not None for b in step.filled):
                        found.named[name] = step
                    elif step.filled and (step.gradients.clean or step.gradients.applied):
                        found.detailed.append(name)
                last = step if step.weights_after is not None else last
            if last is not None and last.weights_after is not None:
                found.weights[f"{_AFTER}{self.name(last)}"] = last.weights_after
        return found

    @cached_property
    def _first(self) -> Mapping[str, str]:
        """The first name of equal sets of weights, by digest."""
        found: dict[str, str] = {}
        for name, blob in sorted(
            self._held.weights.items(), key=lambda item: item[0].startswith(_AFTER)
        ):
            found.setdefault(blob.sha256, name)
        return found

    @cached_property
    def _found(self) -> Mapping[str, Step]:
        """The named steps whose examples are found in the data."""
        data, key = self.data, self._key
        if data is None or key is None:
            return {}
        return {
            name: step
            for name, step in self._held.named.items()
            if all(_is_found(batch, data, key) for batch in step.batches if batch.examples)
        }

    @property
    def declared(self) -> Declaration:
        """The run's declaration about itself, from the manifest."""
        return self.trace.manifest.declaration

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all ranks, one rank after the other."""
        return tuple(self.trace.steps())

    @cached_property
    def noises(self) -> Mapping[int, Noise]:
        """The stated noise of each step, by the first rank that states it."""
        found: dict[int, Noise] = {}
        for step in self.steps:
            if step.noise is not None:
                found.setdefault(step.number, step.noise)
        return found

    @cached_property
    def plan(self) -> TrainingPlan | None:
        """The run that was accounted for, if the claims describe one completely."""
        return known_plan(self.settings)

    @cached_property
    def multiplier(self) -> float | None:
        """σ as the claims or else the run itself state it; None if neither does."""
        settings = self.settings
        if settings.noise_multiplier is not None:
            return settings.noise_multiplier
        is_planned = settings.target_epsilon is not None and self.plan is not None
        if is_planned or settings.noise_multipliers:
            return planned_multiplier(self.plan, settings, self.claims.engine.groups)
        return self.declared.noise_multiplier

    @cached_property
    def whole_batches(self) -> frozenset[str]:
        """The names of the steps that are replayed."""
        return frozenset(self.batch_sizes)

    def replays(self, step: Step) -> bool:
        """Whether the clean gradient of a step is known without its record."""
        return self.name(step) in self.whole_batches or bool(step.batches and not step.filled)

    def unshown(self, check: Check, text: str) -> CheckReport | str:
        """Say that the whole run lacks what a check compares: undecided, if an ε rests on it."""
        is_needed = self.plan is not None and self.trace.manifest.redaction is None
        return check.failed(text, verdict=Verdict.INCONCLUSIVE) if is_needed else text

    def replay_weights(self, name: str) -> ReplayWeights:
        """Return weights, scaled into their constraints if only rounding left them outside, and
        claims.

        If claims are computed anew this is slow, so results are remembered; other steps and ranks
        may start from the same weights.
        """
        blob = self._held.weights.get(name)
        return self._sets(name if blob is None else self._first[blob.sha256])

    @cached_property
    def _sets(self) -> Callable[[str], ReplayWeights]:
        """A function from a name to the set, which remembers as many sets as fit into memory."""
        size = sum(parameter.size for parameter in self.graph.parameters.values())
        return lru_cache(maxsize=max(_MOST_NUMBERS // max(size, 1), 2))(
            lambda name: replay_weights(self.claims, self.weights(name))
        )


def recording_of(trace: Trace, accounted: int | None) -> Recording:
    """Return how much of a run its trace shows.

    accounted: the number of steps, for a run that declares none.
    """
    ends = [trace.end(rank) for rank in trace.ranks]
    closed = all(end.closed and not trace.bytes_behind(end) for end in ends)
    declared = trace.manifest.declaration.steps
    steps = min(end.steps for end in ends)
    return Recording(steps, accounted if declared is None else declared, closed)


def _joined(parts: list[npt.NDArray[Any]], source: str, what: str) -> npt.NDArray[Any]:
    if len({part.shape[1:] for part in parts}) > 1:
        raise NoVerdictError(f"[LC319] {source}: {what} of one step have several shapes")
    return np.concatenate(parts)


def _is_found(batch: Batch, data: Readable, key: ExamplesKey) -> bool:
    tensors = _tensors_of(batch, data)
    return (
        tensors is not None
        and batch.name is not None
        and compare_digest(key.name(tensors), batch.name.hmac)
    )


def _tensors_of(batch: Batch, data: Readable) -> Mapping[str, StoredTensor] | None:
    """Return the examples of these indices in the recorded types; None if there are none."""
    index, name = batch.index, batch.name
    known = -1 if data.count is None else data.count
    if index is None or name is None or int(index.max(initial=-1)) >= known:
        return None
    found = data.take(index)
    x, y = stored_as(name.input, found.x), stored_as(name.labels, found.y)
    return None if x is None or y is None else {INPUT: x, LABELS: y}


def _is_whole(step: Step) -> bool:
    """Whether all examples of the step were recorded with their labels."""
    return bool(step.filled) and all(
        batch.tensors is not None and {INPUT, LABELS} <= batch.tensors.tensors().keys()
        for batch in step.filled
    )


def _found_examples(
    step: Step, data: Readable, settings: Settings, source: str
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return inputs and labels of a named step."""
    inputs: list[npt.NDArray[Any]] = []
    labels: list[npt.NDArray[Any]] = []
    for batch in step.batches:
        tensors = _tensors_of(batch, data)
        if not batch.examples or tensors is None or batch.name is None:
            continue
        x = tensors[INPUT].array
        if batch.name.drawn:
            radius = math.inf if settings.input_norm is None else settings.input_norm
            x = settled(x, radius, settings, share=DRAWN_IN).astype(x.dtype)
        inputs.append(x)
        labels.append(tensors[LABELS].array)
    return _joined(inputs, source, INPUT), _joined(labels, source, LABELS)


def _other_statistics(what: str, where: str) -> NoVerdictError:
    return NoVerdictError(
        f"[LC319] {what} recorded at {where} is not that of the model, so the bounds are for "
        "another network; train with the layer in evaluation mode, or replace it (GroupNorm), and "
        "export that network"
    )


def _is_equal(numbers: FloatArray, array: FloatArray | None) -> bool:
    return array is not None and np.array_equal(numbers, array)
