"""Five networks as people write them: torch's defaults, biases everywhere, the usual norm layers.

What enters: batches of examples. What leaves: logits. Nothing here knows of privacy; sizes are
small, so that hundreds of runs fit into an hour.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["M5", "PatchVit", "ResNet9", "TabularMlp", "TutorialCnn"]


class TutorialCnn(nn.Module):
    """Two convolutions with BatchNorm and max pooling, two dense layers; 1×8×8."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(32)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(32 * 2 * 2, 32)
        self.fc2 = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.bn1(self.conv1(x)).relu())  # 8 → 4
        x = self.pool(self.bn2(self.conv2(x)).relu())  # 4 → 2
        logits: Tensor = self.fc2(self.fc1(x.flatten(1)).relu())
        return logits


def _conv_block(channels_in: int, channels: int, *, is_pooled: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(channels_in, channels, 3, padding=1),
        nn.GroupNorm(min(4, channels // 4), channels),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if is_pooled else []))


class ResNet9(nn.Module):
    """Eight convolutions with GroupNorm, two residual blocks, a linear head; 1×8×8."""

    def __init__(self, classes: int = 10, width: int = 8) -> None:
        super().__init__()
        wide = 2 * width
        self.conv1 = _conv_block(1, width)
        self.conv2 = _conv_block(width, wide, is_pooled=True)  # 8 → 4
        self.res1 = nn.Sequential(_conv_block(wide, wide), _conv_block(wide, wide))
        self.conv3 = _conv_block(wide, wide)
        self.conv4 = _conv_block(wide, wide, is_pooled=True)  # 4 → 2
        self.res2 = nn.Sequential(_conv_block(wide, wide), _conv_block(wide, wide))
        self.head = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(wide, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(self.conv1(x))
        x = self.res1(x) + x
        x = self.conv4(self.conv3(x))
        x = self.res2(x) + x
        logits: Tensor = self.head(x)
        return logits


class M5(nn.Module):
    """Four 1-d convolutions with BatchNorm and pooling, averaged over time; 1×256 samples."""

    def __init__(self, classes: int = 6, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(1, width, 32, stride=4, padding=14)  # 256 → 64
        self.bn1 = nn.BatchNorm1d(width)
        self.pool1 = nn.MaxPool1d(4)  # 64 → 16
        self.conv2 = nn.Conv1d(width, width, 3, padding=1)
        self.bn2 = nn.BatchNorm1d(width)
        self.pool2 = nn.MaxPool1d(2)  # 16 → 8
        self.conv3 = nn.Conv1d(width, 2 * width, 3, padding=1)
        self.bn3 = nn.BatchNorm1d(2 * width)
        self.pool3 = nn.MaxPool1d(2)  # 8 → 4
        self.conv4 = nn.Conv1d(2 * width, 2 * width, 3, padding=1)
        self.bn4 = nn.BatchNorm1d(2 * width)
        self.pool4 = nn.MaxPool1d(2)  # 4 → 2
        self.average = nn.AdaptiveAvgPool1d(1)
        self.fc1 = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.bn1(self.conv1(x)).relu())
        x = self.pool2(self.bn2(self.conv2(x)).relu())
        x = self.pool3(self.bn3(self.conv3(x)).relu())
        x = self.pool4(self.bn4(self.conv4(x)).relu())
        logits: Tensor = self.fc1(self.average(x).flatten(1))
        return logits


class TabularMlp(nn.Module):
    """Three dense layers with ReLU on 30 columns."""

    def __init__(self, columns: int = 30, classes: int = 2, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(columns, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


class _Encoder(nn.Module):
    """Pre-norm: attention with several heads, then a perceptron on each token."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attended(self.norm1(x))
        encoded: Tensor = x + self.mlp(self.norm2(x))
        return encoded

    def _attended(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).chunk(3, dim=-1)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
        mixed = scores.softmax(dim=-1) @ value
        attended: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return attended


class PatchVit(nn.Module):
    """Vision transformer on 16 patches of 2×2 pixels, learned positions, mean over tokens."""

    def __init__(self, classes: int = 10, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.position = nn.Parameter(torch.randn(1, 16, width))
        self.blocks = nn.Sequential(*(_Encoder(width, heads=2) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        x = self.norm(self.blocks(x))
        logits: Tensor = self.head(x.mean(dim=1))
        return logits
