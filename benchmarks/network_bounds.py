"""Whole networks: the product of norms, the bounds of LipCert, and what an attack attains.

Trains small networks on the digits of scikit-learn (seconds each, fixed seeds), bounds the norm T
of the per-example gradient of all parameters together, over all inputs in [0, 1]^n of norm at most
R and all labels, and looks for an input and a label of a large gradient: by evolution,
or by projected ascent for attention.

    python -m benchmarks.network_bounds [--quick] [--tier tight] [name ...]

product   layer norms multiplied: X_k ≤ ‖W‖X + ‖b‖, cotangents ≤ √2·Π‖W‖
bound     of LipCert; attained: a lower bound of the truth
looseness bound / attained, hence at least the true one
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from sklearn.datasets import load_digits

from benchmarks.encoders import ENCODERS, Encoder, EncoderSpec, trained_encoder, written
from benchmarks.image_networks import (
    IMAGES,
    ImageNetwork,
    ImageSpec,
    fit,
    image_graph,
    image_product,
    trained_images,
)
from lipcert.analysis.bounded import Bounded
from lipcert.analysis.bounded import bounded as bounds_of
from lipcert.graph.ir import Graph, Operand
from lipcert.settings.settings import Settings
from tests.networks import Step, chain, dag, proved, reshaped
from tests.ops import Activation, Add, Dense, Maker, Sort

RADIUS = 4.8061
SHALLOW, DEEP = (64, 128, 64, 10), (64, *[64] * 6, 10)
RESIDUAL = (64, *[48] * 9, 10)
Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Spec:
    """A network to train. project: keeps each weight where it belongs, after every step.

    sorts: pairs are sorted, in place of ReLUs. blocks: how many of x + W₂·relu(W₁x + b₁) + b₂ stand
    between the first dense layer and the last.
    """

    name: str
    widths: tuple[int, ...]
    project: Callable[[torch.Tensor], torch.Tensor]
    temperature: float = 1.0
    epochs: int = 60
    rate: float = 2e-3
    sorts: bool = False
    blocks: int = 0


@dataclass(frozen=True)
class Network:
    """Trained weights, and biases unless the activation is a sort of pairs."""

    spec: Spec
    weights: Tensors
    biases: Tensors

    radius = RADIUS

    @property
    def layers(self) -> int:
        return len(self.weights)

    @property
    def images(self) -> torch.Tensor:
        return digits()[0]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x, self.layer, torch.relu)

    def squares(self, k: int, x: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
        """‖gradient‖² of the tensors of a layer, of each example."""
        del k
        return (cotangent**2).sum(1) * ((x**2).sum(1) + float(not self.spec.sorts))

    def layer(self, number: int, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weights[number].T + self.biases[number]

    def run(
        self,
        x: torch.Tensor,
        layer: Callable[[int, torch.Tensor], torch.Tensor],
        ramp: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Scores, by these layers and this ReLU."""
        last = len(self.weights) - 1
        if self.spec.blocks:
            x = layer(0, x)
            for first in range(1, last, 2):
                x = x + layer(first + 1, ramp(layer(first, x)))
            return layer(last, x)
        for k in range(last):
            x = layer(k, x)
            x = pairs_sorted(x, ramp) if self.spec.sorts else ramp(x)
        return layer(last, x)


def spectral(radius: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda w: w * min(1.0, radius / float(torch.linalg.matrix_norm(w, 2)))


def frobenius(radius: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda w: w * min(1.0, radius / float(w.norm()))


def orthogonal(w: torch.Tensor) -> torch.Tensor:
    u, _, v = torch.linalg.svd(w, full_matrices=False)
    return u @ v


AnyNetwork = Network | ImageNetwork | Encoder
AnySpec = Spec | ImageSpec | EncoderSpec
SPECS: tuple[AnySpec, ...] = (
    Spec("mlp_plain", SHALLOW, lambda w: w),
    Spec("mlp_spec", SHALLOW, spectral(1.0), temperature=0.05, epochs=120, rate=3e-3),
    Spec("mlp_fro", SHALLOW, frobenius(3.0)),
    Spec("deep_spec", DEEP, spectral(1.3), temperature=1 / 60, epochs=120, rate=3e-3),
    Spec("deep_plain", DEEP, lambda w: w),
    Spec("mlp_gs", SHALLOW, orthogonal, temperature=0.1, sorts=True),
    Spec("deep_gs", DEEP, orthogonal, temperature=0.1, sorts=True),
    Spec("residual", RESIDUAL, spectral(1.0), temperature=0.05, rate=3e-3, blocks=4),
    Spec("residual_untrained", RESIDUAL, spectral(1.0), epochs=1, rate=0.0, blocks=4),
    *IMAGES,
    *ENCODERS,
)


def pairs_sorted(
    x: torch.Tensor, ramp: Callable[[torch.Tensor], torch.Tensor] = torch.relu
) -> torch.Tensor:
    """The smaller and the larger of each pair."""
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    above = ramp(first - second)
    return torch.stack([first - above, second + above], -1).flatten(-2)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = load_digits()
    return torch.tensor(data.data / 16.0), torch.tensor(data.target)


def trained(spec: Spec) -> Network:
    torch.manual_seed(0)
    images, labels = digits()
    order = torch.randperm(len(images))[:1400]
    gain = 1.0 if spec.sorts else 2.0**0.5
    weights = [
        (gain * torch.randn(after, before) / before**0.5).requires_grad_()
        for before, after in zip(spec.widths, spec.widths[1:], strict=False)
    ]
    biases = [torch.zeros(after, requires_grad=not spec.sorts) for after in spec.widths[1:]]
    network = Network(spec, weights, biases)
    learned = [*weights, *([] if spec.sorts else biases)]

    @torch.no_grad()
    def hold() -> None:
        for weight in weights:
            weight.copy_(spec.project(weight))

    fit(network, learned, (images[order], labels[order]), spec, hold)
    return Network(spec, [w.detach() for w in weights], [b.detach() for b in biases])


def dense_op(network: Network, number: int) -> Maker:
    weight, bias = network.weights[number].numpy(), network.biases[number].numpy()
    shift = None if network.spec.sorts else Operand(bias, f"bias{number}")
    return Dense(Operand(weight, f"weight{number}"), shift)


def steps(network: Network) -> Iterator[Maker]:
    for k, weight in enumerate(network.weights):
        yield dense_op(network, k)
        if k + 1 == len(network.weights):
            return
        if network.spec.sorts:
            yield from (reshaped(len(weight) // 2, 2), Sort(1), reshaped(len(weight)))
        else:
            yield Activation("relu")


def graph_of(network: Network) -> Graph:
    if not network.spec.blocks:
        return chain((64,), *steps(network))
    last = len(network.weights) - 1
    found: list[Step] = [("v0", dense_op(network, 0), ("x",))]
    for k in range(1, last, 2):
        found += [
            (f"v{k}", dense_op(network, k), (found[-1][0],)),
            (f"relu{k}", Activation("relu"), (f"v{k}",)),
            (f"v{k + 1}", dense_op(network, k + 1), (f"relu{k}",)),
            (f"sum{k}", Add((1, 1)), (found[-1][0], f"v{k + 1}")),
        ]
    return dag((64,), [*found, ("scores", dense_op(network, last), (found[-1][0],))])


def bounded(network: AnyNetwork, tier: str) -> Bounded:
    settings: dict[str, Any] = {
        "input_norm": network.radius,
        "input_box": (0.0, 1.0),
        "loss": "cross-entropy",
        "temperature": network.spec.temperature,
        "tier": tier,
    }
    if isinstance(network, Encoder):
        return bounds_of(written(network), Settings(**settings))
    graph = image_graph(network) if isinstance(network, ImageNetwork) else graph_of(network)
    return proved(graph, **settings)


def product_of_norms(network: AnyNetwork) -> float:
    """Of the gradient of all parameters, by norms of layers only; of an encoder there is none."""
    if isinstance(network, Encoder):
        return math.nan
    if isinstance(network, ImageNetwork):
        return image_product(network)
    norms = [float(torch.linalg.matrix_norm(w, 2)) for w in network.weights]
    shifts = [float(bias.norm()) for bias in network.biases]
    last = len(norms) - 1
    branches = range(1, last, 2) if network.spec.blocks else ()
    inputs, factors = [RADIUS], [1.0] * (last + 1)
    for k, (norm, shift) in enumerate(zip(norms, shifts, strict=True)):
        beside = inputs[k - 1] if k - 1 in branches else 0.0
        inputs.append(norm * inputs[k] + shift + beside)
    beside = 0.0
    for k in reversed(range(last)):
        factors[k] = norms[k + 1] * factors[k + 1] + beside
        beside = factors[k + 1] if k + 1 in branches else 0.0
    biased = 0.0 if network.spec.sorts else 1.0
    return math.hypot(
        *(
            2.0**0.5 * factor * math.hypot(norm, biased)
            for factor, norm in zip(factors, inputs, strict=False)
        )
    )


class Ramp(torch.autograd.Function):
    """max(u, 0), with a derivative that is smoothed."""

    @staticmethod
    def forward(ctx: Any, u: torch.Tensor, sharpness: float) -> torch.Tensor:
        ctx.save_for_backward(u)
        ctx.sharpness = sharpness
        return torch.relu(u)

    @staticmethod
    def backward(ctx: Any, above: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        (u,) = ctx.saved_tensors
        return above * torch.sigmoid(ctx.sharpness * u), None


def squared_gradients(
    network: AnyNetwork, x: torch.Tensor, labels: torch.Tensor, sharpness: float | None
) -> torch.Tensor:
    """Of each example and layer, times the squared temperature; smoothed kinks for a sharpness."""
    inputs: dict[int, torch.Tensor] = {}
    shifts: dict[int, torch.Tensor] = {}

    def layer(k: int, value: torch.Tensor) -> torch.Tensor:
        inputs[k], found = value, network.layer(k, value)
        shifts[k] = torch.zeros_like(found, requires_grad=True)
        return found + shifts[k]

    def ramp(u: torch.Tensor) -> torch.Tensor:
        return torch.relu(u) if sharpness is None else Ramp.apply(u, sharpness)

    scores = network.run(x, layer, ramp) / network.spec.temperature
    loss = torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
    kept = sharpness is not None
    cotangents = torch.autograd.grad(
        loss * network.spec.temperature, [*shifts.values()], create_graph=kept
    )
    squares = [
        network.squares(k, inputs[k], cotangent)
        for k, cotangent in zip(shifts, cotangents, strict=True)
    ]
    found = torch.stack(squares, 1)
    return found if kept else found.detach()


def of_every_label(network: AnyNetwork, x: torch.Tensor) -> torch.Tensor:
    """Squares for each example, label and layer; some examples at once."""
    parts = [
        squared_gradients(
            network, part.repeat_interleave(10, 0), torch.arange(10).repeat(len(part)), None
        )
        for part in x.detach().split(100)
    ]
    return torch.cat(parts).view(len(x), 10, -1)


def projected(x: torch.Tensor, radius: float) -> torch.Tensor:
    x = x.clamp(0.0, 1.0)
    return x * (radius / x.norm(dim=1, keepdim=True).clamp_min(radius))


def evolved(
    network: Network, x: torch.Tensor, labels: torch.Tensor, length: torch.Tensor, turns: int
) -> torch.Tensor:
    """The best of what samples around each input find, whose covariance matrix adapts.

    The evolution strategy of Hansen (2016), without its rank-one update, of all inputs at once.
    T jumps where a ReLU switches: samples see beyond. length: of the first steps.
    """
    count, entries, samples = *x.shape, 48
    share = math.log(samples / 2 + 0.5) - torch.arange(1.0, samples // 2 + 1).log()
    share = (share / share.sum()).to(x.dtype)
    mass, squares = 1.0 / float((share**2).sum()), float(entries)
    memory = (mass + 2.0) / (squares + mass + 5.0)
    renewal = 2.0 * (mass - 2.0 + 1.0 / mass) / ((squares + 2.0) ** 2 + mass)
    usual = squares**0.5 * (1.0 - 0.25 / squares)
    spread = torch.eye(entries, dtype=x.dtype).repeat(count, 1, 1)
    path, best, largest = torch.zeros_like(x), x, torch.zeros(count, dtype=x.dtype)
    for turn in range(turns):
        if turn % 10 == 0:
            found, axes = torch.linalg.eigh(spread)
            scales = found.clamp_min(1e-12).sqrt()[:, None]
        plain = torch.randn(count, samples, entries, dtype=x.dtype)
        steps = (plain * scales) @ axes.mT
        drawn = x[:, None] + length[:, None, None] * steps
        allowed = projected(drawn.flatten(0, 1), network.radius)
        every = squared_gradients(network, allowed, labels.repeat_interleave(samples), None).sum(1)
        value, allowed = every.view(count, samples), allowed.view_as(drawn)
        outside = ((drawn - allowed) ** 2).sum(2)
        order = (value.log() - 0.02 * outside).argsort(1, descending=True)[:, : samples // 2, None]
        top, place = value.max(1)
        best = torch.where((top > largest)[:, None], allowed[torch.arange(count), place], best)
        largest = torch.maximum(top, largest)
        chosen = steps.take_along_dim(order, 1)
        x = x + length[:, None] * (share @ chosen)
        white = (share @ plain.take_along_dim(order, 1))[:, None] @ axes.mT
        path = (1.0 - memory) * path + (memory * (2.0 - memory) * mass) ** 0.5 * white[:, 0]
        spread = (1.0 - renewal) * spread + renewal * (chosen.mT * share) @ chosen
        length = length * (memory / (1.0 + memory) * (path.norm(dim=1) / usual - 1.0)).exp()
    return best


def attained(network: Network, count: int, rounds: int) -> float:
    """The largest T that evolves from random inputs and images.

    Each round evolves inputs from the better ones, mixtures or averages of two. They take the
    places of those that are worse, or of smaller T and alike. Single precision is enough for that.
    """
    torch.manual_seed(1)
    weights, biases = ([w.float() for w in own] for own in (network.weights, network.biases))
    single, radius = replace(network, weights=weights, biases=biases), network.radius
    dense, sparse = torch.rand(2, 50 * count, network.images.shape[1])
    sparse = (sparse < torch.rand(len(sparse), 1)).double()
    x = projected(torch.cat([dense, sparse, network.images]), radius).float()
    value, labels = of_every_label(single, x).sum(2).max(1)
    order = value.argsort(descending=True)[:count]
    x, labels = x[order], labels[order]
    young, wanted, length = x, labels, torch.full((count,), 0.3)
    x, labels = x[:0], labels[:0]
    for _ in range(rounds):
        young = evolved(single, young, wanted, length.float(), 300)
        x, labels = torch.cat([x, young]), torch.cat([labels, wanted])
        value = squared_gradients(single, x, labels, None).sum(1)
        near, kept = torch.cdist(x, x) < 0.2 * radius, list[int]()
        for place in value.argsort(descending=True).tolist():
            if len(kept) < count and not near[place, kept].any():
                kept.append(place)
        x, labels = x[kept], labels[kept]
        few = max(count // 4, 1)
        first = torch.minimum(*torch.randint(len(x), (2, few)))
        other = x[torch.randint(len(x), (few,))]
        is_other, kind = torch.rand(few, x.shape[1]) < torch.rand(few, 1), torch.rand(few, 1)
        share = torch.where(kind < 0.35, is_other, 0.5 * torch.rand(few, 1))
        share = torch.where(kind < 0.7, share, 0.0).float()
        young, wanted = x[first] + share * (other - x[first]), labels[first]
        length = 0.02 * 10.0 ** torch.rand(few)
    return float(of_every_label(network, torch.cat([x, young]).double()).sum(2).max()) ** 0.5


def attained_by_ascent(network: AnyNetwork, starts: int, rounds: int) -> float:
    """The largest T that projected ascent finds, with the best label chosen again and again.

    At first half of the examples climb for a single layer each: from there more is reached.
    """
    torch.manual_seed(0)
    images, radius, layers = network.images, network.radius, network.layers
    entries, largest = images.shape[1], 0.0
    dense = torch.rand(starts, entries)
    sparse = (torch.rand(starts, entries) < torch.rand(starts, 1)).double()
    x = projected(torch.cat([dense, sparse, images[torch.randperm(len(images))[:starts]]]), radius)
    for turn in range(rounds):
        single = torch.nn.functional.one_hot(torch.randint(layers, (len(x),)), layers).double()
        early = 2 * turn < rounds
        wanted = torch.where(torch.rand(len(x), 1) < 0.5 * early, single, torch.ones(1, layers))
        every = of_every_label(network, x)
        total = every.sum(2)
        largest = max(largest, float(total.max()))
        if turn and not early:  # the better half once more, slightly moved
            half = total.max(1).values.argsort(descending=True)[: len(x) // 2]
            moved = x[half] + 0.1 / (1 + turn) * torch.randn(len(half), entries)
            x = projected(torch.cat([x[half], moved]), radius)
            every, wanted = every[half].repeat(2, 1, 1), wanted[: len(x)]
        labels = (every * wanted[:, None]).sum(2).argmax(1)
        x = x.detach().requires_grad_()
        optimizer = torch.optim.Adam([x], lr=0.1 / (1 + turn))
        for count in range(40):
            sharpness = 2.0 * 60.0 ** ((turn % 5 + count / 40) / 5)
            value = (squared_gradients(network, x, labels, sharpness) * wanted).sum(1)
            optimizer.zero_grad()
            (-torch.log(value + 1e-30).sum()).backward()
            optimizer.step()
            with torch.no_grad():
                x.copy_(projected(x, radius))
        x = x.detach()
        reached = squared_gradients(network, x, labels, None).sum(1)
        largest = max(largest, float(reached.max()))
    return largest**0.5


def brightest(rise: torch.Tensor, radius: float) -> torch.Tensor:
    """Where, in [0, 1]^n and of norm at most `radius`, a linear function is about largest."""
    found = rise.clamp_min(0.0)
    found = found * (radius / found.norm(dim=1, keepdim=True).clamp_min(1e-12))
    for _ in range(25):
        is_short = found.clamp(0.0, 1.0).norm(dim=1, keepdim=True) < 0.999 * radius
        found = torch.where(is_short, 1.15 * found, found)
    return projected(found, radius)


def climbed(
    network: ImageNetwork, x: torch.Tensor, labels: torch.Tensor, turns: int, sharpest: float
) -> torch.Tensor:
    """Images that climb in turn along the gradient, and towards the brightest image along it."""
    first, radius = 10.0 * 10.0 ** float(torch.rand(())), network.radius
    for turn in range(turns):
        done = turn / turns
        x = x.detach().requires_grad_()
        value = squared_gradients(network, x, labels, first * (sharpest / first) ** done).sum(1)
        (rise,) = torch.autograd.grad(torch.log(value + 1e-30).sum(), x)
        along = rise * (0.1 * radius / rise.norm(dim=1, keepdim=True).clamp_min(1e-12))
        x = x.detach()
        to = x + along if turn % 2 == 0 else brightest(rise, radius)
        x = projected(x + 0.6 * 0.06**done * (to - x), radius)
    return x


def children(network: ImageNetwork, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Of each image: with patches of another one, with noise in patches, or shifted."""
    count, shape = len(x), network.shape
    images, others = x.view(count, *shape), other.view(count, *shape)

    def patches(cells: int, mode: str) -> torch.Tensor:
        coarse = torch.rand(count, 1, cells, cells)
        fine = torch.nn.functional.interpolate(coarse, shape[1:], mode=mode)
        return fine > 0.5 + 0.15 * torch.randn(count, 1, 1, 1)

    mixed = torch.where(patches(4, "bilinear"), others, images)
    noise = 0.3 * torch.rand(count, 1, 1, 1) * torch.randn(images.shape)
    changed = torch.where(patches(3, "nearest"), images + noise, images)
    shifts = 2 * torch.randint(-2, 3, (count, 2))
    pairs = zip(images, shifts.tolist(), strict=True)
    shifted = torch.stack([image.roll(shift, (1, 2)) for image, shift in pairs])
    kind = torch.rand(count, 1, 1, 1)
    found = torch.where(kind < 0.45, mixed, torch.where(kind < 0.8, changed, shifted))
    return projected(found.flatten(1).to(x.dtype), network.radius)


def attained_by_images(network: ImageNetwork, count: int, rounds: int) -> float:
    """The largest T that is found from images that repeat a small one, which excite convolutions
    most. The best of them have children, which climb and take the places of those that are worse,
    or of smaller T and alike. Single precision is enough to climb.
    """
    torch.manual_seed(0)
    weights, biases = ([w.float() for w in own] for own in (network.weights, network.biases))
    single = replace(network, weights=weights, biases=biases)
    radius, tiles = network.radius, [network.tiled(count, size) for size in (2, 4, 6, 8, 12)]
    x = projected(torch.cat(tiles), radius).float()
    young = climbed(single, x, of_every_label(single, x).sum(2).argmax(1), 20, 30.0)
    x = young[:0]
    for turn in range(rounds):
        x = torch.cat([x, young])
        value, labels = of_every_label(single, x).sum(2).max(1)
        near, kept = torch.cdist(x, x) < 0.15 * radius, list[int]()
        for place in value.argsort(descending=True).tolist():
            if len(kept) < count and not near[place, kept].any():
                kept.append(place)
        x, labels = x[kept], labels[kept]
        first, other = (
            torch.minimum(*torch.randint(len(x), (2, count))),
            torch.randint(len(x), (count,)),
        )
        wanted = torch.where(torch.rand(count) < 0.8, labels[first], torch.randint(10, (count,)))
        young = x[first] if turn == 0 else children(network, x[first], x[other])
        young = climbed(single, young, wanted, 30, 200.0)
    return float(of_every_label(network, torch.cat([x, young]).double()).sum(2).max()) ** 0.5


def trained_of(spec: AnySpec) -> AnyNetwork:
    match spec:
        case ImageSpec():
            return trained_images(spec)
        case EncoderSpec():
            return trained_encoder(spec)
        case _:
            return trained(spec)


def row(spec: AnySpec, quick: bool, tier: str) -> str:
    network = trained_of(spec)
    accuracy = float((network(network.images).argmax(1) == digits()[1]).double().mean())
    start = time.process_time()
    bounds = bounded(network, tier)
    elapsed = 1e3 * (time.process_time() - start)
    bound = math.hypot(*bounds.grad_norms.values()) * spec.temperature
    product = product_of_norms(network)
    if isinstance(network, ImageNetwork):
        reached = attained_by_images(network, *((8, 2) if quick else (48, 40)))
    elif isinstance(network, Encoder):
        reached = attained_by_ascent(network, *((16, 4) if quick else (40, 10)))
    else:
        reached = attained(network, *((16, 4) if quick else (40, 120)))
    if reached > bound:
        raise SystemExit(f"{spec.name}: the bound {bound} is violated by {reached}")
    return (
        f"{spec.name:11} {accuracy:6.1%} {product:10.2f} {bound:10.2f} {reached:10.2f} "
        f"{product / reached:8.2f} {bound / reached:8.3f} {product / bound:8.2f} {elapsed:7.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="networks to run (default: all)")
    parser.add_argument("--quick", action="store_true", help="a weaker attack, two networks")
    parser.add_argument("--tier", choices=("fast", "tight"), default="fast", help="effort")
    options = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    default = ["mlp_spec", "deep_gs"] if options.quick else [spec.name for spec in SPECS]
    names = options.names or default
    print("network    accuracy   product      bound   attained   product/  bound/  product/  time")
    print("                                                       attained attained  bound     ms")
    for spec in SPECS:
        if spec.name in names:
            print(row(spec, options.quick, options.tier), flush=True)


if __name__ == "__main__":
    main()
