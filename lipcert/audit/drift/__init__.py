"""Drift: by how much floating-point evaluation may exceed the bounds of real arithmetic.

What enters: a network, its bounds, and a precision. What leaves: a `Drift`. `rounding` says how
far single operations are off, `local` and the modules beside it what that means for one op,
`losses` for the loss, and `network` how errors travel. Nothing here loads torch.
"""

from __future__ import annotations

from lipcert.audit.drift.network import Drift, drift_of

__all__ = ["Drift", "drift_of"]
