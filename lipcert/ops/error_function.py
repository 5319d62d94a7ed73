"""The error function and its complement, by scipy, which is imported when they are first needed.

What enters and leaves: float64 arrays. scipy.special takes longer to import than most analyses.
"""

from __future__ import annotations

from lipcert.upper import FloatArray


def erf(x: FloatArray) -> FloatArray:
    """erf x, entry by entry; errs by far less than 64 ulp."""
    from scipy import special  # noqa: PLC0415

    result: FloatArray = special.erf(x)
    return result


def erfc(x: FloatArray) -> FloatArray:
    """1 − erf x, entry by entry; errs by far less than 1024 ulp."""
    from scipy import special  # noqa: PLC0415

    result: FloatArray = special.erfc(x)
    return result
