"""Faults of private training, each in a loop that is right but for it, and each with its repair."""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lipcert
from lipcert.audit.records import Verdict
from lipcert.errors import NoVerdictError
from tests.audit.opacus_runs import codes
from tests.audit.private_loops import (
    BATCH,
    POOL,
    RATE,
    STEPS,
    Loop,
    add,
    audit_of,
    examples,
    norm,
    scaled,
    stacked,
)
from tests.models.shipped import module


class NormalisedByNorm(Loop):
    """The noised sum is divided by the norm of the clean one."""

    def clean(self, x: Tensor, y: Tensor):
        self.length = float(norm(found := super().clean(x, y)))
        return found

    def applied(self, noised, x: Tensor, y: Tensor):
        return scaled(noised, 0.1 / max(self.length, 1e-3))


def changed(of: type[Loop] = Loop, **parts: Any) -> type[Loop]:
    """The loop, but for some of its methods or numbers."""
    return type(f"But{''.join(sorted(parts))}", (of,), parts)


@torch.no_grad()
def loss_of(loop: Loop, x: Tensor, y: Tensor) -> float:
    return float(functional.cross_entropy(loop.model.forward(x), y))


def order(data) -> Tensor:
    """Places of the examples by their norm."""
    return data[0].norm(dim=1).argsort()


def noise_of_sum(loop: Loop, *_: Tensor) -> float:
    return loop.sigma * loop.radius


class WeightedSampler(Loop):
    """Examples of rare classes are drawn more often."""

    def rates(self, data) -> Tensor:
        weights = torch.where(data[1] < 2, 4.0, 0.25)
        return (weights / weights.mean() * RATE).cpu()


class SumsClipped(Loop):
    """Gradients are accumulated, and the sum of every part is clipped."""

    def clean(self, x: Tensor, y: Tensor):
        total = self.zeros()
        for part in self.parts(self.singles(x, y)):
            add(total, self.clipped(part))
        return scaled(total, self.share / BATCH)

    share = 1.0

    def parts(self, singles):
        for start in range(0, len(singles), 8):
            part = self.zeros()
            for gradients in singles[start : start + 8]:
                add(part, gradients)
            yield part


class MeansClipped(SumsClipped):
    """Means of parts are clipped, and count as so many examples."""

    share = 8.0

    def parts(self, singles):
        for part in super().parts(singles):
            yield scaled(part, 1.0 / 8.0)


class Accumulated(Loop):
    """The same accumulation, of clipped gradients."""

    def clean(self, x: Tensor, y: Tensor):
        total = self.zeros()
        for start in range(0, len(x), 8):
            add(total, super().clean(x[start : start + 8], y[start : start + 8]))
        return total


class Adaptive(Loop):
    """C is the median norm of the batch, and noise and gradients follow it."""

    def clean(self, x: Tensor, y: Tensor):
        norms = [float(norm(g)) for g in self.singles(x, y)]
        self.radius = float(torch.tensor(norms).median()) if norms else 1.0
        return super().clean(x, y)

    def __call__(self, *arguments: Any) -> object:
        try:
            return super().__call__(*arguments)
        finally:
            self.radius = Loop.radius


class Correlated(Loop):
    """Noise C⁻¹z of a strategy C whose columns have the norm 2, as if it were 1."""

    def begins(self, data) -> None:
        self.last: dict[str, Tensor] = {}

    def draw(self, like: Tensor, name: str, step: int) -> Tensor:
        """C has 2·cos and 2·sin on two diagonals."""
        drawn = super().draw(like, name, step)
        before = self.last.get(name, torch.zeros_like(drawn))
        self.last[name] = (drawn / 2.0 - 0.5 * before) / math.sqrt(0.75)
        return self.last[name]


class NoiseOfMean(Loop):
    """A sum is noised with the noise of the mean."""

    def stated_divisor(self, x: Tensor) -> float:
        return 1.0

    def clean(self, x: Tensor, y: Tensor):
        return scaled(super().clean(x, y), BATCH)

    def applied(self, noised, x: Tensor, y: Tensor):
        return scaled(noised, 1.0 / BATCH)


class SmallRadius(Loop):
    """A network that fits its data already."""

    radius = 0.02

    def network(self) -> nn.Module:
        return module("digits_mlp", torch.float32)


class HalfNorms(SmallRadius):
    """Norms are computed in float16, where squares below 3e-8 are 0."""

    def clipped(self, gradients):
        squares = [g.half().square().sum() for g in gradients.values()]
        length = float(torch.stack(squares).sum().sqrt())
        return scaled(gradients, min(1.0, self.radius / max(length, 1e-12)))


class SeedReused(Loop):
    def noised(self, clean, std: float, step: int):
        self.generator.manual_seed(step % 4)
        return super().noised(clean, std, step)


class SeededByBatch(Loop):
    """The same batch has the same noise."""

    def std(self, x: Tensor, y: Tensor) -> float:
        self.generator.manual_seed(zlib.crc32(x.numpy().tobytes()))
        return super().std(x, y)


class Shuffled(Loop):
    """Epochs of shuffled batches; how many steps there are depends on nobody."""

    sampler = "shuffle"
    account: ClassVar[Mapping[str, Any]] = {"sampling": "shuffle", "neighbours": "zero-out"}
    drops = False

    def loader(self, data) -> DataLoader[Any]:
        return DataLoader(
            TensorDataset(*data), batch_size=BATCH, shuffle=True, drop_last=self.drops
        )


class OneNaN(Loop):
    """The last example has a feature that is no number; its clipped gradient is NaN, too."""

    def clipped(self, gradients):
        factor = torch.clamp(self.radius / norm(gradients), max=1.0).float()
        return {name: factor * gradient for name, gradient in gradients.items()}


def with_nan():
    x, y = examples()
    x[-1, 5] = torch.nan
    return x, y


class Exported(Loop):
    """The network of the loop itself is audited."""

    def file(self, folder):
        path = folder / "net.onnx"
        lipcert.export(self.network().eval(), examples()[0][:2], path)
        return path


class HardOnes(Loop):
    """The higher the loss of an example, the more often it is drawn."""

    def batches(self, data):
        self.sampled = super().batches(data)
        return self.sampled

    @torch.no_grad()
    def after(self, data, step):
        losses = functional.cross_entropy(self.model.forward(data[0]), data[1], reduction="none")
        self.sampled.rate = 2.0 * RATE * losses.argsort().argsort() / len(losses)


class Small(Exported):
    """A linear network."""

    def network(self) -> nn.Module:
        torch.manual_seed(12)
        return nn.Sequential(nn.Linear(64, 1), nn.Linear(1, 10))


class Remembers(nn.Sequential):
    """Keeps a running mean of its inputs."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.register_buffer("seen", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x):
            self.seen.lerp_(x.mean(0), 0.1)
        return super().forward(x)


class Buffered(Small):
    """A buffer holds what was never noised, and is published."""

    def network(self) -> nn.Module:
        return Remembers(*super().network())


class BatchNorm(Exported):
    """A layer that normalises by the batch."""

    def network(self) -> nn.Module:
        torch.manual_seed(12)
        first = nn.BatchNorm1d(32)
        return nn.Sequential(nn.Linear(64, 32), first, nn.ReLU(), nn.Linear(32, 10))


LOW, HIGH = 2.23, 2.4


class SameSeedWorkers(Loop):
    """Two workers with a part of the tensors each draw noise from the same seed."""

    seeds = (0, 0)

    def draw(self, like: Tensor, name: str, step: int) -> Tensor:
        if name in ("hidden1.bias", "hidden2.weight"):
            self.generator.manual_seed(100 * step + self.seeds[name == "hidden1.bias"])
        return super().draw(like, name, step)


class SecondOptimizer(Loop):
    """The last bias is trained without noise by an optimizer of its own."""

    def begins(self, data) -> None:
        self.other = torch.optim.SGD([list(self.model.parameters())[-1]], lr=0.1)

    def after(self, data, step: int) -> None:
        bias = list(self.model.parameters())[-1]
        loss = functional.cross_entropy(self.model.forward(data[0]), data[1])
        bias.grad = torch.autograd.grad(loss, bias)[0]
        self.other.step()


class WeightsEdited(Loop):
    """The first bias is moved by the mean of the data after each step."""

    @torch.no_grad()
    def after(self, data, step: int) -> None:
        list(self.model.parameters())[1].add_(1e-3 * data[0].mean())


# --- hidden faults


class NeverNoised(Loop):
    """The last bias is applied as it is."""

    def clean(self, x: Tensor, y: Tensor):
        self.bias = (found := super().clean(x, y))["classifier.bias"].clone()
        return found

    def noised(self, clean, std: float, step: int):
        found = super().noised(clean, std, step)
        del found["classifier.bias"]
        return found

    def applied(self, noised, x: Tensor, y: Tensor):
        return {**noised, "classifier.bias": self.bias}


class PartOfNorm(Loop):
    """Only matrices count in the norm that is clipped."""

    def clipped(self, gradients):
        matrices = {name: g for name, g in gradients.items() if g.dim() > 1}
        return scaled(gradients, min(1.0, self.radius / float(norm(matrices))))


class Copies(Loop):
    """Examples of a class are in the data twice."""

    def loader(self, data) -> DataLoader[Any]:
        rows = torch.cat([torch.arange(len(data[1])), (data[1] == 1).cpu().nonzero().flatten()])
        return super().loader((data[0][rows], data[1][rows]))


class NoiseOnce(Loop):
    """Noise is drawn for the first of two steps, and serves for both."""

    def noised(self, clean, std: float, step: int):
        if step % 2 == 0:
            self.drawn = {n: self.draw(g, n, step) for n, g in clean.items()}
        return {name: g + std * self.drawn[name].to(g.device) for name, g in clean.items()}


class WeightedAfter(Loop):
    """Examples of two classes count three times, after they were clipped."""

    def clean(self, x: Tensor, y: Tensor):
        total = self.zeros()
        for gradients, label in zip(self.singles(x, y), y, strict=True):
            add(total, scaled(self.clipped(gradients), 3.0 if label < 2 else 1.0))
        return scaled(total, 1.0 / BATCH)


class PairedSteps(Correlated):
    """Noise remembers half of that of the step before."""

    def draw(self, like: Tensor, name: str, step: int) -> Tensor:
        drawn = Loop.draw(self, like, name, step)
        if name in self.last:
            drawn = math.sqrt(0.75) * drawn + 0.5 * self.last[name]
        self.last[name] = drawn
        return drawn


class Averaged(Loop):
    """A running mean of released weights is published: right."""

    def begins(self, data) -> None:
        self.mean = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    @torch.no_grad()
    def after(self, data, step: int) -> None:
        for name, p in self.model.named_parameters():
            self.mean[name].lerp_(p, 0.1)

    def published(self, data) -> object:
        return self.mean


class ValidationToo(Loop):
    """Every batch has five examples that the data set of the account lacks."""

    def made(self, index):
        return [[*index, *range(self.size, self.size + 5)]]

    def loader(self, data) -> DataLoader[Any]:
        self.size = len(data[0])
        more = (torch.cat([part, part[:5]]) for part in data)
        return DataLoader(
            TensorDataset(*more), batch_sampler=self.batches(data), collate_fn=stacked
        )


class BatchLoss(Loop):
    """Knows the loss of its batch."""

    def clean(self, x: Tensor, y: Tensor):
        self.loss = loss_of(self, x, y)
        return super().clean(x, y)


class RateByBatch(Loop):
    """The learning rate grows with the batch."""

    def applied(self, noised, x: Tensor, y: Tensor):
        self.optimizer.param_groups[0]["lr"] = 0.5 * len(x) / BATCH
        return noised


class RateByLoss(BatchLoss):
    """The learning rate is halved after a batch whose loss is high."""

    def after(self, data, step: int) -> None:
        self.optimizer.param_groups[0]["lr"] = 0.25 if self.loss > HIGH else 0.5


class WarmedUp(Loop):
    """Steps without noise, before the recording begins."""

    def begins(self, data) -> None:
        functional.cross_entropy(self.model(data[0]), data[1]).backward()
        self.optimizer.step()


class GoesBack(Loop):
    """Weights of two steps ago come back, for a private reason."""

    @torch.no_grad()
    def after(self, data, step: int) -> None:
        kept = self.__dict__.setdefault("kept", [])
        kept.append([p.clone() for p in self.model.parameters()])
        if step == 6:
            for p, before in zip(self.model.parameters(), kept[-3], strict=True):
                p.copy_(before)


class Stale(Loop):
    """Gradients are not set to zero: what was applied comes in again."""

    def clean(self, x: Tensor, y: Tensor):
        found = super().clean(x, y)
        left = {name: self.model.get_parameter(name).grad for name in found}
        add(found, {name: item for name, item in left.items() if item is not None})
        return found


class CleanMomentum(Loop):
    """The momentum of the optimizer is that of clean gradients."""

    def clean(self, x: Tensor, y: Tensor):
        self.before = super().clean(x, y)
        return self.before

    @torch.no_grad()
    def after(self, data, step: int) -> None:
        for name, p in self.model.named_parameters():
            buffer = self.optimizer.state[p]["momentum_buffer"]
            buffer.sub_(p.grad).add_(self.before[name])


class WithReplacement(Loop):
    """Examples may come twice into one batch."""

    def batches(self, data):
        self.size = len(data[0])
        return super().batches(data)

    def made(self, index):
        return [torch.randint(self.size, (len(index),)).tolist()]


FrozenReleased = changed(Exported, account={"freeze": ("hidden1.*",)})


class Resumed(Loop):
    """The run goes on from its last weights, and counts its steps anew."""

    def __call__(self, data, folder, watch=None) -> object:
        super().__call__(data, folder, watch)
        self.network = lambda model=self.model: model
        return super().__call__(data, folder, watch)


class Sparse(Loop):
    """Only the largest tenth of each clean gradient is noised and applied."""

    def noised(self, clean, std: float, step: int):
        found = super().noised(clean, std, step)
        for name, gradient in clean.items():
            kept = gradient.abs() >= gradient.abs().flatten().quantile(0.9)
            found[name] *= kept
        return found


class NoiseOfOwnNorm(Loop):
    """Each tensor has noise by its share of the norm."""

    def noised(self, clean, std: float, step: int):
        whole = float(norm(clean))
        return {
            name: g + std * float(g.norm()) / whole * self.draw(g, name, step).to(g.device)
            for name, g in clean.items()
        }


class Reordered(Loop):
    """Noise is drawn once, and put in another order, with other signs, at each step."""

    def begins(self, data) -> None:
        self.drawn: dict[str, Tensor] = {}

    def draw(self, like: Tensor, name: str, step: int) -> Tensor:
        fresh = super().draw(like, name, step)
        kept = self.drawn.setdefault(name, fresh).flatten().abs()
        return (kept[fresh.flatten().argsort()].reshape(like.shape)) * fresh.sign()


"""loop, right noise, what it is for, name, step → wrong noise"""


def uniform(loop: Loop, *shape: int) -> Tensor:
    return torch.rand(shape, generator=loop.generator)


def normal(loop: Loop, *shape: int) -> Tensor:
    return torch.randn(shape, generator=loop.generator)


def laplace(loop: Loop, z: Tensor, *_: object) -> Tensor:
    drawn = uniform(loop, *z.shape) - 0.5
    return -drawn.sign() * torch.log1p(-2.0 * drawn.abs()) / math.sqrt(2.0)


def from_table(loop: Loop, z: Tensor, *_: object) -> Tensor:
    table = torch.randn(1 << 16, generator=torch.Generator().manual_seed(1))
    return table[torch.randint(1 << 16, z.shape, generator=loop.generator)]


def small_on_large(_loop: Loop, z: Tensor, like: Tensor, *_: object) -> Tensor:
    """The smallest noise goes to the largest entries."""
    placed, drawn = torch.empty(z.numel()), z.flatten()
    placed[like.flatten().abs().argsort()] = drawn[drawn.abs().argsort(descending=True)]
    return placed.reshape(like.shape)


def in_subspace(loop: Loop, z: Tensor, *_: object) -> Tensor:
    """Rows lie in a space of three quarters of their entries."""
    if z.dim() < 2 or (count := z.shape[1] * 3 // 4) < 48:
        return z
    square = torch.randn(z.shape[1], z.shape[1], generator=torch.Generator().manual_seed(3))
    basis = torch.linalg.qr(square)[0][:, :count]
    return normal(loop, len(z), count) @ basis.T * math.sqrt(z.shape[1] / count)


def from_weights(loop: Any, z: Tensor, _like: Tensor, name: str, _step: int) -> Tensor:
    """The noise of a bias is the sum of that of its row."""
    if z.dim() > 1:
        loop.rows = z.sum(1) / math.sqrt(z.shape[1])
    return z if z.dim() > 1 else loop.rows


def of_one_radius(loop: Loop, z: Tensor, *_: object) -> Tensor:
    """Box and Muller, with one radius and two angles."""
    count = (z.numel() + 1) // 2
    radius = torch.sqrt(-2.0 * torch.log(uniform(loop, count).clamp(1e-9)))
    waves = torch.cos(2.0 * math.pi * uniform(loop, 2, count))
    return (radius * waves).flatten()[: z.numel()].reshape(z.shape)


def mirrored(loop: Loop, z: Tensor, *_: object) -> Tensor:
    """Half of it is drawn, and comes again at other places with other signs."""
    half = z.flatten()[: (z.numel() + 1) // 2]
    again = half.roll(1) * (uniform(loop, len(half)) - 0.5).sign()
    return torch.cat([half, again])[: z.numel()].reshape(z.shape)


def some_kept(loop: Any, z: Tensor, _like: Tensor, name: str, step: int) -> Tensor:
    kept = loop.__dict__.setdefault("kept", {})
    kept[name] = torch.where(uniform(loop, *z.shape) < 0.01, kept.get(name, z), z)
    return kept[name]


def one_row_kept(_loop: Loop, z: Tensor, _like: Tensor, name: str, _step: int) -> Tensor:
    if name == "hidden2.weight":
        z[5] = torch.randn(128, generator=torch.Generator().manual_seed(8))
    return z


def shifted_signs(z: Tensor) -> Tensor:
    """Each sign is the product of those 3 and 31 entries before."""
    signs = z.sign().flatten().tolist()
    for place in range(31, len(signs)):
        signs[place] = signs[place - 3] * signs[place - 31]
    return z.abs() * torch.tensor(signs).reshape(z.shape)


def of_two_sizes(_loop: Loop, z: Tensor, *_: object) -> Tensor:
    first = torch.arange(z.numel()).reshape(z.shape) < z.numel() // 2
    return z * torch.where(first, 1.1, math.sqrt(2.0 - 1.1**2))


DRAWS = {
    "half of the noise that is stated": lambda _loop, z, *_: 0.5 * z,
    "no noise on one tensor": lambda _loop, z, *_: z * (z.numel() > 10),
    "no noise at the last step": lambda _loop, z, _like, _name, step: z * (step < STEPS - 1),
    "noise rounded to float16": lambda _loop, z, *_: z.half().float(),
    "noise cut off at 2.5 deviations": lambda _loop, z, *_: z.clamp(-2.5, 2.5),
    "uniform noise": lambda loop, z, *_: math.sqrt(12.0) * (uniform(loop, *z.shape) - 0.5),
    "Laplace noise of the same variance": laplace,
    "noise with a mean": lambda _loop, z, *_: z + 0.1,
    "noise correlated between entries": lambda _loop, z, *_: (
        (z + z.flatten().roll(1).reshape(z.shape)) / math.sqrt(2.0)
    ),
    "noise from a table of 2¹⁶ numbers": from_table,
    "no noise on one entry in 200": lambda loop, z, *_: z * (uniform(loop, *z.shape) > 0.005),
    "no noise on one entry": lambda _loop, z, _like, name, _step: (
        z * (torch.arange(z.numel()).reshape(z.shape) != 3) if name == "classifier.bias" else z
    ),
    "noise without its mean": lambda _loop, z, *_: (
        (z - z.mean()) * math.sqrt(z.numel() / (z.numel() - 1))
    ),
    "noise projected off the gradient": lambda _loop, z, like, *_: (
        z - like * (z * like).sum() / like.square().sum().clamp(min=1e-30)
    ),
    "least noise on the largest entries": small_on_large,
    "one draw for each row": lambda loop, z, *_: normal(loop, len(z), *[1] * (z.dim() - 1)) + 0 * z,
    "a hundredth of the variance shared by rows": lambda loop, z, *_: (
        math.sqrt(0.99) * z + math.sqrt(0.01) * normal(loop, len(z), *[1] * (z.dim() - 1))
    ),
    "noise in a subspace": in_subspace,
    "noise of a bias that follows from that of weights": from_weights,
    "no noise on a column without gradient": lambda _loop, z, like, *_: (
        z * (like != 0.0).any(0) if z.shape == (128, 64) else z
    ),
    "one row has the same noise at all steps": one_row_kept,
    "one entry in 100 keeps its noise": some_kept,
    "sum of 12 uniform numbers": lambda loop, z, *_: uniform(loop, 12, *z.shape).sum(0) - 6.0,
    "pairs of numbers of one radius": of_one_radius,
    "half of the noise again, with other signs": mirrored,
    "more noise on the first half": of_two_sizes,
    "neighbours correlated by 0.05": lambda _loop, z, *_: (
        z + 0.05 * z.flatten().roll(1).reshape(z.shape)
    ),
    "less noise on a 20th of the entries": lambda _loop, z, like, *_: (
        z * torch.where(like.abs() > like.abs().flatten().quantile(0.95), 0.8, 1.0095)
    ),
    "noise of a shift register": lambda _loop, z, *_: shifted_signs(z),
    "rows of different deviations": lambda loop, z, *_: (
        z * torch.sqrt(uniform(loop, len(z), 1) * 0.6 + 0.7) if z.dim() > 1 else z
    ),
}


def drawing(wrong) -> type[Loop]:
    """A loop whose noise is wrong."""

    return changed(
        draw=lambda loop, like, name, step: wrong(
            loop, Loop.draw(loop, like, name, step), like.cpu(), name, step
        )
    )


@dataclass(frozen=True)
class LoopFault:
    """A fault by its name. repaired: the loop without it; data: that show it."""

    name: str
    wrong: type[Loop]
    repaired: type[Loop] = Loop
    data: Any = examples
    is_right: bool = False


def audit_finds(kind: type[Loop], data, folder) -> tuple[str, bool]:
    """Records a run and audits it: codes, those of inconclusive checks in brackets."""
    loop = kind()
    loop(data, folder)
    try:
        report = audit_of(loop, data, folder)
    except NoVerdictError:
        return "refused", True
    found = codes(report)
    if report.verdict is Verdict.PARTIAL:
        return "no", False
    return found, report.verdict is not Verdict.PASS


def twin_finds(kind: type[Loop], data, folder) -> tuple[str, bool]:
    """Runs the loop on the data, and without the example that the twin run finds unusual."""
    report = lipcert.audit.twin(lambda given: kind()(given, folder), data, count=1)
    return ("no" if report.passed else "found"), not report.passed


def faults(table: Mapping[str, Any]) -> tuple[LoopFault, ...]:
    """Of each name: what is wrong, and its repair and its data if they are not the usual ones."""
    return tuple(
        LoopFault(name, *(found if isinstance(found, tuple) else (found,)))
        for name, found in table.items()
    )


LISTED = faults(
    {
        "learning rate by the number of examples": changed(
            rate=lambda _, data: 0.5 * POOL / len(data[0])
        ),
        "mean over the examples at hand": changed(
            clean=lambda loop, x, y: scaled(Loop.clean(loop, x, y), BATCH / max(1, len(x)))
        ),
        "weighted batches, accounted as Poisson": WeightedSampler,
        "accumulation, sums are clipped": (SumsClipped, Accumulated),
        "`max_grad_norm` ignored": changed(clipped=lambda _, gradients: gradients),
        "clip norm is a private median": Adaptive,
        "correlated noise, columns of norm 2": Correlated,
        "sum with the noise of the mean": (NoiseOfMean, changed(NoiseOfMean, std=noise_of_sum)),
        "norms underflow in float16": (HalfNorms, SmallRadius),
        "key or seed used again": SeedReused,
        "`drop_last`": (changed(Shuffled, drops=True), Shuffled),
        "an example with NaN": (
            OneNaN,
            changed(OneNaN, prepared=lambda _, data: (data[0].nan_to_num(), data[1])),
            with_nan,
        ),
        "BatchNorm": (BatchNorm, changed(BatchNorm, begins=lambda loop, _: loop.model[1].eval())),
        "early stopping on a private loss": changed(
            ends=lambda loop, data: loss_of(loop, *data) < LOW
        ),
        "workers draw noise from the same seed": (
            SameSeedWorkers,
            changed(SameSeedWorkers, seeds=(0, 1)),
        ),
        "second optimizer": SecondOptimizer,
        "weights edited between steps": WeightsEdited,
    }
)
MORE_LOOPS = {
    "noise 10 % lower than accounted for": changed(
        std=lambda loop, x, y: 0.9 * Loop.std(loop, x, y)
    ),
    "a tensor applied without noise": NeverNoised,
    "noise drawn once for two steps": NoiseOnce,
    "noise of each tensor by its share of the norm": NoiseOfOwnNorm,
    "noise correlated between steps": PairedSteps,
    "noise by the size of the batch": changed(
        std=lambda loop, x, _: loop.sigma * loop.radius / max(1, len(x))
    ),
    "clipped tensor by tensor": changed(
        clipped=lambda loop, gradients: {
            name: Loop.clipped(loop, {name: g})[name] for name, g in gradients.items()
        }
    ),
    "clipped to twice the radius": changed(
        clipped=lambda _, gradients: scaled(gradients, min(1.0, 2.0 / float(norm(gradients))))
    ),
    "norm of matrices only": PartOfNorm,
    "means of microbatches clipped": MeansClipped,
    "weighted after the clip": WeightedAfter,
    "gradients not set to zero": Stale,
    "twice the sampling rate": changed(rates=lambda *_: 2.0 * RATE),
    "every batch used twice": changed(steps=STEPS // 2, made=lambda _, index: [index, index]),
    "examples twice in a batch": WithReplacement,
    "examples of a class twice in the data": Copies,
    "validation data in every batch": ValidationToo,
    "more steps than accounted for": changed(steps=STEPS + 5),
    "resumed, and steps counted anew": Resumed,
    "a layer taken for frozen is trained": (
        FrozenReleased,
        changed(
            FrozenReleased,
            begins=lambda loop, _: loop.model.get_submodule("hidden1").requires_grad_(False),
        ),
    ),
    "divided by the size of the batch after the noise": changed(
        applied=lambda _, noised, x, y: scaled(noised, BATCH / max(1, len(x)))
    ),
    "divided by the clean norm after the noise": NormalisedByNorm,
    "entries chosen by the clean gradient": Sparse,
    "momentum of clean gradients": CleanMomentum,
    "steps left out by their loss": changed(
        BatchLoss, applied=lambda loop, noised, *_: scaled(noised, float(loop.loss <= HIGH))
    ),
    "learning rate by a private loss": RateByLoss,
    "inputs standardised by the data": changed(
        prepared=lambda _, data: ((data[0] - data[0].mean(0)) / (data[0].std(0) + 0.1), data[1])
    ),
    "a private loss is published": changed(
        published=lambda loop, data: (loop.model, loss_of(loop, *data))
    ),
    "noise drawn once and put in another order": Reordered,
    "noise seeded by the batch": SeededByBatch,
    "batches chosen by the length of examples": changed(
        rates=lambda _, data: RATE * torch.linspace(0.9, 1.1, len(data[0]))[order(data)]
    ),
    "a label is never drawn": changed(rates=lambda _, data: RATE * (data[1] != 3)),
    "batches chosen by the norm of examples": changed(
        rates=lambda _, data: 2.0 * RATE * order(data).argsort() / len(data[0])
    ),
    "batches chosen by the loss of examples": HardOnes,
    "learning rate by the size of the batch": RateByBatch,
    "noise by the loss of the batch": changed(
        BatchLoss, std=lambda loop, x, y: Loop.std(loop, x, y) * max(1.0, loop.loss)
    ),
    "steps before the recording begins": WarmedUp,
    "weights of an earlier step come back": GoesBack,
    "noise of float16 on a small network": (
        changed(Small, draw=lambda *given: Loop.draw(*given).half().float()),
        Small,
    ),
    "a running mean of the inputs is kept": (Buffered, Small),
}
RIGHT = {
    "averaged weights published (right)": Averaged,
    "noise of a seed of its own (right)": changed(begins=lambda loop, _: loop.generator.seed()),
    "noised gradient clipped (right)": changed(
        applied=lambda _, noised, *__: scaled(noised, min(1.0, 4.9 / float(norm(noised))))
    ),
    "mean with the noise of the sum (too much)": changed(std=noise_of_sum),
}
MORE = (
    *faults({name: drawing(wrong) for name, wrong in DRAWS.items()} | MORE_LOOPS),
    *(LoopFault(name, kind, is_right=True) for name, kind in RIGHT.items()),
)
