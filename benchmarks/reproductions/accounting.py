"""Privacy accounting: what the papers say a run costs, and what it does cost.

What enters: `examples/accounting_faults.py`, which holds the runs and accounts for them, and the
run of Stevens et al. on MNIST. What leaves: claimed ε next to the ε of the run as it is.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol

from benchmarks.reproductions.rows import Row, Verdict
from lipcert.privacy.account import Declaration, account_for
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan

__all__ = ["rows"]

SCRIPT: Final = Path(__file__).resolve().parents[2] / "examples" / "accounting_faults.py"
DELTA: Final = 1e-5
EPOCHS, LAYERS = 25, 4
MNIST_EPSILON: Final = 0.07
PRINTED: Final = (
    ("layers with noise", "Barczewski and Ramon, Algorithm 2"),
    ("shuffled batches", "Béthune et al., Section 4"),
    ("random size", "Barczewski and Ramon, Algorithm 2; Guo, step 4"),
    ("classical formula", "Barczewski and Ramon, Lemma 4"),
)
"""Papers that print this way of accounting; the others are known from code."""


class Fault(Protocol):
    """A row of the script."""

    name: str
    claimed: float
    true: float
    code: str


def rows() -> Iterator[Row]:
    """The statement of Stevens et al. that holds, then claims that do not."""
    yield from theorem_rows()
    for fault in script().rows():
        yield fault_row(fault)
        if "shuffled" in fault.name:
            yield attack_row(fault)


@cache
def script() -> ModuleType:
    """The example, which is no module of a package."""
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    if spec is None or spec.loader is None:
        raise ImportError(f"{SCRIPT} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def theorem_rows() -> Iterator[Row]:
    """E·L·ρ-zCDP for L layers, E epochs of disjoint batches: next to the joint release."""
    rho = rho_for(MNIST_EPSILON, DELTA) / (EPOCHS * LAYERS)
    sigma = 1.0 / math.sqrt(2.0 * rho)
    plan = TrainingPlan(
        60_000,
        Sampling.SHUFFLE,
        DELTA,
        batch_size=4096,
        epochs=float(EPOCHS),
        neighbours=Neighbouring.ZERO_OUT,
    )
    account = account_for(plan, sigma, declaration=Declaration(groups=LAYERS))
    zcdp, exact = account.zcdp, account.epsilon
    if zcdp is None or exact is None:
        raise RuntimeError("a shuffled run of Gaussian releases has both statements")
    ratio = zcdp.rho / (EPOCHS * LAYERS * rho)
    setting = f"{EPOCHS} epochs of disjoint batches, {LAYERS} layers of ρ = {rho:.3g} each"
    yield Row(
        f"{setting} (Stevens et al., Theorem 1)",
        "E·L·ρ-zCDP",
        f"the joint release of the layers gives {ratio:.6f} times E·L·ρ",
        Verdict.of(abs(ratio - 1.0) < 1e-9),
    )
    yield Row(
        f"the same, as (ε, {DELTA:g})-DP",
        f"ε = {MNIST_EPSILON:g} by ρ + 2√(ρ ln 1/δ)",
        f"{zcdp.epsilon:.4f} by that formula, {exact:.4f} by privacy loss distributions",
        Verdict.of(exact <= zcdp.epsilon <= MNIST_EPSILON * (1.0 + 1e-9)),
    )


def rho_for(epsilon: float, delta: float) -> float:
    """ρ with ρ + 2√(ρ ln 1/δ) = ε."""
    surprise = math.log(1.0 / delta)
    return (math.sqrt(surprise + epsilon) - math.sqrt(surprise)) ** 2


def fault_row(fault: Fault) -> Row:
    """A claim that is too small."""
    whose = next((f" ({names})" for part, names in PRINTED if part in fault.name), "")
    true = "no ε" if math.isinf(fault.true) else f"ε = {fault.true:.2f}"
    return Row(
        f"{fault.name}{whose}",
        f"ε = {fault.claimed:.2f}",
        f"{true}{f', {fault.code}' if fault.code else ''}",
        Verdict.of(fault.claimed >= fault.true),
    )


def attack_row(fault: Fault) -> Row:
    """The same run from below."""
    reached = script().shuffle_attack(0.5, 1000, DELTA)
    return Row(
        "the same epoch, attacked",
        f"ε = {fault.claimed:.2f}",
        f"ε ≥ {reached:.2f}",
        Verdict.of(fault.claimed >= reached),
    )
