"""Faults in runs: small private training runs of shipped networks, right in all but one thing.

What enters: a network, and a fault. What leaves: the codes under which each part of the audit finds
it. The loop is an ordinary one: Poisson batches, sums divided by a constant, noise on every tensor,
weights projected onto their constraint after every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert.audit.checks import leave_one_out
from lipcert.audit.job import units_of
from lipcert.audit.prepared_job import Ready
from lipcert.audit.recorded import RecordedTensors
from lipcert.audit.records import AuditReport, CheckReport, Quantity, Verdict
from lipcert.measure.agreement import ROUNDED, output_distance
from lipcert.measure.lowering import LoweredNetwork
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.audit.checks.runs import Plan, trained_with
from tests.audit.checks.runs import Subject as Trained
from tests.audit.checks.test_sampling import (
    BATCH,
    POOL,
    STEPS,
    alike_sizes,
    fixed,
    from_a_fifth,
    poisson,
    the_same_again,
    with_some_always,
)
from tests.audit.faults import CPU, Subject, report_of
from tests.models.shipped import module

__all__ = [
    "BATCH",
    "LOOSE_RUN",
    "RIGHT",
    "RUN_FAULTS",
    "TIGHT_RUN",
    "Found",
    "Run",
    "RunFault",
    "found_by",
]

SIGMA = 1.5
DETAIL = 3
"""every third step is recorded with its tensors; faults of one step are planted at the fourth"""
PLANTED = 3


def spectral(weight: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(weight, 2)


@dataclass(frozen=True)
class Run:
    """A network to train. projected: the norm of a weight that training keeps at its radius."""

    subject: Subject
    projected: Callable[[Tensor], Tensor]
    radius: float

    def live(self) -> nn.Module:
        network = module(self.subject.name, torch.float32)
        self.project(network)
        return network

    @torch.no_grad()
    def project(self, network: nn.Module) -> None:
        for weight in network.parameters():
            weight.nan_to_num_()
            if weight.dim() > 1:
                weight.mul_(torch.clamp(self.radius / self.projected(weight), max=1.0))
            else:
                weight.mul_(torch.clamp(1.0 / weight.norm(), max=1.0))

    @cached_property
    def stds(self) -> Mapping[str, float]:
        """By recorded tensor, independent of the package: σ·√K·G/B for each of K groups."""
        groups = self.subject.right.claims.groups
        return {
            name: SIGMA * math.sqrt(len(groups)) * (group.grad_norm or 0.0) / BATCH
            for group in groups
            for name in group.parameters
        }

    @property
    def sensitivity(self) -> float:
        """Of the whole gradient, divided by the batch size."""
        groups = self.subject.right.claims.groups
        return math.hypot(*(group.grad_norm or 0.0 for group in groups)) / BATCH


def settings(spec: str, radius: float, input_norm: float | None) -> Settings:
    return Settings(
        input_norm=input_norm,
        mechanism="clipless",
        constraint=ConstraintSpec(spec, radius),
        bias_norm=1.0,
        noise_multiplier=SIGMA,
        dataset_size=POOL,
        batch_size=BATCH,
        sampling="poisson",
        steps=STEPS,
        delta=1e-5,
    )


TIGHT_RUN = Run(
    Subject("digits_orthogonal_mlp", settings("spectral", 1.0, 1.0), radius=1.0, examples=POOL),
    spectral,
    1.0,
)
LOOSE_RUN = Run(
    Subject("digits_cnn", settings("frobenius", 4.0, None), examples=POOL),
    torch.linalg.vector_norm,
    4.0,
)


@dataclass(frozen=True)
class RunFault(Plan):
    """How a run goes; the defaults are right. after: the projection, of this run; claimed: what the
    sensitivity is wrongly divided by."""

    name: str = "none"
    after: Callable[[Run, nn.Module, int], None] = lambda _run, _network, _step: None
    claimed: float = 1.0
    steps: int = STEPS
    detail: int = DETAIL
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = lambda parameters: (
        torch.optim.SGD(parameters, lr=0.05)
    )

    @property
    def moves_gradients(self) -> bool:
        """Whether the user's gradient function, or what is claimed of it, is another one."""
        own = ("changed", "divisor", "prepared", "after_backward", "claimed")
        return any(getattr(self, name) != getattr(RIGHT, name) for name in own)


RIGHT = RunFault()


def recorded(folder: Path, run: Run, fault: RunFault) -> Ready:
    """Train and record; the job of auditing that run."""
    right = run.subject.right
    data = right.data
    assert data is not None
    network = run.live().train()
    fault.changed(network)
    images, labels = torch.from_numpy(data.x), torch.from_numpy(data.y)
    on = Trained(network, run.project, images, labels, BATCH, run.stds)
    plan = replace(fault, after_projection=partial(fault.after, run))
    trace = trained_with(folder, plan, on, np.random.default_rng(7))
    claims = right.claims
    tensors = RecordedTensors(trace, claims.engine.graph, None, claims.settings)
    pairs = [(name, name, count) for name, count in tensors.batch_sizes.items()]
    job = replace(right.job, data=None, trace=str(folder))
    return replace(right, job=job, data=None, recorded=tensors, units=units_of(pairs, job, 0))


@dataclass(frozen=True)
class Found:
    """Codes by part of the audit; a part that is not about the fault is absent."""

    caught: Mapping[str, frozenset[str]]
    doubtful: Mapping[str, frozenset[str]]
    report: AuditReport = field(compare=False)

    @property
    def any(self) -> frozenset[str]:
        return frozenset().union(*self.caught.values())

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        return [self._cell(part) for part in PARTS]

    def _cell(self, part: str) -> str:
        """In brackets what is inconclusive."""
        if part not in self.caught:
            return "–"
        sure = sorted(self.caught[part])
        maybe = [f"({code})" for code in sorted(self.doubtful[part] - self.caught[part])]
        return ", ".join([*sure, *maybe]) or "no"


PARTS = ("replay", "recorded steps", "noise", "leave one out", "module")
NOISE = frozenset({"LC314", "LC315"})
REPLAY = frozenset({"LC301", "LC302", "LC303", "LC304", "LC305"})
BAD = frozenset({Verdict.VIOLATION, Verdict.MISMATCH})


def found_by(folder: Path, run: Run, fault: RunFault) -> Found:
    """Record a run with a fault, audit it, and ask the user's own functions."""
    report = report_of(recorded(folder, run, fault))
    caught, doubtful = _by_part(report, BAD), _by_part(report, {Verdict.INCONCLUSIVE})
    if fault.moves_gradients:
        left = left_out(run, fault)
        caught["leave one out"] = frozenset({left.code} if left.verdict in BAD else ())
    if fault.changed is not RIGHT.changed:
        caught["module"] = frozenset({"LC317"} if disagrees(run, fault) else ())
    none: frozenset[str] = frozenset()
    return Found(caught, {part: doubtful.get(part, none) for part in caught}, report)


def _by_part(report: AuditReport, verdicts: Collection[Verdict]) -> dict[str, frozenset[str]]:
    """Codes of these verdicts."""
    codes = {check.code for check in report.checks if check.verdict in verdicts}
    if Verdict.VIOLATION in verdicts:
        codes |= {"LC301" for group in report.groups if group.violations}
        for value in report.values:
            is_norm = value.quantity is Quantity.OUTPUT_NORM
            codes |= {"LC302" if is_norm else "LC303"} if value.violations else set()
    return {
        "replay": frozenset(codes & REPLAY),
        "recorded steps": frozenset(codes - REPLAY - NOISE),
        "noise": frozenset(codes & NOISE),
    }


def left_out(run: Run, fault: RunFault) -> CheckReport:
    """Leave one out through the gradient function of the faulty loop."""
    data = run.subject.right.data
    assert data is not None
    network = run.live().train()
    fault.changed(network)

    def gradients(x: np.ndarray, y: np.ndarray) -> Mapping[str, np.ndarray]:
        network.zero_grad()
        logits = network(fault.prepared(torch.from_numpy(x), PLANTED))
        loss = functional.cross_entropy(logits, torch.from_numpy(y), reduction="sum")
        (loss / (fault.divisor or (lambda _: BATCH))(len(x))).backward()
        fault.after_backward(network, PLANTED)
        return {
            name: p.grad.numpy() for name, p in network.named_parameters() if p.grad is not None
        }

    claimed = run.sensitivity / fault.claimed
    return leave_one_out(gradients, data.x[:BATCH], data.y[:BATCH], claimed)


def disagrees(run: Run, fault: RunFault) -> bool:
    """Whether the live module is found to be another function than the file."""
    ready = run.subject.right
    assert ready.data is not None
    network = run.live().eval()
    fault.changed(network)
    state = {name: p.detach().double().numpy() for name, p in network.named_parameters()}
    lowered = LoweredNetwork.of(ready.claims.engine.graph, torch.float32, CPU, state)
    x = torch.from_numpy(ready.data.x[:8])
    return not output_distance(lowered, network, x) <= ROUNDED


def first_layer(network: nn.Module) -> nn.Module:
    return next(part for part in network.modules() if isinstance(part, nn.Linear | nn.Conv2d))


def normalise_by_batch(network: nn.Module) -> None:
    """What BatchNorm in training mode does, behind the first layer."""
    normalise = partial(functional.batch_norm, running_mean=None, running_var=None, training=True)
    first_layer(network).register_forward_hook(lambda _module, _inputs, h: normalise(h))


def stretch_logits(network: nn.Module) -> None:
    network.register_forward_hook(lambda _module, _inputs, logits: 1.1 * logits)


@torch.no_grad()
def stretch_weight(run: Run, network: nn.Module, step: int) -> None:
    if step == PLANTED - 1:
        weight = next(network.parameters())
        weight.mul_(1.25 * run.radius / run.projected(weight))


@torch.no_grad()
def spoil_gradient(network: nn.Module, step: int) -> None:
    if step == PLANTED:
        gradient = next(network.parameters()).grad
        assert gradient is not None
        gradient.view(-1)[0] = torch.nan


def all_but_the_last(name: str, step: int, drawn: Tensor, _std: float) -> Tensor:
    return drawn * ((name, step) != ("classifier.weight", PLANTED))


def seeded_each(_name: str, step: int, drawn: Tensor, std: float) -> Tensor:
    """From one seed for every tensor."""
    return std * torch.randn(drawn.shape, generator=torch.Generator().manual_seed(step))


def halved(_name: str, _step: int, drawn: Tensor, _std: float) -> Tensor:
    """The first half twice."""
    count = drawn.numel()
    return drawn.flatten()[: (count + 1) // 2].repeat(2)[:count].reshape(drawn.shape)


def rolled(name: str, step: int, drawn: Tensor, std: float) -> Tensor:
    """One noise for the whole run, rolled by 7 entries and negated from step to step."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    once = torch.randn(drawn.shape, generator=generator)
    return (-1.0) ** step * std * torch.roll(once.flatten(), 7 * step).reshape(drawn.shape)


RUN_FAULTS = (
    RunFault(name="sum claimed to be a mean", divisor=lambda _: 1.0, stated_divisor=lambda _: 1.0),
    RunFault(name="sum recorded as a mean", divisor=lambda _: 1.0),
    RunFault(name="divided by the size of the batch", divisor=float, stated_divisor=float),
    RunFault(name="sensitivity divided by the batch size", std_factor=1.0 / BATCH, claimed=BATCH),
    RunFault(name="no noise on one tensor at one step", noise_of=all_but_the_last),
    RunFault(
        name="noise 10 % smaller than stated",
        noise_of=lambda _name, _step, drawn, _std: 0.9 * drawn,
    ),
    RunFault(name="noise 10 % smaller than required", std_factor=0.9),
    RunFault(name="noise recorded and not released", releases_noise=False),
    RunFault(name="a seed used again", seed=lambda step: 1000 + step % 6),
    RunFault(name="one noise for all tensors of a step", noise_of=seeded_each),
    RunFault(name="noise repeated within a tensor", noise_of=halved),
    RunFault(name="noise rolled and negated from step to step", noise_of=rolled),
    RunFault(name="a weight outside its constraint", after=stretch_weight),
    RunFault(
        name="inputs outside the domain", prepared=lambda x, step: 3.0 * x if step == PLANTED else x
    ),
    RunFault(name="BatchNorm in training mode", changed=normalise_by_batch),
    RunFault(name="module differs from its export", changed=stretch_logits),
    RunFault(name="batches of fixed size said to be Poisson", draw=fixed),
    RunFault(name="sizes of Poisson batches vary too little", draw=alike_sizes),
    RunFault(name="some examples in every batch", draw=with_some_always(poisson)),
    RunFault(name="all batches from a fifth of the data", draw=from_a_fifth),
    RunFault(name="the same batch again, a tenth exchanged", draw=the_same_again(poisson)),
    RunFault(name="shuffled, accounted as Poisson", sampler="shuffle"),
    RunFault(name="one step more than accounted for", steps=STEPS + 1),
    RunFault(name="NaN in one gradient", after_backward=spoil_gradient),
)
