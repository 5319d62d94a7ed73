"""Conclusions from hand-made results: what outweighs what, and that nothing fails open."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.stats import norm

from lipcert.audit.checks import Checked, run_checks
from lipcert.audit.conclusion import conclude, with_check
from lipcert.audit.job import Job, Kind, Unit
from lipcert.audit.prepared_job import Ready, prepare
from lipcert.audit.records import AuditReport, Check, CheckReport, ExampleReference, Verdict
from lipcert.audit.replay import audit_unit
from lipcert.audit.unit_results import ALL, FAMILIES, Family, Findings, Tally, UnitResult, total_of
from lipcert.settings.gates import Gates
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.models.shipped import path_of
from tests.report.audit_samples import passed

NOTHING = Checked()
GOOD = CheckReport("LC310", "weight-constraint", Verdict.PASS, "all obey")
CONTRIBUTION = CheckReport("LC312", "contribution", Verdict.PASS, "none exceeds")


@cache
def ready() -> Ready:
    """Of two units: one replay would do, but a job knows its number of units."""
    job = Job(str(path_of("digits_mlp")), Settings(), attack_steps=1)
    found = prepare(job)
    return replace(found, units=tuple(replace(found.units[0], number=n) for n in range(2)))


def tally(norm: float = 1.0, **changes: int) -> Tally:
    found = Tally(examples=5, max_observed=norm, worst=ExampleReference("model", 3))
    return replace(found, **changes)


def result(
    number: int,
    groups=None,
    *,
    kind: Kind = Kind.REPLAY,
    examples: int = 5,
    more=None,
    checks: tuple[CheckReport, ...] = (),
) -> UnitResult:
    names = [group.name for group in ready().claims.groups]
    tallies = {family: {} for family in FAMILIES}
    tallies[Family.GRADIENT] = {name: tally() for name in names} | dict(groups or {})
    unit = Unit(number, kind, "model", "data", 0, examples)
    return UnitResult(unit, Findings(examples, tallies | dict(more or {}), checks))


@pytest.mark.sample(1)
@pytest.mark.parametrize("steps", [0, 2])
def test_weights_outside_their_constraints_are_never_a_pass(steps: int, tmp_path) -> None:
    """With data or an attack alone, by the weights and by the replay that judges nothing."""
    path = tmp_path / "batch.npz"
    np.savez(path, x=np.zeros((4, 64), dtype=np.float32), y=np.zeros(4, dtype=np.int64))
    settings = Settings(scope="constraint-set", constraint=ConstraintSpec("spectral", 0.1))
    data = None if steps else str(path)
    job = Job(str(path_of("digits_mlp")), settings, data=data, attack_steps=steps)
    found = prepare(job)
    (unit,) = found.units
    replayed = total_of([audit_unit(found, unit)])
    alone = conclude(found, replayed, NOTHING, seconds=1.0)
    assert alone.verdict is Verdict.INCONCLUSIVE
    assert all(group.violations == 0 for group in alone.groups)
    both = conclude(found, replayed, run_checks(found), seconds=1.0)
    assert both.verdict is Verdict.MISMATCH


def concluded(
    *results: UnitResult, checked: Checked = NOTHING, at: Ready | None = None
) -> AuditReport:
    return conclude(at or ready(), total_of(results), checked, seconds=1.0)


def codes(report: AuditReport) -> list[str]:
    return [reason[1:6] for reason in report.reasons]


def test_all_is_well() -> None:
    report = concluded(result(0), result(1))
    assert (report.verdict, report.reasons) == (Verdict.PASS, ())
    assert (report.examples, report.units, report.units_done) == (10, 2, 2)
    assert report.groups[0].max_attacked is None


def of(quantity: Family, norm: float):
    return {"more": {quantity: {"linear": tally(norm, violations=1)}}}


ONE_IS_ENOUGH = {
    "a gradient": (
        {"groups": {"hidden2": tally(9.0, violations=2)}}, Verdict.VIOLATION, "LC301", "hidden2"
    ),
    "a value": (of(Family.VALUE, 9.0), Verdict.VIOLATION, "LC302", "the norm of linear"),
    "a cotangent": (of(Family.COTANGENT, 9.0), Verdict.VIOLATION, "LC303", "respect to linear"),
    "undecided": ({"groups": {"hidden1": tally(undecided=1)}}, Verdict.INCONCLUSIVE, "LC305", ""),
    "infinite": (
        {"groups": {"hidden1": tally(math.inf, violations=1)}}, Verdict.VIOLATION, "LC306", ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_IS_ENOUGH)
def test_what_one_unit_finds_decides(name: str) -> None:
    found, verdict, code, says = ONE_IS_ENOUGH[name]
    report = concluded(result(0), result(1, **found))
    assert (report.verdict, codes(report)) == (verdict, [code])
    assert says in report.reasons[0]
    if name == "infinite":
        assert report.groups[0].max_observed == report.groups[0].tightness == math.inf


def test_the_attack_counts_for_verdicts_and_not_for_examples() -> None:
    bad = {"classifier": tally(99.0, violations=1)}
    report = concluded(result(0), result(1, bad, kind=Kind.ATTACK))
    assert report.verdict is Verdict.VIOLATION
    assert report.examples == 5
    group = report.groups[2]
    assert (group.max_observed, group.max_attacked) == (1.0, 99.0)


def first_bounded_by(norm: float) -> Ready:
    claims = ready().claims
    groups = (replace(claims.groups[0], grad_norm=norm), *claims.groups[1:])
    return replace(ready(), claims=replace(claims, groups=groups))


def gated(at: Ready, **limits: float) -> Ready:
    return replace(at, job=replace(at.job, gates=Gates(**limits)))


def whole(norm: float):
    bound = ready().claims.grad_norm
    return {Family.WHOLE: {ALL: replace(tally(norm), bound=bound, sizes={-64: 5})}}


def without(norm: float | None):
    """Of a slack that is not known."""
    return lambda: concluded(
        *(result(n, more={} if norm is None else whole(norm)) for n in range(2)),
        at=gated(ready(), max_slack=1e300),
    )


OPEN = {
    "a missing unit": (lambda: concluded(result(1)), "LC318", "1 of 2 units"),
    "a group without a bound": (
        lambda: concluded(result(0), result(1), at=first_bounded_by(math.inf)), "LC102", "",
    ),
    "nothing trained": (
        lambda: concluded(
            result(0), result(1), at=replace(ready(), claims=replace(ready().claims, groups=()))
        ),
        "LC300", "",
    ),
    "an epsilon of no run": (
        lambda: concluded(result(0), result(1), at=gated(ready(), max_epsilon=1e300)),
        "LC111", "--dataset-size",
    ),
    "no slack": (without(None), "LC111", ""),
    "a slack of nothing": (without(0.0), "LC111", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_what_is_not_known_is_no_pass(name: str) -> None:
    made, code, says = OPEN[name]
    report = made()
    assert (report.verdict, codes(report)) == (Verdict.INCONCLUSIVE, [code])
    assert says in report.reasons[0]
    assert code != "LC102" or report.detectable_error_factor is None


@pytest.mark.parametrize("checks", [(), (GOOD,)])
def test_nothing_audited_is_inconclusive_whatever_else_holds(
    checks: tuple[CheckReport, ...],
) -> None:
    empty = replace(ready(), units=())
    report = conclude(empty, total_of([]), Checked(checks), seconds=0.0)
    assert (report.verdict, codes(report)) == (Verdict.INCONCLUSIVE, ["LC300"])


def test_recorded_gradients_that_were_held_against_claims_are_an_audit() -> None:
    empty = replace(ready(), units=())
    report = conclude(empty, total_of([]), Checked((CONTRIBUTION,)), seconds=0.0)
    assert (report.verdict, codes(report)) == (Verdict.INCONCLUSIVE, ["LC307"] * 3)
    free = replace(empty, job=replace(empty.job, max_detectable_factor=math.inf))
    report = conclude(free, total_of([]), Checked((CONTRIBUTION,)), seconds=0.0)
    assert report.verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("share", "limit", "is_pass"),
    [
        (0.99e-3, 1e3, False),
        (1.01e-3, 1e3, True),
        (0.99e-3, 1e4, True),
        (0.5, 1.5, False),
        (0.0, 1e300, False),
        (0.0, math.inf, True),
    ],
)
def test_a_bound_that_nothing_came_near_is_no_pass(
    share: float, limit: float, is_pass: bool
) -> None:
    """0 is as far from a bound as a norm can be."""
    first = ready().claims.groups[0]
    at = replace(ready(), job=replace(ready().job, max_detectable_factor=limit))
    near = {group.name: tally(group.grad_norm) for group in at.claims.groups[1:]}
    far = near | {first.name: tally(share * first.grad_norm)}
    report = concluded(result(0, far), result(1, far), at=at)
    assert (report.verdict is Verdict.PASS) == is_pass
    assert codes(report) == ([] if is_pass else ["LC307"])
    assert [group.name for group in report.untried_groups] == ([] if is_pass else [first.name])
    if not is_pass:
        assert first.name in report.reasons[0]


def test_the_attack_counts_for_what_was_tried() -> None:
    first = ready().claims.groups[0]
    far = {first.name: tally(0.0)}
    near = {first.name: tally(first.grad_norm)}
    report = concluded(result(0, far), result(1, near, kind=Kind.ATTACK))
    assert report.verdict is Verdict.PASS


def test_a_bound_of_zero_that_is_kept_was_tried() -> None:
    """Any gradient but 0 would have exceeded it."""
    zero = {ready().claims.groups[0].name: tally(0.0)}
    report = concluded(result(0, zero), result(1, zero), at=first_bounded_by(0.0))
    assert report.verdict is Verdict.PASS
    assert report.groups[0].detectable_error_factor == 1.0


def test_the_whole_gradient_is_reported_beside_its_bound() -> None:
    report = concluded(result(0, more=whole(0.75)), result(1, more=whole(0.5)))
    bound = math.hypot(*(group.grad_norm_bound or 0.0 for group in report.groups))
    found = report.gradient
    assert found.grad_norm_bound == pytest.approx(bound, rel=1e-12)
    assert (found.grad_norm_max, found.grad_norm_median, found.examples) == (0.75, 0.5, 10)
    assert found.slack == pytest.approx(bound / 0.75, rel=1e-12)


def test_the_attack_speaks_where_nothing_was_replayed() -> None:
    """What occurs is what data show; an attack shows what could."""
    attack = result(1, more=whole(3.0), kind=Kind.ATTACK)
    assert concluded(result(0, more=whole(0.5)), attack).gradient.grad_norm_max == 0.5
    assert concluded(attack).gradient.grad_norm_max == 3.0


@pytest.mark.parametrize(
    ("limits", "verdict", "known"),
    [
        ({"max_grad_norm": 1e6, "max_slack": 1e6}, Verdict.PASS, []),
        ({"max_grad_norm": 1e6, "max_sensitivity": 0.1}, Verdict.EXCEEDED, ["LC110"]),
        ({"max_grad_norm": 0.1}, Verdict.EXCEEDED, ["LC110"]),
        ({"max_slack": 1.01, "max_grad_norm": 1e6}, Verdict.EXCEEDED, ["LC110"]),
    ],
)
def test_gates(limits: dict[str, float], verdict: Verdict, known: list[str]) -> None:
    results = [result(n, more=whole(0.5)) for n in range(2)]
    report = concluded(*results, at=gated(ready(), **limits))
    assert (report.verdict, codes(report)) == (verdict, known)
    assert [gate.limit for gate in report.gates] == [
        limits[name] for name in ("max_grad_norm", "max_sensitivity", "max_slack") if name in limits
    ]


def test_gates_of_a_run_speak_of_its_settings() -> None:
    """Δ of a mean is G/B, twice that where one example is replaced; ε is that of one Gaussian."""
    run = {"dataset_size": 64, "batch_size": 64, "sampling": "full-batch", "steps": 1}
    settings = Settings(**run, neighbours="replace-one", delta=1e-5, noise_multiplier=4.0)
    job = Job(str(path_of("digits_mlp")), settings, attack_steps=1)
    at = gated(prepare(job), max_sensitivity=1e6, max_epsilon=1.0, max_grad_norm=1e6)
    moved, epsilon = (
        next(gate.found for gate in concluded(result(0), at=at).gates if gate.gate == name) or 0.0
        for name in ("max-sensitivity", "max-epsilon")
    )
    grad_norm = ready().claims.grad_norm
    assert moved == pytest.approx(2.0 * grad_norm / 64, rel=1e-12)
    spent = [norm.cdf(0.125 - e * 4.0) - math.exp(e) * norm.cdf(-0.125 - e * 4.0)
             for e in (epsilon, epsilon / 1.01)]  # fmt: skip
    assert spent[0] <= 1e-5 < spent[1]


def test_a_violation_outweighs_a_gate_and_a_gate_what_is_undecided() -> None:
    at = gated(ready(), max_grad_norm=0.1)
    bad = concluded(result(0), result(1, {"hidden1": tally(9.0, violations=1)}), at=at)
    assert (bad.verdict, codes(bad)) == (Verdict.VIOLATION, ["LC301", "LC110"])
    open_ = concluded(result(0), result(1, {"hidden1": tally(undecided=1)}), at=at)
    assert (open_.verdict, codes(open_)) == (Verdict.EXCEEDED, ["LC110", "LC305"])


@pytest.mark.parametrize("verdict", [Verdict.VIOLATION, Verdict.MISMATCH, Verdict.INCONCLUSIVE])
def test_a_check_that_fails_is_not_outvoted(verdict: Verdict) -> None:
    bad = CheckReport("LC314", "noise", verdict, "no noise")
    for report in (
        concluded(result(0), result(1), checked=Checked((GOOD, bad))),
        concluded(result(0), result(1, checks=(bad,)), checked=Checked((GOOD,))),
    ):
        assert (report.verdict, codes(report)) == (verdict, ["LC314"])


def test_a_violation_outweighs_a_mismatch_and_notes_are_kept() -> None:
    verdicts = (Verdict.MISMATCH, Verdict.VIOLATION)
    checks = tuple(CheckReport(f"LC31{n}", "noise", v, "") for n, v in enumerate(verdicts))
    report = concluded(result(0), result(1), checked=Checked(checks, ("not done",)))
    assert (report.verdict, report.notes) == (Verdict.VIOLATION, ("not done",))
    assert codes(report) == ["LC311", "LC310"]


def test_a_further_check_makes_no_verdict_better() -> None:
    twin = Check("LC322", "twin-run")
    assert with_check(passed(), twin.passed("the same")).verdict is Verdict.PASS
    random = twin.failed("it is random", verdict=Verdict.INCONCLUSIVE)
    assert with_check(passed(), random).verdict is Verdict.INCONCLUSIVE
    both = with_check(with_check(passed(), random), twin.failed("the rate differs"))
    assert both.verdict is Verdict.VIOLATION
    assert both.reasons[-2:] == ("[LC322] the rate differs", "[LC322] it is random")
    assert with_check(both, random).verdict is Verdict.VIOLATION
    assert [check.name for check in both.checks[-2:]] == ["twin-run"] * 2
