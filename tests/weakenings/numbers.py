"""Of arithmetic, losses, accounting, and the book-keeping between a program and its claims."""

import math

from tests.core import test_arithmetic, test_claims, test_clipped_soundness, test_heads, test_tokens
from tests.core.accounting import test_account, test_curve
from tests.core.losses import test_attained, test_kinds, test_softmax_error
from tests.core.rules import test_facts
from tests.weakenings import oracles
from tests.weakenings.line_oracles import holds
from tests.weakenings.lines import A_CLIPPED_LOSS
from tests.weakenings.mutation import Kill, Mutation, by, by_seeds

ATTAINED = test_attained.test_gradient_norm_is_bounded_and_attained
HEADS = Kill.of(test_heads.test_bounds_of_linear_heads_are_attained, (0.5, 3.0))
CASES = {case.name: case for case in test_attained.CASES}


def _loss(kind: str, rule: str, old: str, new: str, **parameters: object) -> Mutation:
    killer = Kill.of(test_kinds.test_sampled_gradients, kind, parameters, 6.0, math.inf)
    return Mutation(f"losses.{rule}", old, new, killer, kind)


SUM = "sum"
LOSSES = [
    _loss("cross-entropy", "softmax:CrossEntropy.bound", "domain.error(smoothing)",
        "0.9 * domain.error(smoothing)", temperature=1.0, label_smoothing=0.0),
    _loss("nll", "margins:NegativeLogLikelihood.bound", "Cotangent(1.0,", "Cotangent(0.9,"),
    _loss("focal", "focal:Focal.bound", "multiply_up(root_up(2), scale)", "scale", focal_gamma=2.0),
    _loss("bce", "entries:BinaryCrossEntropy.bound", "divide_up(sqrt_up(square), temperature)",
        "sqrt_up(square)", temperature=0.25, output_reduction=SUM),
    _loss("mse", "entries:SquaredError.bound", "add_up(logits.norm, self.label_norm)",
        "logits.norm", label_norm=7.0, output_reduction=SUM, half=False),
    _loss("mse", "entries:SquaredError.bound", "if self.half", "if True", label_norm=1.0,
        output_reduction=SUM, half=False),
    _loss("mae", "entries:AbsoluteError.bound", "root_up(outputs)", "1.0", output_reduction=SUM),
    _loss("huber", "entries:Huber.bound", "multiply_up(self.huber_delta, root_up(outputs))",
        "self.huber_delta", huber_delta=0.5, output_reduction=SUM),
    _loss("multiclass-hinge", "margins:MulticlassHinge.bound", "if mean", "if True", margin=1.0,
        output_reduction=SUM),
    _loss("multi-margin", "margins:MultiMargin.bound", "outputs * (outputs - 1)", "outputs",
        margin=1.0, output_reduction=SUM),
    _loss("kr", "margins:KantorovichRubinstein.bound", "Cotangent(_kr_norm(outputs)",
        "Cotangent(1.0"),
    _loss("hkr", "margins:HingeKantorovichRubinstein.bound", "add_up(_kr_norm(outputs), ",
        "max(_kr_norm(outputs), ", hkr_weight=4.0, margin=2.0),
    by("losses.entries:Cosine.bound", "divide_up(1.0, floor)", "divide_up(0.9, floor)",
        ATTAINED, CASES["cosine below floor"], of="cosine"),
    _loss("mae", "entries:_reduced", 'if reduction == "mean"', "if True", output_reduction=SUM),
    Mutation("losses.joint:Part.cotangent", ", self.weight)", ", min(self.weight, 1.0))",
        HEADS),
    Mutation("rules.broadcasting:scaled", "multiply_up(cotangent.norm, factor)",
        "cotangent.norm", HEADS),
    by("losses.tokens:token_cotangent", "multiply_up(root_up(scores.tokens), each.norm)",
        "each.norm", test_tokens.test_equal_ids_attain, "sum", 9.0, "last"),
    by("losses.tokens:token_share", 'loss.per_token == "mean"', "loss.per_token",
        test_tokens.test_equal_ids_attain, "sum", 9.0, "first"),
    by("losses.tokens:token_cotangent", "scaled(each, divide_up(1.0, divisor))",
        "scaled(each, 0.9 / divisor)", test_tokens.test_a_head_is_attained, "cross-entropy"),
    by("losses.tokens:token_cotangent", "np.max(box.hi)", "np.min(box.hi)",
        test_tokens.test_scores_of_all_tokens_are_looked_at),
    by("losses.tokens:scores_of", 'loss.class_axis == "last"', 'loss.class_axis == "first"',
        test_tokens.test_equal_ids_attain, "sum", 9.0, "first"),
    by("rules.dense:DenseRule.pulled", "multiply_up(copies, pair_norm(weight, hull))",
        "pair_norm(weight, hull)", test_tokens.test_a_head_is_attained, "cross-entropy"),
    by("rules.softmax:SoftmaxRule._of_slices", "multiply_up(root_up(slices), own.norm)", "own.norm",
        test_tokens.test_a_logarithm_is_attained),
    Mutation("losses.joint:Joint.of_outputs",
        "sqrt_up(sum((Fraction(part.norm) ** 2 for part in found), Fraction(0)))",
        "max(part.norm for part in found)", HEADS),
    Mutation("rules.concat:ConcatRule.pulled", "parts[index]", "parts[0]", HEADS),
    by("losses.base:is_vector", "<= 1", "<= 2", test_kinds.test_class_scores_need_one_axis, 0),
    by("losses.base:read_loss", '"true": True, "false": False', '"true": True, "false": True',
        oracles.half_of_a_squared_error),
    by("losses.softmax_ball:largest_on", "-parts[0][0]", "-parts[-1][0]",
        test_attained.test_focal_norm_against_high_precision, 2.0),
    by("losses.softmax:AnyLogits.largest_square", " + (1 - share) ** 2", "",
        test_softmax_error.test_simplex_without_smoothing_is_root_two),
    by("losses.softmax_ball:BallDomain._on_ball", "in (1, -1):", "in (-1,):",
        test_softmax_error.test_ball_is_attained_and_never_exceeded, 7, 2.5, 0.0),
    by("losses.softmax_error:SoftmaxDomain._square_on_cube", "return max(corners)",
        "return min(corners)", test_softmax_error.test_spread_is_the_best_corner, 3, 3.0, 0.0),
    by("losses.softmax_error:SoftmaxDomain.miss", "(self.classes - 1) * exp_bounds", "exp_bounds",
        oracles.missing_a_class),
]  # fmt: skip

ACCOUNTING = [
    by("accounting.gaussian:gaussian_epsilon", "math.isqrt(math.floor(square * wide * wide)) + 1",
        "math.isqrt(math.floor(square * wide * wide)) * 9 // 10",
        test_account.test_gaussian_is_the_optimum, 1.0, 1, "1e-5"),
    by("accounting.gaussian:_least", "return high", "return 0.9 * high",
        test_account.test_gaussian_is_the_optimum, 5.0, 100, "1e-12"),
    by("accounting.account:epsilon_upper", "if (sampling, relation) in _REFUSED", "if False",
        test_account.test_not_recomputed, "shuffle", 1.0, "1/10", 5, "1e-5", "add-remove"),
    by("accounting.account:epsilon_upper", 'replaced = relation == "replace-one"',
        "replaced = False", test_account.test_one_sampled_release,
        1.0, "1/100", "1e-5", "replace-one"),
    by("accounting.poisson:_pairs", "return both_directions(Removed(fixed, rate, tail), grid)",
        "return both_directions(Removed(fixed, rate, tail), grid)[1:]",
        test_account.test_one_sampled_release, 0.3, "1/1000", "1e-12", "add-remove"),
    by("accounting.poisson:poisson_epsilon", "max(known)", "min(known)",
        test_account.test_one_sampled_release, 1.0, "1/100", "1e-5", "add-remove"),
    by("accounting.curve:Removed.__call__", "return n * above // d",
        "return 9 * n * above // (10 * d)", test_curve.test_dominates, 1.0, "1/100", False),
    by("accounting.replaced:Replaced.__call__", "absent + n * ", "0 * absent + n * ",
        test_curve.test_dominates, 1.0, "1/100", True),
    by("accounting.pair:_losses", "max(b - a + extra, 0) / one",
        "0.9 * max(b - a + extra, 0) / one", test_curve.test_dominates, 1.0, "1/100", False),
    by("accounting.compose:composed_epsilon", "rest = delta - steps * Fraction(kept.infinite)",
        "rest = 2 * delta",
        test_account.test_one_sampled_release, 1.0, "1/100", "1e-5", "add-remove"),
    by("accounting.compose:_composed", "convolution_power(folded, steps)",
        "convolution_power(folded, max(steps - 5, 1))",
        test_account.test_nearly_certain_samples, 30.0, 700, "1e-5", "add-remove"),
    by("accounting.allocated:_moved", "masses * (part + room)", "masses * 0.5 * (part + room)",
        test_curve.test_an_epoch_of_two_batches, 1.0, "1e-5"),
    by("accounting.allocated:_batch", "math.floor(shift * one) + 1",
        "math.floor(0.95 * shift * one) + 1",
        test_curve.test_an_epoch_of_two_batches, 3.0, "1e-6"),
    by("accounting.allocated:_Law.times", 'if digit == "1":', 'if digit != "2":',
        test_curve.test_between_the_bounds_of_another_accountant,
        12, 20, 3.0, 1.7220970, 1.7587401),
    by("accounting.compose:convolution_power", "product = _power(values, times)",
        "product = _power(values, times - 1)",
        test_curve.test_error_is_honest_and_small, 16, 9, 40.0),
    by("accounting.curve:NormalTail.__call__", "return (1 << self.bits) - self(-x)",
        "return self(-x)", test_curve.test_tail),
    by("logarithm:logarithm", "16 * total", "15 * total", test_curve.test_logarithm),
    by("accounting.renyi:poisson_renyi_epsilon",
        "_epsilon(moments, rate, 1 - rate, releases, delta)",
        "_epsilon(moments, rate / 2, 1 - rate / 2, releases, delta)",
        oracles.renyi_of_a_sure_sample),
    by("accounting.renyi:without_replacement_epsilon", "4 * (math.isqrt(", "(math.isqrt(",
        test_account.test_renyi_agrees_with_dp_accounting, 1.0, "1/100", 1000, 1e-05),
    by("accounting.renyi:_converted", "(log_moment + surprise - log_bounds(order)[0])",
        "(log_moment - log_bounds(order)[0])", oracles.renyi_of_a_sure_sample),
    by("claims:sensitivity_up", "multiply_up(_BOUNDS_MOVED[relation], grad_norm)",
        "grad_norm", test_claims.test_sensitivities),
    by("claims:total_sensitivity", "Fraction(delta) ** 2", "Fraction(delta)",
        test_claims.test_total),
    by("claims:effective_multiplier", "total += ", "total = ",
        test_claims.test_multiplier_is_the_largest_lower_bound),
]  # fmt: skip

ARITHMETIC = [
    *(by(f"arithmetic:{name}", "return ", "return 0.9 * ", test_arithmetic.test_sums_and_products)
      for name in ("add_up", "multiply_up")),
    by("arithmetic:divide_up", "return ", "return 0.9 * ", test_arithmetic.test_quotients),
    by("arithmetic:sqrt_up", "return round_up(", "return round_down(",
        test_arithmetic.test_square_roots),
    by("arithmetic:sqrt_up", "math.isqrt(least - 1) + 1", "math.isqrt(least - 1) * 9 // 10",
        test_arithmetic.test_square_roots),
    by("arithmetic:round_up", "if p * d >= n * q", "if True",
        test_arithmetic.test_sums_and_products),
    by("arithmetic:round_up", "return found", "return math.nextafter(found, -_INF)",
        oracles.long_product),
    by("interval:up", "np.inf", "-np.inf", test_facts.test_lengths_are_upper_bounds_and_close),
    by("interval:norm_up", "return round_up(", "return 0.9 * round_up(",
        test_facts.test_box_norm_counts_what_is_repeated),
    by("exponential:exp_quotients", "(above, one)", "(below, one)", test_arithmetic.test_exp),
    by("logarithm:log_bounds", "found + error", "found - error", test_arithmetic.test_log),
]  # fmt: skip

DERIVATION = [
    by_seeds("clips:with_clips", "InputClip(radius)", "InputClip(0.5 * radius)",
        test_clipped_soundness.test_nothing_exceeds_its_bound, count=8),
    by_seeds("clips:with_clips", "CotangentClip(clip.cotangent_radius(layer), by_channel)",
        "CotangentClip(0.5 * clip.cotangent_radius(layer), by_channel)",
        test_clipped_soundness.test_nothing_exceeds_its_bound, count=8),
    by_seeds("clips:with_clips", "radius = clip.input_radius(layer)",
        "radius = clip.input_radius(layer) or 0.01",
        test_clipped_soundness.test_nothing_exceeds_its_bound, count=8),
    by_seeds("ledger.layer_clipping:BackpropClipping.cotangent_radius",
        "(self.cotangent_clip, layer.cotangent_clip)",
        "(self.cotangent_clip, *(item.cotangent_clip for item in self.layers))",
        test_clipped_soundness.test_nothing_exceeds_its_bound, count=8),
    by("lines.several_inputs:facts_of_several", "add_up(squares, multiply_up(own, own))",
        "max(squares, multiply_up(own, own))", oracles.inputs_of_two_norms),
    by("rules.clips:clipped", "norm=min(cotangent.norm, radius)",
        "norm=0.9 * min(cotangent.norm, radius)", holds, A_CLIPPED_LOSS),
    by("claims:group_bounds", "total_sensitivity(norms)", "max(norms)", oracles.a_group_of_two),
    by("claims:clipped_group", "divide_up(norm, sqrt_down(float(groups)))",
        "divide_up(norm, float(groups))", oracles.groups_that_share_a_clip),
]  # fmt: skip
NUMBERS = [*LOSSES, *ACCOUNTING, *ARITHMETIC, *DERIVATION]
