"""Hand-made audits: every kind of entry that a report must print, and every verdict.

The numbers are invented; only their relations (observed ≤ bound, counts that fit) are those of
real audits.
"""

import math
from dataclasses import replace

from lipcert.audit.records import (
    AuditReport,
    CheckReport,
    EpsilonInterval,
    ExampleReference,
    GroupAudit,
    Histogram,
    Modes,
    Quantity,
    ValueAudit,
    Verdict,
)
from tests.report.samples import sample

HOSTILE = (
    "a::error file=x::pwned\r\n##[command]<script>&amp;|`$(id)`%0A:,\x1b[31m\u202e]]>\x00\ud800"
)
"""A name as an attacker would choose it: commands of CI logs, markup, escapes, lone surrogates."""


def group(name: str = "conv1", **changes) -> GroupAudit:
    found = GroupAudit(
        name=name,
        parameters=(f"{name}.weight", f"{name}.bias"),
        dimension=1040,
        grad_norm_bound=12.4,
        float_bound=12.4001,
        max_observed=6.2,
        max_attacked=9.92,
        violations=0,
        undecided=0,
        recomputed=3,
        worst_example=ExampleReference("attack", 17),
        histogram=Histogram({-8: 1500, -4: 500, -2: 48}),
    )
    return replace(found, **changes)


def value(name: str = "h1", quantity: Quantity = Quantity.OUTPUT_NORM, **changes) -> ValueAudit:
    found = ValueAudit(
        value=name,
        node="conv1",
        quantity=quantity,
        bound=31.2,
        max_observed=27.3,
        violations=0,
        undecided=0,
        worst_example=ExampleReference("model", 3),
    )
    return replace(found, **changes)


def check(name: str = "admissibility", code: str = "LC304", **changes) -> CheckReport:
    found = CheckReport(
        code=code,
        name=name,
        verdict=Verdict.PASS,
        message="every example lies within the declared domain",
        where="batch.npz",
        measured=27.9,
        expected=28.0,
    )
    return replace(found, **changes)


def usefulness(verdict="costly", **changes):
    said, ratios = f"{verdict}: what it costs", {"noise_to_signal": 34.0, "noise_ratio": 12.0}
    ratios |= {"clipping_noise_to_signal": 2.9, "noise_to_signal_of_run": None}
    return replace(sample().usefulness, verdict=verdict, sentence=said, **ratios | changes)


def passed() -> AuditReport:
    """Nothing wrong: two groups, five values, one check."""
    return AuditReport(
        verdict=Verdict.PASS,
        model="models/digits.onnx",
        model_sha256="ab" * 32,
        bounds_from="analysis",
        modes=Modes(data="batch.npz", trace=None, attack_steps=30),
        assumptions={"input_norm": "28.0", "loss": "cross-entropy", "scope": "point"},
        examples=2048,
        units=8,
        units_done=8,
        groups=(
            group(),
            group(
                "fc",
                grad_norm_bound=2.5,
                float_bound=2.5,
                max_observed=1.1,
                max_attacked=2.45,
                dimension=650,
            ),
        ),
        values=(
            value("x", bound=28.0, max_observed=27.9, node=""),
            value(),
            value("h1", Quantity.COTANGENT_NORM, bound=4.2, max_observed=1.3),
            value("logits", bound=40.0, max_observed=11.0, node="fc"),
            value("logits", Quantity.COTANGENT_NORM, bound=math.sqrt(2.0), max_observed=1.41),
        ),
        checks=(check(), check("batch-independence", "LC316", where="", expected=None)),
        reasons=(),
        device="cpu",
        dtype="float64",
        seconds=12.5,
        plain_step_ratio=1.07,
    )


def interval(**changes) -> EpsilonInterval:
    """Of a run whose lower end is near its upper one."""
    found = EpsilonInterval(
        lower=6.209,
        confidence=0.95,
        upper=7.991,
        is_certified=True,
        is_contradicted=False,
        delta=1e-5,
        example=ExampleReference("step 0", 43),
        noise=1.03,
        noise_at_most=1.139,
        directions=153,
        steps=2,
        releases=250,
        largest_step="step 200",
    )
    return replace(found, **changes)


def recorded() -> AuditReport:
    """A recorded run whose ε is known from both sides."""
    return replace(passed(), epsilon=interval())


def violated() -> AuditReport:
    """One group and the cotangent behind it exceed their bounds; the noise is too small."""
    worst = ExampleReference("step 200", 411)
    broken = group(
        "fc",
        grad_norm_bound=2.5,
        float_bound=2.5000001,
        max_observed=3.75,
        max_attacked=None,
        violations=12,
        worst_example=worst,
        histogram=Histogram({-4: 2036, 2: 12}),
    )
    cotangent = value(
        "logits",
        Quantity.COTANGENT_NORM,
        bound=1.0,
        max_observed=1.41,
        violations=12,
        node="fc",
        worst_example=worst,
    )
    noise = check(
        "noise",
        "LC314",
        verdict=Verdict.VIOLATION,
        message="the noise added at step 200 has 0.002 of the declared standard deviation",
        where="step 200",
        measured=0.002,
        expected=1.0,
        remedy="add noise of the declared standard deviation, after the sum over the batch",
    )
    good = passed()
    return replace(
        good,
        verdict=Verdict.VIOLATION,
        modes=Modes(data=None, trace="runs/42", attack_steps=0),
        groups=(good.groups[0], broken),
        values=(*good.values[:4], cotangent),
        checks=(good.checks[0], noise),
        reasons=(
            "the gradient of fc is 1.5 times its bound, at example 411 of step 200",
            "the noise of step 200 is not what was declared",
        ),
    )


def inconclusive() -> AuditReport:
    """A norm undecided in float64, and units that were lost."""
    good = passed()
    close = group(max_observed=12.4, max_attacked=None, undecided=2)
    return replace(
        good,
        verdict=Verdict.INCONCLUSIVE,
        notes=("the seeds of the noise: the trace does not record them",),
        groups=(close, good.groups[1]),
        units_done=6,
        examples=1536,
        reasons=(
            "[LC305] the gradient of conv1 is too close to its bound to tell, even in float64, in "
            "2 examples",
            "[LC318] 2 of 8 units of work have no result",
        ),
        plain_step_ratio=None,
    )


def mismatched() -> AuditReport:
    """Data that are not of this model: nothing was replayed."""
    good = passed()
    untried = {"max_observed": None, "worst_example": None}
    refused = check(
        "admissibility",
        "LC319",
        verdict=Verdict.MISMATCH,
        message="the examples have shape 1×28×28, the model takes 1×8×8",
        measured=None,
        expected=None,
        remedy="give the data the model was trained on",
    )
    return replace(
        good,
        verdict=Verdict.MISMATCH,
        examples=0,
        units_done=0,
        groups=tuple(
            replace(item, max_attacked=None, recomputed=0, histogram=Histogram(), **untried)
            for item in good.groups
        ),
        values=tuple(replace(item, **untried) for item in good.values),
        checks=(refused,),
        reasons=(
            "[LC319] the examples have shape 1×28×28, the model takes 1×8×8",
            "[LC318] 8 of 8 units of work have no result",
            "[LC300] no gradient was audited: there is no example to replay",
        ),
        seconds=0.0,
        plain_step_ratio=None,
    )


def nothing() -> AuditReport:
    """Nothing was audited at all: no data, no groups."""
    return replace(
        mismatched(),
        verdict=Verdict.INCONCLUSIVE,
        modes=Modes(data=None, trace=None, attack_steps=0),
        units=0,
        groups=(),
        values=(),
        checks=(),
        reasons=("[LC300] nothing was audited: no parameter is trained",),
    )


def with_nan() -> AuditReport:
    """A gradient that is NaN, another that is infinite, and a bound that is absent."""
    good = passed()
    nan = group("nan", max_observed=math.nan, max_attacked=1.0, violations=1)
    attacked = group("attacked", max_observed=1.0, max_attacked=math.nan, violations=1)
    infinite = group("inf", max_observed=math.inf, max_attacked=None, violations=1)
    unbounded = group("free", grad_norm_bound=None, float_bound=None)
    zero = group("dead", grad_norm_bound=0.0, float_bound=0.0, max_observed=0.0, max_attacked=0.0)
    return replace(
        good,
        verdict=Verdict.VIOLATION,
        groups=(nan, attacked, infinite, unbounded, zero),
        values=(
            value(max_observed=math.nan, violations=1),
            value("h2", max_observed=math.inf, violations=1),
            value("h3", bound=None),
        ),
        checks=(
            check(
                "agreement",
                "LC317",
                verdict=Verdict.VIOLATION,
                message="the module gives NaN where the graph gives a number",
                measured=math.nan,
                expected=-math.inf,
            ),
        ),
        reasons=("a gradient is NaN",),
        seconds=math.nan,
        plain_step_ratio=math.inf,
    )


def hostile(name: str = HOSTILE) -> AuditReport:
    """A violation in which `name` stands wherever a model, a trace or a user can put a string."""
    bad = violated()
    reference = ExampleReference(name, 5)
    return replace(
        bad,
        model=f"{name}.onnx",
        bounds_from=name,
        modes=Modes(data=name, trace=name, attack_steps=3),
        assumptions={name: name},
        groups=(group(name, max_observed=13.0, violations=1, worst_example=reference), *bad.groups),
        values=(
            value(name, node=name, violations=2, max_observed=40.0, worst_example=reference),
            *bad.values,
        ),
        checks=(
            check(name, "LC310", verdict=Verdict.VIOLATION, message=name, where=name, remedy=name),
        ),
        reasons=(name,),
        notes=(name,),
        device=name,
        dtype=name,
    )


def many(count: int = 300) -> AuditReport:
    """As many groups and values as large models have, every third of them broken."""
    good = passed()
    groups = tuple(
        group(f"block{i}.attention", max_attacked=12.4 * (1.5 if i % 3 == 0 else 0.5),
              violations=int(i % 3 == 0))
        for i in range(count)
    )  # fmt: skip
    values = tuple(
        value(f"block{i}.out", quantity, max_observed=31.2 * (i + 1) / (count + 1))
        for i in range(count)
        for quantity in Quantity
    )
    return replace(
        good,
        verdict=Verdict.VIOLATION,
        groups=groups,
        values=values,
        reasons=(f"{len(range(0, count, 3))} groups exceed their bounds",),
    )


SAMPLES = (passed, recorded, violated, inconclusive, mismatched, nothing, with_nan, hostile, many)
ALL = {made.__name__: made for made in SAMPLES}
"""Every sample, by name."""
