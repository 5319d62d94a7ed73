"""Reasons lead from a bound down to what is assumed, through the bounds of the analysis."""

import math
from pathlib import Path

import pytest

from lipcert import Settings, load_model
from lipcert.analysis.bounded import Bounded, bounded
from lipcert.analysis.reasons import bound_report
from lipcert.errors import UsageError

MODELS = Path(__file__).resolve().parents[2] / "models"


@pytest.fixture(name="found", scope="module", params=["digits_mlp", "digits_resnet_groupnorm"])
def _found(request: pytest.FixtureRequest) -> Bounded:
    return bounded(load_model(MODELS / f"{request.param}.onnx"), Settings(input_box=(0.0, 1.0)))


def _report(found: Bounded, name: str):
    return bound_report(found, "model.onnx", "0" * 64, name)


def _roots(found: Bounded, name: str):
    report = _report(found, name)
    return report.reasons[: report.roots]


def _ends(found: Bounded, name: str):
    return [item for item in _report(found, name).reasons if not item.because]


def test_every_parameter_has_the_bound_of_the_analysis(found: Bounded) -> None:
    for name, bound in found.grad_norms.items():
        (root,) = _roots(found, name)
        assert root.bound == pytest.approx(bound, rel=1e-12)
    whole = _report(found, "G")
    (root,) = _roots(found, "G")
    assert root.bound == pytest.approx(math.hypot(*found.grad_norms.values()), rel=1e-9)
    assert {whole.reasons[part].subject for part in root.because} == set(found.grad_norms)


def test_the_lipschitz_constant_begins_with_a_unit_vector(found: Bounded) -> None:
    (root,) = _roots(found, "L")
    assert root.bound == found.derived.lipschitz
    assert [(x.subject, x.bound) for x in _ends(found, "L")] == [(found.program.output, 1.0)]


def test_values_have_the_bounds_of_the_analysis(found: Bounded) -> None:
    for step in found.program.steps:
        norm, cotangent = _roots(found, step.output)
        assert norm.bound == found.derived.facts[step.output].norm
        assert cotangent.bound == found.derived.cotangents[step.output].norm


def test_reasons_end_in_what_is_assumed(found: Bounded) -> None:
    assert {item.rule for item in _ends(found, "G")} <= {"fact/input", "pull/loss"}


def test_a_factor_is_the_quotient_of_two_bounds_of_one_kind(found: Bounded) -> None:
    reasons = _report(found, "G").reasons
    for item in reasons:
        same = [reasons[part].bound for part in item.because if reasons[part].what == item.what]
        if item.rule != "group" and same:
            assert item.factor == (item.bound or 0.0) / max(bound or 0.0 for bound in same)
        else:
            assert item.factor is None


def test_records_name_each_other_and_never_themselves(found: Bounded) -> None:
    report = _report(found, "G")
    reached = set(range(report.roots))
    for number, record in enumerate(report.reasons):
        assert number not in record.because
        reached |= set(record.because)
    assert reached == set(range(len(report.reasons)))
    factors = [report.reasons[number].factor or 0.0 for number in report.factors]
    known = [x.factor for x in report.reasons if x.factor is not None and x.factor > 1.0]
    assert factors == sorted(known, reverse=True)[:5]


def test_a_name_that_nothing_has_gets_a_hint(found: Bounded) -> None:
    name = next(iter(found.grad_norms))
    with pytest.raises(UsageError, match="did you mean"):
        _report(found, f"{name}x")
