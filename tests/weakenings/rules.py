"""Of the rules of steps, and of what they share."""

from __future__ import annotations

from tests import test_known_answers as known
from tests.core import test_clipped_soundness
from tests.core.rules import (
    test_convolution,
    test_dense,
    test_enclosures,
    test_facts,
    test_functions,
    test_laws,
    test_weights,
)
from tests.weakenings import oracles
from tests.weakenings.mutation import Kill, Mutation, by, by_seeds

LAW = test_laws.test_nothing_leaves_the_fact_or_is_steeper
GRADIENTS = test_laws.test_no_gradient_of_an_operand_is_larger
IMAGES = test_functions.test_images_and_slopes_hold_what_they_should_and_little_more
CONSTANT = test_laws.test_the_constant_of_a_linear_step_is_the_norm_of_its_jacobian


def _law(kind: str, rule: str, old: str, new: str) -> Mutation:
    return Mutation(f"rules.{rule}", old, new, Kill.seeds(LAW, kind), kind)


def _gradient(kind: str, rule: str, old: str, new: str) -> Mutation:
    return Mutation(f"rules.{rule}", old, new, Kill.seeds(GRADIENTS, kind), kind)


STEPS = [
    _law("Activation", "activations:ActivationRule.fact", "add_up(fixed, ", "max(0.0, "),
    _law("Add", "sums:AddRule.fact", "norm = add_up(norm, longest)", "norm = max(norm, longest)"),
    _law("Attention", "attention:AttentionRule.lipschitz", "abs(self.op.scale)", "0.5"),
    _law("AveragePool", "averages:_matrix", "if counts_padding", "if True"),
    _law("BatchNorm", "factors:BatchNormRule.fact", "added = multiply_up(self._positions, ",
        "added = multiply_up(1.0, "),
    _law("Centre", "centring:CentreRule.fact", "x.box - x.box.sum(axes) * share", "x.box"),
    _law("Concat", "concat:_root_sum_square", "reduce(add_up", "reduce(max"),
    _gradient("Conv", "convolution:ConvRule.reaches", "root_up(self._positions)", "1.0"),
    _law("Conv", "convolution:ConvRule.fact", "weights.norm(op.bias)", "0.0"),
    _law("CotangentClip", "clips:CotangentClipRule.fact", "return self.x",
        "return Fact.of(self.shape, 0.5 * self.x.norm)"),
    _gradient("Dense", "dense:DenseRule.reaches", "self.x.norm", "0.9 * self.x.norm"),
    _law("Divide", "products:DivideRule.lipschitz",
        "multiply_up(multiply_up(met, largest), largest)", "multiply_up(met, largest)"),
    _law("DivideByNorm", "centring:DivideByNormRule._radius", "divide_up(1.0, share)",
        "divide_up(0.5, share)"),
    _gradient("Embedding", "embedding:EmbeddingRule.reaches", "math.prod(self.before)", "1"),
    _law("Embedding", "embedding:EmbeddingRule.fact", "np.max(rows.hi", "np.min(rows.hi"),
    _law("Compare", "masks:CompareRule.fact", "(0.0, 1.0)", "(0.0, 0.5)"),
    _law("MaskedMean", "masks:MaskedMeanRule.fact", "x.norm, Interval", "0.5 * x.norm, Interval"),
    _law("MaskedMean", "masks:MaskedMeanRule.lipschitz", "return 1.0 if", "return 0.1 if"),
    _law("InputClip", "clips:InputClipRule.fact", "Fact.of(self.shape, radius,",
        "Fact.of(self.shape, 0.9 * radius,"),
    _law("LocalResponse", "responses:LocalResponseRule._shrink", "-op.power", "-2.0 * op.power"),
    _law("LpPool", "lengths:LpPoolRule.lipschitz", "overlap(axes) * (taps if p == 1 else 1)",
        "overlap(axes)"),
    _law("MatMul", "products:MatMulRule.lipschitz", "min(other.norm, ", "0.5 * min(other.norm, "),
    _law("MaxPool", "selections:MaxPoolRule.lipschitz", "root_up(overlap(axes))", "1.0"),
    _law("Move", "moves:MoveRule.lipschitz", "root_up(", "0.9 * root_up("),
    _law("Multiply", "products:MultiplyRule.lipschitz", "min(other.norm, ",
        "min(0.5 * other.norm, "),
    _law("Normalize", "normalize:NormalizeRule._part",
        "n - 1 if self.op.centred and picked == 1 else n", "n - 1"),
    _law("PRelu", "factors:PReluRule.fact", "max(1.0, ", "min(1.0, "),
    _law("ReduceLogSumExp", "lengths:ReduceLogSumExpRule.fact",
        "up(high + spread) if spread else high", "high"),
    _law("ReduceMax", "selections:ReduceMaxRule.fact", "if self.op.minimum else",
        "if not self.op.minimum else"),
    _law("ReduceNorm", "lengths:ReduceNormRule.lipschitz",
        "root_up(entries) if self.op.p == 1 else 1.0", "1.0"),
    _law("ReduceSum", "sums:ReduceSumRule.lipschitz", "if self.op.mean else", "if True else"),
    _law("Scale", "scales:ScaleRule.lipschitz", "self.weights.max_abs(self.op.factor)",
        "0.9 * self.weights.max_abs(self.op.factor)"),
    _law("Shift", "scales:ShiftRule.fact", "add_up(x.norm, added)", "max(x.norm, added)"),
    _law("Softmax", "softmax:SoftmaxRule.lipschitz", "min(0.5, spread.largest)",
        "min(0.2, spread.largest)"),
    _law("Sort", "selections:SortRule.fact", "low = np.min(", "low = np.max("),
]  # fmt: skip
"""by kinds of steps"""

SHARED = [
    by_seeds("rules.base:Rule.pulled", "multiply_up(self.lipschitz(index), cotangent.norm)",
        "cotangent.norm", LAW, "Multiply"),
    by("rules.base:Rule.gradients", "multiply_up(gain, min(gradient, first))",
        "min(gradient, first)", oracles.a_tensor_that_counts_twice),
    by_seeds("rules.broadcasting:copies", "math.prod(after) // max(math.prod(before), 1)", "1",
        CONSTANT, "Add", count=10),
    by_seeds("rules.broadcasting:longest_met", "root_up(met // max(rows.shape[1], 1))", "1.0",
        LAW, "Multiply"),
    by_seeds("rules.facts:Fact.of", "norm = min(norm, box_norm(box, shape)",
        "norm = min(norm, 0.9 * box_norm(box, shape)",
        test_facts.test_reduced_facts_keep_their_members, count=200),
    by("rules.facts:lengths_up",
        "up(up(squares * (1.0 + (terms + 4) * 2.0**-52)) + terms * 2.0**-1000)",
        "squares * (1.0 - 2.0**-40)", test_facts.test_lengths_are_upper_bounds_and_close),
    by("rules.facts:box_norm", "multiply_up(root_up(copies), ", "multiply_up(1.0, ",
        test_facts.test_box_norm_counts_what_is_repeated),
    by_seeds("interval:Interval.__matmul__", "spread = spread + up(magnitude + r) @ s",
        "spread = spread", test_facts.test_products_of_intervals_hold_every_product, count=60),
    by_seeds("rules.facts:affine_norm", "multiply_up(2.0, multiply_up(x, cross))", "0.0",
        LAW, "Dense"),
    by_seeds("rules.windows:overlap", "np.max(", "np.min(", LAW, "MaxPool"),
    by_seeds("rules.window_reads:longest_window", "multiply_up(repeated, ", "multiply_up(0.5, ",
        test_convolution.test_behind_any_move),
    by_seeds("rules.windows:kernel_square", "min(_most(outputs, 1)", "min(1, _most(outputs, 1)",
        GRADIENTS, "Conv"),
    by("rules.dense:DenseRule.fact", "if (full.lo >= 0.0).all():", "if True:",
        test_dense.test_attained_by_inputs_of_one_sign),
    by("rules.dense:pair_norm", "return hull.longest(", "return 0.5 * hull.longest(",
        known.test_pairs_beat_root_two_at_the_last_layer),
    by_seeds("rules.weights:Weights.max_abs", "np.max(", "0.9 * np.max(", LAW, "Scale"),
    by("rules.constrained:Constrained.norm",
        '1 if kind == "frobenius" else math.prod(operand.shape)', "1",
        test_weights.test_gains, "spectral", 0.5, 3.0, 6.0, 3.0),
    by("rules.constrained:Constrained.operator_norm", "multiply_up(factor, radius)", "0.9 * radius",
        known.test_closed_forms_for_bounded_weights, 1.0, 1.0, 0.5, 3),
    by_seeds("rules.clips:CotangentClipRule.pulled", "min(cotangent.norm, radius)",
        "min(cotangent.norm, 0.5 * radius)",
        test_clipped_soundness.test_nothing_exceeds_its_bound, count=8),
    by("rules.enclosures:exp", "up(_exp(high) * (1.0 + _EXP_ERROR))",
        "down(_exp(high) * (1.0 - _EXP_ERROR))",
        test_enclosures.test_exponential_is_precise_relative_to_its_value),
    by("rules.enclosures:log", "high.hi, edge", "guess.lo, edge", test_enclosures.test_logarithm),
    by_seeds("rules.weights:stretch", "root_up(kernel_square(convolution_axes(op, before, after)))",
        "1.0", test_weights.test_members_of_a_frobenius_ball, "Conv", count=25),
    by_seeds("rules.base:Rule.operand_gradients", "multiply_up(reach, cotangent.norm)", "reach",
        GRADIENTS, "Shift"),
    by_seeds("rules.base:Entrywise.lipschitz", "np.max(", "np.min(", LAW, "PRelu"),
    by("rules.curves:Curve.over", "np.minimum(low, value.lo)", "low", IMAGES, ("gelu", ())),
    by("rules.relu:Relu.image", "clip(box, 0.0", "clip(box, 0.1", IMAGES, ("relu", ())),
    by("rules.curves:Function.derivative", "np.maximum(high, slope.hi)", "slope.hi",
        IMAGES, ("clip", (-1.0, 2.0))),
    by("rules.curves:Function.chord", "self.steepest(hull(box, exact(0.0)))", "self.steepest(box)",
        test_functions.test_chords_and_the_value_at_zero, ("sigmoid", ())),
    by("rules.smooth:softplus", "slope = Curve(logistic)",
        "slope = Curve(lambda x: logistic(x) * exact(0.9))", IMAGES, ("softplus", ())),
    by("rules.kinks:leaky_relu", "max(1.0, abs(alpha))", "min(1.0, abs(alpha))",
        test_functions.test_chords_and_the_value_at_zero, ("leaky_relu", (3.0,))),
    by("rules.gates:gated", "gate(x) + x * slope(x)", "gate(x)", IMAGES, ("silu", ())),
    by("rules.tanh_gates:_tanh_gate", "gated(lambda x: sigmoid(cubic(x)), slope",
        "gated(lambda x: sigmoid(cubic(x)), sigmoid", IMAGES, ("gelu_tanh", ())),
    by("rules.powers:_exponential_below", "below * inverse * clip(", "below * clip(",
        IMAGES, ("celu", (0.7,))),
    by("rules.powers:_whole_power", "range(abs(n))", "range(abs(n) - 1)",
        IMAGES, ("power", (3.0,))),
    by("rules.waves:Wave.over", "far | self._meets(points, 1.0)", "far",
        test_enclosures.test_waves_over_boxes_hold_crests_and_troughs),
    by("rules.enclosures:_erf", "up(total * (1.0 + _ERF_ERROR))",
        "down(total * (1.0 - _ERF_ERROR))",
        test_enclosures.test_encloses_the_exact_value_narrowly, "erf"),
]  # fmt: skip
"""by what several rules ask"""

RULES = [*STEPS, *SHARED]
