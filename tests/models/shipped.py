"""The shipped files as torch modules: architecture from the source, weights from the file."""

from functools import cache
from pathlib import Path

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import lipcert
from lipcert import Analysis, Settings
from models.architectures import ARCHITECTURES
from models.data import Split, digit_images

FOLDER = Path(__file__).resolve().parents[2] / "models"
NAMES = tuple(ARCHITECTURES)
LARGE = ("digits_mixer", "stevens_cifar")
CASES = [pytest.param(name, marks=[pytest.mark.nightly] * (name in LARGE)) for name in NAMES]
"""all of them, of which the large ones are analysed at night"""


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.onnx"


@cache
def graph_of(name: str):
    """As the importer reads it, in this process: what it does in another is tested elsewhere."""
    return lipcert.load_model(path_of(name), trusted=True).graph


@cache
def analysis_of(name: str) -> Analysis:
    """By default settings."""
    return lipcert.analyze(lipcert.load_model(path_of(name)), Settings())


@cache
def initializers(name: str):
    graph = onnx.load(path_of(name)).graph
    return {
        tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy())
        for tensor in graph.initializer
    }


def module(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    network = ARCHITECTURES[name]()
    network.load_state_dict(dict(initializers(name)), strict=True)
    return network.to(dtype).eval()


@cache
def digits(shape: tuple[int, ...]) -> Split:
    return digit_images(shape)


def gradient_norms(network: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """‖∂ cross-entropy / ∂θ‖₂ of every parameter θ, for each example [n]; differentiable."""
    parameters = {name: value.detach() for name, value in network.named_parameters()}

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(network, weights, (image[None],))
        return nn.functional.cross_entropy(logits, label[None])

    per_example = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, images, labels)
    return {name: value.flatten(1).norm(dim=1) for name, value in per_example.items()}
