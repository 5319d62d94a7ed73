"""The admissible inputs."""

from __future__ import annotations

import pytest

from lipcert.analysis.premises import check_domain
from lipcert.errors import UsageError
from lipcert.settings.settings import Settings


@pytest.mark.parametrize(
    ("norm", "box"), [(0.1, (0.5, 1.0)), (1.0, (0.5, 1.0)), (0.5, (-2.0, -1.0))]
)
def test_an_empty_domain_is_a_usage_error(norm: float, box: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="the least is"):
        check_domain((100,), Settings(input_norm=norm, input_box=box))


def test_a_box_that_the_ball_reaches_is_admitted() -> None:
    check_domain((100,), Settings(input_norm=5.0, input_box=(0.5, 1.0)))
    check_domain((100,), Settings(input_norm=0.0, input_box=(-1.0, 1.0)))
