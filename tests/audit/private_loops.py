"""Private training in a plain loop of torch, right, or wrong in one thing.

Input: data, and a folder to record into. Output: what the loop publishes. `Loop` is right: Poisson
batches, gradients of single examples clipped to C, their sum divided by the expected batch size,
noise on every tensor. A fault is a subclass with one method of its own; where a repair of it is not
just `Loop`, it is a subclass, too.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Sampler, TensorDataset

import lipcert
from lipcert.audit.job import Job
from lipcert.audit.run import audit
from models.architectures import ARCHITECTURES
from tests.models.shipped import digits, path_of
from tests.plans import planned

POOL, BATCH, STEPS, SIGMA, RADIUS = 400, 40, 10, 1.5, 1.0
RATE = BATCH / POOL
Data = tuple[Tensor, Tensor]
Tensors = dict[str, Tensor]


def examples() -> Data:
    """Digits; the last one has very bright, and so shows the most."""
    split = digits((64,))
    x, y = split.images[:POOL].float().reshape(POOL, 64).clone(), split.labels[:POOL]
    x[-1] = 20.0
    return x, y


Index = list[int]


class Poisson(Sampler[Index]):
    """Batches, each of which has each example with probability `rate`; made: what comes of one."""

    def __init__(
        self,
        size: int,
        steps: int,
        rate: float | Tensor = RATE,
        made: Callable[[Index], list[Index]] = lambda index: [index],
    ) -> None:
        self.size, self.steps, self.rate, self.made = size, steps, rate, made

    def __iter__(self) -> Iterator[Index]:
        for _ in range(self.steps):
            yield from self.made((torch.rand(self.size) < self.rate).nonzero().flatten().tolist())

    def __len__(self) -> int:
        return self.steps


def stacked(rows: list[tuple[Tensor, Tensor]]) -> Data:
    """A batch; it may be empty."""
    if not rows:
        return torch.zeros(0, 64), torch.zeros(0, dtype=torch.long)
    return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])


@dataclass
class Watch:
    """What peers see of a run. release: in place of the noise. weights: before each step."""

    release: Callable[[Callable[[Tensors], Tensors], Tensors, float], Tensors] = (
        lambda noised, clean, _std: noised(clean)
    )
    equal: Callable[[str, Any], None] = lambda _label, _value: None
    weights: list[Tensors] = field(default_factory=list)


class Loop:
    """A run, by its name; right. account: what differs from the usual account; device: where it
    trains, and the data lie."""

    radius, sigma, account_steps = RADIUS, SIGMA, STEPS
    device = "cpu"
    sampler = "poisson"
    account: ClassVar[Mapping[str, Any]] = {}
    every = 1
    steps = STEPS

    def __call__(self, data: Data, folder, watch: Watch | None = None) -> object:
        torch.manual_seed(12)
        watch = watch or Watch()
        x, y = self.prepared(data)
        data = x.to(self.device), y.to(self.device)
        self.model = model = self.network().to(self.device).train()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=self.rate(data), momentum=0.5)
        self.generator = torch.Generator().manual_seed(6)
        self.begins(data)
        recorder = lipcert.Recorder(folder, model, self.optimizer, every=1, detail=self.every)
        with recorder:
            recorder.declare(
                dataset_size=POOL,
                batch_size=BATCH,
                sampling=self.sampler,
                steps=self.account_steps,
                noise_multiplier=self.sigma,
            )
            loss_fn = recorder.wrap_loss(functional.cross_entropy)
            loader = recorder.wrap_loader(self.loader(data))
            for step, batch in enumerate(loader):
                x, y = (item.to(self.device) for item in batch)  # an empty one is not there
                watch.weights.append(copy.deepcopy(dict(model.state_dict())))
                rate = {"rate": RATE} if self.sampler == "poisson" else {}
                recorder.batch(sampler=self.sampler, divisor=self.stated_divisor(x), **rate)
                loss_fn(model(x), y)
                clean = self.clean(x, y)
                std = self.std(x, y)
                recorder.noise({"all": std}, generator=self.generator)
                recorder.gradients(clean=clean)
                noised = watch.release(partial(self.noised, std=std, step=step), clean, std)
                recorder.gradients(noised=noised)
                for name, gradient in self.applied(noised, x, y).items():
                    model.get_parameter(name).grad = gradient
                self.optimizer.step()
                self.after(data, step)
                watch.equal("weights", np.concatenate([flat(p) for p in model.parameters()]))
                if self.ends(data):
                    break
        watch.weights.append(copy.deepcopy(dict(model.state_dict())))
        watch.equal("ends", step)
        return self.published(data)

    def prepared(self, data: Data) -> Data:
        return data

    def network(self) -> nn.Module:
        """Not trained yet."""
        torch.manual_seed(12)
        return ARCHITECTURES["digits_mlp"]()

    def file(self, folder):
        """The exported network."""
        return path_of("digits_mlp")

    def rate(self, data: Data) -> float:
        return 0.5

    def begins(self, data: Data) -> None:
        pass

    def loader(self, data: Data) -> DataLoader[Any]:
        return DataLoader(
            TensorDataset(*data), batch_sampler=self.batches(data), collate_fn=stacked
        )

    def batches(self, data: Data) -> Sampler[Index]:
        return Poisson(len(data[0]), self.steps, self.rates(data), self.made)

    def rates(self, data: Data) -> float | Tensor:
        """With which each example is drawn."""
        return RATE

    def made(self, index: Index) -> list[Index]:
        """The batches that come of one draw."""
        return [index]

    def stated_divisor(self, x: Tensor) -> float:
        return BATCH

    def singles(self, x: Tensor, y: Tensor) -> list[Tensors]:
        """The gradient of every example."""
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        parameters = [self.model.get_parameter(name) for name in names]
        losses = functional.cross_entropy(self.model.forward(x), y, reduction="none")
        return [
            dict(zip(names, torch.autograd.grad(loss, parameters, retain_graph=True), strict=True))
            for loss in losses
        ]

    def zeros(self) -> Tensors:
        return {
            name: torch.zeros_like(p)
            for name, p in self.model.named_parameters()
            if p.requires_grad
        }

    def clipped(self, gradients: Tensors) -> Tensors:
        factor = min(1.0, self.radius / max(float(norm(gradients)), 1e-12))
        return {name: factor * gradient for name, gradient in gradients.items()}

    def clean(self, x: Tensor, y: Tensor) -> Tensors:
        """What is noised: Σ clip(∇ℓ_i)/B."""
        total = self.zeros()
        for gradients in self.singles(x, y):
            add(total, self.clipped(gradients))
        return scaled(total, 1.0 / BATCH)

    def std(self, x: Tensor, y: Tensor) -> float:
        """The deviation of the noise, as stated."""
        return self.sigma * self.radius / BATCH

    def noised(self, clean: Tensors, std: float, step: int) -> Tensors:
        return {
            name: gradient + std * self.draw(gradient, name, step).to(gradient.device)
            for name, gradient in clean.items()
        }

    def draw(self, like: Tensor, name: str, step: int) -> Tensor:
        """Noise of deviation 1."""
        return torch.randn(like.shape, generator=self.generator)

    def applied(self, noised: Tensors, x: Tensor, y: Tensor) -> Tensors:
        """What the optimizer takes."""
        return noised

    def after(self, data: Data, step: int) -> None:
        pass

    def ends(self, data: Data) -> bool:
        return False

    def published(self, data: Data) -> object:
        return self.model


def flat(tensor: Tensor) -> Any:
    return tensor.detach().double().cpu().numpy().ravel()


def norm(gradients: Tensors) -> Tensor:
    return torch.stack([g.double().square().sum() for g in gradients.values()]).sum().sqrt()


def add(total: Tensors, gradients: Tensors) -> None:
    for name, gradient in gradients.items():
        total[name] += gradient


def scaled(gradients: Tensors, factor: float) -> Tensors:
    return {name: factor * gradient for name, gradient in gradients.items()}


def audit_of(loop: Loop, data: Data, folder):
    """Audit of a run that was recorded into the folder, against the account."""
    account = {"clip_norm": loop.radius, **loop.account}
    return accounted(folder, loop.file(folder), loop.prepared(data), **account)


def accounted(folder, file, data: Data, **given: Any):
    """Audit of a recorded run against the usual account, but for what is given."""
    clipped = {"mechanism": "gradient-clipping", "clip_norm": RADIUS}
    said = planned(POOL, BATCH, SIGMA, steps=STEPS, **clipped) | given
    x, y = data
    job = Job(str(file), lipcert.Settings(**said), data="digits", trace=str(folder))
    return audit(job, data=(x.numpy(), y.numpy()))
