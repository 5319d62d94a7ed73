"""Choices: the words and numbers that settings admit.

A value that they do not admit is a `UsageError` that names the key and what would do. Invariant:
every word of the command line stands in exactly one place: a `Literal` here, or the table of
losses.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from typing import Final, Literal

from lipcert.core.losses.kinds import KINDS
from lipcert.errors import UsageError

LOSSES: Final = ("auto", *KINDS)
TermsName = Literal["mean", "sum"]
AxisName = Literal["first", "last"]
ScopeName = Literal["auto", "point", "constraint-set"]
ConstraintName = Literal["spectral", "frobenius"]
GroupName = Literal["parameter", "layer"]
AllocationName = Literal["global", "per-layer", "optimal", "custom"]
NeighboursName = Literal["add-remove", "replace-one", "zero-out"]
ReductionName = Literal["auto", "mean", "sum"]
TierName = Literal["quick", "fast", "tight"]
SamplingName = Literal["poisson", "without-replacement", "shuffle", "full-batch"]
AccountantName = Literal["auto", "pld", "rdp"]
SizeSourceName = Literal["declared", "data"]


_ALSO_CALLED: Final = {
    "ce": "cross-entropy",
    "softmax": "cross-entropy",
    "categoricalcrossentropy": "cross-entropy",
    "bcewithlogits": "bce",
    "logistic": "bce",
    "l1": "mae",
    "l2": "mse",
    "smoothl1": "huber",
    "hinge": "multiclass-hinge",
    "moments": "rdp",
    "gdp": "pld",
    "prv": "pld",
    "uniform": "without-replacement",
    "fixedsize": "without-replacement",
    "substitute": "replace-one",
    "dpsgd": "gradient-clipping",
}
"""what other tools call a choice, without hyphens, and losses without this word"""


def nearest(name: str, known: Iterable[str]) -> str:
    """ "did you mean 'x'?" for the most similar known name, "" where none is similar."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else ""


def check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    """UsageError unless the value is one of the choices."""
    if value not in choices:
        plain = re.sub("loss$|[-_]", "", str(value).lower())
        also = _ALSO_CALLED.get(plain, plain)
        hint = f"did you mean {also!r}?" if also in choices else nearest(str(value), choices)
        raise UsageError(
            f"{key}: {value!r} is not one of {', '.join(choices)}{hint and '; ' + hint}"
        )


def check_positive(key: str, value: float | None) -> None:
    """UsageError unless the value is absent, or finite and above 0."""
    if value is not None and not (math.isfinite(value) and value > 0.0):
        raise UsageError(f"{key}: {value!r} is not a positive finite number")


def check_nonnegative(key: str, value: float | None) -> None:
    """UsageError unless the value is absent, or finite and at least 0."""
    if value is not None and not (math.isfinite(value) and value >= 0.0):
        raise UsageError(f"{key}: {value!r} is not a non-negative finite number")
