"""The network of the claims at one set of weights, as autograd differentiates it.

What enters: claims, weights, an arithmetic, examples. What leaves: weighted sums of gradients; and
⟨∇ℓ_i, θ⟩, the product of ∂ℓ_i/∂logits with the derivative of the logits in the direction θ, which
forward differentiation gives for all examples at once. With it, where the decay is inside the clip
and ∇ℓ_i + λθ stands for ∇ℓ_i, the norm of that, group by group, by
‖∇ℓ_i‖² + 2λ⟨∇ℓ_i, θ⟩ + λ²‖θ‖². Invariant: each norm is off by its error at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipcert.audit.arithmetic import Arithmetic
from lipcert.audit.bounds import Claims
from lipcert.audit.losses import clipped_gradient, per_example_loss
from lipcert.audit.lowering.network import LoweredNetwork
from lipcert.audit.measured import Measured
from lipcert.upper import FloatArray

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
        """λθ of one parameter."""
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
