"""Inputs: only those enter the network of which the bounds speak.

What enters: a batch, and the declared domain. What leaves: the same batch, in which an example
that rounding alone has left outside is drawn into the domain; or a NoVerdictError that names the
first example that lies outside. Norms are computed in float64.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from lipcert.audit.admissibility import DRAWN_IN, outside, settled
from lipcert.errors import NoVerdictError
from lipcert.settings.settings import Settings

_ROUNDED: Final = 1.0 + 2.0**-16
"""of the radius: beyond it, rounding is not the reason; where thousands of entries were divided by
their norm in float32, that norm was off by 1e-6 and more"""
_MOST_ENTRIES: Final = 2**24


@torch.no_grad()
def admitted(x: Tensor, settings: Settings) -> Tensor:
    """The batch [examples, …] as it may enter the network.

    Proof: the computed norm of n ≤ 2^24 entries is off by less than a factor of 1 + 2^-27, and
    rounding an entry to float32 by one of 1 + 2^-24; so what is scaled to (1 − 2^-20) of the
    radius lies within it. Scaling towards 0 stays within a box that holds 0.
    """
    if not len(x):
        return x
    flat = x.detach().reshape(len(x), -1)
    box, radius = settings.effective_input_box, settings.input_norm
    if settings.input_parts:
        return x if _is_inside(flat, settings) else _settled(x, settings)
    if radius is None:
        return x if _is_in_box(flat, box) else _settled(x, settings)
    if flat.shape[1] > _MOST_ENTRIES or not (box is None or _is_in_box(flat, box)):
        return _settled(x, settings)
    norms = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
    longest = float(norms.max())  # NaN or infinite if an entry is
    if longest <= radius * DRAWN_IN:
        return x
    is_half = torch.finfo(x.dtype).bits < 32 if x.is_floating_point() else True
    holds_zero = box is None or box[0] <= 0.0 <= box[1]
    if is_half or not holds_zero or not longest <= radius * _ROUNDED:
        return _settled(x, settings)
    factors = (radius * DRAWN_IN / norms).clamp(max=1.0)
    drawn: Tensor = x.detach() * factors.reshape(-1, *[1] * (x.dim() - 1))
    return drawn.to(x.dtype)


def _is_inside(flat: Tensor, settings: Settings) -> bool:
    """Whether every one of several inputs lies within its domain, whatever rounding did."""
    if flat.shape[1] > _MOST_ENTRIES or not math.isfinite(flat.sum(dtype=torch.float64)):
        return False
    for domain in settings.domains:
        part = flat[:, domain.entries]
        if not _is_in_box(part, domain.box):
            return False
        if domain.norm is not None:
            norms = torch.linalg.vector_norm(part.double(), dim=1)
            if not float(norms.max()) <= domain.norm * DRAWN_IN:
                return False
    return True


def _is_in_box(flat: Tensor, box: tuple[float, float] | None) -> bool:
    least, most = flat.aminmax()  # NaN if an entry is
    if box is None:
        return math.isfinite(least) and math.isfinite(most)
    return bool(least >= box[0]) and bool(most <= box[1])


def _settled(x: Tensor, settings: Settings) -> Tensor:
    """What is outside by rounding is drawn in; anything else is refused."""
    array = x.detach().cpu().numpy()
    inadmissible = outside(array, settings)
    if not bool(torch.isfinite(x).all()):
        raise NoVerdictError("training: the batch holds NaN or infinity; repair the data")
    if inadmissible:
        index, why = inadmissible[0]
        raise NoVerdictError(
            f"training: example {index} of the batch {why}; {len(inadmissible)} of {len(x)} "
            "examples lie outside the declared input domain: clip or rescale them in the data "
            "set, or declare the domain that the pipeline enforces, with input_norm or input_box"
        )
    radius = float("inf") if settings.input_norm is None else settings.input_norm
    wide = x.detach().double().cpu().numpy()
    return torch.from_numpy(settled(wide, radius, settings, share=DRAWN_IN)).to(x)
