"""Reasons lead from a bound down to what is assumed, through the bounds of the analysis."""

import math
from pathlib import Path

import pytest

from lipcert import Settings, load_model
from lipcert.analysis.bounded import Bounded, bounded
from lipcert.analysis.reasons import Reason, bound_report, largest_factors, reasons
from lipcert.errors import UsageError

MODELS = Path(__file__).resolve().parents[2] / "models"


@pytest.fixture(name="found", scope="module", params=["digits_mlp", "digits_resnet_groupnorm"])
def _found(request: pytest.FixtureRequest) -> Bounded:
    return bounded(load_model(MODELS / f"{request.param}.onnx"), Settings(input_box=(0.0, 1.0)))


def test_every_parameter_has_the_bound_of_the_analysis(found: Bounded) -> None:
    for name, bound in found.grad_norms.items():
        (root,) = reasons(found, name)
        assert root.bound == pytest.approx(bound, rel=1e-12)
    (whole,) = reasons(found, "G")
    assert whole.bound == pytest.approx(math.hypot(*found.grad_norms.values()), rel=1e-9)
    assert {part.subject for part in whole.because} == set(found.grad_norms)


def test_the_lipschitz_constant_begins_with_a_unit_vector(found: Bounded) -> None:
    (root,) = reasons(found, "L")
    assert root.bound == found.derived.lipschitz
    ends = [item for item in root.all() if not item.because]
    assert [(item.subject, item.bound) for item in ends] == [(found.program.output, 1.0)]


def test_values_have_the_bounds_of_the_analysis(found: Bounded) -> None:
    for step in found.program.steps:
        norm, cotangent = reasons(found, step.output)
        assert norm.bound == found.derived.facts[step.output].norm
        assert cotangent.bound == found.derived.cotangents[step.output].norm


def test_reasons_end_in_what_is_assumed(found: Bounded) -> None:
    (root,) = reasons(found, "G")
    ends = {item.rule for item in root.all() if not item.because}
    assert ends <= {"fact/input", "ball/input", "pull/loss"}


def test_a_factor_is_the_quotient_of_two_bounds_of_one_kind() -> None:
    below = Reason("norm", "x", 2.0, "fact/input", "as assumed")
    other = Reason("cotangent", "y", 100.0, "pull/loss", "")
    above = Reason("norm", "y", 6.0, "fact/step", "", (below, other))
    assert above.factor == 3.0
    assert math.isnan(below.factor)
    assert largest_factors(above) == (above,)


def test_records_name_each_other_and_never_themselves(found: Bounded) -> None:
    report = bound_report(found, "model.onnx", "0" * 64, "G")
    reached = set(range(report.roots))
    for number, record in enumerate(report.reasons):
        assert number not in record.because
        reached |= set(record.because)
    assert reached == set(range(len(report.reasons)))
    factors = [report.reasons[number].factor or 0.0 for number in report.factors]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] > 1.0


def test_a_name_that_nothing_has_gets_a_hint(found: Bounded) -> None:
    name = next(iter(found.grad_norms))
    with pytest.raises(UsageError, match="did you mean"):
        reasons(found, f"{name}x")
