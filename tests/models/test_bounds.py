"""The certified gradient bounds of every shipped file hold against data and against attacks."""

from functools import cache

import pytest
import torch

import lipcert
from lipcert import Analysis, Settings
from lipcert.diagnostics import Level
from lipcert.explain import all_keys
from tests.models.shipped import (
    CASES,
    analysis_of,
    digits,
    gradient_norms,
    initializers,
    module,
    path_of,
)

EVERY_OTHER = pytest.mark.sample(2)
ROUNDING = 1.0 + 1e-9  # of the float64 gradients compared with the bounds


@cache
def pages():
    return all_keys()


def bounds_of(analysis: Analysis) -> dict[str, float]:
    bounds = {parameter.name: parameter.grad_norm for parameter in analysis.parameters}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def wrong_labels(network, images):
    """The least likely class: the label with the largest loss gradient."""
    with torch.no_grad():
        return network(images).argmin(dim=1)


def ascend(network, images, steps: int):
    """Images in [0, 1] that push up the gradient norms of all parameters at once."""
    for _ in range(steps):
        labels = wrong_labels(network, images)
        images = images.detach().requires_grad_()
        norms = gradient_norms(network, images, labels)
        gain = sum(norm.clamp(min=1e-12).log().sum() for norm in norms.values())
        (direction,) = torch.autograd.grad(gain, images)
        images = (images + 0.1 * direction.sign()).clamp(0.0, 1.0)
    return images.detach(), wrong_labels(network, images)


def violations(norms, bounds: dict[str, float]) -> dict[str, float]:
    ratios = {name: float(norm.max()) / bounds[name] for name, norm in norms.items()}
    return {name: ratio for name, ratio in ratios.items() if ratio > ROUNDING}


@EVERY_OTHER
@pytest.mark.parametrize("name", CASES)
def test_every_parameter_has_a_bound(name: str) -> None:
    analysis = analysis_of(name)
    assert {parameter.name for parameter in analysis.parameters} == set(initializers(name))
    assert set(bounds_of(analysis)) == set(initializers(name)), [
        (node.name, node.reason) for node in analysis.nodes if node.reason
    ]
    assert analysis.network.grad_norm is not None
    assert [item for item in analysis.diagnostics if item.level is Level.ERROR] == []


@EVERY_OTHER
@pytest.mark.parametrize("name", CASES)
def test_every_rule_that_an_analysis_names_has_a_page(name: str) -> None:
    """And no two of its rows have one name."""
    nodes = analysis_of(name).nodes
    assert nodes
    assert len({node.name for node in nodes}) == len(nodes)
    assert {node.rule for node in nodes} <= set(pages())


@EVERY_OTHER
@pytest.mark.parametrize("name", CASES)
def test_gradients_on_digits_stay_below(name: str) -> None:
    network = module(name)
    split = digits(network.input_shape)
    images = split.test_images[:12].double()
    bounds = bounds_of(analysis_of(name))
    for labels in (split.test_labels[:12], wrong_labels(network, images)):
        assert violations(gradient_norms(network, images, labels), bounds) == {}


@EVERY_OTHER
@pytest.mark.parametrize("name", CASES)
def test_gradients_under_attack_stay_below(name: str) -> None:
    network = module(name)
    generator = torch.Generator().manual_seed(3)
    start = torch.rand(4, *network.input_shape, generator=generator, dtype=torch.float64)
    start[:2] = digits(network.input_shape).test_images[:2]
    images, labels = ascend(network, start, steps=8 if name == "stevens_cifar" else 40)
    norms = gradient_norms(network, images, labels)
    assert violations(norms, bounds_of(analysis_of(name))) == {}


def test_bounds_of_the_orthogonal_network_are_attained() -> None:
    """‖∂ℓ/∂W_k‖ = ‖x‖·√2 for every layer, once the softmax is saturated at a wrong class."""
    name, radius = "digits_orthogonal_mlp", 60.0
    model = lipcert.load_model(path_of(name))
    bounds = bounds_of(lipcert.analyze(model, Settings(input_norm=radius)))
    network = module(name)
    images = torch.randn(8, 64, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for _ in range(60):
        images = images.detach().requires_grad_()
        top = network(images).topk(2, dim=1).values
        (direction,) = torch.autograd.grad((top[:, 0] - top[:, 1]).sum(), images)
        images = images + radius * direction
        images = images * radius / images.norm(dim=1, keepdim=True)
    images = images.detach()
    norms = gradient_norms(network, images, wrong_labels(network, images))
    assert violations(norms, bounds) == {}
    for parameter, norm in norms.items():
        assert float(norm.max()) > 0.999 * bounds[parameter]
