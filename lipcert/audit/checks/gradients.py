"""Gradients at recorded weights: of single examples, and what their batch should have released.

Of examples that are reduced alike, with their `Scale`, at one set of weights: the norm of what each
adds to the quantity that is noised, and that quantity itself. The norms come from the norm engine,
once for all that is asked of them; sums are plain backpropagation through the same ops with trained
weights.

Where the decay is inside the clip, ∇ℓ_i + λθ takes the place of ∇ℓ_i. Its norm follows, group by
group, from ‖∇ℓ_i‖² + 2λ⟨∇ℓ_i, θ⟩ + λ²‖θ‖², where ⟨∇ℓ_i, θ⟩ is the product of ∂ℓ_i/∂logits with
the derivative of the logits in the direction θ: forward differentiation gives it for all examples
at once. Invariant: each norm is off by its error at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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

from lipcert.audit.bounds import Claims
from lipcert.audit.checks.recorded_run import Batch, RecordedRun, Scale
from lipcert.audit.evaluator import Clip, clip_of
from lipcert.core.program import FloatArray
from lipcert.measure.arithmetic import Arithmetic
from lipcert.measure.gradient_norms.engine import NormEngine
from lipcert.measure.losses import clipped_gradient, per_example_loss
from lipcert.measure.lowering.network import LoweredNetwork
from lipcert.measure.measured import Measured, joint
from lipcert.measure.precision import Precision

_CHUNK: Final = 128
_Array = npt.NDArray[Any]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Pulled:
    """Logits, and the derivative of each example's loss in them."""

    logits: Tensor
    cotangent: Tensor

    def back(self, leaves: Sequence[Tensor], weights: FloatArray) -> list[Tensor | None]:
        """Σ w_i ∇ℓ_i; None where nothing depends on a leaf. May be asked several times.

        The weights come after every clip within the loss, so that none of them clips a weight.
        """
        shape = (-1,) + (1,) * (self.cotangent.dim() - 1)
        factors = torch.from_numpy(weights).to(self.cotangent.device).reshape(shape)
        weighted = (factors * self.cotangent).to(self.cotangent.dtype)
        pulled = (self.logits * weighted).sum()
        return list(torch.autograd.grad(pulled, leaves, retain_graph=True, allow_unused=True))


@final
class DifferentiableNetwork:
    """The network as it is trained. parameters: θ by name; those that are trained have gradients.

    lowered: the same network with weights that autograd takes for constants.
    """

    def __init__(
        self, claims: Claims, weights: Mapping[str, FloatArray], arithmetic: Arithmetic
    ) -> None:
        self.arithmetic = arithmetic
        self._claims = claims
        self._graph = claims.engine.graph
        self.lowered = LoweredNetwork.of(self._graph, arithmetic.dtype, arithmetic.device, weights)
        self.parameters = {
            name: tensor.clone().requires_grad_(self._graph.parameters[name].trainable)
            for name, tensor in self.lowered.parameters.items()
        }

    def theta(self, name: str) -> FloatArray:
        """The numbers of a parameter, as they are stored."""
        weights: FloatArray = self.parameters[name].detach().double().cpu().numpy()
        return weights

    def tensors(self, x: _Array, labels: _Array) -> tuple[Tensor, Tensor]:
        """Examples and labels on the device."""
        device = self.arithmetic.device
        inputs = torch.from_numpy(x.astype(np.float64)).to(device, self.arithmetic.dtype)
        return inputs, torch.from_numpy(np.array(labels)).to(device)

    def pulled(self, x: Tensor, targets: Tensor, inner: float) -> Pulled:
        """The derivative of inner · ℓ_i at the logits, to be pulled back to the parameters."""
        with self.arithmetic.active():
            logits = self._output(x, self.parameters)
            return Pulled(logits, self._cotangent(logits, targets, inner))

    def loss(self, logits: Tensor, targets: Tensor, inner: float) -> Tensor:
        """inner · ℓ_i of logits, with the clip of the loss gradient.  # [examples]"""
        radius = self._claims.settings.loss_clip
        clipped = logits if radius is None else clipped_gradient(logits, radius)
        return inner * per_example_loss(self._claims.engine.loss, clipped, targets)

    def products(self, names: tuple[str, ...], x: Tensor, targets: Tensor) -> FloatArray:
        """⟨∇ℓ_i, θ⟩ over some parameters.  # [examples]"""
        with self.arithmetic.active(), _unfused(), forward_ad.dual_level():
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

    def _cotangent(self, logits: Tensor, targets: Tensor, inner: float) -> Tensor:
        leaf = logits.detach().requires_grad_()
        (found,) = torch.autograd.grad(self.loss(leaf, targets, inner).sum(), leaf)
        return found

    def _output(self, x: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        return LoweredNetwork.sharing(self._graph, parameters, x).forward(x)


def _unfused() -> AbstractContextManager[None]:
    """Kernels that are differentiated forwards: the fused ones of attention are not."""
    found: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return found


def _in_own_direction(parameter: Tensor) -> Tensor:
    """θ as a dual number θ + εθ."""
    theta = parameter.detach()
    dual: Tensor = forward_ad.make_dual(theta, theta.clone())  # type: ignore[no-untyped-call]
    return dual


@final
class Decay:
    """λθ at one set of weights; λ = 0 where no decay is clipped."""

    def __init__(self, network: DifferentiableNetwork, factor: float) -> None:
        self._network = network
        self._factor = factor

    def __bool__(self) -> bool:
        """Whether there is any."""
        return self._factor != 0.0

    def of(self, name: str) -> FloatArray:
        """The decay λθ of one parameter."""
        decayed: FloatArray = self._factor * self._network.theta(name)
        return decayed

    def length(self, names: Iterable[str]) -> float:
        """λ‖θ‖ over some parameters."""
        squares = sum(np.sum(self._network.theta(name) ** 2) for name in names)
        return self._factor * float(np.sqrt(squares))

    def added(
        self, plain: Measured, names: tuple[str, ...], x: Tensor, targets: Tensor
    ) -> Measured:
        """‖∇ℓ_i + λθ‖ of one group, given ‖∇ℓ_i‖.  # [examples]

        Of the square, a share of the largest it could be is conceded to rounding: 2^-40, or 8·N·u,
        N the longest sum in a product with these parameters, where u is so large. Its root is then
        off by at most min(√d, d/root), d what is conceded.
        """
        length = self.length(names)
        product = self._factor * self._network.products(names, x, targets)
        a, e = plain.norm, plain.error
        root = np.sqrt(np.maximum(a * a + 2.0 * product + length * length, 0.0))
        off = 2.0 * (a + length) * e + e * e + self._share(names) * (a + length) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.fmin(np.sqrt(off), off / root)
        return Measured(root, error)

    def _share(self, names: tuple[str, ...]) -> float:
        shapes = [self._network.parameters[name].shape for name in names]
        sums = [shape.numel() // max(1, min(shape, default=1)) for shape in shapes]
        return max(2.0**-40, 8.0 * max(sums) * self._network.arithmetic.precision.unit)


@final
@dataclass(frozen=True, slots=True)
class Clipped:
    """Parameters whose gradients are clipped together, and the group that they are a part of."""

    group: str
    names: tuple[str, ...]
    clip: Clip


def clips_of(run: RecordedRun, claims: Claims) -> tuple[Clipped, ...]:
    """The groups of the claims, or, under a flat clip, what the run declares to clip apart.

    Parts that are clipped to c_1, c_2, … are together at most √Σc² long, which a flat account has
    for its radius.
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
    clip = Clip(clip_of(claims), stability)
    return tuple(Clipped(group.name, group.parameters, clip) for group in claims.groups)


@final
class Gradients:
    """The network of the claims at one set of weights; precision: float64, or the run's own.

    decay: λ, where ∇ℓ + λθ is what the run clips. clips: how, by default as claimed.
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
        self.network = DifferentiableNetwork(
            claims, weights, Arithmetic(torch.device(device), precision)
        )
        self.decay = Decay(self.network, decay)
        self._engine = NormEngine(self.network.lowered, watch_values=False)

    def norms(self, x: Tensor, targets: Tensor, inner: float) -> tuple[Measured, ...]:
        """‖inner · ∇ℓ_i‖ of what each clip takes, before it.  # [examples] each"""
        network = self.network
        with network.arithmetic.active():
            found = self._engine.measure(
                x, lambda logits: network.loss(logits, targets, inner)
            ).parameters
        plain = tuple(joint([found[name] for name in part.names]) for part in self.clips)
        if not self.decay:
            return plain
        return tuple(
            self.decay.added(norms, part.names, x, targets)
            for norms, part in zip(plain, self.clips, strict=True)
        )


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
        outer, chunks = self.scale.outer, [self._contributed(norms) for norms in self._norms]
        return {
            group.name: Measured(
                outer * np.concatenate([chunk[group.name].norm for chunk in chunks]),
                outer * np.concatenate([chunk[group.name].error for chunk in chunks]),
            )
            for group in self._gradients.groups
        }

    def _contributed(self, norms: tuple[Measured, ...]) -> Mapping[str, Measured]:
        """Of one chunk: what the clips leave of each group."""
        found: dict[str, list[Measured]] = {}
        for part, norm in zip(self._gradients.clips, norms, strict=True):
            found.setdefault(part.group, []).append(part.clip.measured(norm))
        return {name: joint(parts) for name, parts in found.items()}

    def lengths(self) -> FloatArray:
        """‖inner · ∇ℓ_i‖ of all groups together, before clips of whole gradients.  # [examples]"""
        return np.concatenate([joint(list(part)).norm for part in self._norms])

    def clip_slack(self) -> float:
        """The `slack` of all clips together."""
        return self.scale.outer * sum(
            part.clip.slack(found)
            for norms in self._norms
            for part, found in zip(self._gradients.clips, norms, strict=True)
        )

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
        every = slice(None)
        return self._sum(
            part for chunk in range(len(self._chunks)) for part in self._gradients_of(chunk, every)
        )

    def single(self, place: int) -> Mapping[str, FloatArray]:
        """What one example adds to the total."""
        chunk, row = divmod(place, _CHUNK)
        return self._sum(self._gradients_of(chunk, slice(row, row + 1)))

    def _sum(self, parts: Iterable[tuple[str, FloatArray]]) -> Mapping[str, FloatArray]:
        parameters = self._gradients.network.parameters
        found = {
            name: np.zeros(parameters[name].shape)
            for group in self._gradients.groups
            for name in group.parameters
        }
        for name, gradient in parts:
            found[name] += self.scale.outer * gradient
        return found

    def _gradients_of(self, chunk: int, rows: slice) -> Iterator[tuple[str, FloatArray]]:
        """What its examples add to the sums, by name of the parameter; a name may come twice."""
        gradients, (x, labels) = self._gradients, self._chunks[chunk]
        network = gradients.network
        pulled = network.pulled(*network.tensors(x[rows], labels[rows]), self.scale.inner)
        for part in self._weighted(chunk):
            leaves, weights = [network.parameters[name] for name in part.names], part.weights[rows]
            found = pulled.back(leaves, weights)
            for name, gradient in zip(part.names, found, strict=True):
                if gradient is not None:
                    yield name, gradient.double().cpu().numpy()
                if gradients.decay:
                    yield name, float(np.sum(weights)) * gradients.decay.of(name)

    def _weighted(self, chunk: int) -> Iterator[_Weighted]:
        """Each example weighted by its clip."""
        clips = self._gradients.clips
        if all(part.clip.radius == np.inf for part in clips):
            names = tuple(name for part in clips for name in part.names)
            yield _Weighted(names, np.ones(len(self._chunks[chunk][0])))
            return
        for part, found in zip(clips, self._norms[chunk], strict=True):
            yield _Weighted(part.names, part.clip.factors(found.norm))

    @cached_property
    def _norms(self) -> list[tuple[Measured, ...]]:
        """Before clips of whole gradients, chunk by chunk."""
        gradients = self._gradients
        return [
            gradients.norms(*gradients.network.tensors(x, labels), self.scale.inner)
            for x, labels in self._chunks
        ]


def gradients_at(run: RecordedRun, name: str, decay: float) -> Gradients:
    """The network at the settled weights of a step, clipped as there."""
    at = run.settled(name)
    weights = run.weights(name) if at.weights is None else at.weights
    return Gradients(at.claims, weights, run.device, decay=decay, clips=clips_of(run, at.claims))


def passes_of(gradients: Gradients, batch: Batch) -> list[Pass]:
    """The micro-batches of a recorded batch."""
    x, labels = batch.x, batch.labels
    return [Pass(gradients, x[rows], labels[rows], scale) for rows, scale in batch.scales]
