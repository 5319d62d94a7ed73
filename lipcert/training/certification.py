"""Certification: a certificate before the first step, and noise that is set by it.

What enters: an imported model and its bounds. What leaves: a certificate that the checker has
accepted, and the noise of a run for the bounds that it states: they exceed those that were derived
by a margin for rounding on other machines. Invariant: a run that has a certificate is noised for
it.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import final

from lipcert.analysis.bounded import Bounded
from lipcert.core.certificate import Certificate
from lipcert.errors import CertificationError, NoVerdictError
from lipcert.importer.model import ImportedModel
from lipcert.issue.certify import Issued, issued
from lipcert.settings import Settings
from lipcert.training.calibration import Calibration, recalculated


@final
class CertificateWarning(UserWarning):
    """A run that is bounded and has no certificate."""


def certified(model: ImportedModel, settings: Settings, found: Bounded) -> Issued | str:
    """A certificate of bounds that were derived; where there can be none, why, with a warning."""
    try:
        made = issued(model, settings, found)
    except (NoVerdictError, CertificationError) as error:
        reason = str(error)
    else:
        if made.certificate.groups or not found.groups:
            return made
        reason = "the file does not hold the trained parameters as tensors of their own"
    warn_uncertified(reason)
    return reason


def as_certified(planned: Calibration, certificate: Certificate) -> Calibration:
    """The same run, noised for what is stated of its groups."""
    stated = {claim.name: claim.grad_norm for claim in certificate.groups}
    return recalculated(planned, [stated[group.name] for group in planned.groups])


def warn_uncertified(reason: str) -> None:
    """Told when a run begins, and again at its end, when the beginning is long scrolled away."""
    warnings.warn(
        f"the run is bounded, and has no certificate: {reason}", CertificateWarning, stacklevel=4
    )


def write_certificate(data: bytes, path: Path) -> None:
    """Write the file in one go."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(data)
    os.replace(partial, path)
