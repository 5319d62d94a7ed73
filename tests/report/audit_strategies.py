"""Random audits: any name, any number, any combination; records need not be consistent."""

from dataclasses import fields
from typing import Any, get_type_hints

from hypothesis import strategies as st

from lipcert.audit import records
from lipcert.settings.gates import GATES, GateResult
from tests.core.generated import SCALARS, values_of

CODES = ("LC300", "LC304", "LC310", "LC314", "LC317", "LC320")
TROUBLE = ("::error::x", "\r\n::warning::y", "##[error]z", "%0A::", "]]>", "<b>", "a,b:c", "\x00")

names = st.one_of(st.text(max_size=12), st.sampled_from(TROUBLE))
numbers = st.floats(allow_nan=True, allow_infinity=True)
norms = st.none() | numbers.map(abs)
bounds = st.none() | st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)
shares = st.floats(0.0, 1.0)
GIVEN = {**SCALARS, str: names, float: numbers, int: st.integers(0, 3)}


def built(kind: type[Any], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A record whose other fields hold anything of their types."""
    hints = get_type_hints(kind, include_extras=True)
    drawn = {item.name: values_of(hints[item.name], GIVEN) for item in fields(kind)
             if item.name not in given}  # fmt: skip
    return st.builds(kind, **drawn, **given)


def rows(item: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(item, max_size=4).map(tuple)


bins = st.dictionaries(
    st.integers(records.LOWEST_BIN, records.HIGHEST_BIN), st.integers(0, 2**40), max_size=4
)
groups = built(
    records.GroupAudit,
    **dict.fromkeys(("grad_norm_bound", "float_bound"), bounds),
    **dict.fromkeys(("max_observed", "max_attacked"), norms),
    histogram=st.builds(records.Histogram, bins),
)
reports = built(
    records.AuditReport,
    groups=rows(groups),
    values=rows(built(records.ValueAudit, bound=bounds, max_observed=norms)),
    checks=rows(built(records.CheckReport, code=st.sampled_from(CODES))),
    modes=built(records.Modes, data_sha256=st.none(), data_sha256_of=st.none()),
    max_detectable_factor=st.none() | st.floats(1.0, 1e9),
    gates=rows(built(GateResult, gate=st.sampled_from(sorted(GATES)), limit=st.floats(1e-9, 1e9))),
    gradient=st.builds(records.GradientAudit, bounds, norms, norms, st.integers(0, 3)),
    epsilon=st.none() | built(records.EpsilonInterval, confidence=shares, delta=shares),
    warnings=st.just(()),
    usefulness=st.none(),
    recording=st.none(),
)
