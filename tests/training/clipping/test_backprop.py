"""Hooks of a live module against the graph with its clips; what cannot be mapped is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert.analysis.clipping import with_clips
from lipcert.audit.recorded import Match, matched
from lipcert.errors import NoVerdictError, UsageError
from lipcert.settings.settings import Settings
from lipcert.training.clipping.backprop import install_clips
from lipcert.training.network import Outputs, TrainedNetwork
from lipcert.training.same_network import require_gradients
from tests.models.shipped import graph_of as shipped
from tests.models.shipped import module
from tests.networks import chain, dag, reshaped, trained
from tests.ops import Activation, Add, Dense, Shift

BETA, C = 0.4, 0.2


def clips(input_clip: float | None, cotangent_clip: float | None, **more: object) -> Settings:
    return Settings(
        mechanism="backprop-clipping",
        input_clip=input_clip,
        cotangent_clip=cotangent_clip,
        **more,  # type: ignore[arg-type]
    )


MECHANISM = clips(BETA, C)
MAPPED = (
    "digits_mlp",
    "digits_orthogonal_mlp",
    "digits_cnn",
    "digits_lipschitz_cnn",
    "digits_resnet_groupnorm",
    "digits_mixer",
    "stevens_mnist",
)


def matches_of(graph, live: nn.Module) -> dict[str, Match]:
    numbers = {n: p.detach().numpy() for n, p in live.named_parameters(remove_duplicate=False)}
    shapes = {name: array.shape for name, array in numbers.items()}
    return dict(matched(graph, shapes, lambda: [numbers]))


def installed(graph, live: nn.Module, settings: Settings = MECHANISM):
    clipped = with_clips(graph, settings)
    matches = matches_of(graph, live)
    return clipped, matches, install_clips(live, clipped, matches)


def check_clips(live: nn.Module, graph, matches: dict[str, Match]) -> None:
    network = TrainedNetwork(live, None, matches, Outputs((0,), ("output",), ()))  # type: ignore[arg-type]
    require_gradients(network, graph)


def example_gradients(live: nn.Module, x: Tensor, label: int) -> dict[str, Tensor]:
    live.zero_grad()
    functional.cross_entropy(live(x[None]) * 1e3, torch.tensor([label])).backward()
    return {name: p.grad.clone() for name, p in live.named_parameters() if p.grad is not None}


RADII = [("digits_cnn", (30.0, 1e-3)), ("digits_cnn", (1e-2, 50.0))]


@pytest.mark.parametrize(("name", "radii"), [*((name, (BETA, C)) for name in MAPPED), *RADII])
def test_shipped_networks_are_mapped(name: str, radii: tuple[float, float]) -> None:
    graph, live = shipped(name), module(name, torch.float32)
    clipped, matches, handles = installed(graph, live, clips(*radii))
    check_clips(live, clipped, matches)
    x = torch.rand(2, *graph.input_shape)
    hooked = live(x)
    live(x[:0]).sum().backward()
    assert not any(item.grad.any() for item in live.parameters())
    for handle in handles:
        handle.remove()
    assert not torch.allclose(live(x), hooked) or radii[0] > 1.0
    with pytest.raises(NoVerdictError, match="is not that of the network"):
        check_clips(live, clipped, matches)


@pytest.mark.parametrize("name", ["digits_mlp", "digits_cnn", "digits_resnet_groupnorm"])
def test_single_examples_stay_within_the_published_bound(name: str) -> None:
    """‖∂ℓ/∂W‖ ≤ βC and ‖∂ℓ/∂b‖ ≤ C for inputs and losses that are far too large."""
    graph, live = shipped(name), module(name, torch.float32)
    installed(graph, live)
    longest = 0.0
    for seed in range(5):
        torch.manual_seed(seed)
        x = 1e3 * torch.randn(graph.input_shape)
        for key, gradient in example_gradients(live, x, seed).items():
            is_product = gradient.dim() > 1
            bound = BETA * C if is_product else (C if "norm" not in key else np.inf)
            assert float(gradient.norm()) <= bound * (1.0 + 1e-5), key
            longest = max(longest, float(gradient.norm()) / bound if is_product else 0.0)
    assert longest > 0.3


def test_the_clips_stay_in_evaluation_and_leave_with_their_handles() -> None:
    live = module("digits_mlp", torch.float32)
    x = 100.0 * torch.rand(3, 64)
    before = live(x)
    _, _, handles = installed(shipped("digits_mlp"), live)
    live.train()
    trained_output = live(x)
    live.eval()
    with torch.no_grad():
        assert torch.equal(live(x), trained_output)
    assert not torch.allclose(before, trained_output)
    for handle in handles:
        handle.remove()
    assert torch.equal(live(x), before)


class Two(nn.Module):
    """What the hand-made graphs below compute, when called as it should be."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.call: Callable[[Two, Tensor], Tensor] = lambda own, x: own.second(own.first(x).relu())

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def operand(live: nn.Module, name: str):
    return trained(name, live.get_parameter(name).detach().double().numpy())


def dense(live: nn.Module, name: str) -> Dense:
    return Dense(operand(live, f"{name}.weight"), operand(live, f"{name}.bias"))


def graph_of(live: nn.Module):
    return chain((4,), dense(live, "first"), Activation("relu"), dense(live, "second"))


@pytest.mark.parametrize("relu", [Tensor.relu, Tensor.relu_])
def test_a_module_made_by_hand(relu: Callable[[Tensor], Tensor]) -> None:
    live = Two()
    live.call = lambda own, x: own.second(relu(own.first(x)))
    clipped, matches, handles = installed(graph_of(live), live)
    assert len(handles) == 4
    live.train()
    check_clips(live, clipped, matches)
    assert live.training
    assert live.first.training


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda own, x: functional.linear(own.first(x).relu(), own.second.weight, own.second.bias),
         "'second' is called 0 times"),
        (lambda own, x: own.second(own.first(x).relu()) + 0.0 * own.first(x),
         "'first' is called 2 times"),
        (lambda own, x: own.second(own.first(x[:1] + 0.0 * x).relu()), "input of 'first'"),
        (lambda own, x: own.second(own.first(x[None]).relu())[0], "'first' is called .* 1 rows"),
        (lambda own, x: own.second((own.first(x) * 1.001).relu()), "input of 'second'"),
        (lambda own, x: 2.0 * own.second(own.first(x).relu()), "cotangent of 'first'"),
        (lambda own, x: own.second(own.first(x).relu()) + 1.0, "the output of the module"),
        (lambda own, x: own.second(own.first(x).relu()) + own.first.bias
         - own.first.bias.detach(), "gradient of 'first.bias'"),
    ],
)  # fmt: skip
def test_modules_that_compute_something_else_are_refused(call, why: str) -> None:
    """Although some of them have the right output, or the right gradient, at these weights."""
    live = Two()
    clipped, matches, _ = installed(graph_of(live), live)
    live.call = call
    with pytest.raises(NoVerdictError, match=why):
        check_clips(live, clipped, matches)


def test_calls_that_no_hook_can_clip_are_refused() -> None:
    live = Two()
    installed(graph_of(live), live)
    x = torch.rand(2, 4)
    live.call = lambda own, x: own.second(own.first(input=x).relu())
    with pytest.raises(UsageError, match=r"'first' \(Linear\) must be called with one tensor"):
        live(x)
    live.call = lambda own, x: own.first(x)
    live.first.register_forward_hook(lambda module, arguments, output: (output,), prepend=True)
    with pytest.raises(UsageError, match=r"'first' \(Linear\) returns tuple"):
        live(x)


def test_radii_of_single_layers_are_those_of_the_hooks() -> None:
    """The second layer reads its input as it is; which layer has which radius is noticed."""
    live = Two()
    graph = graph_of(live)
    own = clips(BETA, C, input_clips={"second": "none"}, cotangent_clips={"first": 0.05})
    clipped, matches, handles = installed(graph, live, own)
    check_clips(live, clipped, matches)
    for layer in (live.first, live.second):
        layer.weight.data.mul_(50.0)
    every = [example_gradients(live, 100.0 * torch.randn(4), label % 4) for label in range(16)]
    assert max(float(found["second.weight"].norm()) for found in every) > 2.0 * BETA * C
    assert 0.0 < max(float(found["first.weight"].norm()) for found in every) <= BETA * 0.0501
    for other in (
        clips(BETA, C, cotangent_clips={"first": 0.05}),
        clips(BETA, C, input_clips={"first": "none"}, cotangent_clips={"first": 0.05}),
        clips(BETA, C, input_clips={"second": "none"}, cotangent_clips={"second": 0.05}),
        clips(BETA, C, input_clips={"second": "none"}),
    ):
        with pytest.raises(NoVerdictError, match="is not that of the network that was bounded"):
            check_clips(live, with_clips(graph, other), matches)
    for handle in handles:
        handle.remove()


def test_a_bias_that_is_trained_alone_needs_no_input() -> None:
    """Behind a product that is frozen, where a clip of what the bias meets has no place."""
    live = Two()
    graph = graph_of(live)
    parameters = dict(graph.parameters)
    for name in ("first.weight", "second.weight"):
        parameters[name] = dataclasses.replace(parameters[name], trainable=False)
    graph = dataclasses.replace(graph, parameters=parameters)
    clipped, matches, _ = installed(graph, live, clips(None, C))
    assert [node.kind for node in clipped.nodes].count("InputClip") == 0
    check_clips(live, clipped, matches)


def test_a_module_that_is_one_layer() -> None:
    live = nn.Linear(4, 2)
    graph = chain((4,), Dense(operand(live, "weight"), operand(live, "bias")))
    clipped, matches, _ = installed(graph, live)
    check_clips(live, clipped, matches)


def test_a_layer_that_is_used_twice_is_refused() -> None:
    live = Two()
    graph = chain((4,), dense(live, "first"), Activation("relu"), dense(live, "first"))
    with pytest.raises(UsageError, match=r"first.weight.*first \(Linear\) is used 2 times"):
        installed(graph, live)


def test_a_shared_parameter_is_refused() -> None:
    live = Two()
    live.second.weight = live.first.weight
    graph = chain((4,), dense(live, "first"))
    with pytest.raises(UsageError, match=r"first \(Linear\) shares a parameter"):
        installed(graph, live)


class Position(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 2)


def test_a_parameter_beside_submodules_is_refused() -> None:
    live = Position()
    graph = chain((4,), Shift(operand(live, "position")), dense(live, "head"))
    with pytest.raises(UsageError, match=r"'position': the module itself \(Position\) owns it"):
        installed(graph, live)
    parameters = {**graph.parameters}
    parameters["position"] = dataclasses.replace(parameters["position"], trainable=False)
    _, _, handles = installed(dataclasses.replace(graph, parameters=parameters), live)
    assert len(handles) == 2
    with pytest.raises(UsageError, match=r"'position'.*layers\.AddBias"):
        installed(shipped("digits_vit"), module("digits_vit", torch.float32))


def test_a_bias_that_is_trained_alone() -> None:
    """Its clip stands behind the product, where no hook of the layer is."""
    live = Two()
    steps = [
        ("a", Dense(operand(live, "first.weight")), ("x",)),
        ("b", Shift(operand(live, "first.bias")), ("a",)),
        ("c", dense(live, "second"), ("b",)),
    ]
    live.call = lambda own, x: own.second(own.first(x))
    graph = dag((4,), steps)
    clipped, matches, handles = installed(graph, live)
    check_clips(live, clipped, matches)
    for handle in handles:
        handle.remove()
    parameters = dict(graph.parameters)
    parameters["first.weight"] = dataclasses.replace(parameters["first.weight"], trainable=False)
    clipped, matches, _ = installed(dataclasses.replace(graph, parameters=parameters), live)
    with pytest.raises(NoVerdictError, match="input of 'first'"):
        check_clips(live, clipped, matches)


def test_branches_and_transposed_weights() -> None:
    live = Two()
    turned = operand(live, "second.weight").array.T.copy()
    weight = dataclasses.replace(
        trained("w", turned),
        array=turned.T.copy(),
        places=np.arange(16, dtype=np.int32).reshape(4, 4).T,
    )
    steps = [
        ("a", dense(live, "first"), ("x",)),
        ("r", Activation("relu"), ("a",)),
        ("b", Dense(weight, operand(live, "second.bias")), ("r",)),
        ("y", Add((1.0, 1.0)), ("b", "r")),
        ("z", reshaped(2, 2), ("y",)),
    ]
    graph = dag((4,), steps)
    own = live.second

    def call(two: Two, x: Tensor) -> Tensor:
        hidden = two.first(x).relu()
        return (own(hidden) + hidden).reshape(-1, 2, 2)

    live.call = call
    clipped, matches = with_clips(graph, MECHANISM), matches_of(graph, live)
    assert matches["w"] == Match("second.weight", transposed=True)
    install_clips(live, clipped, matches)
    check_clips(live, clipped, matches)


class Stubborn(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x.float())


def test_a_module_that_insists_on_float32_is_compared_in_float32() -> None:
    live = Stubborn()
    clipped, matches, _ = installed(graph_of(live), live)
    check_clips(live, clipped, matches)
    live.call = lambda own, x: torch.zeros(len(x), 4, dtype=torch.float16)
    with pytest.raises(NoVerdictError, match=r"cannot be evaluated .*another type"):
        check_clips(live, clipped, matches)
    live.call = lambda own, x: own.of_no_name(x)
    with pytest.raises(AttributeError, match="of_no_name"):
        check_clips(live, clipped, matches)
    live.call = lambda own, x: x @ torch.zeros(3, 3)
    with pytest.raises(NoVerdictError, match=r"cannot be evaluated .*\(RuntimeError: .*shapes"):
        check_clips(live, clipped, matches)
