"""Evaluator: the certified graph at one set of weights in one precision, ready to be measured.

Given claims, a precision, weights and examples, a `Bench` returns the norms of groups, values and
cotangents, after the mechanism of the run, and the cost of measuring them relative to a plain
training step timed alongside.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lipcert.audit.bounds import Claims
from lipcert.audit.unit_results import ALL, Family
from lipcert.core.program import FloatArray
from lipcert.gradient_stats.examples import checked_labels
from lipcert.measure.arithmetic import Arithmetic
from lipcert.measure.gradient_norms.engine import NormEngine
from lipcert.measure.losses import per_example_loss
from lipcert.measure.lowering.network import LoweredNetwork
from lipcert.measure.measured import BatchNorms, Measured, joint, largest_of
from lipcert.measure.precision import Precision

_REPETITIONS: Final = 5
_ROOM: Final = 2.0**-19
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
        groups = _groups(self._claims, found)
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


def _groups(claims: Claims, found: BatchNorms) -> Mapping[str, Measured]:
    """Return the joint norm of each group; under gradient clipping, after the clip.

    Under a flat clip there is one group, so that each clip concerns one group by itself.
    """
    clip = Clip(clip_of(claims))
    return {
        group.name: clip.measured(joint([found.parameters[name] for name in group.parameters]))
        for group in claims.groups
    }


@dataclass(frozen=True, slots=True)
class Clip:
    """g ↦ C·g/max(‖g‖, C), C the radius, which may be inf; with a stability γ, g ↦ C·g/(‖g‖ + γ)
    (Bu, Wang, Zha and Karypis, Automatic clipping, NeurIPS 2023). The result is at most C long."""

    radius: float
    stability: float | None = None

    def factors(self, norms: FloatArray) -> FloatArray:
        """Return the factor for each gradient of these norms."""
        if self.radius == np.inf:
            return np.ones(len(norms))
        if self.stability is None:
            return np.asarray(self.radius / np.maximum(norms, self.radius), dtype=np.float64)
        sums = norms + self.stability
        return np.divide(self.radius, sums, out=np.zeros_like(sums), where=sums > 0.0)

    def measured(self, found: Measured) -> Measured:
        """Return the norms after the clip; norms that are not finite stay so.

        Proof: t ↦ min(t, C) moves by no more than t, and t ↦ C·t/(t + γ) by no more than C/(s + γ)
        times as much, s the smallest t there is.
        """
        norms, error = found.norm, found.error
        if self.stability is None:
            short = np.minimum(norms, self.radius)
        else:
            short = norms * self.factors(norms)
            error = error * self.factors(np.maximum(norms - error, 0.0))
        return Measured(np.where(np.isfinite(norms), short, norms), error)

    def slack(self, found: Measured) -> float:
        """Return what a sum loses at most if clips divide by norm + error, and leave some room
        below C.

        Proof: n·(C/n − C/(n + e)) ≤ e·C/n; and n − C·n/(n + e) ≤ e where C lies between the ends;
        with n + γ in place of a divisor n the loss is less. A factor with room for its rounding in
        float32, 2^-20 here and 1e-6/C in a common library, takes at most the share _ROOM of C.
        """
        if self.radius == np.inf:
            return 0.0
        lost = found.error * self.factors(found.norm) + _ROOM * self.radius
        moved = self.stability is not None or found.norm + found.error > self.radius
        return float(np.sum(lost[np.broadcast_to(moved, lost.shape)]))


def clip_of(claims: Claims) -> float:
    """Return the norm to which the run clips the gradient of each group; inf if it does not."""
    clip = claims.engine.premises.clip
    if clip is None:
        return math.inf
    return clip.clip_norm / (math.sqrt(len(claims.groups)) if clip.clip_scope == "group" else 1.0)
