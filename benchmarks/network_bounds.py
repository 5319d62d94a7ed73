"""Whole networks: the product of norms, the bounds of LipCert, and what an attack attains.

Trains small networks on the digits of scikit-learn (seconds each, fixed seeds), bounds the norm T
of the per-example gradient of all parameters together, over all inputs in [0, 1]^64 of norm at
most R and all labels, and looks for an input and a label of a large gradient by projected ascent.

    python -m benchmarks.network_bounds [--quick] [name ...]

product   layer norms multiplied: X_k ≤ ‖W‖X + ‖b‖, cotangents ≤ √2·Π‖W‖
bound     of LipCert; attained: a lower bound of the truth
looseness bound / attained, hence at least the true one
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits

from lipcert.analysis.bounded import Bounded
from lipcert.operand import Operand
from tests.networks import chain, proved, reshaped
from tests.ops import Activation, Dense, Maker, Sort

RADIUS = 4.8061
SHALLOW, DEEP = (64, 128, 64, 10), (64, *[64] * 6, 10)
Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Spec:
    """A network to train. project: keeps each weight where it belongs, after every step."""

    name: str
    widths: tuple[int, ...]
    project: Callable[[torch.Tensor], torch.Tensor]
    temperature: float = 1.0
    epochs: int = 60
    rate: float = 2e-3
    sorts: bool = False


@dataclass(frozen=True)
class Network:
    """Trained weights, and biases unless the activation is a sort of pairs."""

    spec: Spec
    weights: Tensors
    biases: Tensors

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = x @ weight.T + bias
            if k + 1 < len(self.weights):
                x = pairs_sorted(x) if self.spec.sorts else torch.relu(x)
        return x


def spectral(radius: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda w: w * min(1.0, radius / float(torch.linalg.matrix_norm(w, 2)))


def frobenius(radius: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda w: w * min(1.0, radius / float(w.norm()))


def orthogonal(w: torch.Tensor) -> torch.Tensor:
    u, _, v = torch.linalg.svd(w, full_matrices=False)
    return u @ v


SPECS = (
    Spec("mlp_plain", SHALLOW, lambda w: w),
    Spec("mlp_spec", SHALLOW, spectral(1.0), temperature=0.05, epochs=120, rate=3e-3),
    Spec("mlp_fro", SHALLOW, frobenius(3.0)),
    Spec("deep_spec", DEEP, spectral(1.3), temperature=1 / 60, epochs=120, rate=3e-3),
    Spec("deep_plain", DEEP, lambda w: w),
    Spec("mlp_gs", SHALLOW, orthogonal, temperature=0.1, sorts=True),
    Spec("deep_gs", DEEP, orthogonal, temperature=0.1, sorts=True),
)


def pairs_sorted(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (-1, 2)).sort(dim=-1).values.flatten(-2)


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
    optimizer = torch.optim.Adam(learned, lr=spec.rate)
    for _ in range(spec.epochs):
        for batch in order[torch.randperm(len(order))].split(100):
            scores = network(images[batch]) / spec.temperature
            loss = torch.nn.functional.cross_entropy(scores, labels[batch]) * spec.temperature
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for weight in weights:
                    weight.copy_(spec.project(weight))
    return Network(spec, [w.detach() for w in weights], [b.detach() for b in biases])


def steps(network: Network) -> Iterator[Maker]:
    for k, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        shift = None if network.spec.sorts else Operand(bias.numpy(), f"bias{k}")
        yield Dense(Operand(weight.numpy(), f"weight{k}"), shift)
        if k + 1 == len(network.weights):
            return
        if network.spec.sorts:
            yield from (reshaped(len(weight) // 2, 2), Sort(1), reshaped(len(weight)))
        else:
            yield Activation("relu")


def bounded(network: Network) -> Bounded:
    return proved(
        chain((64,), *steps(network)),
        input_norm=RADIUS,
        input_box=(0.0, 1.0),
        loss="cross-entropy",
        temperature=network.spec.temperature,
    )


def product_of_norms(network: Network) -> float:
    norms = [float(torch.linalg.matrix_norm(w, 2)) for w in network.weights]
    largest, square = RADIUS, 0.0
    for k, (norm, bias) in enumerate(zip(norms, network.biases, strict=True)):
        cotangent = 2.0**0.5 * float(np.prod(norms[k + 1 :]))
        square += cotangent**2 * (largest**2 + (0.0 if network.spec.sorts else 1.0))
        largest = norm * largest + float(bias.norm())
    return square**0.5


def squared_gradient(
    network: Network, x: torch.Tensor, labels: torch.Tensor, sharpness: float | None
) -> torch.Tensor:
    """T² of each example, times the squared temperature; smoothed kinks for a sharpness."""
    inputs, outputs = [x], []
    for k, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        outputs.append(inputs[-1] @ weight.T + bias)
        if k + 1 < len(network.weights):
            last = outputs[-1]
            inputs.append(pairs_sorted(last) if network.spec.sorts else torch.relu(last))
    scores = outputs[-1] / network.spec.temperature
    cotangent = torch.softmax(scores, 1) - torch.nn.functional.one_hot(labels, 10)
    biased = 0.0 if network.spec.sorts else 1.0
    square = torch.zeros(len(x))
    for k in reversed(range(len(network.weights))):
        square = square + (cotangent**2).sum(1) * ((inputs[k] ** 2).sum(1) + biased)
        if k:
            cotangent = cotangent @ network.weights[k]
            cotangent = below(network, outputs[k - 1], cotangent, sharpness)
    return square


def below(
    network: Network, value: torch.Tensor, cotangent: torch.Tensor, sharpness: float | None
) -> torch.Tensor:
    """The cotangent below an activation."""

    def step(u: torch.Tensor) -> torch.Tensor:
        return (u > 0).to(u) if sharpness is None else torch.sigmoid(sharpness * u)

    if not network.spec.sorts:
        return cotangent * step(value)
    first, second = value.unflatten(-1, (-1, 2)).unbind(-1)
    low, high = cotangent.unflatten(-1, (-1, 2)).unbind(-1)
    swapped = step(first - second)
    kept = 1.0 - swapped
    pairs = (swapped * high + kept * low, swapped * low + kept * high)
    return torch.stack(pairs, -1).flatten(-2)


def projected(x: torch.Tensor) -> torch.Tensor:
    x = x.clamp(0.0, 1.0)
    return x * (RADIUS / x.norm(dim=1, keepdim=True).clamp_min(RADIUS))


def attained(network: Network, starts: int, rounds: int) -> float:
    """The largest T that projected ascent finds, with the best label chosen again and again."""
    torch.manual_seed(0)
    images, _ = digits()
    dense = torch.rand(starts, 64)
    sparse = (torch.rand(starts, 64) < torch.rand(starts, 1)).double()
    x = projected(torch.cat([dense, sparse, images[torch.randperm(len(images))[:starts]]]))
    largest = 0.0
    for turn in range(rounds):
        every = squared_gradient(
            network, x.repeat_interleave(10, 0), torch.arange(10).repeat(len(x)), None
        ).view(-1, 10)
        largest = max(largest, float(every.max()))
        order = every.max(1).values.argsort(descending=True)
        if turn:  # the better half once more, slightly moved
            half = order[: len(order) // 2]
            x = projected(torch.cat([x[half], x[half] + 0.05 * torch.randn(len(half), 64)]))
            every = torch.cat([every[half], every[half]])
        labels = every.argmax(1)
        x = x.detach().requires_grad_()
        optimizer = torch.optim.Adam([x], lr=0.05 / (1 + turn))
        for count in range(40):
            sharpness = 2.0 * 30.0 ** ((turn + count / 40) / rounds)
            value = squared_gradient(network, x, labels, sharpness)
            optimizer.zero_grad()
            (-torch.log(value + 1e-30).sum()).backward()
            optimizer.step()
            with torch.no_grad():
                x.copy_(projected(x))
        x = x.detach()
        largest = max(largest, float(squared_gradient(network, x, labels, None).max()))
    return largest**0.5


def row(spec: Spec, quick: bool) -> str:
    network = trained(spec)
    images, labels = digits()
    accuracy = float((network(images).argmax(1) == labels).double().mean())
    start = time.perf_counter()
    bounds = bounded(network)
    elapsed = 1e3 * (time.perf_counter() - start)
    bound = math.hypot(*bounds.grad_norms.values()) * spec.temperature
    product = product_of_norms(network)
    reached = attained(network, 64 if quick else 300, 4 if quick else 10)
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
    options = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    default = ["mlp_spec", "deep_gs"] if options.quick else [spec.name for spec in SPECS]
    names = options.names or default
    print("network    accuracy   product      bound   attained   product/  bound/  product/  time")
    print("                                                       attained attained  bound     ms")
    for spec in SPECS:
        if spec.name in names:
            print(row(spec, options.quick), flush=True)


if __name__ == "__main__":
    main()
