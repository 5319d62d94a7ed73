"""Certification: a certificate before the first step, and noise that is set by it.

What enters: an imported model and the noise of a run as the engine would set it. What leaves: the
bytes of a certificate that the checker has accepted, and the noise with every bound at least the
one that is certified: where the checker's rules are looser than the engine's, the certificate
states more, and the run must be noised for what is stated. Invariant: a run that has a certificate
is noised for it.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import final

from lipcert.analysis.bounded import Progress
from lipcert.errors import CertificationError, NoVerdictError
from lipcert.importer.model import ImportedModel
from lipcert.issue.certify import certify
from lipcert.training.calibration import Calibration, recalculated
from lipcert.upper import Upper


@final
class CertificateWarning(UserWarning):
    """A run that is bounded and has no certificate."""


def certified(
    model: ImportedModel, planned: Calibration, observe: Progress | None = None
) -> tuple[bytes | str, Calibration]:
    """A certificate of the run, and its noise; where there can be none, why, with a warning."""
    try:
        issued = certify(model, planned.settings, observe=observe)
    except (NoVerdictError, CertificationError) as error:
        warn_uncertified(str(error))
        return str(error), planned
    claims = {claim.name: Upper(claim.grad_norm) for claim in issued.certificate.groups}
    groups = tuple(
        replace(group, grad_norm=max(group.grad_norm, claims[group.name]))
        for group in planned.bounds.groups
    )
    return issued.data, recalculated(planned, replace(planned.bounds, groups=groups))


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
