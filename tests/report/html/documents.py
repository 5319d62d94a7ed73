"""Documents for pages: what the verbs would have written, made from the samples of the reports."""

import json
from dataclasses import replace
from functools import cache

from lipcert.report.analysis import analysis_json
from lipcert.report.audit_json import audit_json
from lipcert.report.sources import Source, joined, read_source, study_report
from tests.report import audit_samples
from tests.report.samples import sample

RUN: dict[str, object] = {
    "epsilon": 2.5,
    "delta": 1e-5,
    "noise_multiplier": 2.0,
    "allocation": "global",
    "sampling": "poisson",
    "steps": 450,
    "accountant": "pld",
    "neighbours": "add-remove",
    "dataset_size": 1437,
    "dataset_size_from": "declared",
    "batch_size": 64,
    "participations": 450,
    "estimates": {"pld": 2.5, "rdp": 2.75},
    "poisson_epsilon": None,
    "claimed_epsilon": None,
    "zcdp": None,
    "statement": {"unit": "one of 1437 examples"},
}


def analysis_source(name: str = "conv1", run: bool = False) -> Source:
    document = json.loads(analysis_json(sample(name)))
    if run:
        document["privacy"] = RUN
    return read_source(f"{name}.json", document)


def audit_source(report) -> Source:
    return read_source("audit.json", json.loads(audit_json(report)))


def of_one_model(report):
    """The audit of the model that the sample analysis is about."""
    return replace(report, model_sha256=sample().model.sha256)


def page(*sources: Source) -> str:
    return study_report(joined(sources), "html")


@cache
def full_page() -> str:
    """A page with every chart."""
    return page(analysis_source(run=True), audit_source(of_one_model(audit_samples.passed())))
