"""Recorded runs of a small private network, right in everything but one planted fault."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert.audit.bounds import Claims, claims_of_analysis
from lipcert.audit.checks import Checked, check_recorded_run
from lipcert.audit.recorder import Chosen, Recorder
from lipcert.audit.records import CheckReport, Verdict
from lipcert.audit.trace.reading import Trace, read_trace
from lipcert.graph.ir import Graph
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.networks import dag, trained
from tests.ops import Activation, Dense
from tests.written import model_of

EXAMPLES, BATCH, STEPS, SIGMA = 300, 20, 12, 1.5
RATE = BATCH / EXAMPLES
SIZES = (8, 12, 3)
SETTINGS = Settings(
    constraint=ConstraintSpec("spectral", 1.0),
    input_norm=1.0,
    noise_multiplier=SIGMA,
    dataset_size=EXAMPLES,
    batch_size=BATCH,
    sampling="poisson",
    steps=STEPS,
    delta=1e-5,
)


class Network(nn.Module):
    """Two linear layers; `mix` stands between them in training and not in the exported graph."""

    def __init__(self, mix: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(SIZES[0], SIZES[1], bias=False)
        self.last = nn.Linear(SIZES[1], SIZES[2], bias=False)
        self.mix = mix
        self.project()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.last(h if self.mix is None else self.mix(h))

    @torch.no_grad()
    def project(self) -> None:
        for layer in (self.first, self.last):
            norm = torch.linalg.matrix_norm(layer.weight, 2)
            layer.weight.mul_(torch.clamp(1.0 / norm, max=1.0))

    def graph(self) -> Graph:
        return dag(
            (SIZES[0],),
            [
                ("h", Dense(trained("first.weight", array_of(self.first.weight))), ("x",)),
                ("r", Activation("relu"), ("h",)),
                ("o", Dense(trained("last.weight", array_of(self.last.weight))), ("r",)),
            ],
        )


@dataclass(frozen=True)
class Plan:
    """How a run goes; the defaults are right."""

    mix: Callable[[Tensor], Tensor] | None = None
    draw: Callable[[int, np.random.Generator], np.ndarray] | None = None
    divisor: Callable[[int], float] = lambda _: float(BATCH)
    stated_divisor: Callable[[int], float] = lambda _: float(BATCH)
    std_factor: float = 1.0
    stated_factor: float = 1.0
    noise_of: Callable[[str, int, Tensor, float], Tensor] | None = None
    after_projection: Callable[[Network, int], None] = lambda _n, _s: None
    prepared: Callable[[Tensor, int], Tensor] = lambda x, _: x
    seed: Callable[[int], int | None] = lambda _: None
    steps: int = STEPS
    sampler: str = "poisson"
    detail: Chosen = 4
    every: int = 1
    micro: int = 1
    state_noise: bool = True
    store_data: bool = True
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = lambda parameters: (
        torch.optim.SGD(parameters, lr=0.2)
    )
    closes: bool = True


def array_of(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy().copy()


def claims_for(network: Network, settings: Settings = SETTINGS) -> Claims:
    return claims_of_analysis(model_of(network.graph()), settings)


def stds_for(claims: Claims) -> Mapping[str, float]:
    """Independent of the package: σ·√K·G/B for each of K layers."""
    count = len(claims.groups)
    return {
        group.parameters[0]: SIGMA * math.sqrt(count) * (group.grad_norm or 0.0) / BATCH
        for group in claims.groups
    }


def poisson(step: int, random: np.random.Generator) -> np.ndarray:
    del step
    return np.flatnonzero(random.random(EXAMPLES) < RATE)


def examples(random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """The data set: inputs of norm 0.999, and labels."""
    data = torch.from_numpy(random.standard_normal((EXAMPLES, SIZES[0])).astype(np.float32))
    data = data / data.norm(dim=1, keepdim=True) * 0.999
    return data, torch.from_numpy(random.integers(0, SIZES[2], EXAMPLES))


def recorded(folder: Path, plan: Plan) -> tuple[Claims, Trace]:
    """Train and record."""
    random = np.random.default_rng(7)
    torch.manual_seed(7)
    data, labels = examples(random)
    network = Network(plan.mix)
    claims = claims_for(network)
    stds = {name: std * plan.std_factor for name, std in stds_for(claims).items()}
    optimizer = plan.optimizer(network.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorder = Recorder(
            folder,
            network,
            optimizer,
            every=plan.every,
            detail=plan.detail,
            store_data=plan.store_data,
        )
        recorder.declare(
            dataset_size=EXAMPLES,
            batch_size=BATCH,
            sampling=plan.sampler,
            steps=plan.steps,
            noise_multiplier=SIGMA,
        )
        loss_fn = recorder.wrap_loss(functional.cross_entropy)
        for step in range(plan.steps):
            index = (plan.draw or poisson)(step, random)
            optimizer.zero_grad()
            for part in np.array_split(index, plan.micro):
                recorder.batch(
                    index=part,
                    sampler=plan.sampler,
                    rate=RATE,
                    divisor=plan.stated_divisor(len(index)),
                )
                x = plan.prepared(data[part], step)
                loss = loss_fn(network(x), labels[part], reduction="sum")
                (loss / plan.divisor(len(index))).backward()
            _noised(recorder, network, plan, stds, step)
            optimizer.step()
            network.project()
            plan.after_projection(network, step)
        if plan.closes:
            recorder.close()
    return claims, read_trace(folder)


def _noised(
    recorder: Recorder, network: Network, plan: Plan, stds: Mapping[str, float], step: int
) -> None:
    gradients = {name: p.grad for name, p in network.named_parameters() if name in stds}
    recorder.gradients(clean=gradients)
    generator = torch.Generator()
    seed = plan.seed(step)
    generator.manual_seed(1000 + step if seed is None else seed)
    stated = {name.rpartition(".")[0]: std * plan.stated_factor for name, std in stds.items()}
    if plan.state_noise:
        recorder.noise(stated, generator=generator)
    for name, gradient in gradients.items():
        drawn = torch.randn(gradient.shape, generator=generator)
        drawn = stds[name] * drawn
        if plan.noise_of is not None:
            drawn = plan.noise_of(name, step, drawn, stds[name])
        gradient.add_(drawn)
    recorder.gradients(noised=gradients)


def audited(folder: Path, plan: Plan = Plan(), **changes: object) -> Checked:
    plan = replace(plan, **changes)
    return check_recorded_run(*recorded(folder, plan))


def bad(checked: Checked) -> set[tuple[str, str]]:
    """Code and name of everything that is no pass."""
    return {(r.code, r.name) for r in checked.reports if r.verdict is not Verdict.PASS}


def only(checked: Checked, name: str) -> CheckReport:
    """The one failing report of a name."""
    (report,) = [r for r in checked.reports if r.name == name and r.verdict is not Verdict.PASS]
    return report
