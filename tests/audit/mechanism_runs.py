"""Small runs of every mechanism, in one or several ranks, right in all but one planted fault.

What enters: a `Way` to train, and a `Fault`. What leaves: the job of auditing the recorded run. The
network has two layers with biases; its gradients, clips, projections and noise are written out here
in plain torch, and share nothing with the package but the bounds that set the noise.
"""

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert.audit.bounds import claims_of_analysis
from lipcert.audit.job import Job, units_of
from lipcert.audit.prepared_job import Ready
from lipcert.audit.recorded import RecordedRun
from lipcert.audit.recorder import Recorder
from lipcert.audit.records import AuditReport, Verdict
from lipcert.audit.trace.reading import read_trace
from lipcert.graph.ir import Graph
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.audit.checks.runs import array_of, model_of
from tests.audit.faults import report_of
from tests.networks import chain, trained
from tests.ops import Activation, Dense
from tests.plans import planned

POOL, BATCH, STEPS, SIGMA = 60, 4, 12, 1.5
SIZES = (8, 12, 3)
Gradients = dict[str, Tensor]


def settings(**own: object) -> Settings:
    """Of a run of Poisson batches, twelve unless told otherwise."""
    given = planned(POOL, BATCH, SIGMA, steps=STEPS, loss="multi-margin", input_norm=1.0)
    return Settings(**(given | own))


HELD = {"constraint": ConstraintSpec("spectral", 1.0), "bias_norm": 0.5}


class Clip(torch.autograd.Function):
    """The identity, whose cotangent is clipped example by example."""

    @staticmethod
    def forward(ctx, x: Tensor, radius: float) -> Tensor:
        ctx.radius = radius
        return x.clone()

    @staticmethod
    def backward(ctx, g: Tensor):
        return g * torch.clamp(ctx.radius / g.norm(dim=1, keepdim=True), max=1.0), None


class Network(nn.Module):
    """Two layers; under backpropagation clipping each clips its input and its cotangent."""

    def __init__(self, wanted: Settings) -> None:
        super().__init__()
        self.first = nn.Linear(SIZES[0], SIZES[1])
        self.last = nn.Linear(SIZES[1], SIZES[2])
        self.wanted = wanted

    def forward(self, x: Tensor) -> Tensor:
        return self._layer("last", torch.relu(self._layer("first", x)))

    def _layer(self, name: str, x: Tensor) -> Tensor:
        layer = self.get_submodule(name)
        if self.wanted.mechanism != "backprop-clipping":
            return layer(x)
        own = dict(self.wanted.input_clips), dict(self.wanted.cotangent_clips)
        beta = own[0].get(name, self.wanted.input_clip)
        if beta is not None:
            x = x * torch.clamp(beta / x.norm(dim=1, keepdim=True), max=1.0)
        return Clip.apply(layer(x), own[1].get(name, self.wanted.cotangent_clip))

    @torch.no_grad()
    def hold(self) -> None:
        """Weights within their constraints, or on the sphere."""
        fixed = self.wanted.mechanism == "fixed-weight-norm"
        if self.wanted.constraint is None:
            return
        for name, weight in self.named_parameters():
            is_bias = name.endswith("bias")
            norm = weight.norm() if is_bias else torch.linalg.matrix_norm(weight, 2)
            factor = (1.0 - 1e-6) * (HELD["bias_norm"] if is_bias else 1.0) / norm
            weight.mul_(factor if fixed else torch.clamp(factor, max=1.0))

    def graph(self) -> Graph:
        def dense(layer: nn.Linear, name: str) -> Dense:
            weight, bias = array_of(layer.weight), array_of(layer.bias)
            return Dense(trained(f"{name}.weight", weight), trained(f"{name}.bias", bias))

        first, last = dense(self.first, "first"), dense(self.last, "last")
        return chain((SIZES[0],), first, Activation("relu"), last)


@dataclass(frozen=True)
class Way:
    """How a run goes.

    empty_pass: whether an empty batch passes through the network. start: what the first weights are
    multiplied with. seed: one of which a detailed step draws nobody.
    """

    settings: Settings
    ranks: int = 1
    micro: int = 1
    empty_pass: bool = False
    every: int = 1
    detail: int | tuple[int, ...] = (0, 6, 9)
    learning_rate: float = 0.3
    start: float = 0.5
    weight_decay: float | None = None
    seed: int = 117
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD


@dataclass(frozen=True)
class Fault:
    """What goes wrong.

    std: noise of a group at a step, stated and drawn, over what is required. bounds_of: the step at
    whose weights the noise is set. stated_decay, decay: λ as declared and as it is clipped, where
    they are not those of the way. divisor: what gradients are divided by besides the batch size.
    clips: those of the network, where they are not those of the way. own_noise: every rank draws
    noise.
    """

    std: Callable[[int, str], float] = lambda _step, _group: 1.0
    bounds_of: Callable[[int], int] = lambda step: step
    stated_decay: float | None = None
    decay: float | None = None
    divisor: float = 1.0
    after: Callable[[Network, int], None] = lambda _network, _step: None
    clips: Settings | None = None
    own_noise: bool = False


RIGHT = Fault()


@dataclass
class Rank:
    network: Network
    optimizer: torch.optim.Optimizer
    recorder: Recorder
    loss_fn: Callable[..., Tensor]


def audited(folder, way: Way, fault: Fault = RIGHT) -> AuditReport:
    """Record and audit."""
    return report_of(recorded(folder, way, fault))


def recorded(folder, way: Way, fault: Fault = RIGHT) -> Ready:
    """Train and record; the job of auditing that run with claims of the weights it starts from."""
    torch.manual_seed(way.seed)
    network = Network(fault.clips or way.settings)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(way.start)
    network.hold()
    model = model_of(network.graph())
    ranks = [_rank(folder, way, fault, copy.deepcopy(network), i) for i in range(way.ranks)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _train(way, fault, ranks)
    trace = read_trace(folder)
    claims = claims_of_analysis(model, way.settings)
    tensors = RecordedRun(claims, trace)
    pairs = [(name, name, count) for name, count in tensors.batch_sizes.items()]
    job = Job("model.onnx", way.settings, trace=str(folder))
    return Ready(job, model, claims, None, None, tensors, units_of(pairs, job, 0), "")


def codes(report: AuditReport, verdict: Verdict = Verdict.VIOLATION) -> set[str]:
    """Of checks with this verdict, and LC301 for a group."""
    found = {check.code for check in report.checks if check.verdict is verdict}
    exceeded = verdict is Verdict.VIOLATION and any(group.violations for group in report.groups)
    return found | ({"LC301"} if exceeded else set())


def _rank(folder, way: Way, fault: Fault, network: Network, number: int) -> Rank:
    optimizer = way.optimizer(network.parameters(), lr=way.learning_rate)
    recorder = Recorder(
        folder,
        network,
        optimizer,
        every=way.every,
        detail=way.detail,
        store_data=True,
        rank=number,
        ranks=way.ranks,
    )
    stated = way.weight_decay if fault.stated_decay is None else fault.stated_decay
    recorder.declare(dataset_size=POOL, batch_size=BATCH, sampling="poisson")
    recorder.declare(steps=way.settings.steps)
    recorder.declare(weight_decay=stated)
    return Rank(network, optimizer, recorder, recorder.wrap_loss(functional.multi_margin_loss))


def _train(way: Way, fault: Fault, ranks: list[Rank]) -> None:
    random = np.random.default_rng(way.seed)
    generator = torch.Generator().manual_seed((1 << 40) + way.seed)
    data = torch.from_numpy(random.standard_normal((POOL, SIZES[0])).astype(np.float32))
    data = data / data.norm(dim=1, keepdim=True) * 0.999
    labels = torch.from_numpy(random.integers(0, SIZES[2], POOL))
    stds: dict[int, Mapping[str, float]] = {}
    for step in range(way.settings.steps or 0):
        drawn = np.flatnonzero(random.random(POOL) < BATCH / POOL)
        for place, rank in enumerate(ranks):
            index = drawn[drawn % len(ranks) == place]
            _backward(way, fault, rank, data, labels, index)
        names = dict(ranks[0].network.named_parameters())
        clean = {
            name: sum(dict(rank.network.named_parameters())[name].grad for rank in ranks)
            for name in names
        }
        stds[step] = _stds(way, ranks[0].network)
        required = stds[fault.bounds_of(step)]
        std = {name: fault.std(step, name) * s for name, s in required.items()}
        _release(fault, ranks, clean, std, generator)
        for rank in ranks:
            rank.network.hold()
            fault.after(rank.network, step)
    for rank in ranks:
        rank.recorder.close()


def _backward(
    way: Way, fault: Fault, rank: Rank, data: Tensor, labels: Tensor, index: np.ndarray
) -> None:
    """Fills `.grad` with the share of this rank."""
    recorder, network = rank.recorder, rank.network
    for p in network.parameters():
        p.grad = torch.zeros_like(p)
    known = {"sampler": "poisson", "rate": BATCH / POOL, "reduction": "sum", "divisor": BATCH}
    for part in np.array_split(index, way.micro):
        recorder.batch(index=part, **known)
        if len(part) == 0 and not way.empty_pass:
            continue
        loss = rank.loss_fn(network(data[part]), labels[part], reduction="sum")
        if way.settings.mechanism == "gradient-clipping":
            _clipped(way, fault, network, data[part], labels[part])
        elif way.settings.loss_clip is not None:
            logits = Clip.apply(network.forward(data[part]), way.settings.loss_clip)
            functional.multi_margin_loss(logits, labels[part], reduction="sum").backward()
        else:
            loss.backward()
    for p in network.parameters():
        p.grad.div_(BATCH * fault.divisor)


def _clipped(way: Way, fault: Fault, network: Network, x: Tensor, y: Tensor) -> None:
    """Adds Σ clip(∇ℓ + λθ), one example at a time."""
    decay = fault.decay if fault.decay is not None else way.weight_decay or 0.0
    named = dict(network.named_parameters())
    groups = [list(named)]
    if way.settings.clip_scope == "group":
        groups = [[name for name in named if name.startswith(layer)] for layer in ("first", "last")]
    radius = (way.settings.clip_norm or 0.0) / math.sqrt(len(groups))
    for row, label in zip(x, y, strict=True):
        loss = functional.multi_margin_loss(network.forward(row[None]), label[None])
        found = torch.autograd.grad(loss, list(named.values()))
        parts = {
            name: gradient + decay * named[name].detach()
            for name, gradient in zip(named, found, strict=True)
        }
        for names in groups:
            length = math.sqrt(sum(float(parts[name].double().square().sum()) for name in names))
            for name in names:
                named[name].grad.add_(parts[name] * min(1.0, radius / max(length, 1e-300)))


def _stds(way: Way, network: Network) -> Mapping[str, float]:
    """Noise by group as each allocation is defined, from the bounds at these weights."""
    at_point = way.settings.mechanism == "weight-clipping"
    numbers = tuple(array_of(p).tobytes() for p in network.parameters()) if at_point else ()
    delta = {name: bound / BATCH for name, bound in _bounds(way.settings, numbers).items()}
    size = dict.fromkeys(delta, sum(p.numel() for p in network.parameters()))
    size |= {name: sum(p.numel() for p in part.parameters()) for name, part in layers(network)}
    moved = 2.0 if way.settings.neighbours == "replace-one" else 1.0
    match way.settings.allocation:
        case "global":
            unit = dict.fromkeys(delta, math.hypot(*delta.values()))
        case "per-layer":
            unit = {name: d * math.sqrt(len(delta)) for name, d in delta.items()}
        case "optimal":
            total = sum(d * math.sqrt(size[name]) for name, d in delta.items())
            unit = {name: math.sqrt(d / math.sqrt(size[name]) * total) for name, d in delta.items()}
        case _:
            own = dict(way.settings.noise_multipliers)
            root = math.sqrt(sum(own[name] ** -2 for name in delta))
            unit = {name: d * own[name] * root for name, d in delta.items()}
    return {name: SIGMA * moved * u for name, u in unit.items()}


def layers(network: Network) -> list[tuple[str, nn.Module]]:
    return [("first", network.first), ("last", network.last)]


@cache
def _bounds(wanted: Settings, numbers: tuple[bytes, ...]) -> Mapping[str, float]:
    """G of each group at these weights, none for all; runs that differ in one step share others."""
    network = Network(wanted)
    with torch.no_grad():
        for p, item in zip(network.parameters(), numbers, strict=False):
            p.copy_(torch.from_numpy(np.frombuffer(item).reshape(p.shape).copy()))
    claims = claims_of_analysis(model_of(network.graph()), wanted)
    return {group.name: group.grad_norm or 0.0 for group in claims.groups}


def _release(
    fault: Fault,
    ranks: list[Rank],
    clean: Gradients,
    stds: Mapping[str, float],
    generator: torch.Generator,
) -> None:
    """Rank 0 draws the noise; every rank applies, and records, what it made of the sum."""
    noised: Gradients = {}
    for place, rank in enumerate(ranks):
        if place == 0 or fault.own_noise:
            rank.recorder.noise(stds, generator=generator)
            noised = {
                name: item + _std(stds, name) * torch.randn(item.shape, generator=generator)
                for name, item in clean.items()
            }
        for name, p in rank.network.named_parameters():
            p.grad = noised[name].clone()
        rank.recorder.gradients(clean=clean, noised=noised)
        rank.optimizer.step()


def _std(stds: Mapping[str, float], name: str) -> float:
    return stds["all"] if "all" in stds else stds[name.partition(".")[0]]
