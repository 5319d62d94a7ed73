"""Faults in runs: small private training runs of shipped networks, right in all but one thing.

What enters: a network, and a fault. What leaves: the codes under which each part of the audit finds
it. The loop is an ordinary one: Poisson batches, sums divided by a constant, noise on every tensor,
weights projected onto their constraint after every step.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping
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
from lipcert.audit.recorder import Recorder
from lipcert.audit.records import AuditReport, CheckReport, Quantity, Verdict
from lipcert.audit.trace.reading import read_trace
from lipcert.measure.agreement import ROUNDED, output_distance
from lipcert.measure.lowering import LoweredNetwork
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.audit.checks.test_sampling import (
    BATCH,
    POOL,
    RATE,
    STEPS,
    Draw,
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


def unchanged(value: Tensor, _: int) -> Tensor:
    return value


def nothing(_network: nn.Module, _step: int) -> None:
    pass


@dataclass(frozen=True)
class RunFault:
    """How a run goes; the defaults are right.

    changed: the module, away from what was exported. std_factor: noise over what is required;
    noise: over what is stated; drawn: instead of standard noise that was drawn. claimed: what the
    sensitivity is wrongly divided by.
    """

    name: str
    changed: Callable[[nn.Module], None] = lambda _: None
    draw: Draw = poisson
    sampler: str = "poisson"
    divisor: Callable[[int], float] = lambda _: float(BATCH)
    stated_divisor: Callable[[int], float] = lambda _: float(BATCH)
    prepared: Callable[[Tensor, int], Tensor] = unchanged
    after_backward: Callable[[nn.Module, int], None] = nothing
    std_factor: float = 1.0
    noise: Callable[[str, int], float] = lambda _name, _step: 1.0
    drawn: Callable[[Tensor, str, int], Tensor] = lambda drawn, _name, _step: drawn
    seed: Callable[[int], int] = lambda step: 1000 + step
    releases_noise: bool = True
    after_projection: Callable[[Run, nn.Module, int], None] = lambda _run, _network, _step: None
    steps: int = STEPS
    claimed: float = 1.0

    @property
    def moves_gradients(self) -> bool:
        """Whether the user's gradient function, or what is claimed of it, is another one."""
        own = (self.changed, self.divisor, self.prepared, self.after_backward, self.claimed)
        return own != (
            RIGHT.changed,
            RIGHT.divisor,
            RIGHT.prepared,
            RIGHT.after_backward,
            RIGHT.claimed,
        )


RIGHT = RunFault("none")


def recorded(folder: Path, run: Run, fault: RunFault) -> Ready:
    """Train and record; the job of auditing that run."""
    random = np.random.default_rng(7)
    data = run.subject.right.data
    assert data is not None
    images, labels = torch.from_numpy(data.x), torch.from_numpy(data.y)
    network = run.live().train()
    fault.changed(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorder = Recorder(folder, network, optimizer, every=1, detail=DETAIL, store_data=True)
        recorder.declare(
            dataset_size=POOL,
            batch_size=BATCH,
            sampling=fault.sampler,
            steps=fault.steps,
            noise_multiplier=SIGMA,
        )
        loss_fn = recorder.wrap_loss(functional.cross_entropy)
        for step in range(fault.steps):
            index = fault.draw(random, step)
            size = len(index)
            optimizer.zero_grad()
            recorder.batch(
                index=index, sampler=fault.sampler, rate=RATE, divisor=fault.stated_divisor(size)
            )
            logits = network(fault.prepared(images[index], step))
            loss = loss_fn(logits, labels[index], reduction="sum")
            (loss / fault.divisor(size)).backward()
            fault.after_backward(network, step)
            noised(recorder, network, run, fault, step)
            optimizer.step()
            run.project(network)
            fault.after_projection(run, network, step)
        recorder.close()
    trace = read_trace(folder)
    claims = run.subject.right.claims
    tensors = RecordedTensors(trace, claims.engine.graph, None, claims.settings)
    pairs = [(name, name, count) for name, count in tensors.batch_sizes.items()]
    right = run.subject.right
    job = replace(right.job, data=None, trace=str(folder))
    return replace(right, job=job, data=None, recorded=tensors, units=units_of(pairs, job, 0))


def noised(recorder: Recorder, network: nn.Module, run: Run, fault: RunFault, step: int) -> None:
    gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    stds = {name: fault.std_factor * std for name, std in run.stds.items()}
    clean = {name: gradient.clone() for name, gradient in gradients.items()}
    recorder.gradients(clean=gradients)
    generator = torch.Generator()
    generator.manual_seed(fault.seed(step))
    recorder.noise(stds, generator=generator)
    for name, gradient in gradients.items():
        drawn = fault.drawn(torch.randn(gradient.shape, generator=generator), name, step)
        gradient.add_(fault.noise(name, step) * stds[name] * drawn)
    recorder.gradients(noised=gradients)
    if not fault.releases_noise:
        for name, gradient in gradients.items():
            gradient.copy_(clean[name])


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
        (loss / fault.divisor(len(x))).backward()
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


def last_name(name: str, step: int) -> float:
    return 0.0 if (name, step) == ("classifier.weight", PLANTED) else 1.0


def seeded_each(drawn: Tensor, _: str, step: int) -> Tensor:
    """From one seed for every tensor."""
    return torch.randn(drawn.shape, generator=torch.Generator().manual_seed(step))


def halved(drawn: Tensor, _name: str, _step: int) -> Tensor:
    """The first half twice."""
    count = drawn.numel()
    return drawn.flatten()[: (count + 1) // 2].repeat(2)[:count].reshape(drawn.shape)


def rolled(drawn: Tensor, name: str, step: int) -> Tensor:
    """One noise for the whole run, rolled by 7 entries and negated from step to step."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    once = torch.randn(drawn.shape, generator=generator)
    return (-1.0) ** step * torch.roll(once.flatten(), 7 * step).reshape(drawn.shape)


RUN_FAULTS = (
    RunFault("sum claimed to be a mean", divisor=lambda _: 1.0, stated_divisor=lambda _: 1.0),
    RunFault("sum recorded as a mean", divisor=lambda _: 1.0),
    RunFault("divided by the size of the batch", divisor=float, stated_divisor=float),
    RunFault("sensitivity divided by the batch size", std_factor=1.0 / BATCH, claimed=BATCH),
    RunFault("no noise on one tensor at one step", noise=last_name),
    RunFault("noise 10 % smaller than stated", noise=lambda _name, _step: 0.9),
    RunFault("noise 10 % smaller than required", std_factor=0.9),
    RunFault("noise recorded and not released", releases_noise=False),
    RunFault("a seed used again", seed=lambda step: 1000 + step % 6),
    RunFault("one noise for all tensors of a step", drawn=seeded_each),
    RunFault("noise repeated within a tensor", drawn=halved),
    RunFault("noise rolled and negated from step to step", drawn=rolled),
    RunFault("a weight outside its constraint", after_projection=stretch_weight),
    RunFault(
        "inputs outside the domain", prepared=lambda x, step: 3.0 * x if step == PLANTED else x
    ),
    RunFault("BatchNorm in training mode", changed=normalise_by_batch),
    RunFault("module differs from its export", changed=stretch_logits),
    RunFault("batches of fixed size said to be Poisson", draw=fixed),
    RunFault("sizes of Poisson batches vary too little", draw=alike_sizes),
    RunFault("some examples in every batch", draw=with_some_always(poisson)),
    RunFault("all batches from a fifth of the data", draw=from_a_fifth),
    RunFault("the same batch again, a tenth exchanged", draw=the_same_again(poisson)),
    RunFault("shuffled, accounted as Poisson", sampler="shuffle"),
    RunFault("one step more than accounted for", steps=STEPS + 1),
    RunFault("NaN in one gradient", after_backward=spoil_gradient),
)
