"""Exported, imported, analysed and certified: the constants of the docstrings come out again."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from lipcert.analysis.certificate import certify
from lipcert.analysis.pipeline import analyze
from lipcert.measure.lowering.network import LoweredNetwork
from lipcert.settings.settings import ConstraintSpec, Settings
from lipcert.training import layers
from lipcert.training.network import trained_network

RADIUS = 2.0
BIAS = 0.5


@dataclass(frozen=True)
class Net:
    """Layers between orthogonal ones, so that the product of their constants is the truth.

    kinds: of the ops that the layers become. lipschitz, output: what the network is bounded by,
    for inputs of norm 2 and weights of spectral norm 1; biases of norm ½.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    kinds: frozenset[str]
    lipschitz: float
    output: float


def dense(before: int, after: int) -> nn.Linear:
    layer = nn.Linear(before, after, bias=False)
    nn.init.orthogonal_(layer.weight)
    return layer


def around(*parts: nn.Module, size: int, after: int | None = None) -> nn.Sequential:
    return nn.Sequential(dense(size, size), *parts, nn.Flatten(), dense(after or size, 4))


def net(
    *parts: Callable[[], nn.Module],
    shape: tuple[int, ...],
    kinds: str,
    lipschitz: float = 1.0,
    output: float = RADIUS,
    after: int | None = None,
) -> Net:
    size = shape[-1]

    def make() -> nn.Module:
        torch.manual_seed(2)
        return around(*(layer() for layer in parts), size=size, after=after)

    return Net(make, shape, frozenset(kinds.split()), lipschitz, output)


NETS = {
    "vectors": net(
        lambda: layers.GroupSort(4),
        layers.MaxMin,
        lambda: layers.Householder((1.0, 2.0, -0.5)),
        layers.LayerCentering,
        lambda: layers.Residual(nn.Sequential(dense(12, 12), layers.MaxMin())),
        shape=(12,),
        kinds="Add Centre Dense PRelu Sort",
        lipschitz=2.0,
        output=2.0 * RADIUS,
    ),
    "maps": net(
        lambda: layers.GroupSort(2),
        layers.MaxMin,
        lambda: layers.Householder((1.0, -2.0)),
        lambda: layers.LayerCentering((1,)),
        lambda: layers.ScaledL2NormPool2d((2, 3)),
        lambda: layers.AddBias(4),
        shape=(4, 5, 4),
        after=8,
        kinds="Centre Dense PRelu ReduceNorm Shift Sort",
        output=RADIUS + math.sqrt(2.0) * BIAS,
    ),
    "group norms": net(
        lambda: layers.BoundedGroupNorm(2, 4, 0.5),
        lambda: layers.BoundedGroupNorm(2, 4, 0.5, affine=True),
        shape=(4, 2, 2),
        after=16,
        kinds="Centre DivideByNorm Scale Shift",
        lipschitz=4.0,
        output=4.0 + 2.0 * BIAS,
    ),
    "inputs and layer norms": net(
        lambda: layers.InputNormalization(0.7, 0.1),
        lambda: layers.InputClip(0.3),
        lambda: layers.BoundedLayerNorm(4, 0.1),
        lambda: layers.BoundedLayerNorm((9, 4), 0.4, affine=True),
        shape=(9, 4),
        after=36,
        kinds="Centre DivideByNorm Scale Shift",
        lipschitz=7.0 * 10.0 * 2.5,
        output=6.0 + BIAS,
    ),
    "unit groups": net(
        lambda: layers.UnitGroupNorm(2, 4),
        shape=(4, 2, 2),
        after=16,
        kinds="Normalize Scale Shift",
        output=1.0 / math.sqrt(1 / 2 + 1 / RADIUS**2),
    ),
    "unit tokens": net(
        lambda: layers.UnitLayerNorm(4),
        lambda: layers.ScaledResidual(nn.Sequential(dense(4, 4), nn.ReLU()), depth=2),
        shape=(9, 4),
        after=36,
        kinds="Activation Add Dense Normalize Scale",
        lipschitz=1.25,
        output=1.25 / math.sqrt(1 / 9 + 1 / RADIUS**2),
    ),
    "positions": net(
        lambda: layers.AddBias(4, 6), shape=(4, 6), after=24, kinds="Shift", output=RADIUS + BIAS
    ),
    "mixer": net(
        lambda: layers.MixerBlock(4, 6, half_residual=True),
        shape=(4, 6),
        after=24,
        kinds="Add Dense Scale Sort",
    ),
}


def settings(**changes: object) -> Settings:
    return Settings(input_norm=RADIUS, loss="cross-entropy", **changes)  # type: ignore[arg-type]


def imported(found: Net, folder):
    module = found.make().eval()
    network = trained_network(module, torch.zeros(2, *found.shape), folder / "net.onnx")
    return module, network.model


def inner_kinds(model) -> set[str]:
    """Of what lies between the first and the last dense layer, flattening left out."""
    kinds = [type(node.op).__name__ for node in model.graph.nodes]
    first, last = kinds.index("Dense"), len(kinds) - 1 - kinds[::-1].index("Dense")
    last -= kinds[last - 1] == "Reshape"
    return set(kinds[first + 1 : last])


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NETS)
def test_the_stated_constants_are_certified(name, tmp_path):
    found = NETS[name]
    module, model = imported(found, tmp_path)
    assert inner_kinds(model) - {"Move"} == found.kinds
    trained = {name for name, _ in module.named_parameters()}
    assert set(model.graph.parameters) == trained  # buffers are none

    constrained = settings(constraint=ConstraintSpec("spectral", 1.0), bias_norm=BIAS)
    issued = certify(model, constrained)
    at_point, within = analyze(model, settings()).network, issued.analysis.network
    certified = issued.certificate.network
    for lipschitz in (at_point.lipschitz, within.lipschitz, certified.lipschitz):
        assert lipschitz <= found.lipschitz * (1 + 1e-5)
    for output in (at_point.output_norm, within.output_norm):
        assert output <= found.output * (1 + 1e-5)
    assert within.lipschitz >= found.lipschitz * (1 - 1e-6)
    assert within.output_norm >= found.output * (1 - 1e-6)
    assert within.lipschitz <= certified.lipschitz <= within.lipschitz * (1 + 1e-5)
    assert_nothing_is_steeper(module, found, at_point)
    assert_agrees(module, model, found)


def assert_nothing_is_steeper(module, found, bounds):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(16, *found.shape, generator=generator, dtype=torch.float64)
    sizes = RADIUS * torch.logspace(-3, 0, 16, dtype=torch.float64)
    x = x * (sizes / x.flatten(1).norm(dim=1)).reshape(-1, *[1] * (x.dim() - 1))
    live = module.double()
    assert float(live(x).detach().norm(dim=1).max()) <= bounds.output_norm
    for example in x:
        found_jacobian = torch.autograd.functional.jacobian(
            lambda v: live(v.unsqueeze(0)).squeeze(0), example
        )
        assert float(torch.linalg.matrix_norm(found_jacobian.flatten(1), 2)) <= bounds.lipschitz
    assert float(largest_gradient(live, x)) <= bounds.grad_norm * (1 + 1e-9)


def largest_gradient(module, x):
    """Of the cross-entropy of one example, over all trained tensors."""
    norms = []
    for example in x:
        loss = nn.functional.cross_entropy(module(example.unsqueeze(0)), torch.tensor([0]))
        found = torch.autograd.grad(loss, list(module.parameters()))
        norms.append(torch.stack([g.norm() for g in found]).norm())
    return max(norms)


def assert_agrees(module, model, found):
    network = LoweredNetwork.of(model.graph, torch.float64, torch.device("cpu"))
    x = torch.rand(3, *found.shape, dtype=torch.float64)
    torch.testing.assert_close(module.double()(x), network.forward(x), rtol=1e-6, atol=1e-6)


def test_colours_are_a_convolution_that_nobody_trains(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(layers.ColourSpace("yuv"), nn.Flatten(), dense(12, 12)).eval()
    model = trained_network(module, torch.zeros(2, 3, 2, 2), tmp_path / "net.onnx").model
    assert set(model.graph.parameters) == {"2.weight"}
    found = analyze(model, settings()).network
    assert 0.857 <= found.lipschitz <= 0.8572
    assert found.output_norm <= 0.8572 * RADIUS
