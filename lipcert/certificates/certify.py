"""Certify: from the bounds of a network to a certificate that the checker accepts.

What enters: an imported model and the settings of a planned run. What leaves: the bytes of a
certificate, and the checker's report on them.

Invariant: no certificate leaves that the checker rejects, or of a file that the core reads
otherwise than onnxruntime does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from lipcert.analysis.bounded import Bounded, Progress, bounded
from lipcert.analysis.pipeline import reported, require_arguments
from lipcert.analysis.planned import check_complete, plan_of
from lipcert.analysis.records import Analysis
from lipcert.certificates.draft import Draft
from lipcert.core.budget import Limits
from lipcert.core.certificate import Certificate, write_certificate
from lipcert.core.check import Choices, check
from lipcert.core.verdict import Report, Verdict
from lipcert.errors import CertificationError, NoVerdictError
from lipcert.importer.model import ImportedModel
from lipcert.process.threads import one_thread
from lipcert.settings.choices import check_choice
from lipcert.settings.settings import Settings


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
    settings = _stated_alike(settings)
    return issued(model, settings, bounded(model, settings, observe), engine)


def _stated_alike(settings: Settings) -> Settings:
    """The same run in the words of certificates, which know the rate B/N: what is drawn more
    rarely has no larger ε. Raises NoVerdictError for what is drawn more often."""
    plan = plan_of(settings)
    if plan is None or plan.rate is None:
        return settings
    if plan.rate * plan.dataset_size > plan.batch * (1.0 + 2.0**-50):
        raise NoVerdictError(
            f"certify: a certificate states the rate B/N, and {plan.rate:.9g} is above "
            f"{plan.batch}/{plan.dataset_size}; give the --batch-size that it is of at least, "
            "and divide by it"
        )
    return replace(settings, sampling_rate=None, steps=plan.releases, epochs=None)


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
