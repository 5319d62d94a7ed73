"""What known accounting mistakes claim, and what the same runs really cost.

    python examples/accounting_faults.py

Each row is a run whose ε was computed in a way found in published code or papers; LipCert names
the mistake by a code (`lipcert explain LC403`) and accounts for the run as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from lipcert.privacy.account import Composition, Declaration, Divisor, account_for
from lipcert.privacy.noise import Neighbouring, Reduction
from lipcert.privacy.plan import Sampling, TrainingPlan

DELTA = 1e-5


@dataclass(frozen=True)
class Row:
    name: str
    claimed: float
    true: float
    code: str


def rows() -> Iterator[Row]:
    plan = TrainingPlan(10_000, Sampling.POISSON, DELTA, batch_size=100, steps=1000)
    for count in (2, 4, 8):
        name = f"{count} layers with noise σΔ_k each, counted as one release of multiplier σ"
        yield row(name, plan, Declaration(groups=count, composition=Composition.ONCE))

    epochs = TrainingPlan(60_000, Sampling.POISSON, DELTA, batch_size=256, steps=1170)
    name = "4 layers of one sample, counted as 4 steps with samples of their own"
    yield row(name, epochs, Declaration(groups=4, composition=Composition.SEPARATE))

    shuffled = TrainingPlan(
        50_000, Sampling.SHUFFLE, DELTA, batch_size=50, epochs=1, neighbours=Neighbouring.ZERO_OUT
    )
    name = "one epoch of shuffled batches, accounted as Poisson"
    yield row(name, shuffled, Declaration(claimed_sampling=Sampling.POISSON), sigma=0.5)

    name = "the mean divides by the random size of the batch"
    yield row(name, plan, Declaration(divisor=Divisor.BATCH_SIZE))

    small = TrainingPlan(1000, Sampling.POISSON, DELTA, batch_size=10, steps=1000)
    name = "noise for a mean over 10, added to the sum"
    yield row(name, small, Declaration(sensitivity_of=Reduction.MEAN))

    replaced = TrainingPlan(
        10_000,
        Sampling.POISSON,
        DELTA,
        batch_size=100,
        steps=1000,
        neighbours=Neighbouring.REPLACE_ONE,
    )
    name = "noise and ε for add-remove, stated for replace-one"
    yield row(name, replaced, Declaration(sensitivity_for=Neighbouring.ADD_OR_REMOVE_ONE))

    once = TrainingPlan(10_000, Sampling.FULL_BATCH, DELTA, steps=1)
    sigma = classical_sigma(10.0, DELTA)
    true = account_for(once, sigma).epsilon
    yield Row("one release, σ by the classical formula at ε = 10", 10.0, true or math.inf, "")


def row(name: str, plan: TrainingPlan, declaration: Declaration, sigma: float = 1.0) -> Row:
    account = account_for(plan, sigma, declaration=declaration)
    claimed = math.nan if account.claimed_epsilon is None else account.claimed_epsilon
    true = math.inf if account.epsilon is None else account.epsilon
    return Row(name, claimed, true, account.diagnostics[0].code)


def classical_sigma(epsilon: float, delta: float) -> float:
    """Proved for ε < 1 only, and used beyond."""
    return math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


def shuffle_attack(sigma: float, batches: int, delta: float) -> float:
    """An ε that one epoch of shuffled batches cannot be below: an attack that reaches it.

    All gradients are −1, the one in question is +1 or zeroed out: one batch sum, at a random
    place, lies 2 or 1 above the others. The attacker looks at the largest of the noisy sums.
    """
    cuts = np.linspace(-1.0, 15.0, 4001)
    others = (batches - 1) * norm.logcdf(cuts / sigma)

    def above(shift: float) -> np.ndarray:
        below = norm.logcdf((cuts - shift) / sigma) + others
        return -np.expm1(below)

    present, absent = above(2.0), above(1.0)
    return float(brentq(lambda e: (present - math.exp(e) * absent).max() - delta, 0.0, 50.0))


def main() -> None:
    print(f"{'':74} {'claimed ε':>10} {'true ε':>10}  code")
    for found in rows():
        true = "none" if math.isinf(found.true) else f"{found.true:.2f}"
        print(f"{found.name:74} {found.claimed:10.2f} {true:>10}  {found.code}")
    print(f"\nAn attack on the shuffled epoch reaches ε = {shuffle_attack(0.5, 1000, DELTA):.2f}.")


if __name__ == "__main__":
    main()
