"""Each shipped file holds the network it claims to hold, and nothing about who wrote it."""

import re

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from models.architectures import L2Pool, MaxMin, StevensCifar
from tests.models.shipped import FOLDER, NAMES, digits, initializers, module, path_of


def run(name: str, images: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path_of(name), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: images})[0]


def test_one_file_per_architecture() -> None:
    assert {path.stem for path in FOLDER.glob("*.onnx")} == set(NAMES)


def test_files_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.glob("*.onnx")) < 6_000_000


@pytest.mark.parametrize("name", NAMES)
def test_parameters_carry_their_torch_names(name: str) -> None:
    expected = {key: value.shape for key, value in module(name).state_dict().items()}
    assert {key: value.shape for key, value in initializers(name).items()} == expected


@pytest.mark.parametrize("name", NAMES)
def test_torch_and_onnxruntime_agree(name: str) -> None:
    network = module(name, torch.float32)
    noise = torch.rand(7, *network.input_shape, generator=torch.Generator().manual_seed(1))
    for images in (digits(network.input_shape).test_images[:16], noise, noise[:1]):
        with torch.no_grad():
            expected = network(images).numpy()
        np.testing.assert_allclose(run(name, images.numpy()), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_network_was_trained(name: str) -> None:
    network = module(name, torch.float32)
    split = digits(network.input_shape)
    predicted = run(name, split.test_images.numpy()).argmax(axis=1)
    assert np.mean(predicted == split.test_labels.numpy()) > 0.85


@pytest.mark.parametrize("name", NAMES)
def test_no_trace_of_the_exporting_machine(name: str) -> None:
    model = onnx.load(path_of(name))
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
    text = model.SerializeToString()
    assert not re.search(rb"/home|/root|/usr|/tmp|[A-Z]:\\|\.py\b|stack_trace", text)


@pytest.mark.parametrize("name", ["digits_orthogonal_mlp", "digits_lipschitz_cnn"])
def test_weights_are_orthogonal(name: str) -> None:
    for weight in initializers(name).values():
        singular = torch.linalg.svdvals(weight.double().flatten(1))
        assert torch.allclose(singular, torch.ones_like(singular), atol=1e-6)


def test_maxmin_permutes_and_pooling_keeps_the_norm() -> None:
    x = torch.randn(3, 6, 4, 4, generator=torch.Generator().manual_seed(2))
    assert torch.equal(MaxMin()(x).flatten(1).sort().values, x.flatten(1).sort().values)
    torch.testing.assert_close(L2Pool()(x).flatten(1).norm(dim=1), x.flatten(1).norm(dim=1))


def test_full_width_cifar_network_has_the_sizes_of_the_figure() -> None:
    with torch.device("meta"):
        network = StevensCifar()
    sizes = {name: tuple(value.shape) for name, value in network.named_parameters()}
    assert sizes["stage1.0.weight"] == (32, 3, 2, 2)
    assert sizes["stage4.2.weight"] == (256, 256, 2, 2)
    assert sizes["dense.weight"] == (256, 256 * 21 * 21)
