"""Of the rules of lines: every hypothesis that one of them checks, and every sum that it forms."""

from dataclasses import replace

from lipcert.core.certificate import Constraint, ScopeClaim
from lipcert.core.lines.balls import BallFact, InputBall
from lipcert.core.lines.chains import COTANGENTS, VALUES, FormPull
from lipcert.core.lines.gains import GainFact
from lipcert.core.lines.moved_balls import MovedBall, ZeroFact
from lipcert.core.lines.norms import StepNorm
from lipcert.core.lines.products import ProductFact
from lipcert.core.lines.proof import OUTPUT
from lipcert.core.lines.runs import AffineFact, RunNorm, RunPull
from lipcert.core.lines.stacks import SliceFact, StackNorm, StackPull
from lipcert.core.lines.steps import InputFact, LossPull, TensorGradient, ValuePull
from tests.core import test_attention_pull
from tests.weakenings import line_oracles as by
from tests.weakenings.line_oracles import BOXED, FACTS, FREE, PULLS, Case, X, form_of, holds
from tests.weakenings.mutation import Kill, Mutation
from tests.weakenings.oracles import PREMISES

HALF_A_PAIR = 0.5**0.5
"""norm of the gradient of cross-entropy at equal logits of two classes"""
SIGNED = replace(PREMISES, input_norm=None, input_box=(-1.0, 1.0))
BALL = InputFact(value="x"), InputBall(shares=(0.0,))
DOUBLED = ScopeClaim("constraint-set", ("w",), (Constraint("w", "spectral", 2.0),))


def gain_to(gain: float) -> GainFact:
    """Hardly any bias, and weights raised to their positive part."""
    numbers = ((1e-9, 1e-9), (1e-9, 1e-9, 1e-9), (1e-9,))
    return GainFact(value="y", values=("a",), numbers=numbers, gain=gain, method="dense")


def products_to(level: float) -> ProductFact:
    """‖relu(x)‖² is at most 2·‖x‖² − ‖x‖², by its ties alone."""
    ties = ((2.0, 2.0),)
    return ProductFact(
        value="y", start="x", level=level, norms=(1.001, 0.0), ties=ties, places=(), cuts=()
    )


A_CLIPPED_LOSS = Case(  # gradients of norm √½ that are clipped to ½ have norm ½
    "a clipped loss", "y = 1 x", [FACTS, LossPull(value="y")], {"loss y": 0.5},
    about={"premises": replace(PREMISES, loss_clip=0.5)}, kills=[
        ("lines.steps:LossPull.evaluate", "clipped(found, premises.loss_clip)",
         "clipped(found, 0.9 * premises.loss_clip)")],
)  # fmt: skip

NORMS = [
    Case("a norm of weights that may change", "y = 1w x", about={"scope": FREE},
         refused=[StepNorm(value="y", method="dense", bound=2.0)], kills=[
        ("lines.norms:NormLine._proved", "not proof.free & tensors_read(steps)", "True")]),
    Case("a norm that is not stated", "y = 1 x", refused=[StepNorm(value="y", method="dense")],
         kills=[("lines.norms:NormLine._proved", "self.bound is None", "False")]),
    Case("a run of no steps", "y = 1 x", refused=[
        RunNorm(values=values, method="dense", bound=2.0) for values in ((), ("y",))],
         kills=[("lines.runs:RunNorm.evaluate", "len(steps) < 2", "len(steps) < 1")]),
    Case("a stack of weights that may change", "a = 1w x, y = 1 x", about={"scope": FREE},
         refused=[StackNorm(values=("a", "y"), bound=2.0)], kills=[
        ("lines.stacks:StackNorm.evaluate", " or proof.free & tensors_read(steps)", "")]),
    Case("a stack of no such norm", "a = 1 x, y = 1 x",  # [1; 1] has the norm √2
         refused=[StackNorm(values=("a", "y"), bound=1.4)], kills=[
        ("lines.stacks:StackNorm.evaluate",
         "not matrix_holds(stacked(steps), self.bound, proof.engine.norms)", "False")]),
    Case("a stack of what reads other values", "a = 1 x, y = 1 a, z = relu x", refused=[
        StackNorm(values=values, bound=2.0) for values in (("a", "y"), ("z",), ())], kills=[
        ("lines.stacks:stacked", " and step.inputs == steps[0].inputs", "")]),
    Case("a number below what follows", "y = 1 x", refused=[InputFact(value="x", bound=0.5)],
         kills=[("lines.proof:Proof.add", "not line.stated >= least", "False")]),
]  # fmt: skip

VALUES_ = [
    Case("a run with a bias", "a = 1 x 3 4, y = relu a",  # (3.6, 4.8) at x = (0.6, 0.8)
         [InputFact(value="x"), AffineFact(value="y", values=("a",))],
         {"y": 6.0, "rows y": 6.0}, kills=[
        ("lines.runs:AffineFact.evaluate", "add_up(multiply_up(bound, below.norm), at_zero.norm)",
         "max(multiply_up(bound, below.norm), at_zero.norm)"),
        ("lines.runs:AffineFact.evaluate",
         "add_up(multiply_up(bound, below.row_norm), at_zero.row_norm)",
         "multiply_up(bound, below.row_norm)")]),
    Case("an affine map before another", "a = 1 x, y = 2 a",  # longer than x, and no ReLU of it
         [InputFact(value="x"), AffineFact(value="y", values=("a",))], {"y": 2.0}, kills=[
        ("lines.runs:AffineFact.evaluate",
         "not is_relu(above) or above.inputs != self.values[-1:]", "False")]),
    Case("a ReLU of something else", "a = 1 x, b = 2 x, y = relu b",
         [InputFact(value="x"), AffineFact(value="y", values=("a",))], {"y": 2.0}, kills=[
        ("lines.runs:AffineFact.evaluate", " or above.inputs != self.values[-1:]", "")]),
    # 1 at x = (−1, 0), and 0 with the weight −1 raised to 0
    Case("raised weights of negative numbers", "a = -1 x, y = relu a", [FACTS, gain_to(1e-3)],
         {"y": 1.0}, kills=[
        ("lines.gains:GainFact.evaluate", "not (below.box.lo >= 0.0).all()", "False")]),
    # raised as if the last step were a ReLU
    Case("raised weights below no ReLU", "a = -1 x, y = 10 a", [InputFact(value="x"),
         gain_to(1e-3)], {"y": 10.0}, about={"premises": BOXED}, kills=[
        ("lines.gains:GainFact.evaluate", " and is_relu(above)", "")]),
    # where training may double the weight of the file
    Case("raised weights that change", "a = 1w x, y = relu a", [InputFact(value="x"),
         gain_to(1.001)], {"y": 2.0}, about={"premises": BOXED, "scope": FREE}, kills=[
        ("lines.gains:GainFact.evaluate", "proof.free & tensors_read(steps)", "False")]),
    Case("raised weights of no such norm", "a = 1 x, y = relu a", [InputFact(value="x"),
         gain_to(0.5)], {"y": 2.0**0.5}, about={"premises": BOXED}, kills=[
        ("lines.gains:GainFact._copies", "all_at_most(exact(matrix), 1.0, self.gain, check)",
         "True")]),
    Case("products of weights that change", "a = 1w x, y = relu a", [FACTS,
         products_to(1.01 * 2.0**0.5)], {"y": 2.0}, about={"premises": SIGNED, "scope": FREE},
         kills=[("lines.products:region_of", "proof.free", "frozenset()")]),
    Case("products of no such norm", "a = 1 x, y = relu a", [FACTS, products_to(1.0)],
         {"y": 2.0**0.5}, about={"premises": SIGNED}, kills=[
        ("lines.products:ProductFact.evaluate",
         "not is_semidefinite(*form, proof.engine.definite)", "False")]),
    Case("a slice of weights that may change", "a = 1w x, y = swap a", [FACTS],
         refused=[SliceFact(value="y", norms=(2.0,))], about={"scope": FREE}, kills=[
        ("lines.stacks:SliceFact.evaluate", " or proof.free & tensors_read((maker,))", "")]),
    Case("a slice of no such norm", "a = 1 x, y = swap a", [FACTS], refused=[
        SliceFact(value="y", norms=norms) for norms in ((0.9,), (2.0, 2.0))], kills=[
        ("lines.stacks:SliceFact.evaluate", "not matrix_holds(part, norm, proof.engine.norms)",
         "False")]),
    Case("what the input is said to be", "y = 2 x", [FACTS], {"y": 2.0}, kills=[
        ("lines.steps:StepFact.evaluate", "proof.known.get(self.value)",
         "proof.known.get(proof.program.input)")]),
    Case("weights of a set", "y = 1w x", [FACTS], {"y": 2.0}, about={"scope": DOUBLED}, kills=[
        ("lines.proof:weights_in", 'scope.kind == "point"', "True")]),
]  # fmt: skip

FORMS = [
    Case("a ball without a share", "y = 1 x", about={"premises": BOXED},
         refused=[InputBall(shares=(1.5,)), InputBall(shares=())], kills=[
        ("lines.balls:InputBall.evaluate", "program.parts and ", "")]),
    # 4x of x in [0, 1]² is 4 away from 0, the image of a centre, entry by entry
    Case("a value beside that of the centre", "y = 4 x", [*BALL, form_of(VALUES, "x", "y"),
         BallFact(value="y", ball=1, form=2)], {"y": 32**0.5}, about={"premises": BOXED}, kills=[
        ("lines.balls:BallFact.middle", "radius = proof.radii[self.ball, chain.start]",
         "radius = 0.5 * proof.radii[self.ball, chain.start]")]),
    Case("a ball that grew", "a = 2 x, y = 2 a", [*BALL,
         form_of(VALUES, "x", "a"), MovedBall(ball=1, form=2), form_of(VALUES, "a", "y"),
         BallFact(value="y", ball=1, form=4)], {"y": 32**0.5}, about={"premises": BOXED}, kills=[
        ("lines.moved_balls:MovedBall.evaluate",
         "multiply_up(chain.form.norm, proof.radii[self.ball, chain.start])",
         "proof.radii[self.ball, chain.start]")]),
    Case("a form of another value", "a = 1 x, y = 10 x", [*BALL, form_of(VALUES, "x", "a"),
         BallFact(value="y", ball=1, form=2),
         ZeroFact(value="y", form=2)], {"y": 10.0}, about={"premises": BOXED}, kills=[
        ("lines.balls:NearFact.evaluate", "chain.stop != self.value", "False")]),
    # 0·x + x is not 0 away from that of the centre, though the first term is
    Case("a form that holds some values still", "a = 0 x, b = 1 x, y = a + b", [
         *BALL, form_of(VALUES, "x", "a"),
         MovedBall(ball=1, form=2), form_of(VALUES, "x", "b"), MovedBall(ball=1, form=4),
         form_of(COTANGENTS, "a", "y"), BallFact(value="y", ball=1, form=6)], {"y": 2**0.5},
         about={"premises": BOXED}, kills=[
        ("lines.balls:of_values", "chain.use == COTANGENTS", "False")]),
    Case("a form of a smaller norm", "y = 2 x", [FACTS],
         refused=[replace(form_of(VALUES, "x", "y"), bound=1.9)], kills=[
        ("lines.chains:ChainForm.evaluate", "not form.has_norm(self.bound)", "False")]),
    Case("a form of weights that may change", "y = 1w x", [InputFact(value="x")],
         refused=[form_of(VALUES, "x", "y")], about={"scope": FREE}, kills=[
        ("lines.chains:chain_steps", " or tensors_read(steps) & free", "")]),
]  # fmt: skip

COTANGENTS_ = [
    A_CLIPPED_LOSS,
    # the gradient at x of a loss of 10·x, and the Lipschitz constant, are larger than at 10·x
    Case("a loss of another value", "y = 10 x", [FACTS, LossPull(value="x"),
         LossPull(of=OUTPUT, value="x")], {"loss x": 10.0 * HALF_A_PAIR, "output x": 10.0}, kills=[
        ("lines.steps:LossPull.evaluate", "self.of != LOSS or self.value != program.output",
         "False")]),
    Case("the output without a loss", "y = 1 x", [FACTS, ValuePull(value="y"), X],
         {"loss x": HALF_A_PAIR}, kills=[
        ("lines.steps:ValuePull.evaluate", "self.value == proof.program.output", "False")]),
    Case("a cotangent that is bounded twice", "y = 1 x", [FACTS, LossPull(value="y")],
         refused=[LossPull(value="y", bound=9.0)], kills=[
        ("lines.steps:PullLine.keep", "self.value in cotangents", "False")]),
    # 0·x + x, where the run of both matrices is 0: at x = 0 the gradient is (½, −½)
    Case("a run that is read from within", "a = 1 x, b = 0 a, y = b + a", [FACTS, PULLS,
         RunPull(values=("a", "b")), X], {"loss x": HALF_A_PAIR},
         known={"runs": {("a", "b"): 0.0}}, kills=[
        ("lines.runs:RunPull.evaluate",
         "any(proof.reads[value] != 1 for value in self.values[:-1])", "False")]),
    # the loss reads a, from which 0 is computed besides
    Case("a run that holds the output", "a = 1 x, b = 0 a", [FACTS, LossPull(value="a"),
         ValuePull(value="b"), RunPull(values=("a", "b")), X], {"loss x": HALF_A_PAIR},
         about={"output": "a"}, known={"runs": {("a", "b"): 0.0}}, kills=[
        ("lines.proof:Proof.__init__", "self.reads[program.output] += 1",
         "self.reads[program.output] += 0")]),
    # (x − x) + x, where x ↦ x − x is a run
    Case("a sum whose other term is read again", "a = -1 x, b = a + x, y = b + x", [
         RunNorm(values=("a", "b"), method="dense", bound=1e-9), FACTS, PULLS,
         RunPull(values=("a", "b")), X], {"loss x": HALF_A_PAIR}, kills=[
        ("lines.runs:RunPull.evaluate",
         "self._is_sum(proof) and proof.reads[proof.steps[self.values[0]].inputs[0]] != 2",
         "False")]),
    # what a run with a sum brings is no more than what reaches its start in all
    Case("a sum whose other term is left out", "a = -1 x, y = a + x", [
         RunNorm(values=("a", "y"), method="dense", bound=1e-9), FACTS, PULLS,
         RunPull(values=("a", "y")), X], most={"loss x": 1e-8}, kills=[
        ("lines.runs:RunPull.entry", "None if self._is_sum(proof) else first.output",
         "first.output")]),
    # twice the gradient of x: (−0.94, 0.94) at x = (−0.7, 0.7) for the first class
    Case("a stack of equal matrices", "a = 1 x, b = 1 x, y = a + b", [
         StackNorm(values=("a", "b"), bound=1.4143), FACTS, PULLS,
         StackPull(values=("a", "b")), X], {"loss x": 2.0 * 1.3}, kills=[
        ("lines.stacks:StackPull.evaluate", "square = add_up(square, multiply_up(length, length))",
         "square = max(square, multiply_up(length, length))")]),
    Case("a stack beside another reader", "a = 0 x, b = 0 x, y = a + b + x", [
         StackNorm(values=("a", "b"), bound=1e-9), FACTS, PULLS, StackPull(values=("a", "b")), X],
         {"loss x": HALF_A_PAIR}, kills=[
        ("lines.stacks:StackPull.evaluate", "sqrt_up(square)), rest.norm)",
         "sqrt_up(square)), 0.0)")]),
    # what it brings is all that there is: nothing is added to it
    Case("a stack that is no share of one matrix", "a = 1 x, b = -1 x, y = a + b", [FACTS, PULLS,
         StackPull(values=("a", "b")), X], most={"loss x": 1e-8},
         known={"stacks": {("a", "b"): 1e-9}}, kills=[
        ("lines.stacks:StackPull.entry", "inputs[0], None", "inputs[0], self.subject")]),
    Case("a form of values for cotangents", "y = 1 x", [FACTS, form_of(VALUES, "x", "y"),
         LossPull(value="y")], refused=[FormPull(form=2, by="norm")], kills=[
        ("lines.chains:FormPull.evaluate", "chain.use != COTANGENTS", "False")]),
    # y below z = y, by a form from x to z, which is 0
    Case("a form beside one of other steps", "y = 0 x, z = 1 y", [FACTS,
         form_of(COTANGENTS, "y", "z"), form_of(COTANGENTS, "x", "z"), LossPull(value="z")],
         refused=[FormPull(form=3, by="hull", others=(4,))], kills=[
        ("lines.chains:FormPull.evaluate", "(other.use, other.start, other.stop) != ends",
         "False")]),
    # 0·x + x again, by a chain
    Case("a chain beside which cotangents pass", "a = 1 x, b = 0 a, y = b + a", [FACTS,
         form_of(COTANGENTS, "x", "b"), PULLS, FormPull(form=4, by="norm"), X],
         {"loss x": HALF_A_PAIR}, kills=[
        ("lines.chains:first_reader", "not is_only_way(program, steps)", "False"),
        ("paths:is_only_way", "own.issuperset(readers)", "True")]),
    Case("a chain whose start is read again", "a = 0 x, b = 0 x, c = a + b, y = c + x", [FACTS,
         form_of(COTANGENTS, "x", "c"), PULLS, FormPull(form=5, by="norm"), X],
         {"loss x": HALF_A_PAIR}, kills=[
        ("lines.chains:first_reader",
         "start == program.output or reads != reads_of(program.steps, start)", "False")]),
    Case("cotangents beside each other", "a = 1 x, b = 1 x, y = a + b", [FACTS, PULLS, X],
         {"loss x": 2.0 * HALF_A_PAIR}, kills=[
        ("rules.facts:Cotangent.plus", "add_up(self.norm, other.norm)",
         "max(self.norm, other.norm)")]),
    # a clip of cotangents changes no value
    Case("the Lipschitz constant of a clipped network", "y = clip x", [FACTS,
         ValuePull(of=OUTPUT, value="x")], {"output x": 1.0}, kills=[
        ("lines.proof:Proof.__init__", "(OUTPUT, unclipped)", "(OUTPUT, program)"),
        ("lines.proof:Proof.__init__", "Cotangent(1.0)", "Cotangent(0.9)")]),
    # Wx + Wx at x = (1, 0), where the loss has a gradient of norm √½ or more
    Case("a tensor with two uses", "a = 0w x, b = 0w x, y = a + b", [FACTS, PULLS, X,
         TensorGradient(tensor="w")], {"gradient w": 2.0 * HALF_A_PAIR}, kills=[
        ("lines.steps:TensorGradient.evaluate", "add_up(found, share) if",
         "max(found, share) if")]),
    Case("a plain number with a gradient", "y = 1 x", about={"untracked": frozenset({"w"})},
         refused=[TensorGradient(tensor="w", bound=9.0)], kills=[
        ("lines.steps:TensorGradient.evaluate", "self.tensor in proof.program.untracked",
         "False")]),
]  # fmt: skip

OTHERS = [
    *(Mutation(rule, old, new, Kill.of(oracle)) for rule, old, new, oracle in (
        ("lines.stacks:SliceFact.evaluate", "add_up(multiply_up(norm, below.row_norm), shift)",
         "multiply_up(norm, below.row_norm)", by.a_slice_with_a_bias),
        ("lines.stacks:SliceFact.evaluate",
         "spread = max(spread, multiply_up(norm, below.row_spread))", "spread = 0.0",
         by.a_slice_with_a_bias),
        ("lines.stacks:row_sets", "has_alike_runs(sources, axis, maker.shape, -1)", "True",
         by.a_slice_of_several_runs),
        ("lines.steps:FactLine.keep", "if self.value in proof.facts:", "if False:",
         by.two_lines_about_a_value),
        ("lines.balls:InputBall.evaluate", "not is_allowed(ball.centre, program, known)", "False",
         by.a_ball_around_what_no_input_is),
        ("lines.balls:enclosing_ball", " and fact.norm <= LARGEST_SQUARED", "",
         by.a_ball_of_parts_whose_squares_overflow),
        ("lines.moved_balls:ZeroFact.middle", "chain.use != CHORDS and not is_proved_for(",
         "False and not is_proved_for(", by.values_far_from_zero),
        ("lines.moved_balls:is_proved_for",
         "np.all(chain.slopes[name].lo <= found.lo) and "
         "np.all(found.hi <= chain.slopes[name].hi)", "True", by.values_far_from_zero),
        ("lines.chains:slopes_at", "proof.images(steps, start) if use == CHORDS else None", "None",
         by.chords_far_from_zero),
        ("lines.chains:slopes_between", "box=hull(below.box, points[name].box)", "box=below.box",
         by.chords_that_leave_a_box),
        ("lines.proof:Proof.__init__", "if moving:", "if False:",
         by.a_plain_number_that_may_change),
        ("lines.proof:Proof.gradient", "math.inf if is_read else 0.0", "0.0",
         by.a_gradient_without_a_line),
        ("check:_read", "stages != sorted(stages)", "False", by.lines_from_behind),
    )),
    *(Mutation("lines.attention:tokens_below", old, new, killer) for old, new, killer in (
        ("proof.reads[step.output] != 1", "False",
         Kill.of(test_attention_pull.test_nothing_else_reads_what_lies_between, "q")),
        ("proof.program.output in {step.output for step in (maker, *shared)}", "False",
         Kill.of(test_attention_pull.test_the_loss_reads_nothing_that_lies_below)),
        ("{axis % rank for axis in maker.op.axes} != {rank - 1}", "False",
         Kill.of(test_attention_pull.test_what_lies_below_has_to_be_a_norm_of_tokens,
                 test_attention_pull.OTHERS[0])),
    )),
    *(Mutation(f"lines.attention:{place}", old, new, Kill.of(oracle, *arguments))
      for place, old, new, oracle, *arguments in (
        ("AttentionPull.evaluate", "multiply_up(root, values)", "values",
         test_attention_pull.test_two_tokens_attain_what_keys_receive),
        ("AttentionPull.evaluate", "add_up(found, rest.norm)", "found",
         test_attention_pull.test_what_passes_by_attains_what_it_receives, "h"),
        ("AttentionPull.evaluate", "_steepness(proof, [step])", "1.0",
         test_attention_pull.test_what_passes_by_attains_what_it_receives, "scaled"),
        ("AttentionPull.evaluate", "(of_values != of_keys[..., :1]).any()", "False",
         test_attention_pull.test_keys_and_values_are_of_the_same_tokens),
        ("_joined", "is_moved and reads_apart", "reads_apart",
         test_attention_pull.test_parts_are_apart_where_all_three_are_moved),
        ("_joined", "_steepness(proof, branch[:1])", "0.1",
         test_attention_pull.test_two_tokens_attain_what_keys_receive),
        ("spread_along", "proof.slices[step.output], facts", "0.9, facts",
         test_attention_pull.test_parts_of_a_matrix_spread_by_their_own_rows),
    )),
]  # fmt: skip

CASES = [*NORMS, *VALUES_, *FORMS, *COTANGENTS_]
LINES = [
    *(Mutation(*kill, Kill.of(holds, case)) for case in CASES for kill in case.kills),
    *OTHERS,
]
