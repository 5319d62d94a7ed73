"""Networks as people write them, and with edits that suggestions name made by hand."""

import contextlib
import io
import logging
import tempfile
import warnings
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.importer.load import load_model
from lipcert.training.layers import BoundedGroupNorm, BoundedLayerNorm

_HELD: list[tempfile.TemporaryDirectory[str]] = []


class UnitNorm(nn.Module):
    """(x − m)/√(‖x − m‖² + 1), by group of channels or by token."""

    def __init__(self, groups: int | None = None) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        if self.groups is None:
            return F.layer_norm(x, x.shape[-1:], eps=1.0 / x.shape[-1]) * x.shape[-1] ** -0.5
        entries = x[0].numel() // self.groups
        return F.group_norm(x, self.groups, eps=1.0 / entries) * entries**-0.5


def normal(kind: str, channels: int, groups: int | None) -> nn.Module:
    match kind, groups:
        case "plain", None:
            return nn.LayerNorm(channels)
        case "plain", int():
            return nn.GroupNorm(groups, channels)
        case "floor", None:
            return BoundedLayerNorm(channels, 1.0)
        case "floor", int():
            return BoundedGroupNorm(groups, channels, 1.0)
        case "unit", _:
            return UnitNorm(groups)
        case "batch", _:
            return nn.BatchNorm2d(channels)
    return nn.Identity()


class ResNet(nn.Module):
    """Convolutions, normalisation, one residual sum, pooling, a linear head."""

    def __init__(
        self, norm: str = "plain", pool: str = "max", share: float = 1.0, bias: bool = True
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1, bias=bias)
        self.norm1 = normal(norm, 4, 1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1, bias=bias)
        self.norm2 = normal(norm, 4, 1)
        self.pool = nn.MaxPool2d(2) if pool == "max" else nn.AvgPool2d(2)
        self.act = nn.ReLU()
        self.fc = nn.Linear(16, 3)
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm1(self.conv1(x)))
        branch = self.act(self.norm2(self.conv2(x)))
        x = x + (branch if self.share == 1.0 else self.share * branch)
        return self.fc(self.pool(x).flatten(1))


class BatchNormed(ResNet):
    """The same as people write it first."""

    def __init__(self) -> None:
        super().__init__("batch")


class Transformer(nn.Module):
    """A block of attention and one of a perceptron on tokens of 4 features."""

    def __init__(
        self, norm: str = "plain", dot: float = 1.0, share: float = 1.0, cosine: bool = False
    ) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (normal(norm, 4, None) for _ in range(3))
        self.query, self.key, self.value, self.out = (nn.Linear(4, 4) for _ in range(4))
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.head = nn.Linear(4, 3)
        self.dot, self.share, self.cosine = dot, share, cosine

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm1(x)
        q, k, v = self.query(n), self.key(n), self.value(n)
        if self.cosine:
            q, k = _unit(q), _unit(k)
        scores = torch.softmax(self.dot * 4**-0.5 * (q @ k.transpose(1, 2)), -1)
        branch = self.out(scores @ v)
        x = x + (branch if self.share == 1.0 else self.share * branch)
        branch = self.down(F.gelu(self.up(self.norm2(x))))
        x = x + (branch if self.share == 1.0 else self.share * branch)
        return self.head(self.norm3(x).mean(1))


class Perceptron(nn.Module):
    """Three dense layers on 6 features."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        sizes = (6, 8), (8, 8), (8, 2)
        self.fc1, self.fc2, self.fc3 = (nn.Linear(*size, bias=bias) for size in sizes)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.act(self.fc2(self.act(self.fc1(x)))))


def _unit(x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1.0)


SHAPES = {ResNet: (1, 4, 4), BatchNormed: (1, 4, 4), Transformer: (3, 4), Perceptron: (6,)}


def made(kind: type[nn.Module], **edits: object) -> nn.Module:
    """The same weights for the same layers, whatever the edits."""
    torch.manual_seed(0)
    plain = kind()
    if not edits:
        return plain.eval()
    module = kind(**edits)
    known = module.state_dict()
    state = {name: t for name, t in plain.state_dict().items() if name in known}
    module.load_state_dict(state, strict=False)
    return module.eval()


@cache
def exported(kind: type[nn.Module], **edits: object):
    held = tempfile.TemporaryDirectory()
    _HELD.append(held)
    path = Path(held.name) / "model.onnx"
    export(made(kind, **edits), SHAPES[kind], path)
    return load_model(path)


def export(module: nn.Module, shape: tuple[int, ...], path: Path) -> None:
    """As the documentation tells people to."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                (torch.rand(2, *shape),),
                str(path),
                dynamo=True,
                optimize=False,
                dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=4096)},),
                external_data=False,
                verbose=False,
            )
    finally:
        logging.disable(logging.NOTSET)
