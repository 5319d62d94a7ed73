"""Random audits: any name, any number, any combination; records need not be consistent."""

from hypothesis import strategies as st

from lipcert.audit.records import (
    HIGHEST_BIN,
    LOWEST_BIN,
    AuditReport,
    CheckReport,
    EpsilonInterval,
    ExampleReference,
    GradientAudit,
    GroupAudit,
    Histogram,
    Modes,
    Quantity,
    ValueAudit,
    Verdict,
)
from lipcert.settings.gates import GATES, GateResult

CODES = ("LC300", "LC304", "LC310", "LC314", "LC317", "LC320")
TROUBLE = ("::error::x", "\r\n::warning::y", "##[error]z", "%0A::", "]]>", "<b>", "a,b:c", "\x00")

names = st.one_of(st.text(max_size=12), st.sampled_from(TROUBLE))
numbers = st.floats(allow_nan=True, allow_infinity=True)
norms = st.none() | numbers.map(abs)
bounds = st.none() | st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)
counts = st.integers(0, 3)
examples = st.none() | st.builds(ExampleReference, names, st.integers(0, 10**9))
histograms = st.builds(
    Histogram,
    st.dictionaries(st.integers(LOWEST_BIN, HIGHEST_BIN), st.integers(0, 2**40), max_size=4),
)
groups = st.builds(
    GroupAudit,
    name=names,
    parameters=st.lists(names, max_size=3).map(tuple),
    dimension=st.integers(0, 10**12),
    grad_norm_bound=bounds,
    float_bound=bounds,
    max_observed=norms,
    max_attacked=norms,
    violations=counts,
    undecided=counts,
    recomputed=counts,
    worst_example=examples,
    histogram=histograms,
)
values = st.builds(
    ValueAudit,
    value=names,
    node=names,
    quantity=st.sampled_from(Quantity),
    bound=bounds,
    max_observed=norms,
    violations=counts,
    undecided=counts,
    worst_example=examples,
)
checks = st.builds(
    CheckReport,
    code=st.sampled_from(CODES),
    name=names,
    verdict=st.sampled_from(Verdict),
    message=names,
    where=names,
    measured=st.none() | numbers,
    expected=st.none() | numbers,
    remedy=names,
)
intervals = st.builds(
    EpsilonInterval,
    lower=numbers,
    confidence=st.floats(0.0, 1.0),
    upper=numbers,
    is_certified=st.booleans(),
    is_contradicted=st.booleans(),
    delta=st.floats(0.0, 1.0),
    example=st.builds(ExampleReference, names, counts),
    noise=numbers,
    noise_at_most=numbers,
    directions=counts,
    steps=counts,
    releases=counts,
    largest_step=names,
)
gates = st.builds(
    GateResult,
    gate=st.sampled_from(sorted(GATES)),
    limit=st.floats(1e-9, 1e9),
    found=st.none() | numbers,
    reason=names,
)
reports = st.builds(
    AuditReport,
    verdict=st.sampled_from(Verdict),
    model=names,
    model_sha256=names,
    bounds_from=names,
    modes=st.builds(Modes, st.none() | names, st.none() | names, st.integers(0, 50)),
    assumptions=st.dictionaries(names, names, max_size=3),
    examples=st.integers(0, 10**9),
    units=counts,
    units_done=counts,
    groups=st.lists(groups, max_size=4).map(tuple),
    values=st.lists(values, max_size=4).map(tuple),
    checks=st.lists(checks, max_size=4).map(tuple),
    reasons=st.lists(names, max_size=3).map(tuple),
    device=names,
    dtype=names,
    seconds=numbers,
    plain_step_ratio=st.none() | numbers,
    notes=st.lists(names, max_size=2).map(tuple),
    max_detectable_factor=st.none() | st.floats(1.0, 1e9),
    gates=st.lists(gates, max_size=2).map(tuple),
    gradient=st.builds(GradientAudit, bounds, norms, norms, counts),
    epsilon=st.none() | intervals,
)
