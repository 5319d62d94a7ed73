"""Gradients at recorded weights: of single examples, and what their batch should have released.

What enters: claims, a set of weights; examples that are reduced alike, with their `Scale`. What
leaves: the norm of what each example adds to the quantity that is noised, and that quantity itself.
The norms come from the norm engine, once for all that is asked of them; sums are plain
backpropagation through the same ops with trained weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lipcert.audit.arithmetic import Arithmetic
from lipcert.audit.bounds import Claims
from lipcert.audit.checks.batches import Batch, Scale
from lipcert.audit.checks.differentiable import Decay, DifferentiableNetwork
from lipcert.audit.evaluator import clip_of
from lipcert.audit.gradient_norms.engine import NormEngine
from lipcert.audit.measured import Measured, joint
from lipcert.audit.precision import Precision
from lipcert.upper import FloatArray

_CHUNK: Final = 128
_ROOM: Final = 2.0**-19
_Array = npt.NDArray[Any]


@final
class Gradients:
    """The network of the claims at one set of weights; precision: float64, or the run's own.

    decay: λ, where ∇ℓ + λθ is what the run clips. clip: the norm to which that is clipped.
    """

    def __init__(
        self,
        claims: Claims,
        weights: Mapping[str, FloatArray],
        device: str,
        precision: Precision = Precision.FLOAT64,
        decay: float = 0.0,
    ) -> None:
        self.groups = claims.groups
        self.clip = clip_of(claims)
        self.network = DifferentiableNetwork(
            claims, weights, Arithmetic(torch.device(device), precision)
        )
        self.decay = Decay(self.network, decay)
        self._engine = NormEngine(self.network.lowered, watch_values=False)

    def norms(self, x: Tensor, targets: Tensor, inner: float) -> Mapping[str, Measured]:
        """‖inner · ∇ℓ_i‖ of each group before clips of whole gradients.  # [examples] each"""
        network = self.network
        with network.arithmetic.active():
            found = self._engine.measure(
                x, lambda logits: network.loss(logits, targets, inner)
            ).parameters
        plain = {
            group.name: joint([found[name] for name in group.parameters]) for group in self.groups
        }
        if not self.decay:
            return plain
        return {
            group.name: self.decay.added(plain[group.name], group.parameters, x, targets)
            for group in self.groups
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Weighted:
    """A weight for each loss, and the parameters in which their sum is differentiated."""

    names: tuple[str, ...]
    weights: FloatArray


@final
class Pass:
    """Some examples that are reduced alike; their norms are measured once, when first asked for."""

    def __init__(self, gradients: Gradients, x: _Array, labels: _Array, scale: Scale) -> None:
        self.scale = scale
        self._gradients = gradients
        self._chunks = [
            (x[start : start + _CHUNK], labels[start : start + _CHUNK])
            for start in range(0, len(x), _CHUNK)
        ]

    def contributions(self) -> Mapping[str, Measured]:
        """‖outer · m(inner · ∇ℓ_i)‖ of each group.  # [examples] each"""
        clip, outer, parts = self._gradients.clip, self.scale.outer, self._norms
        return {
            group.name: Measured(
                outer * np.concatenate([_clipped(part[group.name].norm, clip) for part in parts]),
                outer * np.concatenate([part[group.name].error for part in parts]),
            )
            for group in self._gradients.groups
        }

    def clip_slack(self) -> float:
        """What a sum loses at most where clips divide by norm + error, and leave some room below C.

        Proof: n·(C/n − C/(n + e)) ≤ e·C/n; and n − C·n/(n + e) ≤ e where C lies between the ends.
        A factor with room for its rounding in float32, 2^-20 here and 1e-6/C in a common library,
        takes at most the share _ROOM of C.
        """
        clip = self._gradients.clip
        if clip == np.inf:
            return 0.0
        lost = 0.0
        for part in self._norms:
            for found in part.values():
                clipped = found.norm + found.error > clip
                factors = clip / np.maximum(found.norm, clip)
                lost += float(np.sum((found.error * factors + _ROOM * clip)[clipped]))
        return self.scale.outer * lost

    def decayed(self) -> float:
        """outer · Σ ‖λθ‖, each as short as its clip makes it."""
        gradients, lengths = self._gradients, 0.0
        if gradients.decay:
            for chunk in range(len(self._chunks)):
                for part in self._weighted(chunk):
                    lengths += float(np.sum(part.weights)) * gradients.decay.length(part.names)
        return self.scale.outer * lengths

    def total(self) -> Mapping[str, FloatArray]:
        """outer · Σ_i m(inner · ∇ℓ_i) by name of the trained parameter."""
        parameters = self._gradients.network.parameters
        found = {
            name: np.zeros(parameters[name].shape)
            for group in self._gradients.groups
            for name in group.parameters
        }
        for chunk in range(len(self._chunks)):
            for name, gradient in self._gradients_of(chunk):
                found[name] += self.scale.outer * gradient
        return found

    def _gradients_of(self, chunk: int) -> Iterator[tuple[str, FloatArray]]:
        """What its examples add to the sums, by name of the parameter; a name may come twice."""
        gradients, (x, labels) = self._gradients, self._chunks[chunk]
        network = gradients.network
        pulled = network.pulled(*network.tensors(x, labels), self.scale.inner)
        for part in self._weighted(chunk):
            leaves = [network.parameters[name] for name in part.names]
            found = pulled.back(leaves, part.weights)
            for name, gradient in zip(part.names, found, strict=True):
                if gradient is not None:
                    yield name, gradient.double().cpu().numpy()
                if gradients.decay:
                    yield name, float(np.sum(part.weights)) * gradients.decay.of(name)

    def _weighted(self, chunk: int) -> Iterator[_Weighted]:
        """Each example weighted by its clip."""
        clip, groups = self._gradients.clip, self._gradients.groups
        if clip == np.inf:
            names = tuple(name for group in groups for name in group.parameters)
            yield _Weighted(names, np.ones(len(self._chunks[chunk][0])))
            return
        for group in groups:
            norms = self._norms[chunk][group.name].norm
            yield _Weighted(group.parameters, clip / np.maximum(norms, clip))

    @cached_property
    def _norms(self) -> list[Mapping[str, Measured]]:
        """Before clips of whole gradients, chunk by chunk."""
        gradients = self._gradients
        return [
            gradients.norms(*gradients.network.tensors(x, labels), self.scale.inner)
            for x, labels in self._chunks
        ]


def passes_of(gradients: Gradients, batch: Batch) -> list[Pass]:
    """The micro-batches of a recorded batch."""
    x, labels = batch.x, batch.labels
    return [Pass(gradients, x[rows], labels[rows], scale) for rows, scale in batch.scales]


def _clipped(norms: FloatArray, clip: float) -> FloatArray:
    """min(t, C); what is not finite stays so."""
    found: FloatArray = np.where(np.isfinite(norms), np.minimum(norms, clip), norms)
    return found
