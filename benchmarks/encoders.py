"""Small encoders of patches of digits, and the gradients of their layers.

Four blocks of attention and a ReLU layer on tokens of norm at most 1: (x − m)/√(‖x − m‖² + 1), all
scores times 1, what a block adds times 1/8, and ‖W‖, ‖b‖ ≤ 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F  # noqa: N812  as everyone calls it
from sklearn.datasets import load_digits

import lipcert
from benchmarks.image_networks import fit
from lipcert.importer.load import load_model
from lipcert.importer.model import ImportedModel

WIDTH, HEADS, BLOCKS, TOKENS, SHARE = 64, 4, 4, 16, 0.125
PARTS = ("norm", "q", "k", "v", "o", "norm", "up", "down")
Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class EncoderSpec:
    """biased: norms, queries, keys and values have biases, too. by_class: the first token, which
    sees no patch, is what the classifier reads, in place of the mean."""

    name: str
    biased: bool = False
    by_class: bool = False
    temperature: float = 1 / 200
    epochs: int = 60
    rate: float = 3e-3


ENCODERS = (
    EncoderSpec("encoder"),
    EncoderSpec("encoder_bias", biased=True),
    EncoderSpec("encoder_cls", by_class=True),
)


@dataclass(frozen=True)
class Encoder:
    """kinds: of each layer, from below, "norm", "position", or that of a matrix; with the weight of
    each, and its bias or None."""

    spec: EncoderSpec
    kinds: tuple[str, ...]
    weights: Tensors
    biases: list[torch.Tensor | None]

    radius = 4.8061

    @property
    def layers(self) -> int:
        return len(self.weights)

    @property
    def images(self) -> torch.Tensor:
        return torch.tensor(load_digits().data / 16.0)

    def layer(self, k: int, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weights[k], self.biases[k]
        if self.kinds[k] == "position":
            return x + weight
        if self.kinds[k] != "norm":
            return F.linear(x, weight, bias)
        return x * weight if bias is None else x * weight + bias

    def squares(self, k: int, x: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
        """‖gradient‖² of the tensors of a layer, of each example."""
        if self.kinds[k] == "position":
            return cotangent.square().sum((1, 2))
        x, cotangent = (value.reshape(len(x), -1, value.shape[-1]) for value in (x, cotangent))
        found = (
            cotangent.mT @ x if self.kinds[k] != "norm" else (x * cotangent).sum(1, keepdim=True)
        )
        shift = 0.0 if self.biases[k] is None else cotangent.sum(1).square().sum(1)
        return found.square().sum((1, 2)) + shift

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x, self.layer, torch.relu)

    def run(
        self,
        x: torch.Tensor,
        layer: Callable[[int, torch.Tensor], torch.Tensor],
        ramp: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        number = iter(range(self.layers))

        def after(value: torch.Tensor) -> torch.Tensor:
            return layer(next(number), value)

        x = after(x.unflatten(1, (4, 2, 4, 2)).transpose(2, 3).flatten(3).flatten(1, 2))
        if self.spec.by_class:
            x = F.pad(x, (0, 0, 1, 0))
        x = after(x)
        for _ in range(BLOCKS):
            read = after(normalised(x))
            q, k, v = (after(read).unflatten(2, (HEADS, -1)).transpose(1, 2) for _ in range(3))
            seen = (q @ k.mT).softmax(-1) @ v
            x = x + SHARE * after(seen.transpose(1, 2).flatten(2))
            x = x + SHARE * after(ramp(after(after(normalised(x)))))
        x = after(normalised(x))
        return after(x[:, 0] if self.spec.by_class else x.mean(1))


def normalised(x: torch.Tensor) -> torch.Tensor:
    """Tokens of norm √n, but for those near their own mean."""
    return F.layer_norm(x, x.shape[-1:], eps=1.0 / WIDTH)


def started(spec: EncoderSpec) -> Encoder:
    """At random, held to its norms."""
    kinds = ("patch", "position", *PARTS * BLOCKS, "norm", "head")
    sizes = {"patch": (4, WIDTH), "up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    sizes["head"] = (WIDTH, 10)
    weights: Tensors = []
    biases: list[torch.Tensor | None] = []
    for kind in kinds:
        before, after = sizes.get(kind, (WIDTH, WIDTH))
        if kind == "position":
            weights.append(0.02 * torch.randn(TOKENS + spec.by_class, WIDTH))
        elif kind == "norm":
            weights.append(torch.full((WIDTH,), WIDTH**-0.5))
        else:
            weights.append(torch.randn(after, before) / before**0.5)
        has_bias = kind != "position" and (spec.biased or kind not in {"norm", "q", "k", "v"})
        biases.append(torch.zeros(after) if has_bias else None)
    found = Encoder(spec, kinds, weights, biases)
    for tensor in (*weights, *(bias for bias in biases if bias is not None)):
        tensor.requires_grad_()
    held(found)
    return found


def held(network: Encoder) -> None:
    with torch.no_grad():
        for kind, weight, bias in zip(network.kinds, network.weights, network.biases, strict=True):
            if kind == "norm":
                weight.clamp_(-(WIDTH**-0.5), WIDTH**-0.5)
            elif kind != "position":
                weight.mul_(min(1.0, 1.0 / float(torch.linalg.matrix_norm(weight, 2))))
            if bias is not None:
                bias.mul_(min(1.0, 1.0 / float(bias.norm() + 1e-9)))


def trained_encoder(spec: EncoderSpec) -> Encoder:
    torch.manual_seed(0)
    network, labels = started(spec), torch.tensor(load_digits().target)
    images, order = network.images, torch.randperm(len(labels))[:1400]
    learned = [*network.weights, *(bias for bias in network.biases if bias is not None)]
    fit(network, learned, (images[order], labels[order]), spec, lambda: held(network))
    for tensor in learned:
        tensor.requires_grad_(False)
    return network


class Exported(torch.nn.Module):
    """An encoder with its tensors as parameters."""

    def __init__(self, network: Encoder) -> None:
        super().__init__()
        self.network = network
        self.weights = torch.nn.ParameterList(network.weights)
        biases = {str(k): bias for k, bias in enumerate(network.biases) if bias is not None}
        self.biases = torch.nn.ParameterDict(biases)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        biases = [self.biases.get(str(k), None) for k in range(len(self.weights))]
        own = replace(self.network, weights=list(self.weights), biases=biases)
        return own.run(x, own.layer, torch.relu)


def written(network: Encoder) -> ImportedModel:
    """The file of an encoder, as read again."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.onnx"
        lipcert.export(Exported(network).float(), network.images[:1].float(), path)
        return load_model(path)
