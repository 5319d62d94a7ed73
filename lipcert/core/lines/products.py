"""fact/products: products of non-negative numbers bound the output of several ReLU layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from lipcert.core.codec import Bound, member
from lipcert.core.forms.products import Unfolded, is_definite, unfolded
from lipcert.core.interval import Interval, exact
from lipcert.core.line import NotProved
from lipcert.core.lines.chains import VALUES, chain_steps
from lipcert.core.lines.proof import Proof
from lipcert.core.lines.steps import FactLine
from lipcert.core.program import Activation, Step
from lipcert.core.rules.facts import Fact
from lipcert.core.rules.steps import step_fact

MAX_CUTS: Final = 1 << 15


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ProductFact(FactLine):
    """Affine steps and ReLUs compute the value from `start`; its norm is at most `level`.

    norms: one multiplier for the start and one for each ReLU. ties: for each ReLU, one multiplier
    for each entry. cuts: the multipliers of the products at `places`. raised: one number for each
    variable, or none. The certificate proposes these numbers and the level, and the checker proves
    that the form of `forms.products` is positive semidefinite.
    Hypotheses (checked): training changes no tensor of the steps; all steps are affine, or ReLUs.
    """

    rule: Literal["fact/products"] = "fact/products"
    start: str
    level: Bound
    norms: tuple[Bound, ...]
    ties: tuple[tuple[Bound, ...], ...]
    places: tuple[int, ...]
    cuts: tuple[Bound, ...]
    raised: tuple[Bound, ...] = field(default=(), metadata=member(optional=True))

    def evaluate(self, proof: Proof) -> Fact:
        """Return the level, if the form is positive semidefinite."""
        region = None
        if len(self.cuts) <= MAX_CUTS:
            region = region_of(proof, proof.facts, self.start, self.value, self.ties)
        form = None
        if region is not None:
            with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                form = region.inequality(
                    self.level, self.norms, self.ties, self.places, self.cuts, raised=self.raised
                )
        if form is None or not is_definite(form, proof.engine.definite):
            raise NotProved(f"its multipliers prove no norm from {self.start} to {self.value}")
        return Fact.of(proof.program.shapes[self.value], self.level)


def region_of(
    proof: Proof, facts: Mapping[str, Fact], start: str, stop: str, ties: Sequence[Sequence[float]]
) -> Unfolded | None:
    """Return the steps between two values in the variables of the form, or None."""
    steps = chain_steps(proof.program, VALUES, start, stop, proof.free)
    if steps is None:
        return None
    offsets = {s.output: _at_zero(proof, s) for s in steps if s.op != Activation("relu")}
    try:
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            return unfolded(start, steps, proof.program.shapes, facts, offsets, ties)
    except ValueError:
        return None


def _at_zero(proof: Proof, step: Step) -> Interval:
    """Return the image of 0 under a step."""
    shapes = proof.program.shapes
    points = {
        name: Fact.of(shapes[name], 0.0, exact(np.zeros((1,) * len(shapes[name]))))
        for name in step.inputs
    }
    return step_fact(proof.program, step, points, proof.weights).box
