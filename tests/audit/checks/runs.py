"""Recorded runs of a small private network, right in everything but one planted fault."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert.audit.bounds import Claims, claims_of_analysis
from lipcert.audit.checks import Checked, check_recorded_run
from lipcert.audit.recorded import RecordedRun
from lipcert.audit.recorder import Chosen, Recorder
from lipcert.audit.records import CheckReport, Verdict
from lipcert.audit.trace.reading import Trace, read_trace
from lipcert.graph.ir import Graph
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.networks import chain, trained
from tests.ops import Activation, Dense
from tests.plans import planned
from tests.written import model_of

EXAMPLES, BATCH, STEPS, SIGMA = 300, 20, 12, 1.5
SIZES = (8, 12, 3)
HELD = {"constraint": ConstraintSpec("spectral", 1.0), "input_norm": 1.0}
SETTINGS = Settings(**planned(EXAMPLES, BATCH, SIGMA, steps=STEPS, **HELD))


class Network(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(SIZES[0], SIZES[1], bias=False)
        self.last = nn.Linear(SIZES[1], SIZES[2], bias=False)
        self.project()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))

    @torch.no_grad()
    def project(self) -> None:
        for layer in (self.first, self.last):
            norm = torch.linalg.matrix_norm(layer.weight, 2)
            layer.weight.mul_(torch.clamp(1.0 / norm, max=1.0))

    def graph(self) -> Graph:
        first, last = (
            Dense(trained(f"{name}.weight", array_of(layer.weight)))
            for name, layer in self.named_children()
        )
        return chain((SIZES[0],), first, Activation("relu"), last)


@dataclass(frozen=True)
class Plan:
    """How a run goes; the defaults are right.

    changed: the module, away from what was exported. stated_factor: noise as stated over what is
    drawn; noise_of: in place of what was drawn.
    """

    changed: Callable[[nn.Module], None] = lambda _: None
    divisor: float = BATCH
    stated_factor: float = 1.0
    noise_of: Callable[[str, int, Tensor, float], Tensor] = lambda _name, _step, drawn, _std: drawn
    after_projection: Callable[[Any, int], None] = lambda _network, _step: None
    prepared: Callable[[Tensor, int], Tensor] = lambda x, _: x
    steps: int = STEPS
    detail: Chosen = 4
    every: int = 1
    micro: int = 1
    state_noise: bool = True
    store_data: bool = True
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = lambda parameters: (
        torch.optim.SGD(parameters, lr=0.2)
    )


def _noised(
    recorder: Recorder,
    plan: Plan,
    gradients: dict[str, Tensor],
    stds: Mapping[str, float],
    step: int,
) -> None:
    recorder.gradients(clean=gradients)
    # beyond 32 bits, which an audit takes for a secret; torch draws the same numbers
    generator = torch.Generator().manual_seed((1 << 40) + 1000 + step)
    if plan.state_noise:
        stated = {name.rpartition(".")[0]: plan.stated_factor * std for name, std in stds.items()}
        recorder.noise(stated, generator=generator)
    for name, gradient in gradients.items():
        drawn = stds[name] * torch.randn(gradient.shape, generator=generator)
        gradient.add_(plan.noise_of(name, step, drawn, stds[name]))
    recorder.gradients(noised=gradients)


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


def examples(random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """The data set: inputs of norm 0.999, and labels."""
    data = torch.from_numpy(random.standard_normal((EXAMPLES, SIZES[0])).astype(np.float32))
    data = data / data.norm(dim=1, keepdim=True) * 0.999
    return data, torch.from_numpy(random.integers(0, SIZES[2], EXAMPLES))


def recorded(folder, plan: Plan) -> tuple[Claims, Trace]:
    """Train and record the small network."""
    random = np.random.default_rng(7)
    torch.manual_seed(7)
    data, labels = examples(random)
    network = Network()
    claims = claims_for(network)
    stds = stds_for(claims)
    plan.changed(network)
    optimizer = plan.optimizer(network.parameters())
    seen = {name: getattr(plan, name) for name in ("every", "detail", "store_data")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Recorder(folder, network, optimizer, **seen) as recorder:
            run = {"dataset_size": EXAMPLES, "batch_size": BATCH, "noise_multiplier": SIGMA}
            recorder.declare(**run, sampling="poisson", steps=plan.steps)
            loss_fn = recorder.wrap_loss(functional.cross_entropy)
            for step in range(plan.steps):
                index = np.flatnonzero(random.random(EXAMPLES) < BATCH / EXAMPLES)
                optimizer.zero_grad()
                for part in np.array_split(index, plan.micro):
                    known = {"index": part, "sampler": "poisson", "rate": BATCH / EXAMPLES}
                    recorder.batch(**known, divisor=BATCH)
                    logits = network(plan.prepared(data[part], step))
                    (loss_fn(logits, labels[part], reduction="sum") / plan.divisor).backward()
                gradients = {name: p.grad for name, p in network.named_parameters()}
                _noised(recorder, plan, gradients, stds, step)
                optimizer.step()
                network.project()
                plan.after_projection(network, step)
    return claims, read_trace(folder)


def audited(folder, plan: Plan = Plan(), **changes: object) -> Checked:
    plan = replace(plan, **changes)
    return check_recorded_run(*recorded(folder, plan))


def bad(checked: Checked) -> set[tuple[str, str]]:
    """Code and name of everything that is no pass."""
    return {(r.code, r.name) for r in checked.reports if r.verdict is not Verdict.PASS}


def only(checked: Checked, name: str) -> CheckReport:
    """The one failing report of a name."""
    (report,) = [r for r in checked.reports if r.name == name and r.verdict is not Verdict.PASS]
    return report


def check_applied(steps, network: nn.Module, x: Tensor, y: Tensor) -> None:
    """Applied is the gradient of the recorded examples at the recorded weights, of which the first
    steps have each once."""
    for step in steps:
        before = step.weights_before.tensors()
        network.load_state_dict({name: torch.tensor(item) for name, item in before.items()})
        network.zero_grad()
        for batch in step.batches:
            loss = functional.cross_entropy(network(x[batch.index]), y[batch.index])
            assert batch.loss == pytest.approx(loss.item(), rel=1e-5)
            (loss / len(step.batches)).backward()
        applied = step.gradients.applied.tensors()
        for name, parameter in network.named_parameters():
            assert applied[name] == pytest.approx(parameter.grad.numpy(), abs=1e-6)
    index = np.concatenate([batch.index for step in steps for batch in step.batches])
    assert np.array_equal(np.sort(index[: len(x)]), np.arange(len(x)))


def recorded_of(
    trace: Trace, graph: Graph, data=None, held: Any = MappingProxyType({})
) -> RecordedRun:
    """A run about which nothing is claimed, of a file that holds these tensors."""
    reading = SimpleNamespace(model=SimpleNamespace(initializers=held))
    engine = SimpleNamespace(graph=graph, reading=reading)
    claims: Any = SimpleNamespace(engine=engine, settings=Settings())
    return RecordedRun(claims, trace, data=data)
