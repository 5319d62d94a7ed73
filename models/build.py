"""Trains the networks of `architectures.py` on the digits and writes them as .onnx files.

    python -m models.build                 all shipped files
    python -m models.build digits_mlp      only these
    python -m models.build --full-width    stevens_cifar with the paper's widths (116 MB)

Seeds, thread count and export options are fixed: on one machine and one torch release the files
come out byte for byte the same.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import onnx
import torch
from torch import Tensor, nn

from models.architectures import ARCHITECTURES, StevensCifar
from models.data import Split, digit_images

__all__ = ["main"]

FOLDER: Final = Path(__file__).resolve().parent
SEED: Final = 20240229
BATCH: Final = 64
OPSET: Final = 21  # the first with GroupNormalization as torch defines it
LEGACY_OPSET: Final = 20  # the last that TorchScript export knows

KEPT_GRAPH_METADATA: Final = frozenset({"pkg.torch.export.ExportedProgram.graph_signature"})
KEPT_NODE_METADATA: Final = frozenset({"pkg.torch.onnx.fx_node", "namespace"})


@final
@dataclass(frozen=True, slots=True)
class Recipe:
    """How one network is trained and exported.

    orthogonal: project every weight matrix to the nearest orthogonal one after each step.
    temperature: the loss is cross-entropy of temperature · logits (1-Lipschitz networks need it).
    legacy: export by TorchScript instead of torch.export.
    """

    epochs: int
    learning_rate: float = 3e-3
    orthogonal: bool = False
    temperature: float = 1.0
    legacy: bool = False


RECIPES: Final[dict[str, Recipe]] = {
    "digits_mlp": Recipe(epochs=30),
    "digits_orthogonal_mlp": Recipe(epochs=30, orthogonal=True, temperature=8.0),
    "digits_cnn": Recipe(epochs=40),
    "digits_lipschitz_cnn": Recipe(epochs=40, orthogonal=True, temperature=16.0, legacy=True),
    "digits_resnet_groupnorm": Recipe(epochs=20),
    "digits_mixer": Recipe(epochs=60, learning_rate=5e-3),
    "digits_vit": Recipe(epochs=80, learning_rate=5e-3),
    "stevens_mnist": Recipe(epochs=10, legacy=True),
    "stevens_cifar": Recipe(epochs=3, learning_rate=1e-3),
}


def main() -> None:
    """Write the requested files and print one line for each."""
    parser = argparse.ArgumentParser(description="Regenerate the example networks.")
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--full-width", action="store_true", help="untrained stevens_cifar, 116 MB")
    parser.add_argument("--output", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if arguments.full_width:
        torch.manual_seed(SEED)
        export(StevensCifar(), arguments.output / "stevens_cifar_full.onnx", legacy=False)
        return
    for name in arguments.names or RECIPES:
        print(build(name, arguments.output), flush=True)


def build(name: str, folder: Path) -> str:
    """Train and write one network; the line to print about it."""
    recipe = RECIPES[name]
    started = time.perf_counter()
    torch.manual_seed(SEED)
    network = ARCHITECTURES[name]()
    data = digit_images(input_shape(network))
    train(network, data, recipe)
    path = folder / f"{name}.onnx"
    export(network, path, legacy=recipe.legacy)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return (
        f"{path.name:32} {parameters:8,} parameters  {path.stat().st_size:9,} bytes  "
        f"test accuracy {accuracy(network, data):.1%}  {time.perf_counter() - started:.0f} s"
    )


def input_shape(network: nn.Module) -> tuple[int, ...]:
    """Shape of one example."""
    shape = network.input_shape
    if not isinstance(shape, tuple):
        raise TypeError(f"{type(network).__name__} declares no input shape")
    return shape


def train(network: nn.Module, data: Split, recipe: Recipe) -> None:
    """Minimise cross-entropy by Adam with a cosine schedule."""
    optimizer = torch.optim.Adam(network.parameters(), lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.epochs)
    for _ in range(recipe.epochs):
        for batch in torch.randperm(len(data.images)).split(BATCH):
            logits = network(data.images[batch])
            loss = nn.functional.cross_entropy(recipe.temperature * logits, data.labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if recipe.orthogonal:
                orthogonalise(network)
        schedule.step()
    network.eval()


@torch.no_grad()
def orthogonalise(network: nn.Module) -> None:
    """Replace every weight, as a matrix [out, in·kh·kw], by its orthogonal polar factor."""
    for weight in network.parameters():
        left, _, right = torch.linalg.svd(weight.flatten(1).double(), full_matrices=False)
        weight.copy_((left @ right).reshape(weight.shape))


@torch.no_grad()
def accuracy(network: nn.Module, data: Split) -> float:
    """Share of the test images that are classified correctly."""
    predicted: Tensor = network(data.test_images).argmax(dim=1)
    return float((predicted == data.test_labels).double().mean())


def export(network: nn.Module, path: Path, *, legacy: bool) -> None:
    """Write the network with its state_dict names and a free batch size."""
    network.eval()
    example = torch.zeros(2, *input_shape(network))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if legacy:
            torch.onnx.export(
                network,
                (example,),
                path,
                dynamo=False,
                opset_version=LEGACY_OPSET,
                do_constant_folding=False,
                dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
                input_names=["image"],
                output_names=["logits"],
            )
        else:
            torch.onnx.export(
                network,
                (example,),
                path,
                dynamo=True,
                optimize=False,
                external_data=False,
                opset_version=OPSET,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
                input_names=["image"],
                output_names=["logits"],
            )
    strip_traces(path)


def strip_traces(path: Path) -> None:
    """Drop stack traces and every other note that quotes the machine that exported the file."""
    model = onnx.load(path)
    keep_metadata(model.graph, KEPT_GRAPH_METADATA)
    del model.metadata_props[:]
    for part in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        del part.metadata_props[:]
    for tensor in model.graph.initializer:
        del tensor.metadata_props[:]
    for node in model.graph.node:
        keep_metadata(node, KEPT_NODE_METADATA)
        node.doc_string = ""
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


def keep_metadata(part: onnx.GraphProto | onnx.NodeProto, kept: frozenset[str]) -> None:
    """Keep only these keys."""
    entries = [(entry.key, entry.value) for entry in part.metadata_props if entry.key in kept]
    del part.metadata_props[:]
    for key, value in entries:
        part.metadata_props.add(key=key, value=value)


if __name__ == "__main__":
    main()
