"""Compare claims with derived bounds, without tolerance.

Input: a certificate and the bounds derived from verified premises. Output: a sentence for each
claim that is below the derived bound; an absent claim is not judged.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from lipcert.core.arithmetic import divide_up, multiply_up, sqrt_down, sqrt_up
from lipcert.core.certificate import Certificate, GroupClaim
from lipcert.core.ledger.premises import Premises
from lipcert.core.lines.proof import Proof
from lipcert.core.reader.records import shown

_BOUNDS_MOVED = {"add-remove": 1, "zero-out": 1, "replace-one": 2}


def sensitivity_up(grad_norm: float, divisor: int | None, relation: str) -> float:
    """Return Δ ≥ ‖release(D) − release(D')‖₂ for all neighbours D, D'; inf: no bound.

    Hypotheses: ‖∇ℓ‖₂ ≤ grad_norm for every example; a mean divides the sum by the public
    constant `divisor` ≥ 1, never by the size of the batch at hand. None: the sum is released.
    Proof: the sums differ by one gradient (add or remove one, zero it out) or by the difference of
    two (replace one), at most 2G; a mean divides both sums by the same number.
    Attained by examples that attain G, with opposite gradients if one replaces the other.
    """
    moved = multiply_up(_BOUNDS_MOVED[relation], grad_norm)
    return moved if divisor is None else divide_up(moved, divisor)


def total_sensitivity(sensitivities: Iterable[float]) -> float:
    """Return √ΣΔ², rounded up: how far one example moves all groups together."""
    known = list(sensitivities)
    if not all(delta < math.inf for delta in known):
        return math.inf
    return sqrt_up(sum((Fraction(delta) ** 2 for delta in known), Fraction(0)))


def effective_multiplier(sensitivities: Sequence[float], noise: Sequence[float]) -> float:
    """Return a lower bound of (Σ Δ_k²/s_k²)^(−1/2); 0: a group lacks noise; inf: all Δ_k are 0.

    Hypotheses: the groups are noised from one sample, with N(0, s_k²·I).
    Proof: scaled by 1/s_k the joint noise is N(0, I), and one example moves it by √Σ(Δ_k/s_k)². A
    group with Δ_k = 0 reveals nothing. 1/√x = √(1/x), and x is rational.
    """
    total = Fraction(0)
    for delta, deviation in zip(sensitivities, noise, strict=True):
        if not (delta >= 0.0 and 0.0 <= deviation < math.inf):
            raise ValueError("sensitivities and deviations are not negative")
        if delta > 0.0 and (deviation == 0.0 or delta == math.inf):
            return 0.0
        if delta > 0.0:
            total += (Fraction(delta) / Fraction(deviation)) ** 2
    return sqrt_down(1 / total) if total else math.inf


def group_bounds(
    certificate: Certificate,
    gradients: Mapping[str, float],
    premises: Premises,
    *,
    drops: bool = False,
) -> tuple[GroupClaim, ...]:
    """Return the groups with derived joint gradient bounds and sensitivities, and claimed noise.

    Proof: the gradient with respect to several tensors is their concatenation. One example more
    or less moves a sum by at most G; one replaced by another moves it by at most 2G; a public
    divisor divides both. A clip of the whole gradient to C bounds every part by C; a clip of each
    of K groups to C/√K bounds each group by that. During a run the weights move: a bound for the
    weights of the file holds at later steps only if the ledger says so, which with a clip it does
    not; and no bound derived for the network holds if training drops entries at random.
    drops: whether the file has such layers, which a clipped run need not keep in eval mode.
    """
    tensors = {claim.name: claim.tensor for claim in certificate.parameters}
    found = []
    for group in certificate.groups:
        norms = [gradients[tensors[name]] for name in group.parameters]
        lasts = not drops and (certificate.scope.kind == "constraint-set" or premises.run is None)
        bound = clipped_group(
            total_sensitivity(norms), len(certificate.groups), premises, lasts=lasts
        )
        moved = sensitivity_up(bound, premises.divisor, premises.relation)
        found.append(replace(group, grad_norm=bound, sensitivity=moved))
    return tuple(found)


def clipped_group(bound: float, groups: int, premises: Premises, *, lasts: bool) -> float:
    """Return the bound of one of several groups after the clip of the whole gradient, if any.

    For a single parameter, groups is 1. lasts: whether `bound` holds at every step in question, for
    the network as it is trained.
    """
    if premises.clip is None:
        return bound
    norm = premises.clip.clip_norm
    if premises.clip.clip_scope == "group":
        norm = divide_up(norm, sqrt_down(float(groups)))
    elif groups != 1:
        return math.inf  # a flat clip gives no bounds for several groups at once
    return min(norm, bound) if lasts and premises.clip.decay == "decoupled" else norm


def output_faults(
    certificate: Certificate,
    proof: Proof,
    groups: tuple[GroupClaim, ...],
    sizes: Mapping[str, int],
    *,
    drops: bool = False,
) -> Iterator[str]:
    """Yield the claims about parameters, groups and the network that are too small, or noise too
    large."""
    for claim in certificate.parameters:
        found = clipped_group(proof.gradient(claim.tensor), 1, proof.premises, lasts=not drops)
        yield from _below("gradient", claim.name, claim.grad_norm, found)
    for group, bound in zip(certificate.groups, groups, strict=True):
        yield from _below("gradient of the group", group.name, group.grad_norm, bound.grad_norm)
        yield from _below("sensitivity", group.name, group.sensitivity, bound.sensitivity)
        dimension = sum(sizes[name] for name in group.parameters)
        if group.dimension != dimension:
            yield f"the group {shown(group.name)} has {dimension} numbers, not {group.dimension}"
    network = certificate.network
    yield from _below("Lipschitz constant", "network", network.lipschitz, proof.lipschitz)
    total = total_sensitivity([bound.grad_norm for bound in groups])
    yield from _below("gradient", "network", network.grad_norm, total)
    moved = total_sensitivity([bound.sensitivity for bound in groups])
    yield from _below("sensitivity", "network", network.sensitivity, moved)
    multiplier = joint_multiplier(groups)
    if network.noise_multiplier is not None and not network.noise_multiplier <= multiplier:
        yield (
            f"the noise multiplier is claimed to be {network.noise_multiplier!r}, but the noise of "
            f"the groups gives {multiplier!r}"
        )


def joint_multiplier(groups: tuple[GroupClaim, ...]) -> float:
    """Return the noise multiplier of the whole release: the groups of a step are one mechanism."""
    moved = [group.sensitivity for group in groups]
    return effective_multiplier(moved, [group.noise_std for group in groups])


def _below(what: str, where: str, claimed: float | None, derived: float) -> Iterator[str]:
    if claimed is not None and not claimed >= derived:
        yield f"{what} of {shown(where)}: {claimed!r} is claimed, {derived!r} is derived"
