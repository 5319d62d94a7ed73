"""The table of rules: one for each kind of step, complete, and loaded when it is asked for."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest

from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Sort
from lipcert.core.rules.activations import FUNCTIONS
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Fact
from lipcert.core.rules.steps import FAMILIES, rule_class
from tests.core.rules.cases import KINDS, POINT, STEPS, rule


@pytest.mark.parametrize("kind", STEPS, ids=lambda kind: kind.__name__)
def test_every_kind_of_step_has_one_rule(kind: type) -> None:
    found = rule_class(kind)
    assert found.__name__ == f"{kind.__name__}Rule"
    assert found.__module__.endswith(f".{FAMILIES[kind.__name__]}")
    assert not found.__abstractmethods__
    assert kind.__name__ in KINDS


def test_there_are_no_other_rules() -> None:
    assert {kind.__name__ for kind in STEPS} == FAMILIES.keys() == KINDS.keys()


def test_a_step_without_a_rule_is_refused() -> None:
    @dataclass(frozen=True)
    class Mystery:
        pass

    with pytest.raises(Unsupported, match="no rule for Mystery"):
        rule_class(Mystery)  # type: ignore[arg-type]


@pytest.mark.parametrize("question", ["fact", "lipschitz"])
def test_a_rule_that_leaves_a_question_open_cannot_be_made(question: str) -> None:
    answers = {name: lambda *_: None for name in ("fact", "lipschitz")}
    assert type("Whole", (Rule,), answers)
    open_ = type("Open", (Rule,), {n: f for n, f in answers.items() if n != question})
    with pytest.raises(TypeError, match=question):
        open_(op=Sort(0), inputs=(), shapes=(), shape=(), weights=POINT, output="y")


def test_a_check_loads_the_families_of_its_steps() -> None:
    code = (
        "import sys; from lipcert.core.check import check; from lipcert.core.program import Dense; "
        "from lipcert.core.rules.steps import rule_class; rule_class(Dense); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "lipcert.core.rules.dense" in loaded
    others = {*FAMILIES.values(), *(name.partition(".")[0] for name in FUNCTIONS.values())}
    assert not {f"lipcert.core.rules.{name}" for name in others - {"dense"}} & loaded


def test_a_rule_is_one_step_in_its_surroundings() -> None:
    asked = rule(Sort(0), [Fact.of((3,), 2.0)], [(3,)], (3,))
    assert (asked.x.norm, asked.before) == (2.0, (3,))
    assert asked.slopes() is None
    assert asked.longest_part((1,)) == float("inf")
