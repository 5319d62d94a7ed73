"""A small encoder as users write it, and the same with clips in its own code: an oracle."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert.training.layers import AddBias

TOKENS, PIXELS, WIDTH, CLASSES = 4, 3, 6, 3


class Block(nn.Module):
    """Pre-LN: one head of attention, then two linear maps."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.mix = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        read = self.norm1(x)
        query, key, value = self.query(read), self.key(read), self.value(read)
        weights = (query @ key.transpose(1, 2) * WIDTH**-0.5).softmax(-1)
        x = x + self.mix(weights @ value)
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


class Encoder(nn.Module):
    """Tokens of pixels → classes; two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(PIXELS, WIDTH)
        self.place = AddBias(TOKENS, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found = self.norm(self.blocks(self.place(self.embed(x))))
        logits: Tensor = self.head(found.mean(1))
        return logits


class _Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, radius: float) -> Tensor:
        ctx.radius = radius
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        return shrunk(cotangents[0], ctx.radius), None


def shrunk(x: Tensor, radius: float) -> Tensor:
    """One example."""
    return x * (radius / x.norm().clamp_min(radius))


def clipped(network: Encoder, radii) -> Encoder:
    """The same weights in layers that clip in `forward` itself, for one example at a time.

    radii: by layer, of its input (None: not clipped) and of its cotangent; layers that are not
    named clip nothing.
    """
    for name, (reads, receives) in radii.items():
        layer = network.get_submodule(name)
        plain = layer.forward

        def forward(
            x: Tensor, plain: Any = plain, reads: float | None = reads, receives: float = receives
        ) -> Tensor:
            return _Clip.apply(plain(x if reads is None else shrunk(x, reads)), receives)

        layer.forward = forward  # type: ignore[method-assign]
    return network


def example_gradients(network: Encoder, x: Tensor, label: int) -> dict[str, Tensor]:
    """Of the loss of one example, by trained parameter."""
    named = {name: p for name, p in network.named_parameters() if p.requires_grad}
    loss = functional.cross_entropy(network(x[None]), torch.tensor([label]))
    found = torch.autograd.grad(loss, list(named.values()))
    return dict(zip(named, found, strict=True))
