"""Killers of the rules of lines: lines that no honest search writes, about networks of a few steps.

Each line states the least bound that it may, and what does not follow is passed over: so a rule
that was weakened proves something that is false of the network.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pytest

from lipcert.core.certificate import Certificate, ScopeClaim
from lipcert.core.check import Choices, check
from lipcert.core.coverage import rule_of
from lipcert.core.interval import Interval, exact
from lipcert.core.kinds import CotangentClip
from lipcert.core.ledger.premises import InputPart
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.balls import InputBall
from lipcert.core.lines.chains import CHORDS, VALUES, ChainForm, slopes_between
from lipcert.core.lines.moved_balls import ZeroFact
from lipcert.core.lines.proof import LOSS, OUTPUT, Proof
from lipcert.core.lines.stacks import SliceFact
from lipcert.core.lines.steps import InputFact, LossPull, StepFact, TensorGradient, ValuePull
from lipcert.core.lower.errors import Unsupported
from lipcert.core.norms import ENGINES
from lipcert.core.program import Activation, Dense, Move, Op, Operand, Part, Place, Program, Step
from lipcert.core.rules.facts import Fact
from lipcert.core.token_kinds import Add
from lipcert.core.verdict import Verdict
from lipcert.text.certificate import write_certificate
from tests.core.forged import Forgery, saved
from tests.core.mutants.truth import follow
from tests.weakenings.oracles import PREMISES

POINT = ScopeClaim("point", (), ())
FREE = ScopeClaim("constraint-set", ("w",), ())
"""training may bring any w"""
BOXED = replace(PREMISES, input_norm=None, input_box=(0.0, 1.0))
FACTS: Final = "facts"
"""among lines: those of the input and of each step"""
PULLS: Final = "pulls"
"""among lines: of the loss, and of each value between the output and the input"""
X: Final = ValuePull(value="x")

_OPS: Mapping[str, Op] = {
    "relu": Activation("relu"),
    "swap": Move(np.array([[1, 0]])),
    "clip": CotangentClip(0.5, by_channel=False),
}


def _step(text: str, number: int) -> Step:
    """`y = relu a`, `y = swap a`, `y = clip a`, `y = a + b`, or `y = 2 a`, two times a, `y = 2w a`
    by a tensor w, `y = 2 a 3 4` plus (3, 4)."""
    name, _, *words = text.split()
    if "+" in words:
        op: Op = Add((1,) * len(words[::2]))
        return Step(op, tuple(words[::2]), name, (1, 2), number)
    kind, value, *numbers = words
    if kind not in _OPS:
        matrix, bias = float(kind.rstrip("w")) * np.eye(2), np.array([*map(float, numbers)])
        weight = Operand(matrix, matrix, {"w": 1.0} if "w" in kind else {})
        op = Dense(weight, Operand(bias, bias) if numbers else None)
    return Step(_OPS.get(kind) or op, (value,), name, (1, 2), number)


def proof_about(network: str, **more: Any) -> Proof:
    """Of steps on vectors of two numbers, from x. more: of the proof, and of the program."""
    steps = tuple(_step(text, number) for number, text in enumerate(network.split(", ")))
    premises, scope = more.pop("premises", PREMISES), more.pop("scope", POINT)
    output = more.pop("output", steps[-1].output)
    shapes = dict.fromkeys(["x", *(step.output for step in steps)], (1, 2))
    program = Program("x", output, shapes, steps, Place(0), (), **more)
    return Proof(program, premises, scope, ENGINES["float"])


def spelt_out(proof: Proof, lines: Sequence[Line[Any] | str]) -> list[Line[Any]]:
    """With what "facts" and "pulls" stand for."""
    steps = proof.program.steps
    inner = [step.output for step in reversed(steps) if step.output != proof.program.output]
    known: Mapping[object, list[Line[Any]]] = {
        FACTS: [
            InputFact(value="x"),
            *(StepFact(value=s.output, step=rule_of(s.op)) for s in steps),
        ],
        PULLS: [LossPull(value=proof.program.output), *(ValuePull(value=name) for name in inner)],
    }
    found: list[Line[Any]] = []
    for line in lines:
        found += known[line] if isinstance(line, str) else [line]
    return found


def proved(proof: Proof, what: str) -> float:
    """Of a value `y`, of its `rows y`, its cotangents `loss y` and `output y`, or `gradient w`."""
    kind, _, name = what.rpartition(" ")
    if kind == "gradient":
        return proof.gradients[name]
    found: Mapping[str, Any] = (
        proof.passes[kind].cotangents if kind in {LOSS, OUTPUT} else proof.facts
    )
    if name not in found:
        return math.inf
    known: float = found[name].row_norm if kind == "rows" else found[name].norm
    return known


def refused(proof: Proof, line: Line[Any]) -> None:
    """It does not follow, whatever its numbers are."""
    try:
        with pytest.raises(NotProved):
            proof.add(proof.number, line)
    except (ArithmeticError, ValueError) as error:
        raise AssertionError from error


@dataclass(frozen=True, eq=False)
class Case:
    """A network, lines about it, what is true of it, and lines that are refused after these.

    least, most: as `proved` names it. about: the proof and its program. known: norms that are taken
    for proved. kills: rule, text and what replaces it.
    """

    title: str
    network: str
    lines: Sequence[Line[Any] | str] = ()
    least: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, float] = field(default_factory=dict)
    refused: Sequence[Line[Any]] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    known: Mapping[str, Mapping[tuple[str, ...], float]] = field(default_factory=dict)
    kills: Sequence[tuple[str, str, str]] = ()

    def __str__(self) -> str:
        return self.title


def holds(case: Case) -> None:
    """What the lines of a case prove is true, and what does not follow is refused."""
    proof = proof_about(case.network, **case.about)
    for kind, norms in case.known.items():
        getattr(proof, kind).update(norms)
    lines = spelt_out(proof, case.lines)
    follow(proof, lines)
    for what, least in case.least.items():
        assert proved(proof, what) >= least
    for what, most in case.most.items():
        assert proved(proof, what) <= most
    for line in case.refused:
        proof.number = len(lines)
        refused(proof, line)


def form_of(use: str, start: str, stop: str, *multipliers: Sequence[float]) -> ChainForm:
    return ChainForm(use=use, start=start, stop=stop, multipliers=tuple(map(tuple, multipliers)))  # type: ignore[arg-type]


def a_slice_with_a_bias() -> None:
    """(x_2 + 4, x_1 + 3), around a point that nobody needs to know: within 1 of it."""
    proof = proof_about("a = 1 x 3 4, y = swap a")
    follow(proof, [*spelt_out(proof, [FACTS])[:2], SliceFact(value="y", norms=(1.001,))])
    found = proof.facts["y"]
    assert found.row_norm >= 6.0
    assert 1.0 <= found.row_spread < 1.01


def a_slice_of_several_runs() -> None:
    """Both numbers of y are of different runs of a matrix."""
    square = Operand(np.eye(2), np.eye(2))
    steps = (
        Step(Move(np.array([[0, 1], [1, 0]])), ("x",), "p", (2, 2), 0),
        Step(Dense(square, None), ("p",), "a", (2, 2), 1),
        Step(Move(np.array([[0, 3]])), ("a",), "y", (1, 2), 2),
    )
    shapes = {"x": (1, 2), "p": (2, 2), "a": (2, 2), "y": (1, 2)}
    program = Program("x", "y", shapes, steps, Place(0), ())
    proof = Proof(program, PREMISES, POINT, ENGINES["float"])
    follow(proof, spelt_out(proof, [FACTS]))
    refused(proof, SliceFact(value="y", norms=(1.001,)))


def two_lines_about_a_value() -> None:
    """A larger bound takes nothing from a smaller one, and a smaller one is no smaller."""
    proof = proof_about("y = 2 x")
    follow(proof, spelt_out(proof, [FACTS]))
    known = proved(proof, "y")
    proof.add(0, StepFact(value="y", step="dense/1", bound=1e6))
    assert proved(proof, "y") == known


def _ball_of_two(norm: float, box: tuple[float, float], *shares: float) -> None:
    """Two inputs in a box, which have a norm together."""
    parts = (Part("a", (1, 1)), Part("b", (1, 1)))
    stated = tuple(InputPart(part.name, part.shape, None, box) for part in parts)
    premises = replace(PREMISES, input_norm=norm, input_parts=stated)
    refused(proof_about("y = 1 x", premises=premises, parts=parts), InputBall(shares=shares))


def a_ball_around_what_no_input_is() -> None:
    """In [0, 1] with a norm of 0.1: their middles do not have it."""
    _ball_of_two(0.1, (0.0, 1.0), 0.0, 0.0)


def a_ball_of_parts_whose_squares_overflow() -> None:
    _ball_of_two(1.0, (0.0, 1e300), 1.0, 1.0)


def _far_from_zero(use: str) -> None:
    """relu(1.5 − x) is 0 for x in [1.6, 2]², and 1.5 at 0."""
    premises = replace(PREMISES, input_norm=None, input_box=(1.6, 2.0))
    proof = proof_about("a = -1 x 1.5 1.5, y = relu a", premises=premises)
    forms = [form_of(use, "x", "y", numbers) for numbers in ((), (1.0, 1.0), (0.1, 0.1))]
    facts = [ZeroFact(value="y", form=2 + number) for number in range(len(forms))]
    follow(proof, [*spelt_out(proof, [FACTS])[:-1], *forms, *facts])
    assert "y" not in proof.facts or proof.facts["y"].box.lo.min() <= 0.0


def values_far_from_zero() -> None:
    """By a form of slopes between values."""
    _far_from_zero(VALUES)


def chords_far_from_zero() -> None:
    """By a form of chords."""
    _far_from_zero(CHORDS)


def chords_that_leave_a_box() -> None:
    """From relu(−3) to relu(2) the slope is 0.4, though all values lie in [1, 2]."""
    step = Step(_OPS["relu"], ("h",), "y", (1, 1), 0)
    facts = {"h": Fact.of((1, 1), box=Interval(np.ones((1, 1)), np.full((1, 1), 2.0)))}
    points = {"h": Fact.of((1, 1), box=exact(np.full((1, 1), -3.0)))}
    found = slopes_between((step,), facts, points)
    assert found["y"].lo.min() <= 0.4 <= found["y"].hi.max()


def a_plain_number_that_may_change() -> None:
    with pytest.raises(Unsupported):
        proof_about("y = 1 x", scope=FREE, untracked=frozenset({"w"}))


def _refused_by_a_check(change: Callable[[Certificate], Certificate], stage: int) -> None:
    with TemporaryDirectory() as folder:
        path = saved(
            Path(folder) / "m.onnx", "y = MatMul(x, w)", {"w": np.eye(2, dtype=np.float32)}, (2,)
        )
        certificate = Forgery(path, ["w"]).certificate()
        report = check(write_certificate(certificate), path, Choices())
        assert report.verdict is Verdict.CONDITIONAL
        report = check(write_certificate(change(certificate)), path, Choices())
        assert report.verdict is Verdict.INVALID
        assert report.stages[-1].number == stage


def a_gradient_without_a_line() -> None:
    """No line, and a claim of 0."""

    def change(found: Certificate) -> Certificate:
        claims = tuple(replace(claim, grad_norm=0.0) for claim in found.parameters)
        groups = tuple(
            replace(group, grad_norm=0.0, sensitivity=0.0, noise_std=0.0) for group in found.groups
        )
        lines = tuple(line for line in found.lines if not isinstance(line, TensorGradient))
        return replace(found, lines=lines, parameters=claims, groups=groups)

    _refused_by_a_check(change, 6)


def lines_from_behind() -> None:
    _refused_by_a_check(lambda found: replace(found, lines=found.lines[::-1]), 0)
