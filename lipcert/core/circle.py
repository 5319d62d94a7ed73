"""π, and points on the circle, by exact integers.

Fixed point: an integer x stands for x·2^−bits. Every function states how far its result lies from
the exact one, in units of 2^−bits. Integer arithmetic is exact; only shifts and divisions lose
something, less than one unit each.
"""

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

GUARD: Final = 64
_BITS: Final = 128
_TERMS: Final = 60


def inverse_series(n: int, bits: int, sign: int) -> int:
    """Σ_k sign^k/((2k+1)·n^(2k+1)), off by less than the number of its terms, below 2·bits."""
    power, total, k = (1 << bits) // n, 0, 0
    while power:
        total += sign**k * (power // (2 * k + 1))
        power //= n * n
        k += 1
    return total


@cache
def pi(bits: int) -> int:
    """Return π, off by less than 1: 16·arctan(1/5) − 4·arctan(1/239) (Machin)."""
    wide = bits + GUARD
    return (16 * inverse_series(5, wide, -1) - 4 * inverse_series(239, wide, -1)) >> GUARD


def half_turns(count: int, parts: int) -> npt.NDArray[np.complex128]:
    """exp(iπm/count) for 0 ≤ m < parts; real and imaginary part are each within 2^-53.

    Proof of the error. Let all numbers be in units of 2^-128.
    1. The angle θ = π/count ≤ π errs by less than 2 units. The terms θ^k/k! are formed one from the
       other. A rounding of one unit in term i grows to at most π^(k−i)·i!/k! ≤ π^(k−i)/(k−i)! units
       in term k, so all terms together err by at most 60·e^π < 2^11 units; what is omitted behind
       60 terms is below a unit. cos and sin are 1-Lipschitz, so that both err by less than 2^12.
    2. A product with this point errs by as much, and by the roundings of four products; after at
       most 2^21 products both parts err by less than 2^35 units = 2^-93.
    3. The quotient of two integers is rounded to nearest by Python, by at most 2^-54 as the
       magnitude is at most 1 + 2^-93.
    Together: each part is within 2^-53 of the exact one.
    """
    if not (count >= 1 and 1 <= parts <= 1 << 21):
        raise ValueError(f"{count} cannot be a number of parts of a half turn")
    cosine, sine = _point(pi(_BITS) // count)
    found, (c, s), one = [], (1 << _BITS, 0), 1 << _BITS
    for _ in range(parts):
        found.append(complex(c / one, s / one))
        c, s = (c * cosine - s * sine) >> _BITS, (c * sine + s * cosine) >> _BITS
    return np.array(found)


def _point(angle: int) -> tuple[int, int]:
    """cos θ and sin θ for θ in [0, π], by their power series."""
    parts, term = [0, 0], 1 << _BITS
    for k in range(_TERMS):
        parts[k % 2] += term if k % 4 < 2 else -term
        term = term * angle // ((k + 1) << _BITS)
    return parts[0], parts[1]
