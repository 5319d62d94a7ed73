"""Small convolutional networks on enlarged digits, and the gradients of their layers.

`cnn28` has two convolutions of stride 2 on 28×28, plain or held to norms of 1; `cnn5` four of them
on 3×32×32, each with a bias and an average over 2×2 behind its ReLU, and all norms 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  as everyone calls it
from sklearn.datasets import load_digits

from lipcert.graph.geometry import Window
from lipcert.graph.ir import Graph, Operand
from tests.networks import chain, reshaped
from tests.ops import Activation, AveragePool, Conv, Dense, Maker

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class ImageSpec:
    """channels: of the image and of each convolution; norm: that weights are held to, or set to."""

    name: str
    size: int
    channels: tuple[int, ...]
    stride: int
    temperature: float = 1.0
    epochs: int = 4
    rate: float = 2e-3
    norm: float = math.inf
    is_set: bool = False
    pooled: bool = False


IMAGES = (
    ImageSpec("cnn28", 28, (1, 16, 32), 2),
    ImageSpec("cnn28_spec", 28, (1, 16, 32), 2, temperature=0.05, epochs=5, rate=3e-3, norm=1.0),
    ImageSpec("cnn5", 32, (3, 8, 16, 32, 32), 1, 0.01, 8, 4e-3, norm=1.0, is_set=True, pooled=True),
)


@dataclass(frozen=True)
class ImageNetwork:
    """Trained weights and biases, the classifier last; biases only where averages are."""

    spec: ImageSpec
    weights: Tensors
    biases: Tensors

    @property
    def layers(self) -> int:
        return len(self.weights)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.spec.channels[0], self.spec.size, self.spec.size)

    @property
    def images(self) -> torch.Tensor:
        """Enlarged digits, one row each."""
        return enlarged(self.spec).flatten(1)

    @cached_property
    def radius(self) -> float:
        return math.ceil(float(self.images.norm(dim=1).max()) * 1e4) / 1e4

    def tiled(self, count: int, size: int) -> torch.Tensor:
        """Random images that repeat a small one, some with few bright pixels, as bright as may
        be."""
        channels, height, width = self.shape
        tiles = torch.rand(count, channels, size, size) ** 3
        tiles *= torch.rand(tiles.shape) < 0.1 + 0.9 * torch.rand(count, 1, 1, 1)
        times = -(-max(height, width) // size)
        found = tiles.repeat(1, 1, times, times)[:, :, :height, :width].flatten(1)
        return found * (self.radius / found.norm(dim=1, keepdim=True).clamp_min(1e-9))

    def run(
        self,
        x: torch.Tensor,
        layer: Callable[[int, torch.Tensor], torch.Tensor],
        ramp: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        x = x.reshape(-1, *self.shape)
        for k in range(self.layers - 1):
            x = ramp(layer(k, x))
            x = F.avg_pool2d(x, 2) if self.spec.pooled else x
        return layer(self.layers - 1, x.flatten(1))

    def layer(self, k: int, x: torch.Tensor) -> torch.Tensor:
        bias = self.biases[k] if self.spec.pooled else None
        if x.dim() == 2:
            return F.linear(x, self.weights[k], bias)
        return F.conv2d(x, self.weights[k], bias, self.spec.stride, 1)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x, self.layer, torch.relu)

    def squares(self, k: int, x: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
        """‖gradient‖² of the tensors of a layer, of each example."""
        del k
        if x.dim() == 2:
            return (cotangent**2).sum(1) * ((x**2).sum(1) + float(self.spec.pooled))
        read = F.unfold(x, 3, padding=1, stride=self.spec.stride)
        found = (cotangent.flatten(2) @ read.mT).square().sum((1, 2))
        shift = cotangent.sum((2, 3)).square().sum(1)
        return found + shift if self.spec.pooled else found


def enlarged(spec: ImageSpec) -> torch.Tensor:
    images = torch.tensor(load_digits().data / 16.0).reshape(-1, 1, 8, 8)
    wide = F.interpolate(images, (spec.size, spec.size), mode="bilinear", align_corners=False)
    return wide.expand(-1, spec.channels[0], -1, -1).clamp(0.0, 1.0)


class Training(Protocol):
    """Of a network: the rate of Adam, passes over the examples, and the temperature of the loss."""

    @property
    def rate(self) -> float: ...
    @property
    def epochs(self) -> int: ...
    @property
    def temperature(self) -> float: ...


def fit(
    network: Callable[[torch.Tensor], torch.Tensor],
    learned: Sequence[torch.Tensor],
    data: tuple[torch.Tensor, torch.Tensor],
    spec: Training,
    hold: Callable[[], None],
) -> None:
    """Trains by cross-entropy on these examples; `hold` projects the weights after each step."""
    images, labels = data
    optimizer = torch.optim.Adam(learned, lr=spec.rate)
    for _ in range(spec.epochs):
        for batch in torch.randperm(len(labels)).split(100):
            scores = network(images[batch]) / spec.temperature
            loss = F.cross_entropy(scores, labels[batch]) * spec.temperature
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hold()


def trained_images(spec: ImageSpec) -> ImageNetwork:
    torch.manual_seed(0)
    images, labels = enlarged(spec), torch.tensor(load_digits().target)
    order = torch.randperm(len(images))[:1400]
    weights, biases, size = [], [], spec.size
    for before, after in zip(spec.channels, spec.channels[1:], strict=False):
        weights.append(torch.randn(after, before, 3, 3) / (3.0 * before**0.5))
        biases.append(torch.zeros(after))
        size = size // 2
    entries = spec.channels[-1] * size * size
    weights.append(torch.randn(10, entries) / entries**0.5)
    biases.append(torch.zeros(10))
    for tensor in (*weights, *biases):
        tensor.requires_grad_()
    network = ImageNetwork(spec, weights, biases)
    learned = [*weights, *(biases if spec.pooled else [])]
    held(network, is_set=spec.is_set)
    fit(network, learned, (images[order], labels[order]), spec, lambda: held(network))
    return ImageNetwork(spec, [w.detach() for w in weights], [b.detach() for b in biases])


def held(network: ImageNetwork, *, is_set: bool = False) -> None:
    """Weights no larger than the spec says, as convolutions of images; or exactly as large."""
    size = network.spec.size
    with torch.no_grad():
        for k, weight in enumerate(network.weights):
            factor = network.spec.norm / stretch(weight, size, network.spec.stride)
            if math.isfinite(factor):
                weight.mul_(factor if is_set else min(1.0, factor))
                network.biases[k].mul_(min(1.0, 1.0 / float(network.biases[k].norm() + 1e-9)))
            size //= 2


def stretch(weight: torch.Tensor, size: int, stride: int) -> float:
    """The norm, up to the error of some power steps."""
    if weight.dim() == 2:
        return float(torch.linalg.matrix_norm(weight, 2))
    x = torch.ones(1, weight.shape[1], size, size)
    x += 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    for _ in range(20):
        x = x / x.norm()
        y = F.conv2d(x, weight, None, stride, 1)
        back = F.conv_transpose2d(y, weight, None, stride, 1)
        x = F.pad(back, (0, size - back.shape[3], 0, size - back.shape[2]))
    return float(x.norm()) ** 0.5


def image_steps(network: ImageNetwork) -> Iterator[Maker]:
    spec, size = network.spec, network.spec.size
    for k, weight in enumerate(network.weights):
        bias = Operand(network.biases[k].numpy(), f"bias{k}") if spec.pooled else None
        own = Operand(weight.numpy(), f"weight{k}")
        if weight.dim() == 2:
            yield from (reshaped(weight.shape[1]), Dense(own, bias))
            return
        yield Conv(own, bias, (Window(size, 3, spec.stride, 1, 1, 1),) * 2)
        yield Activation("relu")
        if spec.pooled:
            yield AveragePool((Window(size, 2, 2, 1, 0, 0),) * 2)
        size //= 2


def image_graph(network: ImageNetwork) -> Graph:
    return chain(network.shape, *image_steps(network))


def image_product(network: ImageNetwork) -> float:
    """Of the gradient of all parameters, by norms of layers only."""
    spec, size, norms, sizes = network.spec, network.spec.size, [], []
    for weight in network.weights:
        norms.append(stretch(weight, size, spec.stride))
        sizes.append(size)
        size //= 2
    pool, last = 0.5 if spec.pooled else 1.0, len(norms) - 1
    overlap = 3.0 if spec.stride == 1 else 2.0
    biased, inputs, factors = float(spec.pooled), [network.radius], [1.0] * (last + 1)
    for norm, bias in zip(norms, network.biases, strict=True):
        inputs.append(pool * (norm * inputs[-1] + biased * float(bias.norm())))
    for k in reversed(range(last)):
        factors[k] = pool * norms[k + 1] * factors[k + 1]
    parts = [2.0**0.5 * factors[last] * math.hypot(inputs[last], biased)]
    for k in range(last):
        places = biased * sizes[k] / spec.stride
        parts.append(2.0**0.5 * factors[k] * math.hypot(overlap * inputs[k], places))
    return math.hypot(*parts)
