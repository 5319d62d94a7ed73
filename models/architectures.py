"""The networks behind the shipped .onnx files, as plain torch modules.

What enters: nothing. What leaves: untrained modules whose state_dict names are the parameter names
of the files. Every network maps a batch of images in [0, 1] to 10 logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

__all__ = [
    "ARCHITECTURES",
    "DigitsCnn",
    "DigitsLipschitzCnn",
    "DigitsMixer",
    "DigitsMlp",
    "DigitsOrthogonalMlp",
    "DigitsResnet",
    "DigitsVit",
    "L2Pool",
    "MaxMin",
    "StevensCifar",
    "StevensMnist",
]

CLASSES: Final = 10

NORM_EPSILON: Final = 0.25
"""Added to the variance by every normalisation layer: its Jacobian norm is at most 1/√0.25 = 2.

The usual 1e-5 would allow 316 per layer, and certified bounds grow by that factor.
"""


class MaxMin(nn.Module):
    """GroupSort with groups of two along axis 1: each pair becomes (larger, smaller).

    A permutation of the entries at every point, hence norm-preserving and 1-Lipschitz.
    """

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[1] // 2
        first, second = x[:, :half], x[:, half:]
        return torch.cat([torch.maximum(first, second), torch.minimum(first, second)], dim=1)


class _LpPool2(torch.autograd.Function):
    """√(Σ x²) over 2×2 windows with stride 2, which torch alone exports as seven nodes."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        del ctx
        return l2_pool(x)

    @staticmethod
    def symbolic(g: torch._C.Graph, x: torch._C.Value) -> torch._C.Value:
        pooled: torch._C.Value = g.op("LpPool", x, kernel_shape_i=[2, 2], strides_i=[2, 2], p_i=2)
        return pooled


def l2_pool(x: Tensor) -> Tensor:
    """Euclidean norm of each 2×2 window; the derivative at the zero window is taken as 0."""
    n, channels, height, width = x.shape
    windows = x.reshape(n, channels, height // 2, 2, width // 2, 2)
    energy = windows.square().sum(dim=(3, 5))
    is_zero = energy == 0.0
    return torch.where(is_zero, 0.0, torch.where(is_zero, 1.0, energy).sqrt())


class L2Pool(nn.Module):
    """Norm-preserving pooling (Boureau et al. 2010): 2×2 windows, stride 2."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            n, channels, height, width = x.shape
            windows = x.reshape(n, channels, height // 2, 2, width // 2, 2)
            length: Tensor = torch.linalg.vector_norm(windows, dim=(3, 5))
            return length
        if torch.onnx.is_in_onnx_export():
            pooled: Tensor = _LpPool2.apply(x)
            return pooled
        return l2_pool(x)


class DigitsMlp(nn.Module):
    """64 → 128 → 64 → 10, ReLU."""

    input_shape = (64,)

    def __init__(self) -> None:
        super().__init__()
        self.hidden1 = nn.Linear(64, 128)
        self.hidden2 = nn.Linear(128, 64)
        self.classifier = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden1(x).relu()
        x = self.hidden2(x).relu()
        logits: Tensor = self.classifier(x)
        return logits


class DigitsOrthogonalMlp(nn.Module):
    """64 → 64 → 64 → 64 → 10, MaxMin, orthogonal weights, no bias.

    Every layer preserves norms in both directions, so the product bound of each gradient is
    attained (Béthune et al. 2024).
    """

    input_shape = (64,)

    def __init__(self) -> None:
        super().__init__()
        self.hidden1 = nn.Linear(64, 64, bias=False)
        self.hidden2 = nn.Linear(64, 64, bias=False)
        self.hidden3 = nn.Linear(64, 64, bias=False)
        self.classifier = nn.Linear(64, CLASSES, bias=False)
        self.sort = MaxMin()

    def forward(self, x: Tensor) -> Tensor:
        for hidden in (self.hidden1, self.hidden2, self.hidden3):
            x = self.sort(hidden(x))
        logits: Tensor = self.classifier(x)
        return logits


class DigitsCnn(nn.Module):
    """Two convolutions (padding, stride 2), max pooling, average pooling."""

    input_shape = (1, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.pool1 = nn.MaxPool2d(2)  # 8 → 4
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)  # 4 → 2
        self.pool2 = nn.AvgPool2d(2)  # 2 → 1
        self.classifier = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.conv1(x).relu())
        x = self.pool2(self.conv2(x).relu())
        logits: Tensor = self.classifier(x.flatten(1))
        return logits


class DigitsLipschitzCnn(nn.Module):
    """Orthogonal convolutions with stride = kernel, MaxMin, norm-preserving pooling, no bias.

    With disjoint windows the operator norm of a convolution is that of its weight matrix
    [out, in·kh·kw], so orthogonal rows or columns make every layer exactly 1-Lipschitz.
    """

    input_shape = (1, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 2, stride=2, bias=False)  # 8 → 4
        self.conv2 = nn.Conv2d(16, 16, 1, bias=False)
        self.conv3 = nn.Conv2d(16, 64, 2, stride=2, bias=False)  # 4 → 2
        self.classifier = nn.Linear(64, CLASSES, bias=False)
        self.sort = MaxMin()
        self.pool = L2Pool()  # 2 → 1

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.conv1, self.conv2, self.conv3):
            x = self.sort(conv(x))
        logits: Tensor = self.classifier(self.pool(x).flatten(1))
        return logits


class ResidualBlock(nn.Module):
    """relu(shortcut(x) + norm(conv(relu(norm(conv(x))))))."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(4, channels, eps=NORM_EPSILON)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(4, channels, eps=NORM_EPSILON)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.norm1(self.conv1(x)).relu()
        branch = self.norm2(self.conv2(branch))
        total: Tensor = self.shortcut(x) + branch
        return total.relu()


class DigitsResnet(nn.Module):
    """Stem, one plain and one strided residual block, global average pooling."""

    input_shape = (1, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(4, 16, eps=NORM_EPSILON)
        self.block1 = ResidualBlock(16, 16, stride=1)
        self.block2 = ResidualBlock(16, 32, stride=2)  # 8 → 4
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        x = self.block2(self.block1(x))
        logits: Tensor = self.classifier(self.pool(x).flatten(1))
        return logits


class Perceptron(nn.Module):
    """Two dense layers with GELU, along the last axis."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Linear(width, hidden)
        self.gelu = nn.GELU()
        self.contract = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        contracted: Tensor = self.contract(self.gelu(self.expand(x)))
        return contracted


class Patches(nn.Module):
    """2×2 patches of an 8×8 image as 16 tokens [16, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.embed(x).flatten(2).transpose(1, 2)
        return tokens


class MixerBlock(nn.Module):
    """Mixes tokens, then channels (Tolstikhin et al. 2021)."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.mix_tokens = Perceptron(tokens, 2 * tokens)
        self.norm2 = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.mix_channels = Perceptron(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        mixed: Tensor = x + self.mix_channels(self.norm2(x))
        return mixed


class DigitsMixer(nn.Module):
    """MLP-Mixer with two blocks on 16 tokens of width 16."""

    input_shape = (1, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.patches = Patches(16)
        self.block1 = MixerBlock(tokens=16, width=16)
        self.block2 = MixerBlock(tokens=16, width=16)
        self.classifier = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block2(self.block1(self.patches(x)))
        logits: Tensor = self.classifier(x.mean(dim=1))
        return logits


class Attention(nn.Module):
    """Scaled dot-product attention with several heads, spelled out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        mixed = scores.softmax(dim=-1) @ value  # [n, heads, tokens, width / heads]
        merged: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return merged

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class EncoderBlock(nn.Module):
    """Attention, then a perceptron on each token, both with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.perceptron = Perceptron(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        encoded: Tensor = x + self.perceptron(self.norm2(x))
        return encoded


class DigitsVit(nn.Module):
    """Vision transformer: 16 tokens of width 16, two blocks of two heads, mean over tokens."""

    input_shape = (1, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.patches = Patches(16)
        self.position = nn.Parameter(torch.empty(1, 16, 16))
        nn.init.normal_(self.position, std=0.02)
        self.block1 = EncoderBlock(16, heads=2)
        self.block2 = EncoderBlock(16, heads=2)
        self.norm = nn.LayerNorm(16, eps=NORM_EPSILON)
        self.classifier = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x) + self.position
        x = self.norm(self.block2(self.block1(x)))
        logits: Tensor = self.classifier(x.mean(dim=1))
        return logits


class StevensMnist(nn.Module):
    """Figure 3 of Stevens et al. 2022: no padding, no bias, ReLU.

    The figure leaves the stride of the pooling open; without padding only stride 1 fits 28×28.
    """

    input_shape = (1, 28, 28)

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, stride=2, bias=False)  # 28 → 11
        self.pool1 = nn.MaxPool2d(2, stride=1)  # 11 → 10
        self.conv2 = nn.Conv2d(16, 32, 4, stride=2, bias=False)  # 10 → 4
        self.pool2 = nn.MaxPool2d(2, stride=1)  # 4 → 3
        self.dense = nn.Linear(32 * 3 * 3, 32, bias=False)
        self.classifier = nn.Linear(32, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.conv1(x).relu())
        x = self.pool2(self.conv2(x).relu())
        x = self.dense(x.flatten(1)).relu()
        logits: Tensor = self.classifier(x)
        return logits


class StevensCifar(nn.Module):
    """Figure 4 of Stevens et al. 2022: no padding, no bias, ReLU.

    `width` filters in the first stage, doubled by each of the next three; the figure has 32.
    """

    input_shape = (3, 32, 32)

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stage1 = self._stage(3, width)  # 32 → 30
        self.stage2 = self._stage(width, 2 * width)  # 29 → 27
        self.stage3 = self._stage(2 * width, 4 * width)  # 26 → 24
        self.stage4 = self._stage(4 * width, 8 * width)  # 23 → 21
        self.pool = nn.AvgPool2d(2, stride=1)
        self.dense = nn.Linear(8 * width * 21 * 21, 8 * width, bias=False)
        self.classifier = nn.Linear(8 * width, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.stage1(x))
        x = self.pool(self.stage2(x))
        x = self.pool(self.stage3(x))
        x = self.dense(self.stage4(x).flatten(1)).relu()
        logits: Tensor = self.classifier(x)
        return logits

    @staticmethod
    def _stage(channels_in: int, channels: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels_in, channels, 2, bias=False),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 2, bias=False),
            nn.ReLU(),
        )


def _narrow_stevens_cifar() -> StevensCifar:
    return StevensCifar(width=4)


ARCHITECTURES: Final[dict[str, Callable[[], nn.Module]]] = {
    "digits_mlp": DigitsMlp,
    "digits_orthogonal_mlp": DigitsOrthogonalMlp,
    "digits_cnn": DigitsCnn,
    "digits_lipschitz_cnn": DigitsLipschitzCnn,
    "digits_resnet_groupnorm": DigitsResnet,
    "digits_mixer": DigitsMixer,
    "digits_vit": DigitsVit,
    "stevens_mnist": StevensMnist,
    "stevens_cifar": _narrow_stevens_cifar,
}
"""The module of each shipped file, by file name without its ending."""
