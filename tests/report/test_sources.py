"""Documents of one model become one study; whatever does not belong together is refused."""

import copy
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.errors import LipCertError, NoVerdictError, UsageError
from lipcert.report.analysis import analysis_json
from lipcert.report.document import Charts
from lipcert.report.sources import (
    ANALYSIS,
    AUDIT,
    CHECK,
    PRIVACY,
    joined,
    read_source,
    study_documents,
    study_report,
)
from tests.report import audit_samples
from tests.report.html.documents import RUN, analysis_source, audit_source, of_one_model
from tests.report.samples import sample

CHECKED = {
    "schema": "lipcert.check/1",
    "verdict": "valid",
    "certificate": "cd" * 32,
    "reasons": [],
    "promise": ["It holds."],
    "assumptions": [
        {"id": "A-INPUT", "status": "declared", "text": "small", "open": False},
        {"id": "A-LOSS", "status": "declared", "text": "declared", "open": True},
        {"id": "A-PERSAMPLE", "status": "checked", "text": "checked", "open": False},
    ],
    "steps": [{"number": 0, "name": "it is well-formed", "ok": True}],
}


def check_source():
    return read_source("check.json", CHECKED)


def privacy_source(**members: object):
    document = {
        "schema": "lipcert.privacy/1",
        "solved_for": "epsilon",
        "privacy": RUN,
        "curves": {},
        "diagnostics": [],
    }
    return read_source("p.json", {**document, **members})


def test_the_parts_of_one_model_are_joined() -> None:
    study = joined([audit_source(of_one_model(audit_samples.passed())), analysis_source()])
    assert study.model_sha256 == sample().model.sha256
    assert [source.schema for source in study.by_kind.values()] == [ANALYSIS, AUDIT]
    assert [document.title for document in study_documents(study)] == [
        "LipCert analysis",
        "LipCert audit",
    ]


def test_two_models_are_refused_by_name() -> None:
    other = replace(audit_samples.passed(), model_sha256="cd" * 32)
    with pytest.raises(UsageError, match=r"conv1\.json is about .* audit\.json about cdcd"):
        joined([analysis_source(), audit_source(other)])


def test_two_of_a_kind_are_refused() -> None:
    with pytest.raises(UsageError, match=r"both lipcert\.analysis/1"):
        joined([analysis_source(), analysis_source()])


def test_a_check_beside_others_needs_its_certificate() -> None:
    assert joined([check_source()]).record(CHECK) is not None
    with pytest.raises(UsageError, match="give its certificate as well"):
        joined([analysis_source(), check_source()])


def test_another_run_is_refused() -> None:
    with pytest.raises(UsageError, match="another run"):
        joined([analysis_source(run=True), privacy_source(privacy={**RUN, "steps": 7})])
    assert joined([analysis_source(run=True), privacy_source()]).record(PRIVACY) is not None


def test_curves_of_a_document_are_drawn_as_they_are() -> None:
    points = [{"steps": t, "noise_multiplier": 2.0, "epsilon": 0.1 * t} for t in (1, 2, 3)]
    study = joined([privacy_source(curves={"steps": points})])
    found = {
        figure.key: figure
        for document in study_documents(study)
        for section in document.sections
        for part in section.parts
        if isinstance(part, Charts)
        for figure in part.rows
    }
    assert found["epsilon-steps"].rows == [("1", 0.1), ("2", 0.2), ("3", 0.1 * 3)]
    assert "by privacy loss distributions" in found["epsilon-steps"].caption
    assert "by Rényi divergences" in found["epsilon-sigma"].caption


def test_an_unknown_document_is_refused() -> None:
    with pytest.raises(NoVerdictError, match=r"from schema 'lipcert\.analysis/2'"):
        read_source("x.json", {"schema": "lipcert.analysis/2"})


def test_the_status_of_assumptions_is_that_of_the_check() -> None:
    (document,) = study_documents(joined([check_source()]))
    (assumed,) = next(x for x in document.sections if x.title == "What is assumed").parts
    assert [row.status for row in assumed.rows] == ["accepted", "to be accepted", "checked"]


def test_findings_of_a_later_version_are_refused() -> None:
    later = {"code": "LC998", "level": "error", "node": "fc", "message": "new", "remedy": "update"}
    analysis = json.loads(analysis_json(sample()))
    analysis["diagnostics"].append(later)
    with pytest.raises(NoVerdictError, match="LC998 is not registered"):
        read_source("a.json", analysis)


def test_an_assumption_that_no_verb_makes_is_refused() -> None:
    analysis = json.loads(analysis_json(sample()))
    analysis["assumptions"]["neighbours"] = "sideways"
    study = joined([read_source("a.json", analysis)])
    with pytest.raises(NoVerdictError, match=r"a\.json: not a complete document .*sideways"):
        study_report(study, "html")


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
)


@given(st.data(), values)
def test_a_damaged_document_is_refused_or_printed(data: st.DataObject, value: object) -> None:
    """Never an internal error: any member may be missing or of any type."""
    sources = [analysis_source(run=True), audit_source(of_one_model(audit_samples.passed()))]
    which = data.draw(st.integers(0, 1))
    document = copy.deepcopy(dict(sources[which].document))
    place: object = document
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(list(keys)))
        if place[key] and isinstance(place[key], dict | list) and data.draw(st.booleans()):
            place = place[key]
            continue
        break
    if isinstance(place, dict) and data.draw(st.booleans()):
        del place[key]
    else:
        place[key] = value
    document.pop("privacy", None)  # its curves take long
    try:
        sources[which] = read_source("damaged.json", document)
        page = study_report(joined(list(sources)), "html")
    except LipCertError:
        return
    assert "</html>" in page
