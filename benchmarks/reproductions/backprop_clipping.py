"""Stevens et al. (2022), Theorem 3: clips of input and cotangent bound a convolution's gradient.

What enters: convolutions with all kinds of borders, an input with ‖x‖₂ ≤ β, an upstream cotangent g
with √Σ_c (Σ_i |g_ci|)² ≤ C. What leaves: the kernel's gradient over βC where it is largest, the
largest of 100 random trials, and what LipCert answers.

With these norms the largest gradient is known: g sits on one position of one channel, x on the
pixel that the window of that position reads most often, r times say: then it is √r·βC.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor
from torch.nn import functional

from benchmarks.reproductions.networks import new_file
from benchmarks.reproductions.rows import Row, Verdict
from lipcert import ImportedModel, Settings, UnsupportedModelError, load_model
from lipcert.analysis.bounded import bounded

__all__ = ["rows"]

CHANNELS, OUTPUTS, SIZE = 2, 4, 6
INPUT_CLIP, COTANGENT_CLIP = 3.0, 0.5
TRIALS: Final = 100
SEED: Final = 0
TORCH_MODES: Final = {
    "constant": "constant",
    "wrap": "circular",
    "reflect": "reflect",
    "edge": "replicate",
}
"""by the names of ONNX"""


@final
@dataclass(frozen=True, slots=True)
class Borders:
    """A convolution of 2 × 6 × 6 images. claimed: whether the paper speaks of it."""

    name: str
    mode: str = "constant"
    pad: int = 0
    taps: int = 3
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    claimed: bool = False

    @property
    def kernel(self) -> tuple[int, int, int, int]:
        """Shape of the kernel."""
        return OUTPUTS, CHANNELS // self.groups, self.taps, self.taps

    def convolved(self, x: Tensor, kernel: Tensor) -> Tensor:
        """By torch."""
        padded = functional.pad(x, [self.pad] * 4, mode=TORCH_MODES[self.mode])
        return functional.conv2d(
            padded, kernel, stride=self.stride, dilation=self.dilation, groups=self.groups
        )

    def imported(self) -> ImportedModel:
        """The same for LipCert, with a bias."""
        conv: dict[str, Any] = {
            "strides": [self.stride] * 2,
            "dilations": [self.dilation] * 2,
            "group": self.groups,
        }
        pads = np.array([0, 0, self.pad, self.pad] * 2)
        tensors = {
            "kernel": np.ones(self.kernel, np.float32),
            "bias": np.zeros(OUTPUTS, np.float32),
            "pads": pads,
        }
        nodes = [
            helper.make_node("Pad", ["x", "pads"], ["padded"], "pad", mode=self.mode),
            helper.make_node("Conv", ["padded", "kernel", "bias"], ["y"], "conv", **conv),
        ]
        image: list[str | int | None] = ["N", CHANNELS, SIZE, SIZE]
        graph = helper.make_graph(
            nodes,
            "convolution",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", OUTPUTS, None, None])],
            [numpy_helper.from_array(array, name) for name, array in tensors.items()],
        )
        path = new_file()
        opset = [helper.make_opsetid("", 20)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
        return load_model(path, trusted=True)


CASES: Final = (
    Borders("no padding", claimed=True),
    Borders("circular padding", "wrap", pad=1, claimed=True),
    Borders("zero padding", pad=1),
    Borders("zero padding, stride 2", pad=1, stride=2),
    Borders("zero padding, dilation 2", pad=2, dilation=2),
    Borders("zero padding, 2 groups", pad=1, groups=2),
    Borders("reflected borders", "reflect", pad=1),
    Borders("repeated borders", "edge", pad=1),
    Borders("repeated borders, 5 × 5", "edge", pad=2, taps=5),
)


def rows() -> Iterator[Row]:
    """Every kind of border."""
    torch.manual_seed(SEED)
    for case in CASES:
        yield row(case)


def row(case: Borders) -> Row:
    """What is attained, what is proved."""
    attained, tried = largest(case), max(random_ratio(case) for _ in range(TRIALS))
    answer = proved(case)
    answered = "refuses" if answer is None else f"proves {answer:.4f}"
    found = f"attained {attained:.4f}, at random at most {tried:.4f}; LipCert {answered}"
    claim = "at most 1" if case.claimed else "none made"
    return Row(case.name, claim, found, verdict(case, attained, tried))


def verdict(case: Borders, attained: float, tried: float) -> Verdict:
    """Whether βC is a bound there."""
    holds = max(attained, tried) <= 1.0 + 1e-9
    if case.claimed:
        return Verdict.of(holds)
    return Verdict.WIDER if holds else Verdict.FAILS


def ratio(case: Borders, x: Tensor, g: Tensor) -> float:
    """‖∂⟨g, conv(x)⟩/∂kernel‖ over βC, after both clips."""
    x = x * (INPUT_CLIP / x.norm()).clamp(max=1.0)
    channels = g.abs().sum(dim=(2, 3)).norm()
    g = g * (COTANGENT_CLIP / channels).clamp(max=1.0)
    kernel = torch.zeros(case.kernel, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(case.convolved(x, kernel), kernel, g)
    return float(gradient.norm()) / (INPUT_CLIP * COTANGENT_CLIP)


def largest(case: Borders) -> float:
    """The ratio at the worst pixel and position, found by counting reads."""
    best = 0.0
    ones = torch.ones(case.kernel, dtype=torch.float64)
    for pixel in range(SIZE * SIZE):
        x = torch.zeros(1, CHANNELS, SIZE, SIZE, dtype=torch.float64)
        x[0, 0].view(-1)[pixel] = 10.0 * INPUT_CLIP
        reads = case.convolved(x, ones)
        g = torch.zeros_like(reads)
        g.view(-1)[int(reads[0].flatten().argmax())] = 10.0 * COTANGENT_CLIP
        best = max(best, ratio(case, x, g))
    return best


def random_ratio(case: Borders) -> float:
    """The ratio at a random input and a random cotangent, sparse or dense, long or short."""
    shape = case.convolved(
        torch.zeros(1, CHANNELS, SIZE, SIZE, dtype=torch.float64),
        torch.zeros(case.kernel, dtype=torch.float64),
    ).shape
    return ratio(case, _random((1, CHANNELS, SIZE, SIZE)), _random(shape))


def _random(shape: tuple[int, ...]) -> Tensor:
    kept = torch.rand(shape, dtype=torch.float64) < torch.rand(())
    length = math.exp(float(torch.randn(()))) * 10.0
    return torch.randn(shape, dtype=torch.float64) * kept * length


def proved(case: Borders) -> float | None:
    """LipCert's bound of the kernel's gradient over βC; None where it refuses."""
    settings = Settings(
        loss="mae",
        output_reduction="sum",
        input_norm=100.0,
        mechanism="backprop-clipping",
        input_clip=INPUT_CLIP,
        cotangent_clip=COTANGENT_CLIP,
    )
    try:
        found = bounded(case.imported(), settings).grad_norms["kernel"]
    except UnsupportedModelError:
        return None
    return found / (INPUT_CLIP * COTANGENT_CLIP)
