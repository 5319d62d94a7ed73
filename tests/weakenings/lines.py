"""Of the rules of lines: every hypothesis that one of them checks, and every sum that it forms."""

from __future__ import annotations

from collections.abc import Callable

from tests.weakenings import line_oracles as by
from tests.weakenings.mutation import Kill, Mutation


def _of(rule: str, old: str, new: str, oracle: Callable[[], None]) -> Mutation:
    return Mutation(f"lines.{rule}", old, new, Kill.of(oracle))


NORMS = [
    _of("norms:NormLine._proved", "not proof.free & tensors_read(steps)", "True",
        by.a_norm_of_weights_that_may_change),
    _of("norms:NormLine._proved", "self.bound is None", "False", by.a_norm_that_is_not_stated),
    _of("runs:RunNorm.evaluate", "len(steps) < 2", "len(steps) < 1", by.a_run_of_no_steps),
    _of("stacks:StackNorm.evaluate", " or proof.free & tensors_read(steps)", "",
        by.a_stack_of_weights_that_may_change),
    _of("stacks:StackNorm.evaluate",
        " or not matrix_holds(matrix, self.bound, proof.engine.norms)", "",
        by.a_stack_of_no_such_norm),
    _of("stacks:stacked", " and step.inputs == steps[0].inputs", "",
        by.a_stack_of_what_reads_other_values),
    _of("proof:Proof.add", "not line.stated >= least", "False", by.a_number_below_what_follows),
]  # fmt: skip

VALUES = [
    _of("affine:AffineFact.evaluate", "add_up(multiply_up(bound, below.norm), at_zero.norm)",
        "max(multiply_up(bound, below.norm), at_zero.norm)", by.a_run_with_a_bias),
    _of("affine:AffineFact.evaluate",
        "add_up(multiply_up(bound, below.row_norm), at_zero.row_norm)",
        "multiply_up(bound, below.row_norm)", by.a_run_with_a_bias),
    _of("affine:AffineFact.evaluate",
        "not is_relu(above) or above.inputs != self.values[-1:]", "False",
        by.an_affine_map_before_another),
    _of("affine:AffineFact.evaluate", " or above.inputs != self.values[-1:]", "",
        by.a_relu_of_something_else),
    _of("gains:GainFact.evaluate", "not (below.box.lo >= 0.0).all()", "False",
        by.raised_weights_of_negative_numbers),
    _of("gains:GainFact.evaluate", " and is_relu(above)", "", by.raised_weights_below_no_relu),
    _of("gains:GainFact.evaluate", "proof.free & tensors_read(steps)", "False",
        by.raised_weights_that_change),
    _of("gains:GainFact._copies", " and all_at_most(exact(matrix), 1.0, self.gain, check)", "",
        by.raised_weights_of_no_such_norm),
    _of("products:region_of", "proof.free", "frozenset()", by.products_of_weights_that_change),
    _of("products:ProductFact.evaluate",
        " or not is_definite(form, proof.engine.definite)", "", by.products_of_no_such_norm),
    _of("slices:SliceFact.evaluate", " or proof.free & tensors_read((maker,))", "",
        by.a_slice_of_weights_that_may_change),
    _of("slices:SliceFact.evaluate", "not matrix_holds(part, norm, proof.engine.norms)", "False",
        by.a_slice_of_no_such_norm),
    _of("slices:SliceFact.evaluate", "add_up(multiply_up(norm, below.row_norm), shift)",
        "multiply_up(norm, below.row_norm)", by.a_slice_with_a_bias),
    _of("slices:SliceFact.evaluate", "spread = max(spread, multiply_up(norm, below.row_spread))",
        "spread = 0.0", by.a_slice_with_a_bias),
    _of("slices:row_sets", "has_alike_runs(sources, axis, maker.shape, -1)", "True",
        by.a_slice_of_several_runs),
    _of("facts:StepFact.evaluate", "proof.known.get(self.value)",
        "proof.known.get(proof.program.input)", by.what_the_input_is_said_to_be),
    _of("facts:FactLine.keep", "if self.value in proof.facts:", "if False:",
        by.two_lines_about_a_value),
]  # fmt: skip

FORMS = [
    _of("balls:InputBall.evaluate", " or not is_allowed(ball.centre, program, known)", "",
        by.a_ball_around_what_no_input_is),
    _of("balls:InputBall.evaluate", "program.parts and ", "", by.a_ball_without_a_share),
    Mutation("forms.centred:enclosing_ball", " and fact.norm <= LARGEST_SQUARED", "",
        Kill.of(by.a_ball_of_parts_whose_squares_overflow)),
    Mutation("forms.chain:_proved", "not norm_up(form) < np.inf", "False",
        Kill.of(by.a_form_whose_scale_overflows)),
    _of("balls:BallFact.middle", "radius = proof.radii[self.ball, chain.start]",
        "radius = 0.5 * proof.radii[self.ball, chain.start]",
        by.a_value_beside_that_of_the_centre),
    _of("moved_balls:MovedBall.evaluate",
        "multiply_up(chain.form.norm, proof.radii[self.ball, chain.start])",
        "proof.radii[self.ball, chain.start]", by.a_ball_that_grew),
    _of("balls:NearFact.evaluate", "chain.stop != self.value", "False", by.a_form_of_another_value),
    _of("balls:of_values", "chain.use == COTANGENTS", "False",
        by.a_form_that_holds_some_values_still),
    _of("moved_balls:ZeroFact.middle", "chain.use != CHORDS and not chain.allows(",
        "False and not chain.allows(", by.values_far_from_zero),
    _of("chains:Chain.allows",
        "np.all(self.slopes[name].lo <= found.lo) and np.all(found.hi <= self.slopes[name].hi)",
        "True", by.values_far_from_zero),
    _of("chains:slopes_at",
        "proof.images(steps, start) if use == CHORDS else None", "None",
        by.chords_far_from_zero),
    _of("chains:ChainForm.evaluate", "not form.has_norm(self.bound)", "False",
        by.a_form_of_a_smaller_norm),
    _of("chains:slopes_between", "box=hull(below.box, points[name].box)",
        "box=below.box", by.chords_that_leave_a_box),
    _of("chains:chain_steps", " or tensors_read(steps) & free", "",
        by.a_form_of_weights_that_may_change),
]  # fmt: skip

PULLS = [
    _of("pulls:LossPull.evaluate", "self.of != LOSS or self.value != program.output", "False",
        by.a_loss_of_another_value),
    _of("pulls:LossPull.evaluate", "found.clipped(premises.loss_clip)",
        "found.clipped(0.9 * premises.loss_clip)", by.a_clipped_loss),
    _of("pulls:ValuePull.evaluate", "self.value == proof.program.output", "False",
        by.the_output_without_a_loss),
    _of("pulls:PullLine.keep", "self.value in cotangents", "False",
        by.a_cotangent_that_is_bounded_twice),
    _of("runs:RunPull.evaluate",
        "any(proof.reads[value] != 1 for value in self.values[:-1])", "False",
        by.a_run_that_is_read_from_within),
    _of("runs:RunPull.evaluate",
        "self._is_sum(proof) and proof.reads[proof.steps[self.values[0]].inputs[0]] != 2", "False",
        by.a_sum_whose_other_term_is_read_again),
    _of("runs:RunPull.entry", "None if self._is_sum(proof) else first.output", "first.output",
        by.a_sum_whose_other_term_is_left_out),
    _of("stacks:StackPull.evaluate", "square = add_up(square, multiply_up(length, length))",
        "square = max(square, multiply_up(length, length))", by.a_stack_of_equal_matrices),
    _of("stacks:StackPull.evaluate", "sqrt_up(square)), rest.norm)", "sqrt_up(square)), 0.0)",
        by.a_stack_beside_another_reader),
    _of("stacks:StackPull.entry", "inputs[0], None", "inputs[0], self.subject",
        by.a_stack_that_is_no_share_of_one_matrix),
    _of("shares:FormPull.evaluate", "chain.use != COTANGENTS", "False",
        by.a_form_of_values_for_cotangents),
    _of("shares:first_reader", "not is_only_way(program, steps)", "False",
        by.a_chain_beside_which_cotangents_pass),
    _of("shares:first_reader",
        "start == program.output or reads != reads_of(program.steps, start)", "False",
        by.a_chain_whose_start_is_read_again),
    Mutation("rules.facts:Cotangent.plus", "add_up(self.norm, other.norm)",
        "max(self.norm, other.norm)", Kill.of(by.cotangents_beside_each_other)),
    _of("proof:Proof.__init__", "self.reads[program.output] += 1",
        "self.reads[program.output] += 0", by.a_run_that_holds_the_output),
    _of("proof:Proof.__init__", "(OUTPUT, unclipped)", "(OUTPUT, program)",
        by.the_lipschitz_constant_of_a_clipped_network),
    _of("proof:Proof.__init__", "Cotangent(1.0)", "Cotangent(0.9)",
        by.the_lipschitz_constant_of_a_clipped_network),
    _of("proof:Proof.__init__", "if moving:", "if False:", by.a_plain_number_that_may_change),
    Mutation("paths:is_only_way", "own.issuperset(readers)", "True",
        Kill.of(by.a_chain_beside_which_cotangents_pass)),
]  # fmt: skip

GRADIENTS = [
    _of("gradients:TensorGradient.evaluate", "add_up(found, share) if", "max(found, share) if",
        by.a_tensor_with_two_uses),
    _of("gradients:TensorGradient.evaluate", "self.tensor in proof.program.untracked", "False",
        by.a_plain_number_with_a_gradient),
    Mutation("lines.proof:Proof.gradient", "math.inf if is_read else 0.0", "0.0",
        Kill.of(by.a_gradient_without_a_line)),
    Mutation("check:_read", "stages != sorted(stages)", "False",
        Kill.of(by.lines_from_behind)),
]  # fmt: skip

LINES = [*NORMS, *VALUES, *FORMS, *PULLS, *GRADIENTS]
