"""Killers of the rules of lines: lines that no honest search writes, about networks of a few steps.

Each line states the least bound that it may, and what does not follow is passed over: so a rule
that was weakened proves something that is false of the network.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from onnx import helper

from lipcert.core.certificate import Certificate, Constraint, ScopeClaim
from lipcert.core.check import Choices, check
from lipcert.core.coverage import rule_of
from lipcert.core.interval import Interval, exact
from lipcert.core.kinds import CotangentClip
from lipcert.core.ledger.premises import InputPart, Premises
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.balls import BallFact, InputBall
from lipcert.core.lines.chains import (
    CHORDS,
    COTANGENTS,
    VALUES,
    ChainForm,
    FormPull,
    slopes_between,
)
from lipcert.core.lines.gains import GainFact
from lipcert.core.lines.moved_balls import MovedBall, ZeroFact
from lipcert.core.lines.norms import StepNorm
from lipcert.core.lines.products import ProductFact
from lipcert.core.lines.proof import LOSS, OUTPUT, Proof
from lipcert.core.lines.runs import AffineFact, RunNorm, RunPull
from lipcert.core.lines.stacks import SliceFact, StackNorm, StackPull
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

ZEROS, ONES = np.zeros((2, 2)), np.eye(2)
BOXED = replace(PREMISES, input_norm=None, input_box=(0.0, 1.0))
SIGNED = replace(PREMISES, input_norm=None, input_box=(-1.0, 1.0))
POINT = ScopeClaim("point", (), ())
HALF_A_PAIR = 0.5**0.5
"""norm of the gradient of cross-entropy at equal logits of two classes"""


def dense(matrix: np.ndarray, bias: np.ndarray | None = None, tensor: str | None = None) -> Dense:
    sources = {} if tensor is None else {tensor: 1.0}
    added = None if bias is None else Operand(bias, bias)
    return Dense(Operand(matrix, matrix, sources), added)


def proof_about(
    *steps: tuple[Op, str, str],
    premises: Premises = PREMISES,
    scope: ScopeClaim = POINT,
    **more: Any,
) -> Proof:
    """Of steps on vectors of two numbers: what is computed, from what (several by blanks), name.

    more: of the program.
    """
    made = tuple(
        Step(op, tuple(inputs.split()), name, (1, 2), number)
        for number, (op, inputs, name) in enumerate(steps)
    )
    shapes = dict.fromkeys(["x", *(step.output for step in made)], (1, 2))
    output = more.pop("output", made[-1].output)
    program = Program("x", output, shapes, made, Place(0), (), **more)
    return Proof(program, premises, scope, ENGINES["float"])


def facts_of(proof: Proof) -> list[Line[Any]]:
    """Of the input, and of each step."""
    program = proof.program
    steps = [StepFact(value=step.output, step=rule_of(step.op)) for step in program.steps]
    return [InputFact(value=program.input), *steps]


def pulls_of(proof: Proof, *before: Line[Any], of: Any = LOSS) -> list[Line[Any]]:
    """The loss, and each value below it; some lines stand before that of the input."""
    program = proof.program
    values = [step.output for step in reversed(program.steps) if step.output != program.output]
    seed = [LossPull(value=program.output)] if of == LOSS else []
    inner = [ValuePull(of=of, value=value) for value in values]
    return [*seed, *inner, *before, ValuePull(of=of, value=program.input)]


def norm_of(proof: Proof, value: str) -> float:
    """What is proved of a value."""
    return proof.facts[value].norm if value in proof.facts else math.inf


def pulled(proof: Proof, value: str = "x", of: Any = LOSS) -> float:
    """What is proved of a cotangent."""
    known = proof.passes[of].cotangents
    return known[value].norm if value in known else math.inf


def refused(proof: Proof, line: Line[Any], *before: Line[Any]) -> None:
    """It does not follow, whatever its numbers are."""
    follow(proof, before)
    proof.number = len(before)
    try:
        with pytest.raises(NotProved):
            proof.add(proof.number, line)
    except (ArithmeticError, ValueError) as error:
        raise AssertionError from error


RELU = Activation("relu")


# norms ------------------------------------------------------------------------------------------


def a_norm_of_weights_that_may_change() -> None:
    scope = ScopeClaim("constraint-set", ("w",), ())
    proof = proof_about((dense(ONES, tensor="w"), "x", "y"), scope=scope)
    refused(proof, StepNorm(value="y", method="dense", bound=2.0))


def a_norm_that_is_not_stated() -> None:
    proof = proof_about((dense(ONES), "x", "y"))
    refused(proof, StepNorm(value="y", method="dense"))


def a_run_of_no_steps() -> None:
    proof = proof_about((dense(ONES), "x", "y"))
    for values in ((), ("y",)):
        refused(proof, RunNorm(values=values, method="dense", bound=2.0))


def a_stack_of_weights_that_may_change() -> None:
    scope = ScopeClaim("constraint-set", ("w",), ())
    proof = proof_about((dense(ONES, tensor="w"), "x", "a"), (dense(ONES), "x", "y"), scope=scope)
    refused(proof, StackNorm(values=("a", "y"), bound=2.0))


def a_stack_of_no_such_norm() -> None:
    """[1; 1] has the norm √2."""
    proof = proof_about((dense(ONES), "x", "a"), (dense(ONES), "x", "y"))
    refused(proof, StackNorm(values=("a", "y"), bound=1.4))
    follow(proof, [StackNorm(values=("a", "y"), bound=1.415)])
    assert proof.stacks["a", "y"] == 1.415


def a_stack_of_what_reads_other_values() -> None:
    proof = proof_about((dense(ONES), "x", "a"), (dense(ONES), "a", "y"), (RELU, "x", "z"))
    refused(proof, StackNorm(values=("a", "y"), bound=2.0))
    refused(proof, StackNorm(values=("z",), bound=2.0))
    refused(proof, StackNorm(values=(), bound=2.0))


def a_number_below_what_follows() -> None:
    proof = proof_about((dense(ONES), "x", "y"))
    refused(proof, InputFact(value="x", bound=0.5))


# values -----------------------------------------------------------------------------------------


def a_run_with_a_bias() -> None:
    """relu(x + (3, 4)) is (3.6, 4.8) at x = (0.6, 0.8)."""
    proof = proof_about((dense(ONES, np.array([3.0, 4.0])), "x", "a"), (RELU, "a", "y"))
    follow(proof, [InputFact(value="x"), AffineFact(value="y", values=("a",))])
    assert norm_of(proof, "y") >= 6.0
    assert proof.facts["y"].row_norm >= 6.0


SWAPPED = Move(np.array([[1, 0]]))


def a_slice_of_weights_that_may_change() -> None:
    scope = ScopeClaim("constraint-set", ("w",), ())
    proof = proof_about((dense(ONES, tensor="w"), "x", "a"), (SWAPPED, "a", "y"), scope=scope)
    refused(proof, SliceFact(value="y", norms=(2.0,)), *facts_of(proof))


def a_slice_of_no_such_norm() -> None:
    proof = proof_about((dense(ONES), "x", "a"), (SWAPPED, "a", "y"))
    refused(proof, SliceFact(value="y", norms=(0.9,)), *facts_of(proof))
    refused(proof, SliceFact(value="y", norms=(2.0, 2.0)), *facts_of(proof))


def a_slice_with_a_bias() -> None:
    """(x_2 + 4, x_1 + 3), around a point that nobody needs to know: within 1 of it."""
    proof = proof_about((dense(ONES, np.array([3.0, 4.0])), "x", "a"), (SWAPPED, "a", "y"))
    follow(proof, [*facts_of(proof)[:2], SliceFact(value="y", norms=(1.001,))])
    found = proof.facts["y"]
    assert found.row_norm >= 6.0
    assert 1.0 <= found.row_spread < 1.01


def a_slice_of_several_runs() -> None:
    """Both numbers of y are of different runs of a matrix."""
    square = Operand(ONES, ONES)
    steps = (
        Step(Move(np.array([[0, 1], [1, 0]])), ("x",), "p", (2, 2), 0),
        Step(Dense(square, None), ("p",), "a", (2, 2), 1),
        Step(Move(np.array([[0, 3]])), ("a",), "y", (1, 2), 2),
    )
    shapes = {"x": (1, 2), "p": (2, 2), "a": (2, 2), "y": (1, 2)}
    program = Program("x", "y", shapes, steps, Place(0), ())
    proof = Proof(program, PREMISES, POINT, ENGINES["float"])
    refused(proof, SliceFact(value="y", norms=(1.001,)), *facts_of(proof))


def weights_of_a_set() -> None:
    """The file has W = 1, and training may bring 2."""
    scope = ScopeClaim("constraint-set", ("w",), (Constraint("w", "spectral", 2.0),))
    proof = proof_about((dense(ONES, tensor="w"), "x", "y"), scope=scope)
    follow(proof, facts_of(proof))
    assert norm_of(proof, "y") >= 2.0


def an_affine_map_before_another() -> None:
    """2x is longer than x, and no ReLU of it."""
    proof = proof_about((dense(ONES), "x", "a"), (dense(2.0 * ONES), "a", "y"))
    follow(proof, [InputFact(value="x"), AffineFact(value="y", values=("a",))])
    assert norm_of(proof, "y") >= 2.0


def a_relu_of_something_else() -> None:
    """relu(2x), and the norm of x ↦ x."""
    steps = (dense(ONES), "x", "a"), (dense(2.0 * ONES), "x", "b"), (RELU, "b", "y")
    proof = proof_about(*steps)
    follow(proof, [InputFact(value="x"), AffineFact(value="y", values=("a",))])
    assert norm_of(proof, "y") >= 2.0


def gain_of(value: str, linear: str, gain: float) -> GainFact:
    """Hardly any bias, and weights raised to their positive part."""
    numbers = ((1e-9, 1e-9), (1e-9, 1e-9, 1e-9), (1e-9,))
    return GainFact(value=value, values=(linear,), numbers=numbers, gain=gain, method="dense")


def raised_weights_of_negative_numbers() -> None:
    """relu(−x) is 1 at x = (−1, 0), and 0 with the weight −1 raised to 0."""
    proof = proof_about((dense(-ONES), "x", "a"), (RELU, "a", "y"))
    follow(proof, [*facts_of(proof), gain_of("y", "a", 1e-3)])
    assert norm_of(proof, "y") >= 1.0


def raised_weights_below_no_relu() -> None:
    """−10·x of x in [0, 1]², raised as if the last step were a ReLU."""
    proof = proof_about((dense(-ONES), "x", "a"), (dense(10.0 * ONES), "a", "y"), premises=BOXED)
    follow(proof, [InputFact(value="x"), gain_of("y", "a", 1e-3)])
    assert norm_of(proof, "y") >= 10.0


def raised_weights_that_change() -> None:
    """Where training may double the weight of the file."""
    scope = ScopeClaim("constraint-set", ("w",), ())
    steps = (dense(ONES, tensor="w"), "x", "a"), (RELU, "a", "y")
    proof = proof_about(*steps, premises=BOXED, scope=scope)
    follow(proof, [InputFact(value="x"), gain_of("y", "a", 1.001)])
    assert norm_of(proof, "y") >= 2.0


def raised_weights_of_no_such_norm() -> None:
    """relu(x) is x for x in [0, 1]², however small the gain is that a line states."""
    proof = proof_about((dense(ONES), "x", "a"), (RELU, "a", "y"), premises=BOXED)
    follow(proof, [InputFact(value="x"), gain_of("y", "a", 0.5)])
    assert norm_of(proof, "y") >= 2.0**0.5


def products_to(level: float) -> ProductFact:
    """‖relu(x)‖² is at most 2·‖x‖² − ‖x‖², by its ties alone."""
    ties = ((2.0, 2.0),)
    return ProductFact(
        value="y", start="x", level=level, norms=(1.001, 0.0), ties=ties, places=(), cuts=()
    )


def products_of_weights_that_change() -> None:
    """Where training may double the weight of the file."""
    scope = ScopeClaim("constraint-set", ("w",), ())
    steps = (dense(ONES, tensor="w"), "x", "a"), (RELU, "a", "y")
    proof = proof_about(*steps, premises=SIGNED, scope=scope)
    follow(proof, [*facts_of(proof), products_to(1.01 * 2.0**0.5)])
    assert norm_of(proof, "y") >= 2.0


def products_of_no_such_norm() -> None:
    """relu(x) is x for x in [0, 1]², however small the norm is that a line states."""
    proof = proof_about((dense(ONES), "x", "a"), (RELU, "a", "y"), premises=SIGNED)
    follow(proof, [*facts_of(proof), products_to(1.0)])
    assert norm_of(proof, "y") >= 2.0**0.5


def what_the_input_is_said_to_be() -> None:
    """2x is longer than the premises say of x."""
    proof = proof_about((dense(2.0 * ONES), "x", "y"))
    follow(proof, facts_of(proof))
    assert norm_of(proof, "y") >= 2.0


def two_lines_about_a_value() -> None:
    """A larger bound takes nothing from a smaller one, and a smaller one is no smaller."""
    proof = proof_about((dense(2.0 * ONES), "x", "y"))
    follow(proof, facts_of(proof))
    known = norm_of(proof, "y")
    proof.add(0, StepFact(value="y", step="dense/1", bound=1e6))
    assert norm_of(proof, "y") == known


# balls and forms --------------------------------------------------------------------------------


def form_of(use: str, start: str, stop: str, *multipliers: Sequence[float]) -> ChainForm:
    return ChainForm(use=use, start=start, stop=stop, multipliers=tuple(map(tuple, multipliers)))  # type: ignore[arg-type]


def a_ball_around_what_no_input_is() -> None:
    """Two inputs in [0, 1], which have a norm of 0.1 together: their middles do not."""
    parts = (Part("a", (1, 1)), Part("b", (1, 1)))
    stated = tuple(InputPart(part.name, part.shape, None, (0.0, 1.0)) for part in parts)
    premises = replace(PREMISES, input_norm=0.1, input_parts=stated)
    proof = proof_about((dense(ONES), "x", "y"), premises=premises, parts=parts)
    refused(proof, InputBall(shares=(0.0, 0.0)))


def a_ball_without_a_share() -> None:
    proof = proof_about((dense(ONES), "x", "y"), premises=BOXED)
    refused(proof, InputBall(shares=(1.5,)))
    refused(proof, InputBall(shares=()))


def a_ball_of_parts_whose_squares_overflow() -> None:
    """An input of any entries up to 10³⁰⁰ beside another, which have a norm of 1 together."""
    parts = (Part("a", (1, 1)), Part("b", (1, 1)))
    stated = tuple(InputPart(part.name, part.shape, None, (0.0, 1e300)) for part in parts)
    premises = replace(PREMISES, input_norm=1.0, input_parts=stated)
    proof = proof_about((dense(ONES), "x", "y"), premises=premises, parts=parts)
    refused(proof, InputBall(shares=(1.0, 1.0)))


def a_form_of_a_smaller_norm() -> None:
    """That of 2x is 2."""
    proof = proof_about((dense(2.0 * ONES), "x", "y"))
    refused(proof, replace(form_of(VALUES, "x", "y"), bound=1.9), *facts_of(proof))


def a_value_beside_that_of_the_centre() -> None:
    """4x of x in [0, 1]² is 4 away from 0, the image of a centre, entry by entry."""
    proof = proof_about((dense(4.0 * ONES), "x", "y"), premises=BOXED)
    lines = [
        InputFact(value="x"),
        InputBall(shares=(0.0,)),
        form_of(VALUES, "x", "y"),
        BallFact(value="y", ball=1, form=2),
    ]
    follow(proof, lines)
    assert proof.facts["y"].box.hi.max() >= 4.0
    assert norm_of(proof, "y") >= 32**0.5


def a_ball_that_grew() -> None:
    """2·2·x: the radius grows by the norm of each form."""
    two = dense(2.0 * ONES)
    proof = proof_about((two, "x", "a"), (two, "a", "y"), premises=BOXED)
    lines = [
        InputFact(value="x"),
        InputBall(shares=(0.0,)),
        form_of(VALUES, "x", "a"),
        MovedBall(ball=1, form=2),
        form_of(VALUES, "a", "y"),
        BallFact(value="y", ball=1, form=4),
    ]
    follow(proof, lines)
    assert norm_of(proof, "y") >= 32**0.5


def a_form_of_another_value() -> None:
    """That of x ↦ x says nothing of 10·x."""
    steps = (dense(ONES), "x", "a"), (dense(10.0 * ONES), "x", "y")
    proof = proof_about(*steps, premises=BOXED)
    lines = [
        InputFact(value="x"),
        InputBall(shares=(0.0,)),
        form_of(VALUES, "x", "a"),
        BallFact(value="y", ball=1, form=2),
        ZeroFact(value="y", form=2),
    ]
    follow(proof, lines)
    assert norm_of(proof, "y") >= 10.0


def a_form_that_holds_some_values_still() -> None:
    """0·x + x is not 0 away from that of the centre, though the first term is."""
    steps = (dense(ZEROS), "x", "a"), (dense(ONES), "x", "b"), (Add((1, 1)), "a b", "y")
    proof = proof_about(*steps, premises=BOXED)
    lines = [
        InputFact(value="x"),
        InputBall(shares=(0.0,)),
        form_of(VALUES, "x", "a"),
        MovedBall(ball=1, form=2),
        form_of(VALUES, "x", "b"),
        MovedBall(ball=1, form=4),
        form_of(COTANGENTS, "a", "y"),
        BallFact(value="y", ball=1, form=6),
    ]
    follow(proof, lines)
    assert norm_of(proof, "y") >= 2**0.5


def _far_from_zero(use: str) -> None:
    """relu(1.5 − x) is 0 for x in [1.6, 2]², and 1.5 at 0."""
    premises = replace(PREMISES, input_norm=None, input_box=(1.6, 2.0))
    first = dense(-ONES, np.array([1.5, 1.5]))
    proof = proof_about((first, "x", "a"), (RELU, "a", "y"), premises=premises)
    forms = [form_of(use, "x", "y", numbers) for numbers in ((), (1.0, 1.0), (0.1, 0.1))]
    facts = [ZeroFact(value="y", form=2 + number) for number in range(len(forms))]
    follow(proof, [*facts_of(proof)[:-1], *forms, *facts])
    assert "y" not in proof.facts or proof.facts["y"].box.lo.min() <= 0.0


def values_far_from_zero() -> None:
    """By a form of slopes between values."""
    _far_from_zero(VALUES)


def chords_far_from_zero() -> None:
    """By a form of chords."""
    _far_from_zero(CHORDS)


def chords_that_leave_a_box() -> None:
    """From relu(−3) to relu(2) the slope is 0.4, though all values lie in [1, 2]."""
    step = Step(RELU, ("h",), "y", (1, 1), 0)
    facts = {"h": Fact.of((1, 1), box=Interval(np.ones((1, 1)), np.full((1, 1), 2.0)))}
    points = {"h": Fact.of((1, 1), box=exact(np.full((1, 1), -3.0)))}
    found = slopes_between((step,), facts, points)
    assert found is not None
    assert found["y"].lo.min() <= 0.4 <= found["y"].hi.max()


def a_form_of_weights_that_may_change() -> None:
    scope = ScopeClaim("constraint-set", ("w",), ())
    proof = proof_about((dense(ONES, tensor="w"), "x", "y"), scope=scope)
    refused(proof, form_of(VALUES, "x", "y"), InputFact(value="x"))


# cotangents -------------------------------------------------------------------------------------


def a_clipped_loss() -> None:
    """Gradients of norm √½ that are clipped to ½ have norm ½."""
    proof = proof_about((dense(ONES), "x", "y"), premises=replace(PREMISES, loss_clip=0.5))
    follow(proof, [*facts_of(proof), LossPull(value="y")])
    assert pulled(proof, "y") >= 0.5


def a_loss_of_another_value() -> None:
    """The gradient at x of a loss of 10·x, and the Lipschitz constant, are larger than at 10·x."""
    proof = proof_about((dense(10.0 * ONES), "x", "y"))
    lines = [LossPull(value="x"), LossPull(of=OUTPUT, value="x")]
    follow(proof, [*facts_of(proof), *lines])
    assert pulled(proof) >= 10.0 * HALF_A_PAIR
    assert pulled(proof, of=OUTPUT) >= 10.0


def the_output_without_a_loss() -> None:
    """No step reads the output."""
    proof = proof_about((dense(ONES), "x", "y"))
    follow(proof, [*facts_of(proof), ValuePull(value="y"), ValuePull(value="x")])
    assert pulled(proof) >= HALF_A_PAIR


def a_cotangent_that_is_bounded_twice() -> None:
    proof = proof_about((dense(ONES), "x", "y"))
    refused(proof, LossPull(value="y", bound=9.0), *facts_of(proof), LossPull(value="y"))


def a_run_that_is_read_from_within() -> None:
    """0·x + x, where the run of both matrices is 0: at x = 0 the gradient is (½, −½)."""
    steps = (dense(ONES), "x", "a"), (dense(ZEROS), "a", "b"), (Add((1, 1)), "b a", "y")
    proof = proof_about(*steps)
    proof.runs["a", "b"] = 0.0
    follow(proof, [*facts_of(proof), *pulls_of(proof, RunPull(values=("a", "b")))])
    assert pulled(proof) >= HALF_A_PAIR


def a_run_that_holds_the_output() -> None:
    """The loss reads a, from which 0 is computed besides."""
    proof = proof_about((dense(ONES), "x", "a"), (dense(ZEROS), "a", "b"), output="a")
    proof.runs["a", "b"] = 0.0
    lines = [LossPull(value="a"), ValuePull(value="b"), RunPull(values=("a", "b"))]
    follow(proof, [*facts_of(proof), *lines, ValuePull(value="x")])
    assert pulled(proof) >= HALF_A_PAIR


def a_sum_whose_other_term_is_read_again() -> None:
    """(x − x) + x, where x ↦ x − x is a run."""
    steps = (dense(-ONES), "x", "a"), (Add((1, 1)), "a x", "b"), (Add((1, 1)), "b x", "y")
    proof = proof_about(*steps)
    norm = RunNorm(values=("a", "b"), method="dense", bound=1e-9)
    follow(proof, [norm, *facts_of(proof), *pulls_of(proof, RunPull(values=("a", "b")))])
    assert pulled(proof) >= HALF_A_PAIR


def a_sum_whose_other_term_is_left_out() -> None:
    """What a run with a sum brings is no more than what reaches its start in all."""
    steps = (dense(-ONES), "x", "a"), (Add((1, 1)), "a x", "y")
    proof = proof_about(*steps)
    norm = RunNorm(values=("a", "y"), method="dense", bound=1e-9)
    follow(proof, [norm, *facts_of(proof), *pulls_of(proof, RunPull(values=("a", "y")))])
    assert pulled(proof) <= 1e-8


def a_stack_of_equal_matrices() -> None:
    """x + x has twice the gradient of x: (−0.94, 0.94) at x = (−0.7, 0.7) for the first class."""
    steps = (dense(ONES), "x", "a"), (dense(ONES), "x", "b"), (Add((1, 1)), "a b", "y")
    proof = proof_about(*steps)
    norm, pull = StackNorm(values=("a", "b"), bound=1.4143), StackPull(values=("a", "b"))
    follow(proof, [norm, *facts_of(proof), *pulls_of(proof, pull)])
    assert pulled(proof) >= 2.0 * 1.3


def a_stack_beside_another_reader() -> None:
    """0·x + 0·x + x."""
    steps = (dense(ZEROS), "x", "a"), (dense(ZEROS), "x", "b"), (Add((1, 1, 1)), "a b x", "y")
    proof = proof_about(*steps)
    norm, pull = StackNorm(values=("a", "b"), bound=1e-9), StackPull(values=("a", "b"))
    follow(proof, [norm, *facts_of(proof), *pulls_of(proof, pull)])
    assert pulled(proof) >= HALF_A_PAIR


def a_stack_that_is_no_share_of_one_matrix() -> None:
    """What it brings is all that there is: nothing is added to it."""
    steps = (dense(ONES), "x", "a"), (dense(-ONES), "x", "b"), (Add((1, 1)), "a b", "y")
    proof = proof_about(*steps)
    proof.stacks["a", "b"] = 1e-9
    follow(proof, [*facts_of(proof), *pulls_of(proof, StackPull(values=("a", "b")))])
    assert pulled(proof) <= 1e-8


def a_chain_beside_which_cotangents_pass() -> None:
    """0·x + x again, by a chain."""
    steps = (dense(ONES), "x", "a"), (dense(ZEROS), "a", "b"), (Add((1, 1)), "b a", "y")
    proof = proof_about(*steps)
    facts = facts_of(proof)
    share = FormPull(form=len(facts), by="norm")
    follow(proof, [*facts, form_of(COTANGENTS, "x", "b"), *pulls_of(proof, share)])
    assert pulled(proof) >= HALF_A_PAIR


def a_chain_whose_start_is_read_again() -> None:
    """(0·x + 0·x) + x."""
    zero, both = dense(ZEROS), Add((1, 1))
    steps = (zero, "x", "a"), (zero, "x", "b"), (both, "a b", "c"), (both, "c x", "y")
    proof = proof_about(*steps)
    facts = facts_of(proof)
    share = FormPull(form=len(facts), by="norm")
    follow(proof, [*facts, form_of(COTANGENTS, "x", "c"), *pulls_of(proof, share)])
    assert pulled(proof) >= HALF_A_PAIR


def a_form_of_values_for_cotangents() -> None:
    proof = proof_about((dense(ONES), "x", "y"))
    facts = facts_of(proof)
    form = form_of(VALUES, "x", "y")
    refused(proof, FormPull(form=len(facts), by="norm"), *facts, form, LossPull(value="y"))


def a_form_beside_one_of_other_steps() -> None:
    """y below z = y, by a form from x to z, which is 0."""
    proof = proof_about((dense(ZEROS), "x", "y"), (dense(ONES), "y", "z"))
    facts = facts_of(proof)
    forms = form_of(COTANGENTS, "y", "z"), form_of(COTANGENTS, "x", "z")
    share = FormPull(form=len(facts), by="hull", others=(len(facts) + 1,))
    refused(proof, share, *facts, *forms, LossPull(value="z"))


def cotangents_beside_each_other() -> None:
    """x + x brings twice as much."""
    steps = (dense(ONES), "x", "a"), (dense(ONES), "x", "b"), (Add((1, 1)), "a b", "y")
    proof = proof_about(*steps)
    follow(proof, [*facts_of(proof), *pulls_of(proof)])
    assert pulled(proof) >= 2.0 * HALF_A_PAIR


def the_lipschitz_constant_of_a_clipped_network() -> None:
    """A clip of cotangents changes no value."""
    proof = proof_about((CotangentClip(0.5, by_channel=False), "x", "y"))
    follow(proof, [*facts_of(proof), ValuePull(of=OUTPUT, value="x")])
    assert pulled(proof, of=OUTPUT) >= 1.0


# gradients --------------------------------------------------------------------------------------


def a_tensor_with_two_uses() -> None:
    """Wx + Wx at x = (1, 0), where the loss has a gradient of norm √½ or more."""
    use = dense(ZEROS, tensor="w")
    proof = proof_about((use, "x", "a"), (use, "x", "b"), (Add((1, 1)), "a b", "y"))
    lines = [*facts_of(proof), *pulls_of(proof), TensorGradient(tensor="w")]
    follow(proof, lines)
    assert proof.gradients["w"] >= 2.0 * HALF_A_PAIR


def a_plain_number_with_a_gradient() -> None:
    proof = proof_about((dense(ONES), "x", "y"), untracked=frozenset({"w"}))
    refused(proof, TensorGradient(tensor="w", bound=9.0))


def a_plain_number_that_may_change() -> None:
    scope = ScopeClaim("constraint-set", ("w",), ())
    with pytest.raises(Unsupported):
        proof_about((dense(ONES), "x", "y"), scope=scope, untracked=frozenset({"w"}))


# certificates -----------------------------------------------------------------------------------


def _refused_by_a_check(change: Callable[[Certificate], Certificate], stage: int) -> None:
    with TemporaryDirectory() as folder:
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        path = saved(Path(folder) / "m.onnx", [node], {"w": np.eye(2, dtype=np.float32)}, (2,))
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
