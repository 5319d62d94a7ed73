"""Attacks that change what the network is made of, or around it, some of them for a moment only.

Each of them multiplies a gradient by far more than its bound allows, were it to reach a release.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from lipcert.errors import LipCertError
from lipcert.training import (
    BackpropClipping,
    GradientClipping,
    Private,
    guards,
)
from tests.training.configured import FACTOR, Configured, forward, scaled, step
from tests.training.runs import clipless, first, private_run


def during(manager: Callable[[Private], Any]) -> Callable[[Private], None]:
    """An attack that lasts from before the forward pass to before the step."""

    def attack(private: Private) -> None:
        with manager(private):
            forward(private).backward()
        private.optimizer.step()

    return attack


def before(change: Callable[[Any], None]) -> Callable[[Private], None]:
    """An attack that changes the module before a step."""

    def attack(private: Private) -> None:
        change(private.model)
        step(private)

    return attack


# Weights that are others for forward and backward passes, and put back before the step.


@contextmanager
def sharpness_aware(private: Private) -> Iterator[None]:
    with torch.no_grad():
        for parameter in private.model.parameters():
            parameter.mul_(FACTOR)
    yield
    with torch.no_grad():
        for parameter in private.model.parameters():
            parameter.div_(FACTOR)


@contextmanager
def weight_noise(private: Private) -> Iterator[None]:
    kept = [parameter.detach().clone() for parameter in private.model.parameters()]
    for parameter in private.model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=FACTOR)
    yield
    for parameter, own in zip(private.model.parameters(), kept, strict=True):
        parameter.data.copy_(own)


@contextmanager
def averaged_weights(private: Private) -> Iterator[None]:
    kept = {name: item.clone() for name, item in private.model.state_dict().items()}
    private.model.load_state_dict({name: FACTOR * item for name, item in kept.items()})
    yield
    private.model.load_state_dict(kept)


@contextmanager
def other_storage(private: Private) -> Iterator[None]:
    weight = private.model.head.weight
    kept = weight.data
    weight.data = FACTOR * kept
    yield
    weight.data = kept


LOUDER = ("kept.data.mul_", "fleeting.data.mul_", "plain.data.mul_", "head.weight.data.mul_")
"""of buffers, of a tensor that is neither, and of a parameter"""


def around(change: str) -> Callable[[Private], None]:
    """Before the forward pass, until before the step."""

    @contextmanager
    def manager(private: Private) -> Iterator[None]:
        done(f"module.{change}(FACTOR)")(private.model)
        yield
        done(f"module.{change}(1 / FACTOR)")(private.model)

    return during(manager)


def between(change: str) -> Callable[[Private], None]:
    """Behind the forward pass, until before the step."""

    def attack(private: Private) -> None:
        loss = forward(private)
        done(f"module.{change}(FACTOR)")(private.model)
        loss.backward()
        done(f"module.{change}(1 / FACTOR)")(private.model)
        private.optimizer.step()

    return attack


def in_one_slice_alone(private: Private) -> None:
    x, y = next(iter(private.loader))
    half = len(x) // 2
    private.criterion(private.model(x[:half]), y[:half]).backward()
    with sharpness_aware(private):
        private.criterion(private.model(x[half:]), y[half:]).backward()
    private.optimizer.step()


# Parameters in the place of others.


class Scaling(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return FACTOR * weight


def functional(private: Private) -> None:
    x, y = next(iter(private.loader))
    weights = {name: FACTOR * item for name, item in private.model.named_parameters()}
    private.criterion(functional_call(private.model, weights, (x,)), y).backward()
    private.optimizer.step()


@contextmanager
def new_parameter_for_a_moment(private: Private) -> Iterator[None]:
    weight = private.model.head.weight
    private.model.head.weight = nn.Parameter(FACTOR * weight.detach())
    yield
    private.model.head.weight = weight


# Lines of code: parameters in the place of others, numbers that are neither parameters nor buffers.

CHANGES = {
    "new parameter": "module.head.weight = nn.Parameter(FACTOR * module.head.weight.detach())",
    "parameter with the same numbers": "w = module.head.weight\n"
    "module.head.weight = nn.Parameter(w.detach().clone())",
    "swapped tensors": "w = module.head.weight\n"
    "torch.utils.swap_tensors(w, nn.Parameter(FACTOR * w.detach()))",
    "parametrized": "from torch.nn.utils import parametrize\n"
    'parametrize.register_parametrization(module.head, "weight", Scaling())',
    "assigned state": "named = module.head.state_dict().items()\n"
    "module.head.load_state_dict({name: FACTOR * w for name, w in named}, assign=True)",
    "plain tensor for parameter": "w = module.head.weight\n"
    "del module.head.weight; module.head.weight = FACTOR * w",
    "module with the same name": "del module.head; module.head = nn.Linear(5, 3)",
    "forward of an instance": "f = module.head.forward\n"
    "module.head.forward = lambda x: FACTOR * f(x)",
    "call of an instance": "f = module.head._call_impl\n"
    "module.head._call_impl = lambda x: FACTOR * f(x)",
    "compiled call": "f = module.head._call_impl\n"
    "module.head._compiled_call_impl = lambda x: FACTOR * f(x)",
    "hook on the input": "module.register_forward_pre_hook(lambda m, x: scaled(x))",
    "class of a parameter": "module.head.weight.__class__ = Louder",
    "number in dict": 'module.cfg["scale"] = FACTOR',
    "number on class": 'module.shared["scale"] = FACTOR',
    "number for training alone": "module.for_training = FACTOR",
    "plain tensor": "module.plain.mul_(FACTOR)",
    "plain tensor data": "module.plain.data.mul_(FACTOR)",
    "tensor in list": "module.in_list[0].data.mul_(FACTOR)",
    "tensor on class": "module.on_class.mul_(FACTOR)",
    "tensor replaced": "module.in_list[0] = torch.tensor(FACTOR)",
}


def done(change: str) -> Callable[[Any], None]:
    """What a line of code does to a module."""
    return lambda module: exec(change, {**globals(), "module": module})


# Code.


def patched(owner: type, name: str, code: Callable[[Any, Any], Any]) -> Callable[[Private], None]:
    """A method that is another one during a step; code: of what it was and of its arguments."""

    def attack(private: Private) -> None:
        with pytest.MonkeyPatch.context() as patch:
            original = getattr(owner, name)
            patch.setattr(owner, name, lambda self, x: code(partial(original, self), x))
            step(private)

    return attack


PATCHES = {
    "forward of the class": patched(Configured, "forward", lambda was, x: was(FACTOR * x)),
    "forward of a layer": patched(nn.Linear, "forward", lambda was, x: FACTOR * was(x)),
    "call of a class": patched(nn.Linear, "__call__", lambda was, x: FACTOR * was(x)),
    "method of the class": patched(Configured, "scaled", lambda was, logits: FACTOR * logits),
}


def other_class(module: Any) -> None:
    class Louder(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return FACTOR * super().forward(x)

    module.head.__class__ = Louder


class LouderExamples(Tensor):
    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = super().__torch_function__(func, types, args, kwargs or {})
        return FACTOR * found if func is nn.functional.linear else found


class Louder(LouderExamples, nn.Parameter):
    pass


# Hooks.


@contextmanager
def registered(handle: RemovableHandle) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def everywhere(kind: str, hook: Callable[..., Any]) -> Callable[[Private], None]:
    """A hook on all modules of the process during a step."""

    def attack(private: Private) -> None:
        with registered(getattr(torch_module, f"register_module_{kind}")(hook)):
            step(private)

    return attack


def on_layers(hook: Callable[..., Any]) -> Callable[..., Any]:
    return lambda m, *given: hook(*given) if isinstance(m, nn.Linear) else None


EVERYWHERE = {
    "forward_hook": everywhere("forward_hook", lambda m, x, output: FACTOR * output),
    "forward_hook on layers": everywhere(
        "forward_hook", on_layers(lambda x, output: FACTOR * output)
    ),
    "forward_pre_hook": everywhere("forward_pre_hook", on_layers(scaled)),
    "full_backward_hook": everywhere(
        "full_backward_hook", on_layers(lambda given, output: scaled(given))
    ),
    "full_backward_pre_hook": everywhere("full_backward_pre_hook", on_layers(scaled)),
}


def hook_between_forward_and_backward(private: Private) -> None:
    loss = forward(private)
    with registered(private.model.head.weight.register_hook(lambda g: FACTOR * g)):
        loss.backward()
    private.optimizer.step()


def hook_after_accumulation(private: Private) -> None:
    def hook(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(FACTOR)

    private.model.head.weight.register_post_accumulate_grad_hook(hook)
    loss = forward(private)
    (loss + private.model.head.weight.sum()).backward()
    private.optimizer.step()


# Modes around the passes.


class LouderFunctions(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = func(*args, **(kwargs or {}))
        louder = (nn.functional.linear, nn.functional.cross_entropy)
        return FACTOR * found if func in louder else found


class LouderKernels(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = func(*args, **(kwargs or {}))
        return FACTOR * found if func in (torch.ops.aten.mm.default,) else found


def function_mode(private: Private) -> Any:
    return LouderFunctions()


def dispatch_mode(private: Private) -> Any:
    return LouderKernels()


def saved_tensors(private: Private) -> Any:
    return saved_tensors_hooks(lambda x: x, lambda x: FACTOR + x if x.is_floating_point() else x)


def around_criterion(manager: Callable[[Private], Any]) -> Callable[[Private], None]:
    def attack(private: Private) -> None:
        x, y = first(private)
        logits = private.model(x)
        with manager(private):
            loss = private.criterion(logits, y)
        loss.backward()
        private.optimizer.step()

    return attack


def dispatch_mode_backward(private: Private) -> None:
    loss = forward(private)
    with LouderKernels():
        loss.backward()
    private.optimizer.step()


MOMENTS = (sharpness_aware, weight_noise, averaged_weights, other_storage,
           new_parameter_for_a_moment, function_mode, dispatch_mode, saved_tensors)  # fmt: skip
STEPS = (in_one_slice_alone, functional, hook_between_forward_and_backward,
         hook_after_accumulation, dispatch_mode_backward)  # fmt: skip
ATTACKS = {item.__name__: during(item) for item in MOMENTS}
ATTACKS |= {f"{item.__name__} by loss": around_criterion(item) for item in MOMENTS[-3:]}
ATTACKS["other_class"] = before(other_class)
ATTACKS |= {item.__name__: item for item in STEPS}
ATTACKS |= {**PATCHES, **EVERYWHERE}
ATTACKS |= {name: before(done(change)) for name, change in CHANGES.items()}
ATTACKS |= {f"{change} around": around(change) for change in LOUDER}
ATTACKS |= {f"{change} between": between(change) for change in LOUDER}


@pytest.fixture(autouse=True)
def class_as_it_was() -> Iterator[None]:
    """What attacks change on the class is of no other test."""
    yield
    Configured.shared = {"scale": 1.0}
    Configured.on_class = torch.ones(())


CLIPPED = GradientClipping(clip_norm=0.3, input_norm=1.0)
BACK = BackpropClipping(
    input_clip=None, input_clips=(("head", 1.0),), cotangent_clip=0.1, input_norm=1.0
)
KINDS = {"clipless": clipless(), "backprop": BACK, "clipped": CLIPPED}


@pytest.mark.sample(9)
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_attack_is_refused_before_its_release_or_changes_none(
    kind: str, attack: Callable[[Private], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing looks at the module's outputs."""
    monkeypatch.setattr(guards, "require_output", lambda *unused: None)
    plain = private_run(None, KINDS[kind], network=Configured, record_every=None)
    step(plain)
    private = private_run(None, KINDS[kind], network=Configured, record_every=None)
    known = list(private.model.parameters())
    with suppress(LipCertError, RuntimeError):  # torch swaps no tensors of which it has views
        attack(private)
    if private.releases:
        pairs = zip(known, plain.model.parameters(), strict=True)
        assert all(torch.equal(found.grad, expected.grad) for found, expected in pairs)


def test_every_attack_would_change_the_gradient() -> None:
    """Numbers that no bound knows have an effect; else their attacks would show nothing."""
    with private_run(network=Configured, record_every=None) as private:
        x, y = next(iter(private.loader))
        for change in ("in dict", "on class"):
            ordinary = nn.functional.cross_entropy(private.model.eval()(x), y)
            done(CHANGES[f"number {change}"])(private.model)
            assert not torch.allclose(ordinary, nn.functional.cross_entropy(private.model(x), y))


def gradients(private: Private) -> dict[str, Tensor]:
    return {name: item.grad.clone() for name, item in private.model.named_parameters()}


def examples_after_the_pass(x: Tensor, y: Tensor, logits: Tensor) -> None:
    x.data.mul_(FACTOR)


def labels_after_the_loss(x: Tensor, y: Tensor, logits: Tensor) -> None:
    y.data.zero_()


def nodes_behind_the_output(x: Tensor, y: Tensor, logits: Tensor) -> None:
    nodes = [logits.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None:
            node.register_prehook(scaled)
            nodes += [following for following, _ in node.next_functions]


@pytest.mark.parametrize(
    "change", [examples_after_the_pass, labels_after_the_loss, nodes_behind_the_output]
)
def test_what_a_caller_has_does_not_reach_the_backward_pass(
    change: Callable[[Tensor, Tensor, Tensor], None],
) -> None:
    found: list[dict[str, Tensor]] = []
    for attack in (None, change):
        with private_run(record_every=None) as private:
            x, y = next(iter(private.loader))
            x, y = 0.5 * x, y.clone()  # well within the domain, so that nothing draws them in
            logits = private.model(x)
            loss = private.criterion(logits, y)
            if attack is not None:
                attack(x, y, logits)
            loss.backward()
            found.append(gradients(private))
            private.optimizer.step()
            assert private.releases == 1
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_examples_of_another_class_are_plain_tensors_within_the_network() -> None:
    found: list[dict[str, Tensor]] = []
    for kind in (Tensor, LouderExamples):
        with private_run(record_every=None) as private:
            x, y = next(iter(private.loader))
            private.criterion(private.model(x.as_subclass(kind)), y).backward()
            found.append(gradients(private))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
