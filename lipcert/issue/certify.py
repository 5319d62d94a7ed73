"""Certify: from the bounds of a network to a certificate that the checker accepts.

What enters: an imported model and the settings of a planned run. What leaves: the bytes of a
certificate, and the checker's report on them.

Invariant: no certificate leaves that the checker rejects, or of a file that the core reads
otherwise than onnxruntime does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import final

from lipcert.analysis.bounded import Bounded, Progress, bounded
from lipcert.analysis.pipeline import reported, require_arguments
from lipcert.analysis.planned import check_complete
from lipcert.analysis.records import Analysis
from lipcert.choices import check_choice
from lipcert.core.budget import Limits
from lipcert.core.certificate import Certificate, write_certificate
from lipcert.core.check import Choices, check
from lipcert.core.verdict import Report, Verdict
from lipcert.errors import CertificationError, NoVerdictError
from lipcert.importer.model import ImportedModel
from lipcert.issue.draft import Draft
from lipcert.settings import Settings
from lipcert.threads import one_thread


@final
@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that was checked, the checker's report, and the analysis of its bounds.

    path: where `lipcert.certify` has written it.
    """

    data: bytes
    certificate: Certificate
    report: Report
    analysis: Analysis
    path: Path | None = None


@one_thread()
def certify(
    model: ImportedModel, settings: Settings, engine: str = "float", observe: Progress | None = None
) -> Issued:
    """A checked certificate of the bounds of a planned run.

    Raises what `analyze` raises, NoVerdictError for what has no certificate, CertificationError
    where the checker rejects what was derived, which is a fault of LipCert.
    """
    check_choice("certify: engine", engine, ("float", "exact"))
    require_arguments("certify", model, settings)
    settings = settings.with_inputs(model.graph.inputs)
    check_complete(settings)
    return issued(model, settings, bounded(model, settings, observe), engine)


@one_thread()
def issued(
    model: ImportedModel, settings: Settings, found: Bounded, engine: str = "float"
) -> Issued:
    """A checked certificate of bounds that were derived; raises what `certify` raises for them."""
    analysis = reported(model, settings, found)
    certificate = Draft(model, settings, found, analysis).finished()
    data = write_certificate(certificate)
    report = check(data, Path(model.path), Choices(engine, limits=Limits(seconds=math.inf)))
    if report.verdict is Verdict.UNKNOWN:
        raise NoVerdictError(f"certify: the checker cannot tell: {'; '.join(report.reasons)}")
    if report.verdict is Verdict.INVALID:
        raise CertificationError(
            f"the checker does not accept what was derived: {'; '.join(report.reasons[:3])}"
        )
    return Issued(data, certificate, report, analysis)
