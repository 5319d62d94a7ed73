"""Faults in claims: bounds that are too small, and what an audit says of them.

What enters: a shipped network with examples, and a fault, which turns right claims into wrong ones.
What leaves: how many of the bounds that were made wrong each part of the audit catches. Whether one
bound holds is decided without the others, so that all bounds of a kind are made wrong at once.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import torch

from lipcert.audit.attack import proposals
from lipcert.audit.bounds import Claims
from lipcert.audit.checks import run_checks
from lipcert.audit.conclusion import conclude
from lipcert.audit.job import Job, units_of
from lipcert.audit.prepared_job import Ready, prepare
from lipcert.audit.replay import audit_unit
from lipcert.audit.unit_results import total_of
from lipcert.core.window_kinds import Conv
from lipcert.gradient_stats.examples import Examples
from lipcert.settings.settings import Settings
from tests.models.shipped import digits, path_of

CPU = torch.device("cpu")
BATCH = 64


@dataclass(frozen=True)
class Subject:
    """A shipped network under settings; radius: to which its examples are scaled."""

    name: str
    settings: Settings
    radius: float | None = None
    examples: int = 200
    steps: int = 20
    folder: Path = field(default=Path("/nonexistent"), compare=False)

    @cached_property
    def right(self) -> Ready:
        """The network with right claims and examples of the digits."""
        job = Job(str(path_of(self.name)), self.settings, attack_steps=1)
        ready = prepare(job)
        split = digits(tuple(ready.claims.engine.graph.input_shape))
        x = split.images.numpy()[: self.examples]
        if self.radius is not None:
            norms = np.linalg.norm(x.reshape(len(x), -1), axis=1)
            x = x * (self.radius * (1.0 - 1e-6) / norms).reshape(-1, *[1] * (x.ndim - 1))
        labels = split.labels.numpy()[: self.examples]
        data = Examples(x.astype(np.float32), labels, "digits")
        return with_data(ready, data)

    @cached_property
    def attacked(self) -> Ready:
        """The same with the examples that the attack proposes; it never looks at claimed bounds."""
        ready, data = self.right, self.right.data
        start = Examples(data.x[:BATCH], data.y[:BATCH], "digits")
        (found,) = proposals(ready.claims, None, start, self.steps, move_weights=False, device=CPU)
        return with_data(ready, found.examples)


TIGHT = Subject("digits_orthogonal_mlp", Settings(input_norm=1.0, batch_size=BATCH), radius=1.0)
TIGHT_CONV = Subject("digits_lipschitz_cnn", Settings(input_norm=1.0, batch_size=BATCH), radius=1.0)
LOOSE = Subject("digits_cnn", Settings(batch_size=BATCH))
SUBJECTS = (TIGHT, TIGHT_CONV, LOOSE)


def with_data(ready: Ready, data: Examples) -> Ready:
    """The same job on other data, in one unit of work."""
    job = replace(ready.job, data="digits.npz", attack_steps=0)
    units = units_of([("model", "data", len(data))], job, 0)
    return replace(ready, job=job, data=data, units=units)


def report_of(ready: Ready):
    """All units of work, all checks, and the conclusion."""
    total = total_of(audit_unit(ready, unit) for unit in ready.units)
    return conclude(ready, total, run_checks(ready), seconds=0.0)


Factors = Callable[[Claims, list[str]], Mapping[str, float]]
"""of claims and the names of their bounds, to what some of these are multiplied with"""
FAMILIES = {
    "G": ("groups", "", "LC301"),
    "X": ("values", "output_norm", "LC302"),
    "l": ("cotangents", "cotangent_norm", "LC303"),
}
"""of bounds: where claims hold them, the quantity that they bound, the code of what exceeds them"""


@dataclass(frozen=True)
class ClaimFault:
    """A fault by its name. family: of the bounds that are made wrong."""

    name: str
    family: str
    factors: Factors


@dataclass(frozen=True)
class Caught:
    """Of the bounds that were made wrong, those that were reported, and under which code."""

    wrong: int
    found: int
    code: str

    def __str__(self) -> str:
        if not self.wrong:
            return "–"
        return f"{self.code} {self.found}/{self.wrong}" if self.found else "no"


@cache
def caught(ready: Ready, fault: ClaimFault) -> Caught:
    """What an audit of the wrong claims reports; false alarms count as an error of the test."""
    field, quantity, code = FAMILIES[fault.family]
    held = getattr(ready.claims, field)
    names = list(held) if quantity else [group.name for group in held]
    factors = fault.factors(ready.claims, names)
    wrong = factors.keys()
    if not wrong:
        return Caught(0, 0, "")
    if quantity:
        changed = {name: factors.get(name, 1.0) * bound for name, bound in held.items()}
    else:
        changed = tuple(
            replace(group, grad_norm=group.grad_norm * factors.get(group.name, 1.0))
            for group in held
        )
    report = report_of(replace(ready, claims=replace(ready.claims, **{field: changed})))
    found = {group.name for group in report.groups if group.violations}
    if quantity:
        values = [value for value in report.values if value.violations]
        found = {value.value for value in values if value.quantity.value == quantity}
    if not found <= wrong:
        raise AssertionError(f"{fault.name}: false alarm on {found - wrong}")
    if bool(found) != any(f"[{code}]" in reason for reason in report.reasons):
        raise AssertionError(f"{fault.name}: {code} is not among the reasons")
    return Caught(len(wrong), len(found), code)


def cells_of(fault: ClaimFault, *, under_attack_only: bool = False) -> list[Caught]:
    """A row of the table: every network, on its data and under attack."""
    skip = 1 if under_attack_only else 0
    return [caught(ready, fault) for s in SUBJECTS for ready in (s.right, s.attacked)[skip:]]


def each(factor: float) -> Factors:
    return lambda _, names: dict.fromkeys(names, factor)


def convolutions(lost) -> Factors:
    """Of each group that holds the kernel of a convolution the factor is dropped, if any."""

    def factors(claims: Claims, _: list[str]) -> Mapping[str, float]:
        return {
            group.name: 1.0 / lost(node)
            for node in claims.engine.graph.nodes
            if isinstance(node.op, Conv) and not node.op.transposed and lost(node) > 1.0
            for group in claims.groups
            if node.operands["weight"].parameter in group.parameters
        }

    return factors


def positions(node) -> float:
    """√(HW): a kernel is used at so many positions."""
    return math.sqrt(math.prod(node.shape[1:]))


def overlap(node) -> float:
    """√ of how many windows read a pixel."""
    return math.sqrt(math.prod(-(-window.taps // window.stride) for window in node.geometry))


CLAIM_FAULTS = (
    *(
        ClaimFault(f"{family} of each {what} × {factor}", family, each(factor))
        for family, what in (("G", "group"), ("X", "value"), ("l", "cotangent"))
        for factor in (0.9, 0.5)
    ),
    ClaimFault("√(HW) dropped from G of convolutions", "G", convolutions(positions)),
    ClaimFault("kernel overlap dropped from G of convolutions", "G", convolutions(overlap)),
    ClaimFault(f"G of the mean over {BATCH} for that of the sum", "G", each(1.0 / BATCH)),
)
