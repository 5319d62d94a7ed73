"""Clip factors: by what the gradient of each example is multiplied, so that it is short enough.

A `ClipRule` says which norm the gradient of one example may keep, and of which parameters together:
the radius that is enforced is the very number that the noise rests on. From one pass forward and
backward over a batch follow the factors min(1, C_k/‖g_ik‖) of every example i and group k, without
any per-example gradient. Invariants: the norms are upper bounds, and the factors are rounded down,
so that c·‖g‖ ≤ C in real arithmetic; an example whose gradient is not finite has the factor 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self, final

import torch
from torch import Tensor

from lipcert.analysis.bounded import Bounded
from lipcert.core.losses.base import Loss
from lipcert.errors import NoVerdictError
from lipcert.measure.gradient_norms.engine import Passed, exact_arithmetic
from lipcert.measure.gradient_norms.squares import Squares
from lipcert.measure.losses import clipped_gradient, per_example_loss
from lipcert.measure.lowering import LoweredNetwork
from lipcert.privacy.noise import Group
from lipcert.settings.choices import check_nonnegative
from lipcert.training.clipping.decay import Inner, decayed_squares, inner_products, weight_squares


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClipRule:
    """∇ℓ_i + λθ of every group, scaled down to its radius, which is the bound of the group.

    loss_clip: the norm to which ∂ℓ/∂logits is clipped before, None where it is not. weight_decay:
    λ, 0 where the clip does not cover the decay.
    """

    groups: tuple[Group, ...]
    loss: Loss
    loss_clip: float | None = None
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_nonnegative("clipping: weight-decay", self.weight_decay)

    @classmethod
    def of(cls, run: Bounded, weight_decay: float = 0.0) -> Self:
        """As analysed. C for all parameters together, C/√K for each of K groups; less where the
        network itself bounds the gradient by less, and the noise was set for that."""
        return cls(run.groups, run.loss, run.loss_clip, weight_decay)

    @property
    def radii(self) -> list[float]:
        """To which the gradients of the groups are clipped."""
        return [group.grad_norm.value for group in self.groups]

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """ℓ of every example; labels as `checked_labels` returns them.  # [examples]"""
        clipped = logits if self.loss_clip is None else clipped_gradient(logits, self.loss_clip)
        return per_example_loss(self.loss, clipped, labels)


OUTWARD: Final = 1.0 + 2.0**-40
_SHARE: Final = 1.0 - 2.0**-20
"""of the radius: rounding a factor to float32, and its product with a cotangent, adds less"""


def clip_factors(network: LoweredNetwork, rule: ClipRule, passed: Passed) -> Tensor:
    """The factors of a pass.  # [examples, groups]

    Raises NoVerdictError where weights that decay inside the clip are not finite.
    """
    with exact_arithmetic(network):
        return factors_within(network, rule, passed)


def factors_within(network: LoweredNetwork, rule: ClipRule, passed: Passed) -> Tensor:
    """The factors of `clip_factors`, for a caller within `exact_arithmetic`."""
    inner = inner_products(network, passed.caught) if rule.weight_decay > 0.0 else {}
    norms = torch.stack(
        [_norms(network, group, rule.weight_decay, passed, inner) for group in rule.groups], 1
    )
    radii = torch.tensor(rule.radii, dtype=norms.dtype).to(norms)
    return factors_of(norms, radii, network.dtype)


def factors_of(norms: Tensor, radii: Tensor, dtype: torch.dtype) -> Tensor:
    """min(1, C_k/‖g_ik‖), rounded down.  # [examples, groups]"""
    shrunk = radii * _SHARE / norms
    factors = torch.where(norms <= radii, torch.ones_like(norms), shrunk).to(dtype)
    # nothing of an example that is not finite; a factor below the normal numbers is imprecise
    counts = torch.isfinite(norms).all(dim=1, keepdim=True)
    counts = counts & (factors >= torch.finfo(dtype).tiny)
    return torch.where(counts, factors, torch.zeros_like(factors))


def _norms(
    network: LoweredNetwork,
    group: Group,
    decay: float,
    passed: Passed,
    inner: Mapping[str, Inner],
) -> Tensor:
    """Upper bounds of what is clipped.  # float64 [examples]"""
    gradient = Squares.total([passed.squares[name] for name in group.parameters])
    if decay == 0.0:
        return gradient.upper.clamp_min(0.0).sqrt() * OUTWARD
    weights = weight_squares(network, group.parameters)
    if not bool(torch.isfinite(weights)):
        raise NoVerdictError(
            f"clipping: the weights of {group.name!r} hold NaN or infinity, so that their decay "
            "cannot be clipped; lower the learning rate"
        )
    found = [inner[name] for name in group.parameters if name in inner]
    together = found[0] if found else None
    for other in found[1:]:
        together = other.plus(together) if together is not None else other
    return decayed_squares(gradient, together, weights, decay).sqrt() * OUTWARD
