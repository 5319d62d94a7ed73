"""Attention of bounded scale, and the transformer that is built of it: bounds under attack."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from lipcert.analysis.pipeline import analyze
from lipcert.errors import UsageError
from lipcert.settings.settings import ConstraintSpec, Settings
from lipcert.training.layers import AddBias, BoundedSelfAttention, ScaledResidual, UnitLayerNorm
from lipcert.training.network import trained_network

SHAPES = [(5, 1, 1.0), (5, 2, 1.0), (9, 2, 0.25), (6, 1, 4.0)]  # tokens, heads, scale
WIDTH = 8


def orthogonal(module: nn.Module) -> nn.Module:
    torch.manual_seed(2)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.orthogonal_(parameter)
    return module


def stated(tokens: int, scale: float) -> tuple[float, float]:
    """√κ and the Lipschitz constant of the docstring."""
    columns = math.sqrt(tokens / (1.0 + (tokens - 1) * math.exp(-2.0 * scale)))
    return columns, scale + (1.0 + scale) * columns


def unit_tokens(count: int, tokens: int) -> torch.Tensor:
    """Many of norm 1 exactly, some of them equal, and some small."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, tokens, WIDTH, generator=generator, dtype=torch.float64)
    x = x / x.norm(dim=2, keepdim=True)
    x[1] = x[1, :1]
    x[2, 1:] = -x[2, :1]
    x[3] *= 1e-3
    return x


@pytest.mark.parametrize(("tokens", "heads", "scale"), SHAPES)
def test_values_are_those_of_softmax_attention(tokens, heads, scale):
    layer = orthogonal(BoundedSelfAttention(WIDTH, heads, scale=scale)).double()
    x = unit_tokens(4, tokens)
    size = WIDTH // heads
    weights = {name: p.detach().numpy() for name, p in layer.named_parameters()}
    for example, found in zip(x.numpy(), layer(x).detach().numpy(), strict=True):
        parts = []
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            q, k, v = (
                example @ weights[f"{name}.weight"][own].T for name in ("query", "key", "value")
            )
            scores = np.exp(scale * q @ k.T)
            parts.append(scores / scores.sum(axis=1, keepdims=True) @ v)
        expected = np.concatenate(parts, axis=1) @ weights["output.weight"].T
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.nightly
@pytest.mark.parametrize(("tokens", "heads", "scale"), SHAPES)
def test_no_unit_tokens_find_more_than_is_stated(tokens, heads, scale):
    """An ascent of the slope from many tokens, and the analysis below what is stated."""
    layer = orthogonal(BoundedSelfAttention(WIDTH, heads, scale=scale)).double()
    columns, lipschitz = stated(tokens, scale)
    x, steepest = unit_tokens(8, tokens), 0.0
    for _ in range(6):
        x = (x / x.norm(dim=2, keepdim=True).clamp(min=1.0)).detach().requires_grad_()
        slopes = torch.stack([slope(layer, example) for example in x])
        steepest = max(steepest, float(slopes.detach().max()))
        lengths = layer(x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
        assert float(lengths.detach().max()) <= columns
        (towards,) = torch.autograd.grad(slopes.sum(), x)
        x = x + 0.5 * towards / towards.flatten(1).norm(dim=1)[:, None, None].clamp(min=1e-9)
    assert steepest * (1 + 1e-9) >= 1.0  # equal tokens: a mean, of norm 1
    assert steepest <= lipschitz


def slope(layer: nn.Module, example: torch.Tensor) -> torch.Tensor:
    found = torch.autograd.functional.jacobian(
        lambda one: layer(one.unsqueeze(0)).squeeze(0), example, create_graph=True
    )
    return torch.linalg.matrix_norm(found.reshape(example.numel(), -1), 2)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("tokens", "heads", "scale"), SHAPES)
def test_an_analysis_finds_no_more_than_is_stated(tokens, heads, scale, tmp_path):
    module = orthogonal(
        nn.Sequential(
            UnitLayerNorm(WIDTH),
            BoundedSelfAttention(WIDTH, heads, scale=scale),
            nn.Flatten(),
            nn.Linear(tokens * WIDTH, 4, bias=False),
        )
    )
    columns, lipschitz = stated(tokens, scale)
    example = torch.zeros(2, tokens, WIDTH)
    model = trained_network(module.eval(), example, tmp_path / "net.onnx").model
    assert "Attention" in {type(node.op).__name__ for node in model.graph.nodes}
    for norm in (1.0, 100.0):
        found = analyze(model, constrained(input_norm=norm)).network
        assert found.lipschitz <= lipschitz * (1 + 1e-5)
        assert found.output_norm <= min(columns * norm, math.sqrt(tokens * heads)) * (1 + 1e-5)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="features do not divide"):
        BoundedSelfAttention(8, 3)
    with pytest.raises(UsageError, match="scale"):
        BoundedSelfAttention(8, scale=0.0)
    with pytest.raises(UsageError, match="give tokens"):
        BoundedSelfAttention(8)(torch.zeros(2, 8))


def constrained(**changes) -> Settings:
    spectral = ConstraintSpec("spectral", 1.0)
    return Settings(loss="cross-entropy", constraint=spectral, bias_norm=1.0, **changes)


class Tokens(nn.Module):
    """The positions of an image as tokens."""

    def forward(self, x):
        return x.flatten(2).transpose(1, 2)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(dim=1)


def clipless_transformer(depth: int, *, scale: float = 1.0, width: int = 16) -> nn.Module:
    """Of 16 tokens: 2×2 patches of 8×8 pixels."""

    def block() -> nn.Module:
        attention = BoundedSelfAttention(width, 2, scale=scale)
        dense = nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        return nn.Sequential(
            ScaledResidual(nn.Sequential(UnitLayerNorm(width), attention), depth),
            ScaledResidual(nn.Sequential(UnitLayerNorm(width), *dense), depth),
        )

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, width, 2, 2, bias=False),
        Tokens(),
        AddBias(16, width),
        *(block() for _ in range(depth)),
        UnitLayerNorm(width),
        Mean(),
        nn.Linear(width, 10),
    ).eval()


def grad_norm(module: nn.Module, folder) -> float:
    example = torch.zeros(2, 1, 8, 8)
    model = trained_network(module, example, folder / "net.onnx").model
    return analyze(model, constrained(input_box=(0.0, 1.0))).network.grad_norm


@pytest.mark.nightly
def test_a_transformer_of_these_layers_has_a_small_bound_from_its_architecture(tmp_path):
    """Whatever its weights in the constraint set, and however deep it is: no weights at the border
    of the set give an example of the box more."""
    module = clipless_transformer(4)
    bound = grad_norm(module, tmp_path)
    assert bound <= 40.0
    module = module.double()
    for seed in range(3):
        torch.manual_seed(seed)
        for name, parameter in module.named_parameters():
            to_the_border(parameter, is_matrix=name.endswith("weight"))
        x = torch.rand(8, 1, 8, 8, dtype=torch.float64).round()
        for example in x:
            loss = nn.functional.cross_entropy(module(example[None]), torch.tensor([seed]))
            found = torch.autograd.grad(loss, list(module.parameters()))
            reached = math.sqrt(sum(float(g.square().sum()) for g in found))
            assert 1e-2 * bound <= reached <= bound


@torch.no_grad()
def to_the_border(parameter: torch.Tensor, *, is_matrix: bool) -> None:
    """A random point of norm 1: spectral for matrices and patches, which do not overlap."""
    parameter.normal_()
    norm = torch.linalg.matrix_norm(parameter.flatten(1), 2) if is_matrix else parameter.norm()
    parameter.div_(norm)
