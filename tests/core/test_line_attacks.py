"""No lines prove what is false: of any rules, about any values, in any order.

Each line states the least bound that it may, so that a line which says too little is used to the
full by all that rest on it. What they prove is compared with gradients of torch.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from lipcert.core.lines.steps import LossPull, ValuePull
from tests.core.mutants.every import spread
from tests.core.mutants.lines import line_variants
from tests.core.mutants.networks import FAMILIES, certified
from tests.core.mutants.reuse import reused
from tests.core.mutants.truth import false_bounds, truth_of, with_lines
from tests.weakenings.mutation import Kill, Mutation, killed_by

BY_DAY, BY_NIGHT = 8, 300
CASES = [(family, constrained) for family in FAMILIES for constrained in (False, True)]
SAMPLE = {("clipped", True)}


def wrong_of(case, most, seed):
    """Of so many lists of lines."""
    truth, memory = truth_of(case), {}
    with reused(memory):
        assert not list(false_bounds(with_lines(case, case.certificate.lines), truth))
        wrong = []
        for item in spread(line_variants(case), most, seed):
            found = list(false_bounds(with_lines(case, item.lines), truth))
            wrong += [(item.kind, found[:3])] * bool(found)
    return wrong


@pytest.mark.parametrize(("family", "constrained"), sorted(SAMPLE))
def test_no_lines_prove_what_is_false(family, constrained, tmp_path):
    case = certified(family, tmp_path, constrained=constrained)
    assert not wrong_of(case, BY_DAY, 0)


@pytest.mark.nightly
@pytest.mark.parametrize(("family", "constrained"), CASES)
def test_no_lines_prove_what_is_false_by_night(family, constrained, tmp_path):
    case = certified(family, tmp_path, constrained=constrained)
    assert not wrong_of(case, BY_NIGHT, 1)


def replaced(kind, other):
    """Bounds that are false where lines of one kind are lines of another."""
    with TemporaryDirectory() as folder:
        case = certified("mlp", Path(folder), constrained=True)
        lines = tuple(
            other(value=line.value) if isinstance(line, kind) else line
            for line in case.certificate.lines
        )
        assert not list(false_bounds(with_lines(case, lines), truth_of(case)))


def the_output_as_another_value():
    """Nothing but the loss reads it, so that no reader would bring a cotangent."""
    replaced(LossPull, ValuePull)


def another_value_as_the_output():
    """As if the loss read all values: what the layers above make of its gradient is left out."""
    replaced(ValuePull, LossPull)


@pytest.mark.parametrize(
    ("place", "guard", "attack"),
    [
        ("ValuePull", "self.value == proof.program.output", the_output_as_another_value),
        ("LossPull", "self.value != program.output", another_value_as_the_output),
    ],
)
def test_a_false_rule_is_found(place, guard, attack):
    killer = Kill.of(attack)
    assert killer.failure() is None
    assert killed_by(Mutation(f"lines.steps:{place}.evaluate", guard, "False", killer))
