"""Replay: evaluate the examples of units on the certified graph, and compare every norm with its
bound.

The steps: select admissible examples; measure norms in the audited precision; decide; repeat the
undecided ones in float64; collect findings. Invariants: a violation was measured in float64; every
example is in the findings or, if no bound applies to it, in a check that names it. `audit_unit`
depends only on its arguments, so that it may run anywhere; replayers of recent weights are kept in
the process.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lipcert.analysis.bounded import Progress
from lipcert.audit.attack import proposals
from lipcert.audit.bounds import Claims, are_made_anew
from lipcert.audit.job import Job, Kind, Unit
from lipcert.audit.prepared_job import Ready
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.unit_results import ALL, FAMILIES, Family, Findings, Places, Tally, UnitResult
from lipcert.audit.weight_norms import MODEL, ReplayWeights, replay_weights
from lipcert.core.program import FloatArray
from lipcert.gradient_stats.examples import Examples, Readable, outside, settled
from lipcert.gradient_stats.labels import checked_labels
from lipcert.measure.arithmetic import Arithmetic
from lipcert.measure.gradient_norms.engine import NormEngine
from lipcert.measure.losses import per_example_loss
from lipcert.measure.lowering.network import LoweredNetwork
from lipcert.measure.measured import Clip, Decision, Measured, decide, joint, largest_of
from lipcert.measure.precision import Precision

_REPETITIONS: Final = 5
_HELD: Final = 1 << 24  # whole numbers up to it are numbers of float32
Losses = Callable[[Tensor], Tensor]


def plain_step(network: LoweredNetwork, x: Tensor, losses: Losses) -> None:
    """Run a forward pass, and a backward pass to every trained tensor, as training without privacy
    does."""
    values = {network.graph.input_name: x}
    for node in network.graph.nodes:
        tensors = {}
        for slot, tensor in network.operands(node).items():
            name = node.operands[slot].parameter
            trained = name is not None and network.graph.parameters[name].trainable
            tensors[slot] = tensor.detach().requires_grad_(trained)
        inputs = tuple(values[name] for name in node.inputs)
        values[node.output] = network.lowered(node, inputs, tensors)
    torch.autograd.backward(losses(values[network.graph.output_name]).sum())


def _seconds(arithmetic: Arithmetic, action: Callable[[], object]) -> float:
    arithmetic.synchronise()
    started = time.perf_counter()
    action()
    arithmetic.synchronise()
    return time.perf_counter() - started


Norms = Mapping[Family, Mapping[str, Measured]]
"""Measured norms by family and name."""


def scale_of(norms: Norms, family: Family) -> FloatArray | float:
    """Return the scale of what may have cancelled; for gradients, cotangents count as well."""
    more = norms[Family.COTANGENT].values() if family is Family.GRADIENT else ()
    return largest_of([*norms[family].values(), *more])


class Bench:
    """The network of the claims in one precision, lowered when it is first measured.

    weights: of the parameters by name; None for those of the file.
    """

    def __init__(
        self,
        claims: Claims,
        precision: Precision,
        device: torch.device,
        weights: Mapping[str, FloatArray] | None,
        *,
        watch_values: bool = False,
    ) -> None:
        self.precision = precision
        self._claims = claims
        self._weights = weights
        self._watch_values = watch_values
        self._arithmetic = Arithmetic(device, precision)

    @cached_property
    def _network(self) -> LoweredNetwork:
        arithmetic = self._arithmetic
        graph = self._claims.engine.graph
        return LoweredNetwork.of(graph, arithmetic.dtype, arithmetic.device, self._weights)

    @cached_property
    def _engine(self) -> NormEngine:
        return NormEngine(self._network, watch_values=self._watch_values)

    def measure(self, x: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Norms:
        """Return the norms of examples, after what the mechanism does to each gradient.  #
        [examples] each"""
        with self._arithmetic.active():
            found = self._engine.measure(self._inputs(x), self._losses(labels))
        # under a flat clip there is one group, so that each clip concerns one group by itself
        clip, named = Clip(self._claims.clip), self._claims.groups
        parts = ((g.name, [found.parameters[name] for name in g.parameters]) for g in named)
        groups = {name: clip.measured(joint(own)) for name, own in parts}
        return {
            Family.GRADIENT: groups,
            Family.WHOLE: {ALL: joint([*groups.values()])} if groups else {},
            Family.VALUE: found.values,
            Family.COTANGENT: found.cotangents,
        }

    def plain_step_ratio(self, x: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
        """Return the seconds to measure these examples over those of a plain forward and backward
        pass.

        It is the median of several pairs, after one warm-up pair.
        """
        graph, loss = self._claims.engine.graph, self._claims.engine.loss
        losses = self._losses(checked_labels(loss, labels, graph.output_shape))
        arithmetic, inputs, ratios = self._arithmetic, self._inputs(x), []
        with arithmetic.active():
            for _ in range(1 + _REPETITIONS):
                plain = _seconds(arithmetic, lambda: plain_step(self._network, inputs, losses))
                measured = _seconds(arithmetic, lambda: self._engine.measure(inputs, losses))
                ratios.append(measured / plain)
        return statistics.median(ratios[1:])

    def _inputs(self, x: npt.NDArray[Any]) -> Tensor:
        """Return examples in this arithmetic; in float64 if float32 cannot hold all row numbers.

        Other numbers may be joined with the row numbers, and are combined with weights of this
        arithmetic.
        """
        arithmetic = self._arithmetic
        rows = max(part.ids or 0 for part in self._claims.engine.graph.inputs)
        return torch.from_numpy(np.asarray(x, dtype=np.float64)).to(
            arithmetic.device, torch.float64 if rows > _HELD else arithmetic.dtype
        )

    def _losses(self, labels: npt.NDArray[Any]) -> Callable[[Tensor], Tensor]:
        """Return a function from logits to the loss of each example, with its gradient clipped if
        the run clips it.

        It always computes in float64: if an example is classified with confidence, its gradient p −
        e_y at the logits cancels, and the error of a shorter arithmetic would be a share of it that
        no margin covers.
        """
        loss, clip = self._claims.engine.loss, self._claims.settings.loss_clip
        targets = torch.from_numpy(labels).to(self._arithmetic.device)

        def losses_of(logits: Tensor) -> Tensor:
            return per_example_loss(loss, logits.double(), targets, clip)

        return losses_of


_NAMED: Final = 3
"""Number of inadmissible examples that are named; the others are counted."""


@dataclass(slots=True)
class _Outsiders:
    """Examples outside of the declared domain: how many, the first of them, and why.

    integers: the integer type in which they are stored, such as images of 0 to 255; "" for other
    types, or if the network reads integers.
    """

    count: int = 0
    named: list[str] = field(default_factory=list)
    integers: str = ""

    def add_all(self, found: list[tuple[int, str]], start: int, kind: np.dtype[Any] | None) -> None:
        """Add examples, numbered from `start`.

        kind: the stored type; None if integers are intended.
        """
        self.count += len(found)
        left = found[: _NAMED - len(self.named)]
        self.named += [f"example {start + index} {why}" for index, why in left]
        if found and kind is not None and kind.kind in "iu":
            self.integers = str(kind)


class Replayer:
    """Replays examples at one set of weights, with the arithmetic of a job.

    name: of the weights, for reports. If the bounds do not apply to them, norms are measured, and
    not compared with bounds.
    """

    def __init__(self, job: Job, at: ReplayWeights, name: str) -> None:
        self._claims, self._judges, self._name = at.claims, at.admissible, name
        self._micro_batch = job.micro_batch
        self._bounds = _bounds_of(at.claims) if at.admissible else {f: {} for f in FAMILIES}
        self._caps = {Family.GRADIENT: at.claims.clip}
        device, watched = torch.device(job.device), job.watch_values
        self.benches = [
            Bench(at.claims, wanted, device, at.weights, watch_values=watched)
            for wanted in dict.fromkeys((job.precision, Precision.FLOAT64))
        ]

    def replay(self, examples: Readable, start: int, stop: int | None) -> Findings:
        """Replay the examples start … stop−1, or to the end, one micro-batch at a time.

        Raises:
            NoVerdictError: for a label that the loss does not admit.
        """
        found, at = Findings(), start
        outsiders = _Outsiders()
        while stop is None or at < stop:
            wanted = at + self._micro_batch
            some = examples.read(at, wanted if stop is None else min(wanted, stop))
            if not len(some):
                break
            found = Findings.all((found, *self._replayed(some, at, outsiders)))
            at += len(some)
        checks = self._inadmissible(outsiders, at - start)
        return replace(found, checks=(*self._unjudged(), *checks))

    def _replayed(self, some: Examples, start: int, outsiders: _Outsiders) -> Iterator[Findings]:
        """Yield the findings on a few examples; those to which no bound applies are added to the
        outsiders."""
        yield Findings(len(some))
        engine = self._claims.engine
        labels = checked_labels(engine.loss, some.y, engine.graph.output_shape, first=start)
        inputs, settings = engine.graph.inputs, self._claims.settings
        inadmissible = outside(some.x, settings, inputs)
        inside = settled(some.x, engine.at_input.norm, settings, inputs)
        admissible = np.ones(len(some), dtype=np.bool_)
        admissible[[index for index, _ in inadmissible]] = False
        is_whole = all(part.ids is not None for part in inputs)
        outsiders.add_all(inadmissible, start, None if is_whole else some.x.dtype)
        if admissible.any():
            places = start + np.flatnonzero(admissible)
            yield from self._judged(self.benches, inside[admissible], labels[admissible], places)

    def _judged(
        self,
        benches: Sequence[Bench],
        x: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        places: Places,
    ) -> Iterator[Findings]:
        """Yield what the first bench finds of the examples that it can decide, then what the others
        find of the rest."""
        bench, *others = benches
        norms = bench.measure(x, labels)
        decisions = self._decisions(norms, bench.precision)
        undecided = [d.undecided for found in decisions.values() for d in found.values()]
        doubtful = np.zeros(len(x), dtype=np.bool_)
        if undecided and others:
            doubtful = np.any(undecided, axis=0)
        tallies = {
            family: {
                name: Tally.of(
                    measured.norm,
                    self._bounds[family].get(name),
                    decisions.get(family, {}).get(name),
                    where=~doubtful,
                    is_again=bench is not self.benches[0],
                    weights=self._name,
                    places=places,
                    sized=family is Family.WHOLE,
                )
                for name, measured in norms[family].items()
            }
            for family in FAMILIES
        }
        yield Findings(0, tallies)
        if doubtful.any():
            yield from self._judged(others, x[doubtful], labels[doubtful], places[doubtful])

    def _decisions(
        self, norms: Norms, precision: Precision
    ) -> Mapping[Family, Mapping[str, Decision]]:
        """Return the decision on every norm that has a bound."""
        found: dict[Family, Mapping[str, Decision]] = {}
        for family in (Family.GRADIENT, Family.VALUE, Family.COTANGENT):
            cap, scale = self._caps.get(family, math.inf), scale_of(norms, family)
            found[family] = {
                name: decide(norms[family][name], bound, precision, cap, scale)
                for name, bound in self._bounds[family].items()
                if name in norms[family]
            }
        return found

    def _unjudged(self) -> tuple[CheckReport, ...]:
        """Report that nothing was judged, if so: such a replay is never a pass."""
        if self._judges:
            return ()
        settings = self._claims.settings
        constrained, is_anew = settings.scope == "constraint-set", are_made_anew(settings)
        return (
            Check("LC310" if constrained else "LC319", "replay").failed(
                f"the bounds could not be shown to apply to the weights of {self._name}: "
                "norms were measured there, and not compared with any bound",
                self._name,
                verdict=Verdict.INCONCLUSIVE if constrained or is_anew else Verdict.MISMATCH,
                remedy="bound the weights that are audited, with the constraints that training "
                "enforces (--scope constraint-set), or audit an export of each step",
            ),
        )

    def _inadmissible(self, found: _Outsiders, count: int) -> tuple[CheckReport, ...]:
        if not found.count:
            return ()
        named = "; ".join(found.named)
        more = f"; and {found.count - _NAMED} more" if found.count > _NAMED else ""
        stored = f"; they are stored as {found.integers}, and nothing is rescaled"
        return (
            Check("LC304", "admissibility").failed(
                f"{found.count} of {count} examples lie outside the declared input "
                f"domain, to which alone the bounds apply: {named}{more}"
                f"{stored if found.integers else ''}",
                self._name,
                remedy="clip or rescale the inputs before the network, in training too, or declare "
                "the domain that they are in (--input-norm, --input-box)",
            ),
        )


def _bounds_of(claims: Claims) -> Mapping[Family, Mapping[str, float]]:
    """Return every bound, by family and name."""
    return {
        Family.GRADIENT: {
            group.name: group.grad_norm for group in claims.groups if math.isfinite(group.grad_norm)
        },
        Family.WHOLE: {} if claims.grad_norm is None else {ALL: claims.grad_norm},
        Family.VALUE: claims.values,
        Family.COTANGENT: claims.cotangents,
    }


def audit_unit(ready: Ready, unit: Unit, observe: Progress | None = None) -> UnitResult:
    """Do one unit of a job."""
    if unit.kind is Kind.ATTACK:
        return UnitResult(unit, Findings.all(_attacked(ready, unit, observe)))
    replayer = _recent_replayer(ready, unit.weights)
    return UnitResult(unit, replayer.replay(ready.examples(unit.examples), unit.start, unit.stop))


def speed_of(ready: Ready) -> float | None:
    """Return the time over a plain step for one micro-batch; None if there is no example."""
    if not ready.units or ready.units[0].kind is Kind.ATTACK:
        return None
    unit = ready.units[0]
    examples = ready.examples(unit.examples).read(0, ready.job.micro_batch)
    bench = _recent_replayer(ready, unit.weights).benches[0]
    return bench.plain_step_ratio(examples.x, examples.y)


@lru_cache(maxsize=2)
def _recent_replayer(ready: Ready, weights: str) -> Replayer:
    """Return the replayer of these weights; it is kept, since units of the same weights follow one
    another."""
    return Replayer(ready.job, _replay_weights(ready, weights), weights)


def _replay_weights(ready: Ready, weights: str) -> ReplayWeights:
    if ready.recorded is None or weights == MODEL:
        return replay_weights(ready.claims, None)
    return ready.recorded.replay_weights(weights)


def _attacked(ready: Ready, unit: Unit, observe: Progress | None) -> Iterator[Findings]:
    """Yield what the proposals of the attack show when they are replayed like any other
    examples."""
    given = _replay_weights(ready, unit.weights)

    def watch(what: str, done: int, steps: int) -> None:
        if observe is not None:
            observe(f"attack, {what}: {done} of {steps}", unit.number, len(ready.units))

    found = proposals(
        given.claims,
        given.weights,
        ready.examples(unit.examples).read(0, unit.stop or 0),
        ready.job.attack_steps,
        move_weights=ready.job.attack_weights,
        device=torch.device(ready.job.device),
        observe=watch,
    )
    for number, proposal in enumerate(found, start=1):
        moved = proposal.weights
        at = given if moved is None else replay_weights(ready.claims, moved)
        replayer = Replayer(ready.job, at, f"attack {number} from {unit.weights}")
        yield replayer.replay(proposal.examples, 0, len(proposal.examples))
