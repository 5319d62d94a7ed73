"""Gradients at recorded weights: of single examples, and what their batch should have released.

For examples that are reduced alike, with their `Scale`, at one set of weights, a `Pass` computes
the norm of what each adds to the quantity that is noised, and that quantity itself. The norms come
from the norm engine, and are computed once; sums are plain backpropagation through the same ops
with trained weights.

If the decay is inside the clip, ∇ℓ_i + λθ replaces ∇ℓ_i. Its norm follows, group by group, from
‖∇ℓ_i‖² + 2λ⟨∇ℓ_i, θ⟩ + λ²‖θ‖², where ⟨∇ℓ_i, θ⟩ is the product of ∂ℓ_i/∂logits with the derivative
of the logits in the direction θ: forward differentiation gives it for all examples at once.
Invariant: each norm is off by at most its error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipcert.audit.bounds import Claims
from lipcert.audit.checks.run_check import Batch, Scale
from lipcert.audit.recorded import RecordedRun
from lipcert.core.program import FloatArray
from lipcert.measure.arithmetic import Arithmetic
from lipcert.measure.gradient_norms.engine import NormEngine
from lipcert.measure.losses import per_example_loss
from lipcert.measure.lowering.network import LoweredNetwork
from lipcert.measure.measured import Clip, Measured, joint
from lipcert.measure.precision import Precision

_CHUNK: Final = 128
_Array = npt.NDArray[Any]
Weighted: TypeAlias = tuple[tuple[str, ...], FloatArray]
"""Parameters in which a sum of losses is differentiated, and the weight of each loss."""


@dataclass(frozen=True, slots=True)
class Clipped:
    """Parameters whose gradients are clipped together, and the group that they are part of."""

    group: str
    names: tuple[str, ...]
    clip: Clip


def clips_of(run: RecordedRun, claims: Claims) -> tuple[Clipped, ...]:
    """Return the groups of the claims or, under a flat clip, what the run declares to clip
    separately.

    Parts that are clipped to c_1, c_2, … are together at most √Σc² long, which is the radius of a
    flat account.
    """
    declared, premise = run.declared, claims.engine.premises.clip
    stability = declared.clip_stability
    if premise is not None and premise.clip_scope == "flat" and len(declared.clip_norms) > 1:
        (group,) = claims.groups
        known = {match.recorded: name for name, match in run.names.items()}
        parts = tuple(
            Clipped(
                group.name,
                tuple(known[name] for name in declared.groups.get(part, ()) if name in known),
                Clip(radius, stability),
            )
            for part, radius in declared.clip_norms.items()
        )
        if sorted(name for part in parts for name in part.names) == sorted(group.parameters):
            return parts
    return _clips_of_groups(claims, stability)


def _clips_of_groups(claims: Claims, stability: float | None = None) -> tuple[Clipped, ...]:
    clip = Clip(claims.clip, stability)
    return tuple(Clipped(group.name, group.parameters, clip) for group in claims.groups)


class Gradients:
    """The network of the claims as it is trained, at one set of weights.

    precision: float64, or the run's own. decay: λ, if ∇ℓ + λθ is what the run clips. clips: how it
    clips, by default as claimed. parameters: θ by name; trained ones require gradients.
    """

    def __init__(
        self,
        claims: Claims,
        weights: Mapping[str, FloatArray],
        device: str,
        precision: Precision = Precision.FLOAT64,
        decay: float = 0.0,
        *,
        clips: tuple[Clipped, ...] = (),
    ) -> None:
        self.groups = claims.groups
        self.clips = clips or _clips_of_groups(claims)
        self.decay = decay
        self._claims = claims
        graph = claims.engine.graph
        self._arithmetic = arithmetic = Arithmetic(torch.device(device), precision)
        self._network = LoweredNetwork.of(graph, arithmetic.dtype, arithmetic.device, weights)
        # to which weights are constants
        self._engine = NormEngine(self._network, watch_values=False)
        self.parameters = {
            name: tensor.clone().requires_grad_(graph.parameters[name].trainable)
            for name, tensor in self._network.parameters.items()
        }

    def tensors(self, x: _Array, labels: _Array) -> tuple[Tensor, Tensor]:
        """Return examples and labels on the device."""
        device = self._arithmetic.device
        inputs = torch.from_numpy(x.astype(np.float64)).to(device, self._arithmetic.dtype)
        return inputs, torch.from_numpy(np.array(labels)).to(device)

    def norms(self, x: Tensor, targets: Tensor, inner: float) -> tuple[Measured, ...]:
        """Return ‖inner · ∇ℓ_i‖ of the gradients that each clip takes, before it.  # [examples]
        each"""
        with self._arithmetic.active():
            found = self._engine.measure(x, lambda logits: self._loss(logits, targets, inner))
        plain = (joint([found.parameters[name] for name in part.names]) for part in self.clips)
        if not self.decay:
            return tuple(plain)
        return tuple(
            self._decayed(norms, part.names, self._products(part.names, x, targets))
            for norms, part in zip(plain, self.clips, strict=True)
        )

    def weighted(
        self, x: Tensor, targets: Tensor, inner: float, parts: Iterable[Weighted]
    ) -> Iterator[tuple[str, FloatArray]]:
        """Yield Σ w_i (inner · ∇ℓ_i + λθ) of each part, by name of the parameter, which may occur
        twice.

        The weights come after every clip within the loss, so that no weight is clipped.
        """
        with self._arithmetic.active():
            logits = self._output(x, self.parameters)
            cotangent = self._cotangent(logits, targets, inner)
        shape = (-1,) + (1,) * (cotangent.dim() - 1)
        for names, weights in parts:
            factors = torch.from_numpy(weights).to(cotangent.device).reshape(shape)
            pulled = (logits * (factors * cotangent).to(cotangent.dtype)).sum()
            leaves = [self.parameters[name] for name in names]
            found = torch.autograd.grad(pulled, leaves, retain_graph=True, allow_unused=True)
            for name, gradient in zip(names, found, strict=True):
                if gradient is not None:
                    yield name, gradient.double().cpu().numpy()
                if self.decay:
                    yield name, float(np.sum(weights)) * self.decay * self._theta(name)

    def decay_length(self, names: Iterable[str]) -> float:
        """Return λ‖θ‖ over some parameters."""
        squares = sum(np.sum(self._theta(name) ** 2) for name in names)
        return self.decay * float(np.sqrt(squares))

    def _decayed(self, plain: Measured, names: tuple[str, ...], products: FloatArray) -> Measured:
        """Return ‖∇ℓ_i + λθ‖ of one group, given ‖∇ℓ_i‖ and ⟨∇ℓ_i, θ⟩.  # [examples]

        For rounding, a share of the largest possible square is allowed: 2^-40, or 8·N·u, N the
        longest sum in a product with these parameters, if u is so large. Its root is then off by at
        most min(√d, d/root), d what is allowed.
        """
        length = self.decay_length(names)
        shapes = [self.parameters[name].shape for name in names]
        sums = [shape.numel() // max(1, min(shape, default=1)) for shape in shapes]
        share = max(2.0**-40, 8.0 * max(sums) * self._arithmetic.precision.unit)
        a, e = plain.norm, plain.error
        root = np.sqrt(np.maximum(a * a + 2.0 * self.decay * products + length * length, 0.0))
        off = 2.0 * (a + length) * e + e * e + share * (a + length) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.fmin(np.sqrt(off), off / root)
        return Measured(root, error)

    def _products(self, names: tuple[str, ...], x: Tensor, targets: Tensor) -> FloatArray:
        """Return ⟨∇ℓ_i, θ⟩ over some parameters.  # [examples]

        The fused kernels of attention do not support forward differentiation.
        """
        unfused = sdpa_kernel(SDPBackend.MATH)
        with self._arithmetic.active(), unfused, forward_ad.dual_level():
            dual = {
                name: _in_own_direction(tensor) if name in names else tensor.detach()
                for name, tensor in self.parameters.items()
            }
            logits, slope = forward_ad.unpack_dual(  # type: ignore[no-untyped-call]
                self._output(x, dual)
            )
            cotangent = self._cotangent(logits, targets, 1.0)
            if slope is None:
                slope = torch.zeros_like(cotangent)
            products = (cotangent * slope).unsqueeze(-1).flatten(1).double().sum(dim=1)
        found: FloatArray = products.cpu().numpy()
        return found

    def _theta(self, name: str) -> FloatArray:
        """Return the numbers of a parameter as they are stored."""
        weights: FloatArray = self.parameters[name].detach().double().cpu().numpy()
        return weights

    def losses(self, x: Tensor, targets: Tensor) -> FloatArray:
        """Return ℓ_i.  # [examples]"""
        with self._arithmetic.active(), torch.no_grad():
            logits = self._output(x, self.parameters)
            found: FloatArray = self._loss(logits, targets, 1.0).double().cpu().numpy()
        return found

    def _loss(self, logits: Tensor, targets: Tensor, inner: float) -> Tensor:
        """Return inner · ℓ_i of logits, with the clip of the loss gradient.  # [examples]"""
        clip = self._claims.settings.loss_clip
        return inner * per_example_loss(self._claims.engine.loss, logits, targets, clip)

    def _cotangent(self, logits: Tensor, targets: Tensor, inner: float) -> Tensor:
        leaf = logits.detach().requires_grad_()
        (found,) = torch.autograd.grad(self._loss(leaf, targets, inner).sum(), leaf)
        return found

    def _output(self, x: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        return self._network.at(parameters).forward(x)


def _in_own_direction(parameter: Tensor) -> Tensor:
    """Return θ as a dual number θ + εθ."""
    theta = parameter.detach()
    dual: Tensor = forward_ad.make_dual(theta, theta.clone())  # type: ignore[no-untyped-call]
    return dual


class Pass:
    """Examples that are reduced alike; their norms are measured once, when they are first
    needed."""

    def __init__(self, gradients: Gradients, x: _Array, labels: _Array, scale: Scale) -> None:
        self.scale = scale
        self._gradients = gradients
        self._chunks = [
            (x[start : start + _CHUNK], labels[start : start + _CHUNK])
            for start in range(0, len(x), _CHUNK)
        ]

    def contributions(self) -> Mapping[str, Measured]:
        """Return ‖outer · m(inner · ∇ℓ_i)‖ of each group.  # [examples] each"""
        chunks = [self._contributed(norms) for norms in self._norms]
        return {
            group.name: together([chunk[group.name] for chunk in chunks], self.scale.outer)
            for group in self._gradients.groups
        }

    def _contributed(self, norms: tuple[Measured, ...]) -> Mapping[str, Measured]:
        """Return what the clips leave of each group of one chunk."""
        found: dict[str, list[Measured]] = {}
        for part, norm in zip(self._gradients.clips, norms, strict=True):
            found.setdefault(part.group, []).append(part.clip.measured(norm))
        return {name: joint(parts) for name, parts in found.items()}

    def lengths(self) -> FloatArray:
        """Return ‖inner · ∇ℓ_i‖ of all groups together, before clips of whole gradients.  #
        [examples]"""
        return np.concatenate([joint(list(part)).norm for part in self._norms])

    def losses(self) -> FloatArray:
        """Return ℓ_i.  # [examples]"""
        at = self._gradients
        return np.concatenate([at.losses(*at.tensors(*chunk)) for chunk in self._chunks])

    def clip_slack(self) -> float:
        """Return the `slack` of all clips together."""
        return self.scale.outer * sum(
            part.clip.slack(found)
            for norms in self._norms
            for part, found in zip(self._gradients.clips, norms, strict=True)
        )

    def decayed(self) -> float:
        """Return outer · Σ ‖λθ‖, each term as short as its clip makes it."""
        gradients, lengths = self._gradients, 0.0
        if gradients.decay:
            for chunk in range(len(self._chunks)):
                for names, weights in self._weighted(chunk):
                    lengths += float(np.sum(weights)) * gradients.decay_length(names)
        return self.scale.outer * lengths

    def total(self) -> Mapping[str, FloatArray]:
        """Return outer · Σ_i m(inner · ∇ℓ_i) by name of the trained parameter."""
        every = slice(None)
        return self._sum(
            part for chunk in range(len(self._chunks)) for part in self._gradients_of(chunk, every)
        )

    def single(self, place: int) -> Mapping[str, FloatArray]:
        """Return what one example adds to the total."""
        chunk, row = divmod(place, _CHUNK)
        return self._sum(self._gradients_of(chunk, slice(row, row + 1)))

    def _sum(self, parts: Iterable[tuple[str, FloatArray]]) -> Mapping[str, FloatArray]:
        parameters = self._gradients.parameters
        found = {
            name: np.zeros(parameters[name].shape)
            for group in self._gradients.groups
            for name in group.parameters
        }
        for name, gradient in parts:
            found[name] += self.scale.outer * gradient
        return found

    def _gradients_of(self, chunk: int, rows: slice) -> Iterator[tuple[str, FloatArray]]:
        """Yield what its examples add to the sums, by name of the parameter; a name may occur
        twice."""
        gradients, (x, labels) = self._gradients, self._chunks[chunk]
        parts = [(names, weights[rows]) for names, weights in self._weighted(chunk)]
        inputs = gradients.tensors(x[rows], labels[rows])
        return gradients.weighted(*inputs, self.scale.inner, parts)

    def _weighted(self, chunk: int) -> Iterator[Weighted]:
        """Yield parameters with the clip factor of each example."""
        clips = self._gradients.clips
        if all(part.clip.radius == np.inf for part in clips):
            names = tuple(name for part in clips for name in part.names)
            yield names, np.ones(len(self._chunks[chunk][0]))
            return
        for part, found in zip(clips, self._norms[chunk], strict=True):
            yield part.names, part.clip.factors(found.norm)

    @cached_property
    def _norms(self) -> list[tuple[Measured, ...]]:
        """Norms before clips of whole gradients, chunk by chunk."""
        gradients = self._gradients
        return [
            gradients.norms(*gradients.tensors(x, labels), self.scale.inner)
            for x, labels in self._chunks
        ]


def together(parts: Sequence[Measured], factor: float = 1.0) -> Measured:
    """Return the norms of all parts in one, times a factor."""
    return Measured(
        factor * np.concatenate([part.norm for part in parts]),
        factor * np.concatenate([part.error for part in parts]),
    )


def gradients_at(run: RecordedRun, name: str, decay: float) -> Gradients:
    """Return the network at the replay weights of a step, clipped as in that step."""
    at = run.replay_weights(name)
    weights = run.weights(name) if at.weights is None else at.weights
    return Gradients(at.claims, weights, run.device, decay=decay, clips=clips_of(run, at.claims))


def passes_of(gradients: Gradients, batch: Batch) -> list[Pass]:
    """Return the micro-batches of a recorded batch."""
    x, labels = batch.x, batch.labels
    return [Pass(gradients, x[rows], labels[rows], scale) for rows, scale in batch.scales]
