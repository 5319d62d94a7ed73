"""The admissible inputs."""

from __future__ import annotations

import pytest

from lipcert.analysis.domain import check_domain, input_facts
from lipcert.errors import UsageError
from lipcert.settings import Settings


def test_the_default_is_the_unit_box() -> None:
    facts = input_facts((64,), Settings())
    assert facts.norm.value.value == 8.0
    assert facts.is_nonnegative


def test_norm_and_box_are_combined() -> None:
    facts = input_facts((100,), Settings(input_norm=3.0, input_box=(-1.0, 1.0)))
    assert facts.norm.value.value == 3.0
    assert facts.max_abs.value == 1.0


@pytest.mark.parametrize(
    ("norm", "box"), [(0.1, (0.5, 1.0)), (1.0, (0.5, 1.0)), (0.5, (-2.0, -1.0))]
)
def test_an_empty_domain_is_a_usage_error(norm: float, box: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="the least is"):
        check_domain((100,), Settings(input_norm=norm, input_box=box))
