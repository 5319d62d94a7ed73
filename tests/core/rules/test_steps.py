"""Steps in their places: what they attain there, and that every kind has its rule.

Whole random programs are attacked in `tests.core.test_soundness`.
"""

import math
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from lipcert.core.kinds import Sort
from lipcert.core.lines.proof import Pass, Table
from lipcert.core.lines.steps import received
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Dense, Move, Op, Operand, Place, Program, Shape, Step
from lipcert.core.rules import FUNCTIONS
from lipcert.core.rules import STEPS as RULES
from lipcert.core.rules.base import Rule, Weights, rule_at, rule_class, step_fact
from lipcert.core.rules.facts import Cotangent, Fact, Hull
from lipcert.core.token_kinds import Add
from tests.core.rules.cases import KINDS, POINT, STEPS, rule


def forward(program: Program, known, weights: Weights) -> dict[str, Fact]:
    facts = dict(known)
    for step in program.steps:
        facts[step.output] = step_fact(program, step, facts, weights)
    return facts


def backward(
    program: Program,
    facts,
    weights: Weights,
    above: Cotangent,
    edges=None,
) -> dict[str, Cotangent]:
    readers = {
        value: [step for step in reversed(program.steps) if value in step.inputs]
        for value in program.shapes
    }
    found = Table("a cotangent", {program.output: above})
    own = Pass(program, readers, found, Table("an edge", edges))
    for value in (*(step.output for step in reversed(program.steps)), program.input):
        if value not in found:
            found[value] = received(own, value, facts, weights)
    return found


def gradients(
    program: Program,
    facts,
    cotangents,
    weights: Weights,
) -> dict[str, float]:
    found: dict[str, float] = {}
    for step in program.steps:
        rule = rule_at(program.shapes, step, facts, weights)
        for name, share in rule.gradients(cotangents[step.output]):
            found[name] = found.get(name, 0.0) + share
    return found


def input_lipschitz(program: Program, facts, weights: Weights) -> float:
    return backward(program, facts, weights, Cotangent(1.0))[program.input].norm


class _Builder:
    """A program step by step."""

    def __init__(self, shape: Shape) -> None:
        self.shapes, self.steps = {"x": shape}, list[Step]()

    def step(self, op: Op, inputs: tuple[str, ...], shape: Shape) -> str:
        output = f"v{len(self.steps)}"
        self.steps.append(Step(op, inputs, output, shape, len(self.steps)))
        self.shapes[output] = shape
        return output

    def program(self) -> Program:
        output = self.steps[-1].output
        return Program("x", output, self.shapes, tuple(self.steps), place=Place(0), covered=())


def _line(*sizes: int) -> Program:
    """Dense layers one after another, all of them twice the identity, cut to size."""
    b = _Builder((1, sizes[0]))
    value = "x"
    for before, after in pairwise(sizes):
        array = 2.0 * np.eye(after, before)
        operand = Operand(array, array, {f"w{len(b.steps)}": 1.0})
        value = b.step(Dense(operand, None), (value,), (1, after))
    return b.program()


def test_attained_along_a_line() -> None:
    program, weights = _line(2, 2, 2), Weights({"v0": 2.0, "v1": 2.0})
    facts = forward(program, {program.input: Fact.of((1, 2), 3.0)}, weights)
    assert [facts[name].norm for name in ("x", "v0", "v1")] == [3.0, 6.0, 12.0]
    cotangents = backward(program, facts, weights, Cotangent(0.5))
    assert [cotangents[name].norm for name in ("v1", "v0", "x")] == [0.5, 1.0, 2.0]
    assert gradients(program, facts, cotangents, weights) == {"w0": 3.0, "w1": 3.0}
    assert input_lipschitz(program, facts, weights) == 4.0


def test_attained_by_a_weight_that_is_used_twice() -> None:
    """2·Wx, as a sum of two uses."""
    b = _Builder((1, 2))
    shared = Dense(Operand(np.eye(2), np.eye(2), {"w": 1.0}), None)
    uses = tuple(b.step(shared, ("x",), (1, 2)) for _ in range(2))
    b.step(Add((1, 1)), uses, (1, 2))
    program, weights = b.program(), Weights(dict.fromkeys(uses, 1.0))
    facts = forward(program, {program.input: Fact.of((1, 2), 3.0)}, weights)
    cotangents = backward(program, facts, weights, Cotangent(0.5))
    assert gradients(program, facts, cotangents, weights) == {"w": 3.0}
    assert cotangents["x"].norm == 1.0


def test_a_hull_sees_pairs_of_rows() -> None:
    """W = 5 + e_j: differences of rows are short although W is long."""
    array = np.eye(3) + 5.0
    b = _Builder((1, 3))
    b.step(Dense(Operand(array, array), None), ("x",), (1, 3))
    program, weights = b.program(), Weights({})
    facts = forward(program, {program.input: Fact.of((1, 3), 1.0)}, weights)
    found = backward(program, facts, weights, Cotangent(9.0, Hull(3, 1.0)))
    assert found["x"].norm == pytest.approx(math.sqrt(2.0), rel=1e-7)


def test_what_is_known_of_an_edge_caps_what_the_rules_find() -> None:
    program, weights = _line(2, 2, 2), Weights({"v0": 2.0, "v1": 2.0})
    facts = forward(program, {program.input: Fact.of((1, 2), 3.0)}, weights)
    cotangents = backward(program, facts, weights, Cotangent(0.5), {("v0", "v1"): 0.5})
    assert [cotangents[name].norm for name in ("v1", "v0", "x")] == [0.5, 0.5, 1.0]


def test_a_value_read_twice_by_one_step_is_counted_twice() -> None:
    b = _Builder((1, 2))
    b.step(Add((1, 1)), ("x", "x"), (1, 2))
    program, weights = b.program(), Weights({})
    facts = forward(program, {program.input: Fact.of((1, 2), 1.0)}, weights)
    assert facts["v0"].norm == 2.0

    above = Cotangent(1.0, Hull(2, 1.0))
    found = backward(program, facts, weights, above, {("x", "v0"): 0.5})["x"]
    assert found.norm == 2.0
    assert found.hull is None


def test_moves_that_read_apart_are_perpendicular() -> None:
    """Two halves of four numbers; a third reader of one of them is added."""
    halves = [Step(Move(np.arange(2) + 2 * k), ("x",), f"h{k}", (2,), k) for k in (0, 1)]
    again = Step(Move(np.arange(1)), ("x",), "again", (1,), 2)
    shapes: dict[str, Shape] = {"x": (4,), "h0": (2,), "h1": (2,), "again": (1,)}
    program = Program("x", "h1", shapes, (*halves, again), place=Place(0), covered=())
    above = {"h0": Cotangent(3.0), "h1": Cotangent(4.0), "again": Cotangent(2.0)}
    facts = {"x": Fact.of((4,), 1.0)}

    def norm(readers, held=None) -> float:
        edges = Table("an edge", held)
        own = Pass(program, {"x": readers}, Table("a cotangent", above), edges)
        return received(own, "x", facts, Weights({})).norm

    assert norm(halves) == pytest.approx(5.0, rel=1e-15)
    assert norm(halves) >= 5.0
    assert norm([*halves, again]) == pytest.approx(9.0)
    assert norm(halves, {("x", "h1"): 1.0}) == pytest.approx(math.sqrt(10.0))


def test_tokens_of_several_readers_add_up() -> None:
    """Two of a row each, the same one or not, and one of which the norm alone is known."""
    shapes: dict[str, Shape] = {"x": (2, 2), "a": (2,), "b": (2,), "all": (2, 2)}
    rows = [Step(Move(np.arange(2)), ("x",), name, (2,), 0) for name in "ab"]
    other = Step(Move(np.arange(2) + 2), ("x",), "b", (2,), 0)
    whole = Step(Move(np.arange(4).reshape(2, 2)), ("x",), "all", (2, 2), 0)
    above = {"a": Cotangent(3.0), "b": Cotangent(4.0), "all": Cotangent(2.0)}

    def found(*readers: Step) -> Cotangent:
        program = Program("x", "a", shapes, readers, place=Place(0), covered=())
        own = Pass(program, {"x": readers}, Table("a cotangent", above), Table("an edge"))
        return received(own, "x", {"x": Fact.of((2, 2), 1.0)}, Weights({}))

    apart, alike, more = found(rows[0], other), found(*rows), found(*rows, whole)
    assert (apart.tokens, alike.tokens) == ((-2, 7.0), (-2, 7.0))
    assert (apart.norm, alike.norm, more.norm) == pytest.approx((5.0, 7.0, 9.0))
    assert more.tokens == (-2, pytest.approx(7.0 + math.sqrt(8.0)))


@pytest.mark.parametrize("kind", STEPS, ids=lambda kind: kind.__name__)
def test_every_kind_of_step_has_one_rule(kind: type) -> None:
    found = rule_class(kind)
    assert found.__name__ == f"{kind.__name__}Rule"
    assert found is RULES[kind.__name__]
    assert not found.__abstractmethods__
    assert kind.__name__ in KINDS


def test_there_are_no_other_rules() -> None:
    assert {kind.__name__ for kind in STEPS} == RULES.keys() == KINDS.keys()


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
        "from lipcert.core.rules.base import rule_class; rule_class(Dense); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "lipcert.core.rules.dense" in loaded
    places = [*RULES.places.values(), *FUNCTIONS.places.values()]
    others = {place.partition(".")[0] for place in places}
    assert not {f"lipcert.core.rules.{name}" for name in others - {"dense"}} & loaded


def test_a_rule_is_one_step_in_its_surroundings() -> None:
    asked = rule(Sort(0), [Fact.of((3,), 2.0)], [(3,)], (3,))
    assert (asked.x.norm, asked.before) == (2.0, (3,))
    assert asked.longest_part((1,)) == float("inf")
