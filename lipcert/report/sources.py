"""Sources: one report of a model from the documents of several verbs, shown in turn.

`read_source` reads one document as the record from which its verb writes it, a certificate as
strictly as the checker does. `joined` refuses what does not belong together, since a report has one
subject: documents of different models, two of one kind, or a check without its certificate. Each
document is then shown as its verb does, with charts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from lipcert.analysis.records import Analysis, BoundReport
from lipcert.core.certificate import SCHEMA as CERTIFICATE
from lipcert.core.certificate import CertificateFormatError
from lipcert.errors import NoVerdictError, UsageError
from lipcert.report.analysis import analysis_document
from lipcert.report.audit import audit_document
from lipcert.report.audit_json import audit_from_document
from lipcert.report.certificate import (
    Check,
    Claimed,
    certificate_document,
    check_document,
)
from lipcert.report.charts import (
    analysis_figures,
    audit_figures,
    certificate_figures,
    privacy_figures,
)
from lipcert.report.document import Document, Statements
from lipcert.report.json import DOCUMENT, FieldError, JsonObject, dump
from lipcert.report.markdown import markdown
from lipcert.report.privacy import PrivacyReport, privacy_document
from lipcert.report.reasons import SCHEMA as BOUND
from lipcert.report.reasons import bound_document
from lipcert.version import __version__

ANALYSIS: Final = "lipcert.analysis/1"
CHECK: Final = "lipcert.check/1"
AUDIT: Final = "lipcert.audit/1"
PRIVACY: Final = "lipcert.privacy/1"


@dataclass(frozen=True, slots=True)
class Source:
    """A document: its path ("": it is not in a file), its kind, its object, and the record that was
    read from that."""

    path: str
    schema: str
    document: Mapping[str, object]
    record: Any


def read_source(path: str, document: Mapping[str, object], data: bytes = b"") -> Source:
    """Read a document in a file. data: its bytes, from which a certificate is read."""
    schema = document.get("schema")
    if not isinstance(schema, str):
        raise NoVerdictError(f"{path}: not a document of LipCert (it has no schema)")
    try:
        # Python reads NaN and Infinity, which JSON has no word for and LipCert never writes
        json.dumps(document, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise NoVerdictError(f"{path}: not JSON as LipCert writes it ({error})") from error
    if schema not in KINDS:
        raise NoVerdictError(
            f"{path}: no report can be made from schema {schema!r}; "
            f"give files of {', '.join(kind.command for kind in KINDS.values())}"
        )
    kind = KINDS[schema]
    try:
        return Source(path, schema, document, kind.read(document, data))
    except NoVerdictError as error:
        raise NoVerdictError(f"{path}: {error}") from error
    except FieldError as error:
        raise NoVerdictError(
            f"{path}: not a complete document ({error}); write it again with `{kind.command}`"
        ) from error
    except (CertificateFormatError, OverflowError, ValueError) as error:
        raise NoVerdictError(f"{path}: not a certificate ({error})") from error


def read_analysis(document: Mapping[str, object]) -> Analysis:
    """Return the analysis in a document; `FieldError` if it is incomplete."""
    found = DOCUMENT.read(Analysis, document, "analysis")
    loss = {name: said for name, said in found.assumptions.loss.items() if name != "reduction"}
    return replace(found, assumptions=replace(found.assumptions, loss=loss))


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of document that a report may contain.

    command: the one that writes it. show: makes a document of it, with at most so many rows per
    table. model: returns the digest of its model, "" if it names none.
    """

    command: str
    read: Callable[[Mapping[str, object], bytes], Any]
    show: Callable[[Any, Study, int | None], Document]
    model: Callable[[Any], str] = lambda _: ""


KINDS: Final[Mapping[str, _Kind]] = MappingProxyType(
    {
        ANALYSIS: _Kind(
            "lipcert analyze --format json",
            lambda document, _: read_analysis(document),
            lambda found, study, most: analysis_document(found, most).charted(
                analysis_figures(found, None if PRIVACY in study.by_kind else found.privacy)
            ),
            lambda found: found.model.sha256,
        ),
        CERTIFICATE: _Kind(
            "lipcert certify",
            lambda _, data: Claimed.read(data),
            lambda found, study, most: certificate_document(
                found, most, is_checked=CHECK in study.by_kind
            ).charted(() if ANALYSIS in study.by_kind else certificate_figures(found)),
            lambda found: found.certificate.model.sha256,
        ),
        CHECK: _Kind(
            "lipcert check --format json",
            lambda document, _: DOCUMENT.read(Check, document, "check"),
            lambda found, _, __: check_document(found),
        ),
        BOUND: _Kind(
            "lipcert explain MODEL --bound NAME --format json",
            lambda document, _: DOCUMENT.read(BoundReport, document, "bound"),
            lambda found, _, most: bound_document(found, most),
            lambda found: found.sha256,
        ),
        AUDIT: _Kind(
            "lipcert audit --format json",
            lambda document, _: audit_from_document(document),
            lambda found, _, most: audit_document(found, most).charted(audit_figures(found)),
            lambda found: found.model_sha256,
        ),
        PRIVACY: _Kind(
            "lipcert privacy --format json",
            lambda document, _: DOCUMENT.read(PrivacyReport, document, "privacy"),
            lambda found, _, __: privacy_document(found).charted(
                privacy_figures(found.privacy, found.curves)
            ),
        ),
    }
)
"""Kinds by schema, in the order of a report."""


@dataclass(frozen=True, slots=True)
class Study:
    """Several documents about one model. by_kind: in the order of a report."""

    sources: tuple[Source, ...]
    by_kind: Mapping[str, Source]

    def record(self, schema: str) -> Any:
        """Return the record of the document of this kind; None if there is none."""
        return self.by_kind[schema].record if schema in self.by_kind else None

    @property
    def model_path(self) -> str:
        """The path of the model, if a document names it."""
        analysis = self.record(ANALYSIS)
        if analysis is not None:
            return str(analysis.model.path)
        return next((str(x.model) for x in map(self.record, (AUDIT, BOUND)) if x is not None), "")

    @property
    def model_sha256(self) -> str | None:
        """The digest of the model; None if no document names it."""
        return next(filter(None, map(_model, self.by_kind.values())), None)


def _model(source: Source) -> str:
    return KINDS[source.schema].model(source.record)


def joined(sources: Sequence[Source]) -> Study:
    """Join documents about one model."""
    found: dict[str, Source] = {}
    for source in sources:
        if source.schema in found:
            raise UsageError(
                f"report: {found[source.schema].path} and {source.path} are both "
                f"{source.schema}; give one of a kind"
            )
        found[source.schema] = source
    study = Study(tuple(sources), {name: found[name] for name in KINDS if name in found})
    named = [source for source in study.by_kind.values() if _model(source)]
    for source in named[1:]:
        if _model(source) != _model(named[0]):
            raise UsageError(
                f"report: {named[0].path} is about the model {_model(named[0])[:12]}, "
                f"{source.path} about {_model(source)[:12]}; write one report for each"
            )
    _require_certificate(study)
    analysis, privacy = study.record(ANALYSIS), study.record(PRIVACY)
    if analysis is not None and analysis.privacy is not None and privacy is not None:
        own, other = analysis.privacy, privacy.privacy
        if (own.plan, own.noise_multiplier) != (other.plan, other.noise_multiplier):
            raise UsageError(
                f"report: {found[PRIVACY].path} is about another run than {found[ANALYSIS].path}; "
                "leave one of them out"
            )
    return study


def _require_certificate(study: Study) -> None:
    """Require the certificate of a check: the check names only that, not its model."""
    check, claimed = study.record(CHECK), study.record(CERTIFICATE)
    if check is None or len(study.by_kind) == 1:
        return
    path = study.by_kind[CHECK].path
    if claimed is None:
        raise UsageError(f"report: {path} does not name its model; give its certificate as well")
    if claimed.sha256 != check.certificate:
        raise UsageError(
            f"report: {path} is a check of the certificate {check.certificate[:12]}, "
            f"{study.by_kind[CERTIFICATE].path} is {claimed.sha256[:12]}; check it again"
        )


def study_facts(study: Study) -> Statements:
    """Return what the documents are about."""
    claimed = study.record(CERTIFICATE)
    files = [source.path for source in study.sources if source.path]
    rows = [
        ("model", study.model_path),
        ("sha256", study.model_sha256 or ""),
        ("certificate sha256", "" if claimed is None else claimed.sha256),
        ("made from", ", ".join(files)),
    ]
    return Statements.of((topic, text) for topic, text in rows if text)


def study_documents(study: Study, most: int | None = 300) -> Iterator[Document]:
    """Yield the documents with charts; tables have at most `most` rows.

    Raises:
        NoVerdictError: if a record says something that its verb never does.
    """
    for schema, source in study.by_kind.items():
        try:
            yield KINDS[schema].show(source.record, study, most)
        except (LookupError, TypeError, ValueError) as error:
            raise NoVerdictError(
                f"{source.path}: not a complete document ({error}); write it again with "
                f"`{KINDS[schema].command}`"
            ) from error


def study_report(study: Study, name: str) -> str:
    """Return the study as "html", "markdown" or "json"."""
    if name == "json":
        return dump(study_object(study))
    documents, facts = tuple(study_documents(study)), study_facts(study)
    if name == "html":
        from lipcert.report.html import page_html

        return page_html(facts, documents, study_object(study))
    return markdown(Document("LipCert report", (), facts), *documents)


def page_of(document: str) -> str:
    """Return the page of one document that is in no file."""
    return study_report(joined([read_source("", json.loads(document))]), "html")


def study_object(study: Study) -> JsonObject:
    """Return `lipcert.report/1`: every document unchanged."""
    return {
        "schema": "lipcert.report/1",
        "tool": {"name": "lipcert", "version": __version__},
        "model": {"path": study.model_path, "sha256": study.model_sha256},
        "sources": [
            {"path": source.path, "schema": source.schema, "document": source.document}
            for source in study.sources
        ],
    }
