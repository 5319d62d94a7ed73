"""Gradients at recorded weights: of single examples, and what their batch should have released.

What enters: claims, a set of weights, examples, a `Scale`. What leaves: the norm of what each
example adds to the quantity that is noised, and that quantity itself, in float64. The norms come
from the norm engine; sums are plain backpropagation through the same ops with trained weights.

With the decay inside the clip each ∇ℓ_i stands for ∇ℓ_i + λθ, group by group: its norm is
‖∇ℓ_i‖² + 2λ⟨∇ℓ_i, θ⟩ + λ²‖θ‖², the product of ∂ℓ_i/∂logits with the derivative of the logits in the
direction θ, which forward differentiation gives for all examples at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipcert.audit.allowance import drift_at
from lipcert.audit.arithmetic import Arithmetic
from lipcert.audit.bench import clip_of
from lipcert.audit.bounds import Claims
from lipcert.audit.checks.units import Scale
from lipcert.audit.decision import joint
from lipcert.audit.drift import Drift
from lipcert.audit.gradient_norms.engine import NormEngine
from lipcert.audit.losses import clipped_gradient, per_example_loss
from lipcert.audit.lowering.dispatch import constants, lower
from lipcert.audit.lowering.network import LoweredNetwork
from lipcert.audit.lowering.operands import operand_tensor
from lipcert.audit.measured import Measured
from lipcert.audit.precision import Precision
from lipcert.upper import FloatArray

__all__ = ["Gradients"]

_CHUNK: Final = 128
_Array = npt.NDArray[Any]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Weighted:
    """Weighted losses, the parameters to differentiate them in, and the sum of the weights."""

    names: tuple[str, ...]
    losses: Tensor
    count: float


@final
class Gradients:
    """The network of the claims at one set of weights; precision: float64, or the run's own.

    decay: λ, where ∇ℓ + λθ is what the run clips.
    """

    def __init__(
        self,
        claims: Claims,
        weights: Mapping[str, FloatArray],
        device: str,
        precision: Precision = Precision.FLOAT64,
        decay: float = 0.0,
    ) -> None:
        self._claims = claims
        self._decay = decay
        self._weights = weights
        self._arithmetic = Arithmetic(torch.device(device), precision)
        network = LoweredNetwork.of(
            claims.engine.graph, self._arithmetic.dtype, self._arithmetic.device, weights
        )
        self._parameters = {
            name: tensor.clone().requires_grad_(claims.engine.graph.parameters[name].trainable)
            for name, tensor in network.parameters.items()
        }
        self._engine = NormEngine(network, watch_values=False)

    def contributions(self, x: _Array, labels: _Array, scale: Scale) -> Mapping[str, Measured]:
        """‖outer · m(inner · ∇ℓ_i)‖ of each group.  # [examples] each"""
        parts = [self._some_norms(*chunk, scale.inner) for chunk in _chunks(x, labels)]
        return {
            group.name: Measured(
                scale.outer * np.concatenate([part[group.name].norm for part in parts]),
                scale.outer * np.concatenate([part[group.name].error for part in parts]),
            )
            for group in self._claims.groups
        }

    @property
    def decay_norm(self) -> float:
        """λ‖θ‖ over the groups together."""
        names = [name for group in self._claims.groups for name in group.parameters]
        return self._decayed_length(names)

    def clip_slack(self, x: _Array, labels: _Array, scale: Scale) -> float:
        """What a sum loses at most where clips divide by norm + error, and not by the norm.

        Proof: n·(C/n − C/(n + e)) ≤ e·C/n; and n − C·n/(n + e) ≤ e where C lies between the ends.
        """
        clip = clip_of(self._claims)
        if clip == np.inf:
            return 0.0
        lost = 0.0
        for chunk in _chunks(x, labels):
            for found in self._raw_norms(*chunk, scale.inner).values():
                clipped = found.norm + found.error > clip
                factors = clip / np.maximum(found.norm, clip)
                lost += float(np.sum((found.error * factors)[clipped]))
        return scale.outer * lost

    def drift(self, group: str, scale: Scale) -> float:
        """By how much rounding may make a contribution of float64 exceed its right bound."""
        members = next(item.parameters for item in self._claims.groups if item.name == group)
        found = [self._drift.parameters.get(name, np.inf) for name in members]
        return float(np.hypot.reduce(found)) * scale.outer * max(1.0, scale.inner)

    @cached_property
    def _drift(self) -> Drift:
        return drift_at(self._claims, self._arithmetic.precision, self._weights)

    def total(self, x: _Array, labels: _Array, scale: Scale) -> Mapping[str, FloatArray]:
        """outer · Σ_i m(inner · ∇ℓ_i) by name of the trained parameter."""
        found = {
            name: np.zeros(self._parameters[name].shape)
            for group in self._claims.groups
            for name in group.parameters
        }
        for inputs, targets in _chunks(x, labels):
            for part in self._weighted(inputs, targets, scale):
                leaves = [self._parameters[name] for name in part.names]
                parts = torch.autograd.grad(part.losses.sum(), leaves, allow_unused=True)
                for name, gradient in zip(part.names, parts, strict=True):
                    if gradient is not None:
                        found[name] += scale.outer * gradient.detach().double().cpu().numpy()
                    if self._decay:
                        found[name] += scale.outer * self._decay * part.count * self._theta(name)
        return found

    def _weighted(self, x: _Array, labels: _Array, scale: Scale) -> Iterator[_Weighted]:
        """Losses to differentiate, and in which parameters; each weighted by its clip."""
        clip = clip_of(self._claims)
        groups = self._claims.groups
        if clip == np.inf:
            names = tuple(name for group in groups for name in group.parameters)
            yield _Weighted(names, self._losses(x, labels, scale.inner), float(len(x)))
            return
        norms = self._raw_norms(x, labels, scale.inner)
        for group in groups:
            factors = clip / np.maximum(norms[group.name].norm, clip)
            weights = torch.from_numpy(factors).to(self._arithmetic.device, self._arithmetic.dtype)
            losses = weights * self._losses(x, labels, scale.inner)
            yield _Weighted(group.parameters, losses, float(np.sum(factors)))

    def _decayed_length(self, names: Iterable[str]) -> float:
        """λ‖θ‖ over some parameters."""
        return self._decay * float(np.sqrt(sum(np.sum(self._theta(n) ** 2) for n in names)))

    def _theta(self, name: str) -> FloatArray:
        weights: FloatArray = self._parameters[name].detach().double().cpu().numpy()
        return weights

    def _losses(self, x: _Array, labels: _Array, inner: float) -> Tensor:
        """inner · ℓ_i, differentiable in the parameters."""
        inputs, targets = self._tensors(x, labels)
        with self._arithmetic.active():
            return self._loss(self._output(inputs, self._parameters), targets, inner)

    def _output(self, x: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        graph = self._claims.engine.graph
        values = {graph.input_name: x}
        for node in graph.nodes:
            tensors = dict(constants(node.op, x.dtype, x.device))
            for slot, operand in node.op.operands().items():
                tensors[slot] = operand_tensor(operand, parameters, x)
            values[node.output] = lower(node.op, [values[name] for name in node.inputs], tensors)
        return values[graph.output_name]

    def _loss(self, logits: Tensor, targets: Tensor, inner: float) -> Tensor:
        radius = self._claims.settings.loss_clip
        clipped = logits if radius is None else clipped_gradient(logits, radius)
        return inner * per_example_loss(self._claims.engine.loss, clipped, targets)

    def _some_norms(self, x: _Array, labels: _Array, inner: float) -> Mapping[str, Measured]:
        clip = clip_of(self._claims)
        return {
            name: Measured(np.where(np.isfinite(m.norm), np.minimum(m.norm, clip), m.norm), m.error)
            for name, m in self._raw_norms(x, labels, inner).items()
        }

    def _raw_norms(self, x: _Array, labels: _Array, inner: float) -> Mapping[str, Measured]:
        """‖inner · ∇ℓ_i‖ of each group before clips of whole gradients."""
        inputs, targets = self._tensors(x, labels)
        with self._arithmetic.active():
            found = self._engine.measure(
                inputs, lambda logits: self._loss(logits, targets, inner)
            ).parameters
        plain = {
            group.name: joint([found[name] for name in group.parameters])
            for group in self._claims.groups
        }
        if not self._decay:
            return plain
        return {
            group.name: self._decayed(plain[group.name], group.parameters, inputs, targets)
            for group in self._claims.groups
        }

    def _decayed(
        self, plain: Measured, names: tuple[str, ...], x: Tensor, targets: Tensor
    ) -> Measured:
        """‖∇ℓ_i + λθ‖ of one group, given ‖∇ℓ_i‖.  # [examples]

        Of the square, a share of the largest it could be is conceded to rounding: 2^-40, or 8·N·u,
        N the longest sum in a product with these parameters, where u is so large. Its root is then
        off by at most min(√d, d/root), d what is conceded.
        """
        length = self._decayed_length(names)
        product = self._decay * self._products(names, x, targets)
        a, e = plain.norm, plain.error
        root = np.sqrt(np.maximum(a * a + 2.0 * product + length * length, 0.0))
        shapes = [self._parameters[name].shape for name in names]
        sums = [shape.numel() // max(1, min(shape, default=1)) for shape in shapes]
        share = max(2.0**-40, 8.0 * max(sums) * self._arithmetic.precision.unit)
        off = 2.0 * (a + length) * e + e * e + share * (a + length) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.fmin(np.sqrt(off), off / root)
        return Measured(root, error)

    def _products(self, names: tuple[str, ...], x: Tensor, targets: Tensor) -> FloatArray:
        """⟨∇ℓ_i, θ⟩ over some parameters.  # [examples]"""
        with self._arithmetic.active(), _differentiable(), forward_ad.dual_level():
            dual = {
                name: _in_own_direction(tensor) if name in names else tensor.detach()
                for name, tensor in self._parameters.items()
            }
            logits, slope = forward_ad.unpack_dual(  # type: ignore[no-untyped-call]
                self._output(x, dual)
            )
            logits = logits.detach().requires_grad_()
            (cotangent,) = torch.autograd.grad(self._loss(logits, targets, 1.0).sum(), logits)
            if slope is None:
                return np.zeros(len(x))
            products = (cotangent * slope).unsqueeze(-1).flatten(1).double().sum(dim=1)
        found: FloatArray = products.cpu().numpy()
        return found

    def _tensors(self, x: _Array, labels: _Array) -> tuple[Tensor, Tensor]:
        device = self._arithmetic.device
        inputs = torch.from_numpy(x.astype(np.float64)).to(device, self._arithmetic.dtype)
        return inputs, torch.from_numpy(np.array(labels)).to(device)


def _differentiable() -> AbstractContextManager[None]:
    """Kernels that are differentiated forwards: the fused ones of attention are not."""
    found: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return found


def _in_own_direction(parameter: Tensor) -> Tensor:
    """θ as a dual number θ + εθ."""
    theta = parameter.detach()
    dual: Tensor = forward_ad.make_dual(theta, theta.clone())  # type: ignore[no-untyped-call]
    return dual


def _chunks(x: _Array, labels: _Array) -> Iterator[tuple[_Array, _Array]]:
    for start in range(0, len(x), _CHUNK):
        yield x[start : start + _CHUNK], labels[start : start + _CHUNK]
