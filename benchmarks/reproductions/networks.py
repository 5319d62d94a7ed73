"""Small dense networks as anybody would hand them to LipCert: a torch module, an ONNX file.

What enters: depth, activation, weights. What leaves: the imported model.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from lipcert import ImportedModel, load_model
from models.build import export

__all__ = ["WIDTH", "DenseNetwork", "imported", "new_file", "orthogonal_"]

WIDTH: Final = 8


class DenseNetwork(nn.Module):
    """`depth` dense layers of width 8, the activation between them."""

    input_shape = (WIDTH,)

    def __init__(
        self, depth: int, activation: nn.Module, *, bias: bool, outputs: int = WIDTH
    ) -> None:
        super().__init__()
        widths = [WIDTH] * depth + [outputs]
        self.layers = nn.ModuleList(
            nn.Linear(before, after, bias=bias) for before, after in itertools.pairwise(widths)
        )
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """[examples, 8] → logits [examples, outputs]."""
        for k, layer in enumerate(self.layers):
            x = layer(x if k == 0 else self.activation(x))
        return x


@torch.no_grad()
def orthogonal_(network: nn.Module) -> None:
    """Give every weight orthonormal rows, at random."""
    for parameter in network.parameters():
        if parameter.ndim == 2:
            nn.init.orthogonal_(parameter)


_FOLDER: Final = tempfile.TemporaryDirectory()
_NUMBERS: Final = itertools.count()


def imported(network: nn.Module) -> ImportedModel:
    """The module, exported and read again."""
    path = new_file()
    export(network, path, legacy=True)
    return load_model(path, trusted=True)


def new_file() -> Path:
    """Where a model may be written, which lies there as long as this process runs."""
    return Path(_FOLDER.name) / f"{next(_NUMBERS)}.onnx"
