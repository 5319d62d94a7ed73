"""Results of units: what is written is read, of the same job alone."""

from __future__ import annotations

from dataclasses import replace
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.audit.job import Unit
from lipcert.audit.seal import sealed, unsealed
from lipcert.audit.tally import FAMILIES, Tally
from lipcert.audit.unit_result import UnitResult
from tests.core.generated import SCALARS, WORDS, values_of
from tests.core.test_canonical import VALUES

GIVEN = {**SCALARS, float: st.floats(allow_nan=False).map(lambda x: x + 0.0)}
TALLIES = st.dictionaries(WORDS, values_of(Tally, GIVEN), max_size=2)
EVERY = st.fixed_dictionaries(dict.fromkeys(FAMILIES, TALLIES))
HINT = get_type_hints(UnitResult, include_extras=True)["tallies"]
UNITS = values_of(Unit).map(lambda unit: replace(unit, stop=None))
RESULTS = values_of(UnitResult, {**GIVEN, HINT: EVERY, Unit: UNITS})


@given(RESULTS)
def test_a_result_is_read_back(result: UnitResult) -> None:
    assert UnitResult.read(result.written("job"), "job", result.unit) == result


@given(RESULTS)
def test_a_result_of_another_job_is_refused(result: UnitResult) -> None:
    with pytest.raises(ValueError, match="it belongs to another audit"):
        UnitResult.read(result.written("job"), "other", result.unit)


@given(RESULTS, st.data())
def test_a_result_that_was_changed_is_refused_or_says_so(
    result: UnitResult, data: st.DataObject
) -> None:
    """Whatever stands in it, with a digest that fits."""
    members = unsealed(result.written("job"))
    members[data.draw(st.sampled_from(sorted(members)))] = data.draw(VALUES | st.none())
    text = sealed(members)
    try:
        found = UnitResult.read(text, "job", result.unit)
    except ValueError:
        return
    assert found.written("job") == text
