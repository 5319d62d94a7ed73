"""Claims from an analysis and from its certificate speak of the same things."""

from dataclasses import replace
from functools import cache

import pytest

from lipcert.analysis.certificate import certify
from lipcert.audit.bounds import claims_at, claims_of_analysis, claims_of_certificate, settings_of
from lipcert.errors import NoVerdictError
from lipcert.graph.ir import graph_at, parameters_of
from lipcert.importer.load import load_model
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.models.shipped import path_of
from tests.plans import planned
from tests.written import model_of

SETTINGS = {
    "defaults": Settings(),
    "run": Settings(
        **planned(1000, 64, 1.1, steps=100, input_norm=4.0, freeze=("*.bias",)),
        loss="cross-entropy",
        temperature=2.0,
        label_smoothing=0.1,
    ),
    "constrained": Settings(
        loss="cross-entropy",
        mechanism="clipless",
        constraint=ConstraintSpec("spectral", 1.0),
        bias_norm=0.5,
    ),
    "clipped": Settings(
        mechanism="gradient-clipping", clip_norm=0.7, clip_scope="group", scope="point"
    ),
    "other loss": Settings(loss="mse", label_norm=1.0, half=True, loss_clip=0.5),
}


@pytest.fixture(scope="module")
def model():
    return load_model(path_of("digits_mlp"), trusted=True)


@cache
def certificate_of(name: str):
    return certify(load_model(path_of("digits_mlp"), trusted=True), SETTINGS[name]).certificate


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_certificate_claims_what_the_analysis_says(model, name: str) -> None:
    analysed = claims_of_analysis(model, SETTINGS[name])
    certificate = certificate_of(name)
    certified = claims_of_certificate(model, certificate, "it")
    assert certified.origin == "it"
    assert [g.name for g in certified.groups] == [g.name for g in analysed.groups]
    for ours, theirs in zip(certified.groups, analysed.groups, strict=True):
        assert (ours.parameters, ours.dimension) == (theirs.parameters, theirs.dimension)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-6)  # room for proofs
    assert certified.values.keys() == analysed.values.keys()
    assert certified.cotangents.keys() == analysed.cotangents.keys() - {"image"}
    trained = {p.name for p in analysed.engine.graph.parameters.values() if p.trainable}
    assert {claim.name for claim in certified.certificate.parameters} == trained
    assert certified.engine.loss == analysed.engine.loss


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["run", "constrained"])
def test_the_settings_of_a_certificate_certify_the_same_again(model, name: str) -> None:
    first = certificate_of(name)
    again = certify(model, settings_of(first, model.path)).certificate
    assert again.assumptions == first.assumptions
    assert again.scope == first.scope
    assert [(g.name, g.grad_norm, g.sensitivity) for g in again.groups] == [
        (g.name, g.grad_norm, g.sensitivity) for g in first.groups
    ]


def test_claims_are_made_anew_under_weight_clipping_alone(model) -> None:
    held = {"constraint": ConstraintSpec("spectral", 1.0), "bias_norm": 0.5}
    anew = claims_of_analysis(model, Settings(mechanism="weight-clipping", tier="quick", **held))
    throughout = claims_of_analysis(model, Settings(mechanism="clipless", tier="quick", **held))
    own = parameters_of(anew.engine.graph)
    halved = {name: 0.25 * numbers for name, numbers in own.items()}
    assert claims_at(throughout, halved) is throughout
    assert claims_at(anew, own) is anew
    there = claims_at(anew, halved)
    direct = claims_of_analysis(model_of(graph_at(model.graph, halved)), anew.settings)
    for ours, theirs in zip(there.groups, direct.groups, strict=True):
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-9)
    assert there.values == pytest.approx(direct.values, rel=1e-9)
    back = claims_at(there, own)
    assert [g.grad_norm for g in back.groups] == [g.grad_norm for g in anew.groups]
    assert [g.name for g in there.groups] == [g.name for g in anew.groups]
    for small, large in zip(there.groups, anew.groups, strict=True):
        assert 0.0 < (small.grad_norm or 0.0) < (large.grad_norm or 0.0)


def test_a_certificate_at_a_point_keeps_its_numbers_there(model) -> None:
    wanted = Settings(
        loss="cross-entropy",
        input_norm=1.0,
        mechanism="weight-clipping",
        constraint=ConstraintSpec("spectral", 50.0),
        bias_norm=20.0,
    )
    certified = claims_of_certificate(model, certify(model, wanted).certificate, "it")
    own = parameters_of(certified.engine.graph)
    assert claims_at(certified, own) is certified
    there = claims_at(certified, {name: 0.25 * numbers for name, numbers in own.items()})
    assert [g.name for g in there.groups] == [g.name for g in certified.groups]
    assert there.groups != certified.groups


def test_another_model_is_refused(model) -> None:
    certificate, read = certificate_of("defaults"), model.reading
    other = replace(model, reading=replace(read, model=replace(read.model, sha256="0" * 64)))
    with pytest.raises(NoVerdictError, match="give the model that was certified"):
        claims_of_certificate(other, certificate, "it")
