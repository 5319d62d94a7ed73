"""Deliberate faults, each of which a test of this suite must notice.

Every mutant weakens one rule in the way a published or plausible implementation got it wrong; its
killer is an ordinary test, run against the mutated package, that must fail. `python -m
tests.test_mutants` prints the list with the assertion that killed each.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest

from lipcert.facts import Bound, CotangentFacts
from lipcert.training.projection.torus import torus_size
from lipcert.ops.shape import PadMode
from lipcert.propagation.padded import _Reads
from lipcert.upper import ONE, ZERO, Upper
from tests import test_known_answers as known
from tests import test_published_faults as faults
from tests.norms import test_circulant as circulant
from tests.ops import test_sound as sound
from tests.propagation import test_padded as padded

CASES = {case.name: case for case in sound.CASES}


@dataclass(frozen=True)
class Mutant:
    """A fault: `target` (module path, attribute path) replaced; `killer` must raise."""

    name: str
    target: str
    faulty: object
    killer: Callable[[], None]


def attack_output(case: str) -> Callable[[], None]:
    return lambda: sound.test_output_facts_hold_under_attack(CASES[case])


def attack_input(case: str) -> Callable[[], None]:
    return lambda: sound.test_input_lipschitz_holds_under_attack(CASES[case])


def attack_parameters(case: str) -> Callable[[], None]:
    return lambda: sound.test_param_lipschitz_holds_under_attack(CASES[case])


def long_product() -> None:
    """Products of sixty layer norms, compared with the exact rational product."""
    for seed in range(10):
        bound, exact = ONE, Fraction(1)
        for factor in np.random.default_rng(seed).uniform(0.5, 2.0, 60).tolist():
            bound = bound * Upper(factor)
            exact *= Fraction(factor)
        assert Fraction(bound.value) >= exact


def nearest(value: float, exact: Callable[[], Fraction]) -> float:
    del exact
    return value


def truncated(value: float, exact: Callable[[], Fraction]) -> float:
    """The product rounded down: what nearest rounding does half of the time, all of the time."""
    del exact
    return math.nextafter(value, 0.0)


def power_iteration(gram: np.ndarray) -> Upper:
    best = 0.0
    for matrix in gram:
        v = np.ones(len(matrix)) / math.sqrt(len(matrix))
        for _ in range(10):
            v = matrix @ v
            v /= np.linalg.norm(v)
        best = max(best, float(v @ matrix @ v))
    return Upper(best)


def only_the_first_group(weight, geometry, groups):
    del geometry
    return weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])[:1]


def first_use_only(first: Bound, second: Bound) -> Bound:
    return second if first.value == ZERO else first


def largest_consumer(self: CotangentFacts, other: CotangentFacts) -> CotangentFacts:
    return max(self, other, key=lambda facts: facts.norm.value)


def one(*_: object) -> Upper:
    return ONE


def unit_bound(*_: object) -> Bound:
    return Bound(ONE, "mutant")


def group_case() -> None:
    """Groups of very different size: the norm is that of the largest."""
    case = CASES["conv groups"]
    weight = case.op.weight.array.copy()
    weight[: len(weight) // case.op.groups] *= 1e-3
    operand = replace(case.op.weight, array=weight)
    sound.test_input_lipschitz_holds_under_attack(
        replace(case, op=replace(case.op, weight=operand))
    )


def smaller_torus(window) -> int:
    return max(1, torus_size(window) - 2)


def euclidean_as_sums(self, index, cotangent, inputs, scope) -> CotangentFacts:
    del index, inputs, scope
    if not self.radius.is_finite:
        return cotangent
    clipped = Bound(self.radius, "mutant")
    return CotangentFacts(clipped, cotangent.hull, clipped)


def padded_layer(mode: PadMode, *, by_sums: bool) -> Callable[[], None]:
    layout = (4, 3, 1, 1)
    return lambda: padded.test_no_gradient_exceeds_the_bound_of_the_layer(mode, layout, by_sums)


MUTANTS = [
    Mutant(
        "√(HW) of a channel bias dropped (gradient)",
        "lipcert.ops.conv.root_of",
        one,
        known.test_channel_bias_counts_every_position,
    ),
    Mutant(
        "√(HW) of a channel bias dropped (output)",
        "lipcert.ops.conv.root_of",
        one,
        faults.test_bias_after_a_convolution_is_broadcast,
    ),
    Mutant(
        "conv window multiplicity dropped",
        "lipcert.ops.conv.window_multiplicity",
        one,
        lambda: faults.test_kernel_gradient_of_a_normalised_convolution(3),
    ),
    Mutant(
        "f(0) of a sigmoid dropped",
        "lipcert.ops.smooth.Sigmoid.image",
        lambda self, box: box,
        lambda: faults.test_activations_that_do_not_keep_zero(
            faults.Sigmoid(), faults.torch.sigmoid
        ),
    ),
    Mutant(
        "reflect padding treated as zero padding",
        "lipcert.ops.shape.Pad.repetitions",
        lambda self, shape: 1,
        faults.test_reflect_padding_is_not_bounded_by_the_zero_padded_norm,
    ),
    Mutant(
        "groups ignored",
        "lipcert.norms.operator_norm._by_group",
        only_the_first_group,
        group_case,
    ),
    Mutant(
        "nearest instead of upward rounding in a long product",
        "lipcert.upper._round_up",
        nearest,
        long_product,
    ),
    Mutant(
        "downward instead of upward rounding", "lipcert.upper._round_up", truncated, long_product
    ),
    Mutant(
        "power iteration instead of a certified norm",
        "lipcert.norms.dense.largest_eigenvalue",
        power_iteration,
        faults.test_power_iteration_is_below_the_norm_and_ours_is_not,
    ),
    Mutant(
        "Frobenius norm of a kernel as operator norm",
        "lipcert.norms.operator_norm.largest_overlap",
        lambda geometry: 1,
        lambda: faults.test_frobenius_norm_of_a_kernel_is_not_its_operator_norm(3),
    ),
    Mutant(
        "overlap of max pooling dropped",
        "lipcert.ops.pooling.max_pool_norm",
        one,
        attack_input("max_pool_3_1_1"),
    ),
    Mutant(
        "uses of a shared weight do not add",
        "lipcert.propagation.propagate._add",
        first_use_only,
        known.test_a_shared_weight_adds_its_uses,
    ),
    Mutant(
        "fan-out takes the largest consumer",
        "lipcert.facts.CotangentFacts.plus",
        largest_consumer,
        known.test_residual_branches_add_and_concat_is_exact,
    ),
    Mutant(
        "norm-layer slope ignores epsilon",
        "lipcert.ops.normalization.LayerNorm.input_lipschitz",
        unit_bound,
        attack_input("layer_norm_plain"),
    ),
    Mutant(
        "dense weight gradient ignores the input",
        "lipcert.ops.linear.Dense.param_lipschitz",
        lambda self, inputs, scope: {slot: unit_bound() for slot in self.operands()},
        attack_parameters("dense tokens"),
    ),
    Mutant(
        "bias left out of the output norm",
        "lipcert.ops.linear.Dense.output_facts",
        lambda self, inputs, scope: (
            inputs[0] if self.bias is None else replace(self, bias=None).output_facts(inputs, scope)
        ),
        lambda: faults.test_dense_bias_counts_in_output_and_gradient(0.1),
    ),
    Mutant(
        "torus on which windows wrap",
        "lipcert.training.projection.torus.torus_size",
        smaller_torus,
        lambda: circulant.test_the_box_kernel_attains_the_bound(4),
    ),
    Mutant(
        "entries that a reflected window reads twice counted once",
        "lipcert.propagation.padded._reads",
        lambda pad, conv, shape: _Reads(1, 1),
        padded_layer(PadMode.REFLECT, by_sums=True),
    ),
    Mutant(
        "Euclidean clip of a cotangent taken for one of its channel sums",
        "lipcert.ops.clip.CotangentClip.input_cotangent",
        euclidean_as_sums,
        padded_layer(PadMode.WRAP, by_sums=False),
    ),
    Mutant(
        "pairs of the hull taken at half length",
        "lipcert.ops.linear.pair_norm",
        lambda weight, hull: Upper(0.5 * float(np.abs(weight).max())),
        known.test_pairs_beat_root_two_at_the_last_layer,
    ),
]


def set_attribute(target: str, value: object) -> Callable[[], None]:
    """Replace `module.attribute[.attribute]`; returns the undo."""
    parts = target.split(".")
    depth = next(n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in sys.modules)
    owner: object = sys.modules[".".join(parts[:depth])]
    for name in parts[depth:-1]:
        owner = getattr(owner, name)
    inherited = parts[-1] not in vars(owner)
    original = getattr(owner, parts[-1])
    setattr(owner, parts[-1], value)
    if inherited:
        return lambda: delattr(owner, parts[-1])
    return lambda: setattr(owner, parts[-1], original)


def killed_by(mutant: Mutant) -> str | None:
    """First line of the failure that the mutant causes, None if it survives."""
    mutant.killer()
    undo = set_attribute(mutant.target, mutant.faulty)
    try:
        mutant.killer()
    except AssertionError as error:
        return str(error).splitlines()[0] if str(error) else "assertion failed"
    finally:
        undo()
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutant_is_killed(mutant: Mutant) -> None:
    assert killed_by(mutant) is not None


def main() -> None:
    for mutant in MUTANTS:
        reason = killed_by(mutant)
        sys.stdout.write(f"{'killed' if reason else 'SURVIVED':9} {mutant.name}: {reason}\n")


if __name__ == "__main__":
    main()
