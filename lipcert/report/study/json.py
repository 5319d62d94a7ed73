"""The combined document: `lipcert.report/1` holds every document of a study as it was."""

from __future__ import annotations

from lipcert.report.json import JsonObject, dump
from lipcert.report.study.records import Study
from lipcert.version import __version__


def study_document(study: Study) -> JsonObject:
    """The study as an object of JSON."""
    return {
        "schema": "lipcert.report/1",
        "tool": {"name": "lipcert", "version": __version__},
        "model": {"path": study.model_path, "sha256": study.model_sha256},
        "sources": [
            {"path": source.path, "schema": source.schema, "document": source.document}
            for source in study.sources
        ],
    }


def study_json(study: Study) -> str:
    """Its text."""
    return dump(study_document(study))
