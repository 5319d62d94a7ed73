"""Deliberate faults, each of which a test of this suite must notice.

Every mutant weakens one place in the way a published or plausible implementation got it wrong; its
killer is an ordinary test, run against the mutated package, that must fail. `python -m
tests.test_mutants` prints the list with the assertion that killed each. Here stands what lies
between the rules of steps, whose answers `core.rules.test_mutants` weakens one by one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from lipcert.core.arithmetic import divide_up, multiply_up
from lipcert.core.losses import entries, margins  # noqa: F401 - mutants reach into entries
from lipcert.core.norms.float_engine import norm_at_most_float
from lipcert.core.rules.facts import Cotangent
from tests import test_known_answers as known
from tests import test_published_faults as faults
from tests.core.forms import test_regions as regions
from tests.core.losses import test_kinds as losses


@dataclass(frozen=True)
class Mutant:
    """A fault: `target` (module path, attribute path) replaced; `killer` must raise."""

    name: str
    target: str
    faulty: object
    killer: Callable[[], None]


def long_product() -> None:
    """Products of sixty layer norms, compared with the exact rational product."""
    for seed in range(10):
        bound, exact = 1.0, Fraction(1)
        for factor in np.random.default_rng(seed).uniform(0.5, 2.0, 60).tolist():
            bound = multiply_up(bound, factor)
            exact *= Fraction(factor)
        assert Fraction(bound) >= exact


def norms_slightly_too_small() -> None:
    """Claims below the truth by a part in a million."""
    for seed in range(4):
        matrix = np.random.default_rng(seed).standard_normal((12, 9))
        norm = float(np.linalg.norm(matrix, 2))
        assert norm_at_most_float(matrix, norm * (1 + 1e-6))
        assert not norm_at_most_float(matrix, norm * (1 - 1e-6))


def loss_of(kind: str, **parameters: object) -> Callable[[], None]:
    """No gradient of a loss exceeds what is said of it."""
    return lambda: losses.test_sampled_gradients(kind, parameters, 6.0, math.inf)


def truncated(number: Fraction) -> float:
    """What nearest rounding does half of the time, all of the time."""
    nearest = float(number)
    return nearest if Fraction(nearest) <= number else math.nextafter(nearest, 0.0)


def largest(first: Cotangent, second: Cotangent) -> Cotangent:
    return max(first, second, key=lambda cotangent: cotangent.norm)


MUTANTS = [
    Mutant(
        "√(HW) of a channel bias dropped (gradient)",
        "lipcert.core.rules.convolution.root_up",
        lambda count: 1.0,
        known.test_channel_bias_counts_every_position,
    ),
    Mutant(
        "conv window multiplicity dropped",
        "lipcert.core.rules.convolution.kernel_square",
        lambda axes: 1,
        lambda: faults.test_kernel_gradient_of_a_normalised_convolution(3),
    ),
    Mutant(
        "nearest instead of upward rounding in a long product",
        "lipcert.core.arithmetic.round_up",
        float,
        long_product,
    ),
    Mutant(
        "downward instead of upward rounding",
        "lipcert.core.arithmetic.round_up",
        truncated,
        long_product,
    ),
    Mutant(
        "a norm is believed without what its factor leaves unexplained",
        "lipcert.core.norms.float_engine.unexplained",
        lambda matrix: Fraction(0),
        norms_slightly_too_small,
    ),
    Mutant(
        "a norm is claimed of its largest entry",
        "lipcert.core.norms.float_engine.square_sum",
        lambda matrix: Fraction(float(np.abs(matrix).max())) ** 2,
        norms_slightly_too_small,
    ),
    Mutant(
        "a quarter of the form of a chain, believed without a proof",
        "lipcert.core.forms.chain._proved",
        lambda inequality, guess, proof: 0.25 * (guess - inequality.block),
        lambda: regions.test_no_jacobian_is_larger(regions.residual, 0),
    ),
    Mutant(
        "uses of a shared weight do not add",
        "lipcert.core.rules.passes.add_up",
        max,
        known.test_a_shared_weight_adds_its_uses,
    ),
    Mutant(
        "fan-out takes the largest consumer",
        "lipcert.core.rules.passes._sum",
        largest,
        known.test_residual_branches_add_and_concat_is_exact,
    ),
    Mutant(
        "pairs of the hull taken at half length",
        "lipcert.core.rules.dense.pair_norm",
        lambda weight, hull: 0.5 * hull.scale * float(weight.magnitude().max()),
        known.test_pairs_beat_root_two_at_the_last_layer,
    ),
    Mutant(
        "the sum over the terms of a loss taken for their mean",
        "lipcert.core.losses.margins.root_up",
        margins._hinge_mean,
        lambda: faults.test_summed_hinge_is_not_one_lipschitz(10),
    ),
    Mutant(
        "a half in front of every squared error",
        "lipcert.core.losses.entries.multiply_up",
        lambda factor, distance: distance,
        loss_of("mse", label_norm=1.0, output_reduction="sum", half=False),
    ),
    Mutant(
        "the temperature of a loss ignored",
        "lipcert.core.losses.entries.divide_up",
        lambda a, b: a if b == 0.25 else divide_up(a, b),
        loss_of("bce", temperature=0.25, output_reduction="sum"),
    ),
    Mutant(
        "the labels of a squared error left out",
        "lipcert.core.losses.entries.add_up",
        lambda logits, labels: logits,
        loss_of("mse", label_norm=7.0, output_reduction="sum", half=False),
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
