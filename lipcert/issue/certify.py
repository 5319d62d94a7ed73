"""Certify: from an analysis to a certificate that the checker accepts.

    analysis, model, settings → witnesses → derivation by the checker's rules → certificate → check

What enters: an imported model and the settings of a planned run. What leaves: the bytes of a
certificate, the checker's report on them, and what certifying costs: where the checker's rules
are looser than the engine's, the certificate states the looser bound.

Invariant: no certificate leaves that the checker rejects, or of a file that the checker reads
otherwise than onnxruntime does. Where the engine claims less than the
checker derives from the same rule, that is a fault of one of them, and nothing is issued.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import final

from lipcert.analysis.bounded import Progress
from lipcert.analysis.pipeline import analyze, require_arguments
from lipcert.analysis.records import Analysis
from lipcert.choices import check_choice
from lipcert.core.budget import Limits
from lipcert.core.certificate.records import Certificate, write_certificate
from lipcert.core.check import Choices, check
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from lipcert.core.reader.model import read_model
from lipcert.core.reader.records import Model, ModelReadError
from lipcert.core.verdict import Report, Verdict
from lipcert.errors import CertificationError, NoVerdictError
from lipcert.importer.model import ImportedModel
from lipcert.issue.agreement import check_agreement
from lipcert.issue.costs import Cost
from lipcert.issue.draft import Draft
from lipcert.issue.reading import Reading
from lipcert.settings import Settings
from lipcert.threads import one_thread


@final
@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that was checked: its bytes, the report, and what it costs to be checkable."""

    data: bytes
    certificate: Certificate
    report: Report
    analysis: Analysis
    costs: tuple[Cost, ...]


@one_thread()
def certify(
    model: ImportedModel, settings: Settings, engine: str = "float", observe: Progress | None = None
) -> Issued:
    """A checked certificate of the bounds of a planned run.

    Raises NoVerdictError where the checker does not know the model, or reads it otherwise than
    onnxruntime (`UnsupportedModelError`, LC025), CertificationError where it and the engine
    disagree.
    """
    check_choice("certify: engine", engine, ("float", "exact"))
    require_arguments("certify", model, settings)
    analysis = analyze(model, settings, observe)
    path = Path(model.path)
    try:
        read = read_model(path)
        if read.sha256 != model.sha256:
            raise NoVerdictError(f"certify: {model.path} changed after it was imported")
        output = _output(read, model, settings)
        program = lower(read, output)
    except (Unsupported, ModelReadError) as error:
        raise NoVerdictError(f"certify: the checker does not know this model: {error}") from error
    reading = Reading(read, program, output)
    check_agreement(reading, path, settings.effective_input_box, settings.input_norm)
    draft = Draft(model, settings, analysis, reading, observe)
    reasons: tuple[str, ...] = ()
    for careful in (False, True):  # norms that the checker cannot prove are left out at need
        certificate, costs = draft.finished(careful=careful)
        data = write_certificate(certificate)
        report = check(data, path, Choices(engine, limits=Limits(seconds=math.inf)))
        if report.verdict in {Verdict.VALID, Verdict.CONDITIONAL}:
            return Issued(data, certificate, report, analysis, costs)
        if report.verdict is Verdict.UNKNOWN:
            raise NoVerdictError(f"certify: the checker cannot tell: {'; '.join(report.reasons)}")
        reasons = report.reasons
    raise CertificationError(
        f"the checker does not accept what was derived: {'; '.join(reasons[:3])}"
    )


def _output(read: Model, model: ImportedModel, settings: Settings) -> str:
    """The output in the file that the graph ends in."""
    if settings.output is not None:
        return settings.output
    name = model.graph.output_name
    return name if name in read.outputs else read.outputs[-1]
