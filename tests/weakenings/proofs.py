"""Of proofs about matrices, convolutions and chains, and of what takes them into a derivation."""

from __future__ import annotations

from lipcert.core.norms.definite import definite_exact, definite_float
from lipcert.core.norms.float_engine import norm_at_most_float
from lipcert.core.norms.integer_engine import norm_at_most_exact
from lipcert.core.program import Activation
from tests.core import test_inputs, test_kernel_gradients
from tests.core.forms import test_forms, test_links, test_products, test_regions
from tests.core.norms import (
    test_convolution,
    test_definite,
    test_engines,
    test_fused,
    test_raised,
    test_roots,
    test_stacks,
    test_steps,
    test_symbol,
    test_torus,
)
from tests.core.rules.test_convolution import test_a_bound_of_the_kernel_is_none_of_the_bias
from tests.core.test_kernel_gradients import IMAGES, SIGNED
from tests.weakenings import oracles
from tests.weakenings.mutation import Kill, Mutation

STRIPS = Kill.of(
    test_convolution.test_claims_about_strips_of_many_panels, *test_convolution.LONG[0]
)

NORMS = [
    Mutation(
        "norms.claim:NormClaim.of",
        "return largest == 0.0",
        "return True",
        Kill.of(oracles.norms_slightly_too_small),
    ),
    Mutation(
        "norms.float_engine:norm_at_most_float",
        "Fraction(level) + rest + error <= target",
        "True",
        Kill.of(oracles.wrong_factors, norm_at_most_float),
    ),
    Mutation(
        "norms.residual:unexplained",
        "return measured + product_error + U * measured + 2 * n * ETA",
        "return Fraction(0)",
        Kill.of(oracles.wrong_factors, norm_at_most_float),
    ),
    Mutation(
        "norms.residual:square_sum",
        "1 - gamma(size)",
        "9",
        Kill.of(oracles.norms_slightly_too_small),
    ),
    Mutation(
        "norms.residual:extent",
        "int(found[-1]) + 1",
        "int(found[-1])",
        Kill.of(test_definite.test_bands, definite_float),
    ),
    Mutation(
        "norms.strips:strips_at_most_float",
        "Fraction(level) + rest + error <= target",
        "True",
        Kill.of(oracles.wrong_factors, oracles.in_strips),
    ),
    Mutation(
        "norms.strips:_Panels.unexplained",
        "return measured + product_error + U * measured + 2 * size * ETA",
        "return Fraction(0)",
        Kill.of(oracles.wrong_factors, oracles.in_strips),
    ),
    Mutation(
        "norms.strips:_Panels.gram",
        "strip.rows.T @ strip.rows",
        "0.9 * strip.rows.T @ strip.rows",
        STRIPS,
    ),
    Mutation("norms.strips:_add", "+= part", "= part", STRIPS),
    Mutation(
        "norms.explicit:strips_of",
        "matrix.T if flipped else matrix",
        "0.9 * (matrix.T if flipped else matrix)",
        STRIPS,
    ),
    Mutation("norms.explicit:_strips", "= matrices[tap]", "= matrices[0]", STRIPS),
    Mutation(
        "norms.integer_engine:norm_at_most_exact",
        "level + rest",
        "level",
        Kill.of(oracles.wrong_factors, norm_at_most_exact),
    ),
    Mutation(
        "norms.layers:Layers.gram",
        "second += cross + cross.T",
        "second += cross",
        Kill.of(test_engines.test_proved_claims_are_true),
    ),
    Mutation(
        "norms.layers:Layers.row_sum_norm",
        "int(max(",
        "int(0 * max(",
        Kill.of(oracles.wrong_factors, norm_at_most_exact),
    ),
    Mutation(
        "norms.definite:definite_float",
        "Fraction(shift) - least",
        "Fraction(shift)",
        Kill.of(oracles.wrong_lowest_eigenvalue, definite_float),
    ),
    Mutation(
        "norms.definite:definite_exact",
        "<= -least",
        "<= 0",
        Kill.of(oracles.wrong_lowest_eigenvalue, definite_exact),
    ),
    Mutation(
        "norms.convolution:Convolution.by_windows",
        "sqrt_up(float(self.overlap()))",
        "1.0",
        Kill.of(test_convolution.test_claims_about_convolutions),
    ),
    Mutation(
        "norms.convolution:Convolution.overlap",
        ".max()",
        ".min()",
        Kill.of(test_convolution.test_overlap_is_the_largest_column_of_the_window_matrix),
    ),
    Mutation(
        "norms.convolution:Convolution.block",
        "result[:, y, :, x] = taps[:, :, tap]",
        "result[:, y, :, x] = 0.9 * taps[:, :, tap]",
        Kill.of(test_convolution.test_the_matrix_is_the_convolution),
    ),
    Mutation(
        "norms.claim:all_at_most",
        "Fraction(claim) - Fraction(error)",
        "Fraction(claim)",
        Kill.of(test_steps.test_an_interval_operand_costs_its_radius),
    ),
    Mutation(
        "norms.kernels:Kernel.norm_at_most",
        "sqrt_up(float(self.frame.overlap()))",
        "0.0",
        Kill.of(test_steps.test_an_interval_operand_costs_its_radius),
    ),
    Mutation(
        "norms.steps:matrix_of",
        "return Interval(op.weight.lo, op.weight.hi)",
        "return Interval(0.9 * op.weight.lo, 0.9 * op.weight.hi)",
        Kill.of(test_steps.test_matrices, norm_at_most_float, 3),
    ),
    Mutation(
        "norms.claim:frobenius_at_most",
        "norm_up(array)",
        "0.9 * norm_up(array)",
        Kill.of(test_steps.test_membership_in_a_ball),
    ),
    Mutation(
        "norms.torus:torus_at_most",
        "if not all(fit)",
        "if False",
        Kill.of(oracles.a_torus_of_a_single_frequency),
    ),
    Mutation(
        "norms.torus:absolute_at_most",
        "np.abs(phases_of(convolution, axes))",
        "phases_of(convolution, axes)",
        Kill.of(test_torus.test_absolute_values, norm_at_most_float),
    ),
    Mutation(
        "norms.torus:_Torus._shape",
        "// 2 + 1",
        "// 2",
        Kill.of(test_torus.test_claims_on_tori, norm_at_most_float),
    ),
    Mutation(
        "norms.torus:_Torus._share",
        "theta**2 / 2",
        "theta**2 / 9",
        Kill.of(test_torus.test_peaks_anywhere_between_frequencies, 3, 33),
    ),
    Mutation(
        "norms.torus:_Torus._share",
        "theta * between",
        "0 * between",
        Kill.of(test_torus.test_peaks_anywhere_between_frequencies, 3, 33),
    ),
    Mutation(
        "norms.symbol:GramSymbol.of",
        "A - A.swapaxes(1, 2) if number",
        "A + A.swapaxes(1, 2) if number",
        Kill.of(test_symbol.test_norms_at_frequencies, test_symbol.by_coefficients),
    ),
    Mutation(
        "norms.symbol:GramSymbol.of",
        "2 * gamma(",
        "0 * gamma(",
        Kill.of(test_symbol.test_gram_matrices_are_within_their_error),
    ),
    Mutation(
        "norms.lines:Axis.fits",
        "return any(",
        "return True or any(",
        Kill.of(oracles.a_torus_of_a_single_frequency),
    ),
    Mutation(
        "norms.stacks:Grams.at_most",
        "square_sums(M) <=",
        "square_sums(0.0 * M) <=",
        Kill.of(oracles.wrong_stack_factors),
    ),
    Mutation(
        "norms.stacks:Grams.of",
        "H[:, start:, start:stop] = below",
        "H[:, start:, start:stop] = 0.5 * below",
        Kill.of(test_stacks.test_claims),
    ),
    Mutation(
        "norms.roots:_exponential",
        "(k + 1)",
        "(k + 2)",
        Kill.of(test_roots.test_parts_are_within_the_promise, 7),
    ),
    Mutation(
        "norms.compose:scaled",
        "on_rows = outputs is not kernel.adjoint",
        "on_rows = outputs",
        Kill.of(test_fused.test_runs_are_one_map),
    ),
    Mutation(
        "norms.compose:plus_identity",
        "np.full(rows, float(around))",
        "np.zeros(rows)",
        Kill.of(test_fused.test_matrices, norm_at_most_float),
    ),
    Mutation(
        "norms.surroundings:averaged",
        "total = Interval(lo[where], hi[where]) + part",
        "total = part",
        Kill.of(test_fused.test_runs_are_one_map),
    ),
    Mutation(
        "norms.surroundings:behind",
        "moved=lines",
        "moved=tuple(np.where(line == line.max(), -1, line) for line in lines)",
        Kill.of(test_fused.test_runs_are_one_map),
    ),
    Mutation(
        "norms.fused:_is_chain",
        "(before.output, start) if isinstance(step.op, Add)",
        "step.inputs if isinstance(step.op, Add)",
        Kill.of(test_fused.test_a_sum_with_another_value_is_no_run),
    ),
    Mutation(
        "norms.fused:_factors",
        "Interval(scale.lo, scale.hi) * Interval(inverse.lo, inverse.hi)",
        "Interval(inverse.lo, inverse.hi)",
        Kill.of(test_fused.test_a_normalised_matrix),
    ),
    Mutation(
        "norms.surroundings:lines_of",
        "np.array_equal(sources[0], table)",
        "True",
        Kill.of(test_fused.test_lines_are_found_again),
    ),
]

FORMS = [
    Mutation(
        "forms.chain:_proved",
        "if proof(np.ldexp(whole, -scale), least)",
        "if True",
        Kill.of(oracles.forms_without_a_completion),
    ),
    Mutation(
        "forms.chain:at_the_bottom",
        "slopes.magnitude()",
        "slopes.lo",
        Kill.of(oracles.slopes_at_the_bottom),
    ),
    Mutation(
        "forms.descent:Descent.inequality",
        "-= bottom.rows.T @ bottom.rows",
        "-= 0.9 * (bottom.rows.T @ bottom.rows)",
        Kill.seeds(test_forms.test_every_mask, definite_float),
    ),
    Mutation(
        "forms.descent:_constraint",
        "cross = 0.5 * ",
        "cross = 0.45 * ",
        Kill.seeds(test_forms.test_every_mask, definite_float),
    ),
    Mutation(
        "forms.descent:Rows.below_matrix",
        "spread = spread + link.radius.T @ self.lengths",
        "spread = spread",
        Kill.of(test_links.test_uncertain_operands),
    ),
    Mutation(
        "forms.extremes:_tournament",
        "0.5 * (left + right)",
        "0.4 * (left + right)",
        Kill.seeds(test_regions.test_no_jacobian_is_larger, test_regions.sorted_pairs, count=3),
    ),
    Mutation(
        "forms.joins:_parts",
        "start += size",
        "start += 0",
        Kill.seeds(test_regions.test_no_jacobian_is_larger, test_regions.joined, count=3),
    ),
    Mutation(
        "forms.links:on_run",
        "high.max(axis=0)",
        "high.min(axis=0)",
        Kill.of(test_links.test_each_step, "scale"),
    ),
    Mutation(
        "forms.moves:_sum",
        "float(terms)",
        "2.0 * float(terms)",
        Kill.of(test_links.test_each_step, "mean"),
    ),
    Mutation(
        "forms.windows:_average",
        "total.sum(axis=1, keepdims=True)",
        "1.5 * total.sum(axis=1, keepdims=True)",
        Kill.of(test_links.test_each_step, "pool inside"),
    ),
    Mutation(
        "forms.form:Form.has_norm",
        "level > 0.0 and self.proof(scaled, Fraction(1, 1 << 53))",
        "level > 0.0",
        Kill.of(test_forms.test_a_product_of_matrices),
    ),
    Mutation(
        "rules.facts:Hull.longest",
        "sqrt_up(max(",
        "sqrt_up(0.9 * max(",
        Kill.seeds(test_forms.test_every_mask, definite_float),
    ),
    Mutation(
        "forms.form:Form.swing",
        "up(radius * lengths)",
        "0.9 * radius * lengths",
        Kill.seeds(test_forms.test_every_mask, definite_float),
    ),
    Mutation(
        "forms.centred:reach",
        "add_up(sqrt_up(square), rest)",
        "0.9 * sqrt_up(square)",
        Kill.of(test_forms.test_reach_of_a_matrix, definite_float, 1, 1.0),
    ),
    Mutation(
        "forms.centred:enclosing_ball",
        "+ share * Fraction(fact.norm) ** 2",
        "",
        Kill.of(test_forms.test_enclosing_balls),
    ),
    Mutation(
        "forms.centred:is_allowed",
        "_satisfies(own, known[part.name])",
        "True",
        Kill.of(test_inputs.test_a_centre_is_allowed_by_each_input, "ids", (0.0, 39.0)),
    ),
    Mutation(
        "forms.centred:side_by_side",
        "Fraction(ball.radius) ** 2",
        "Fraction(ball.radius) ** 2 / 2",
        Kill.of(test_forms.test_balls_side_by_side),
    ),
    Mutation(
        "forms.centred:fact_around",
        "box = rows + Interval(-swing, swing)",
        "box = rows",
        Kill.seeds(test_forms.test_centred_facts, count=6),
    ),
    Mutation(
        "norms.raised:raised_entries",
        "np.maximum(whole, level)",
        "np.minimum(whole, -level)",
        Kill.seeds(test_raised.test_no_numbers_prove_what_is_false),
    ),
    Mutation(
        "norms.raised_kernels:raised_kernel",
        "kernel.entries.hi",
        "kernel.entries.lo",
        Kill.of(test_raised.test_upper_limits_of_every_entry),
    ),
    Mutation(
        "lines.gains:GainFact._copies",
        "step.shape).hi",
        "step.shape).lo",
        Kill.of(test_raised.test_tokens_of_a_matrix_between_limits, "dense"),
    ),
    Mutation(
        "coverage:is_relu",
        "low == 0.0",
        "low <= 0.0",
        Kill.of(test_raised.test_relus_with_a_limit, Activation("clip", (-1e-9, 6.0)), False),
    ),
    Mutation(
        "norms.raised_kernels:tap_of_all",
        ".all(axis=0)",
        ".any(axis=0)",
        Kill.of(test_raised.test_where_padding_hides_a_tap),
    ),
    Mutation(
        "lines.gains:copies_of",
        "math.prod(shape) * groups",
        "math.prod(shape)",
        Kill.of(test_raised.test_a_bias_reaches_every_output),
    ),
    Mutation(
        "lines.gains:GainFact._copies",
        " and raised.norm_at_most(self.gain, witness, check)",
        "",
        Kill.of(test_raised.test_a_bias_reaches_every_output),
    ),
]
_TRUTH = Kill(test_products.test_no_multipliers_prove_what_is_false, tuple((k,) for k in range(12)))
PRODUCTS = [
    Mutation("forms.products:Unfolded.inequality", "constant -= ", "constant += ", _TRUTH),
    Mutation("forms.products:Unfolded.inequality", " - stop.T @ stop", "", _TRUTH),
    Mutation(
        "forms.products:Unfolded.inequality",
        "np.add.at(weights, at_places, np",
        "np.add.at(weights, at_places, -np",
        _TRUTH,
    ),
    Mutation("forms.products:_rectified", "(box.lo.ravel() >= 0.0)", "False", _TRUTH),
    Mutation(
        "forms.products:_rectified", "(box.lo.ravel() >= 0.0)", "(box.lo.ravel() <= 0.0)", _TRUTH
    ),
    Mutation(
        "forms.products:unfolded",
        "(below.lo < 0.0) & (below.hi > 0.0)",
        "np.zeros(step.shape, dtype=np.bool_)",
        Kill.of(test_products.test_a_relu_without_ties),
    ),
    Mutation("forms.products:unfolded", "y.plus(_negated(u))", "u.plus(_negated(y))", _TRUTH),
    Mutation(
        "forms.products:_above_ends", "np.where(known, -sign * end, 0.0)", "0.0 * end", _TRUTH
    ),
]
KERNELS = [
    Mutation(
        "forms.correlation:correlated",
        "return Interval(np.stack([signed.lo, plain.lo]), np.stack([signed.hi, plain.hi]))",
        """return exact(
            np.where(
                np.linalg.norm(np.maximum(vector.lo, 0.0), axis=1, keepdims=True)
                > np.linalg.norm(np.minimum(vector.lo, 0.0), axis=1, keepdims=True),
                np.stack([0.0 * vector.lo, np.maximum(vector.lo, 0.0) / 2**0.5]),
                np.stack([0.0 * vector.lo, np.maximum(-vector.lo, 0.0) / 2**0.5]),
            )
        )""",
        Kill.seeds(test_kernel_gradients.no_kernel_has_a_larger_gradient, IMAGES),
    ),
    Mutation(
        "forms.correlation:kernel_factor_at_most",
        "1 + 1 / Fraction(ratio) ** 2",
        "Fraction(1)",
        Kill.of(test_kernel_gradients.test_a_claim_that_is_too_low_is_refused),
    ),
    Mutation(
        "forms.correlation:kernel_factor_at_most",
        "root_up(max(times, 1))",
        "1.0",
        Kill.of(test_kernel_gradients.test_a_claim_that_is_too_low_is_refused),
    ),
    Mutation(
        "lines.kernels:kernel_at",
        "bool((rule.x.box.lo >= 0.0).all())",
        "True",
        Kill.seeds(test_kernel_gradients.no_kernel_has_a_larger_gradient, SIGNED),
    ),
    Mutation(
        "lines.kernels:Kernel.bound",
        "multiply_up(self.reach, rest)",
        "0.0",
        Kill.of(test_kernel_gradients.test_what_unknown_slopes_add_counts),
    ),
    Mutation(
        "forms.signs:Differences.through_slopes",
        "up(radius * self.sizes) + ",
        "",
        Kill.seeds(test_kernel_gradients.no_kernel_has_a_larger_gradient, IMAGES),
    ),
    Mutation(
        "lines.signs:path_between",
        "proof.reads[value] != 1 or ",
        "",
        Kill.of(test_kernel_gradients.test_what_else_is_read_or_may_change_is_refused),
    ),
    Mutation(
        "lines.signs:path_between",
        "tensors_read(found) & proof.free",
        "False",
        Kill.of(test_kernel_gradients.test_what_else_is_read_or_may_change_is_refused),
    ),
    Mutation(
        "lines.signs:SignPull.evaluate",
        "self.of != LOSS or self.value == self.stop",
        "False",
        Kill.of(test_kernel_gradients.test_what_else_is_read_or_may_change_is_refused),
    ),
    Mutation(
        "lines.signs:SignPull.evaluate",
        "differences_at(proof, self.value, self.stop).sizes",
        "differences_at(proof, self.value, self.stop).rests",
        Kill.seeds(test_kernel_gradients.no_cotangent_is_longer, IMAGES),
    ),
    Mutation(
        "forms.pulled_windows:_convolved",
        "end[..., tap]",
        "end[..., -1 - tap]",
        Kill.seeds(test_kernel_gradients.test_rows_are_pulled_through_linear_steps),
    ),
    Mutation(
        "forms.pulled:_moved",
        "low[:, sources[inside]], high[:, sources[inside]] =",
        "low[:, inside], high[:, inside] =",
        Kill.seeds(test_kernel_gradients.test_rows_are_pulled_through_linear_steps),
    ),
    Mutation(
        "rules.base:Rule.gradients",
        "first = math.inf",
        "pass",
        Kill.of(test_a_bound_of_the_kernel_is_none_of_the_bias),
    ),
]
PROOFS = [*NORMS, *FORMS, *PRODUCTS, *KERNELS]
