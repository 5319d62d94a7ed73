"""A gate passes for a known number within its limit, and for nothing else."""

import math

import click
import pytest
from click.testing import CliRunner

from lipcert.cli.options import gate_options, gates_of
from lipcert.errors import UsageError
from lipcert.settings.gates import GateOutcome, GateResult, Gates, worst_of


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (2.0, GateOutcome.HOLDS),
        (math.nextafter(2.0, 3.0), GateOutcome.EXCEEDED),
        (math.inf, GateOutcome.EXCEEDED),
        (math.nan, GateOutcome.UNKNOWN),
        ("no example was measured", GateOutcome.UNKNOWN),
    ],
)
def test_outcome(found: float | str, outcome: GateOutcome) -> None:
    (result,) = Gates(max_slack=2.0).judged(max_slack=found)
    assert result.outcome is outcome
    assert (result.reason == found) is isinstance(found, str)


def test_only_gates_that_are_set_are_judged() -> None:
    assert Gates().judged() == ()
    results = Gates(max_grad_norm=1.0, max_slack=3.0).judged(max_grad_norm=0.5, max_slack=4)
    assert [(item.gate, item.limit, item.found) for item in results] == [
        ("max-grad-norm", 1.0, 0.5),
        ("max-slack", 3.0, 4),
    ]


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf])
def test_limits_are_positive_and_finite(limit: float) -> None:
    with pytest.raises(UsageError, match="max-slack"):
        Gates(max_slack=limit)


def test_the_worst_decides() -> None:
    holds, over = GateResult("max-slack", 1.0, 1.0), GateResult("max-slack", 1.0, 2.0)
    unknown = GateResult("max-slack", 1.0, None, "not measured")
    assert worst_of([]) is GateOutcome.HOLDS
    assert worst_of([holds, unknown]) is GateOutcome.UNKNOWN
    assert worst_of([holds, unknown, over]) is GateOutcome.EXCEEDED


def test_options_of_a_command() -> None:
    """A verb takes those that it has numbers for."""

    @click.command()
    @gate_options("max-grad-norm", "max-slack")
    def command(**words: object) -> None:
        click.echo(f"{gates_of(words)} {sorted(words)}")

    result = CliRunner().invoke(command, ["--max-slack", "5"])
    assert result.output == f"{Gates(max_slack=5.0)} ['max_grad_norm', 'max_slack']\n"
    assert CliRunner().invoke(command, ["--max-noise-to-signal", "5"]).exit_code == 2
