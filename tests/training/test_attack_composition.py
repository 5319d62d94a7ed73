"""Attacks that change what the network is made of, or around it, some of them for a moment only.

Each of them multiplies a gradient by far more than its bound allows; none may be released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from lipcert.errors import LipCertError
from lipcert.training import Private
from tests.training.configured import (
    FACTOR,
    Configured,
    Loudness,
    forward,
    scaled,
    step,
)
from tests.training.runs import CLASSES, private_run


def during(manager: Callable[[Private], Any]) -> Callable[[Private], None]:
    """An attack that lasts from before the forward pass to before the step."""

    def attack(private: Private) -> None:
        with manager(private):
            forward(private).backward()
        private.optimizer.step()

    attack.__name__ = manager.__name__
    return attack


def before(change: Callable[[Any], None]) -> Callable[[Private], None]:
    """An attack that changes the module before a step."""

    def attack(private: Private) -> None:
        change(private.model)
        step(private)

    attack.__name__ = change.__name__
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


@contextmanager
def other_buffer(private: Private) -> Iterator[None]:
    private.model.kept.mul_(FACTOR)
    yield
    private.model.kept.div_(FACTOR)


@contextmanager
def other_buffer_out_of_sight(private: Private) -> Iterator[None]:
    private.model.fleeting.data.mul_(FACTOR)
    yield
    private.model.fleeting.data.div_(FACTOR)


@contextmanager
def other_plain_tensor(private: Private) -> Iterator[None]:
    private.model.plain.data.mul_(FACTOR)
    yield
    private.model.plain.data.div_(FACTOR)


def weights_between_forward_and_backward(private: Private) -> None:
    loss = forward(private)
    private.model.head.weight.data.mul_(FACTOR)
    loss.backward()
    private.model.head.weight.data.div_(FACTOR)
    private.optimizer.step()


def tensor_between_forward_and_backward(private: Private) -> None:
    loss = forward(private)
    private.model.plain.data.mul_(FACTOR)
    loss.backward()
    private.model.plain.data.div_(FACTOR)
    private.optimizer.step()


def buffer_between_forward_and_backward(private: Private) -> None:
    loss = forward(private)
    private.model.kept.data.mul_(FACTOR)
    loss.backward()
    private.model.kept.data.div_(FACTOR)
    private.optimizer.step()


def in_one_slice_alone(private: Private) -> None:
    x, y = next(iter(private.loader))
    half = len(x) // 2
    private.criterion(private.model(x[:half]), y[:half]).backward()
    with sharpness_aware(private):
        private.criterion(private.model(x[half:]), y[half:]).backward()
    private.optimizer.step()


# Parameters in the place of others.


def new_parameter(module: Any) -> None:
    module.head.weight = nn.Parameter(FACTOR * module.head.weight.detach())


def parameter_with_the_same_numbers(module: Any) -> None:
    module.head.weight = nn.Parameter(module.head.weight.detach().clone())


def assigned_state(module: Any) -> None:
    weights = module.head.state_dict()
    module.head.load_state_dict({name: FACTOR * weights[name] for name in weights}, assign=True)


def swapped_tensors(module: Any) -> None:
    torch.utils.swap_tensors(module.head.weight, nn.Parameter(FACTOR * module.head.weight.detach()))


def plain_tensor_for_parameter(module: Any) -> None:
    weight = module.head.weight
    del module.head.weight
    module.head.weight = FACTOR * weight


class Scaling(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return FACTOR * weight


def parametrized(module: Any) -> None:
    parametrize.register_parametrization(module.head, "weight", Scaling())


def module_with_the_same_name(module: Any) -> None:
    del module.head
    module.head = nn.Linear(5, CLASSES)
    with torch.no_grad():
        module.head.weight.mul_(FACTOR)


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


# Numbers that are neither parameters nor buffers.


def number_in_dict(module: Any) -> None:
    module.cfg["scale"] = FACTOR


def number_in_nested_list(module: Any) -> None:
    module.cfg["nested"]["scales"][0] = FACTOR


def number_in_list(module: Any) -> None:
    module.scales[0] = FACTOR


def number_in_dataclass(module: Any) -> None:
    module.options.scale = FACTOR


def number_in_object(module: Any) -> None:
    module.settings.scale = FACTOR


def number_in_slots(module: Any) -> None:
    module.slotted.scale = FACTOR


def number_in_namespace(module: Any) -> None:
    module.namespace.model.scale = FACTOR


def number_on_another_class(module: Any) -> None:
    module.loudness.scale = FACTOR


def number_in_array(module: Any) -> None:
    module.array[0] = FACTOR


def number_on_class(module: Any) -> None:
    module.shared["scale"] = FACTOR


def number_for_training_alone(module: Any) -> None:
    module.for_training = FACTOR


def module_in_list(module: Any) -> None:
    module.unregistered[0].max_val = 0.0


def plain_tensor(module: Any) -> None:
    module.plain.mul_(FACTOR)


def plain_tensor_data(module: Any) -> None:
    module.plain.data.mul_(FACTOR)


def tensor_in_dict(module: Any) -> None:
    module.in_dict["scale"].mul_(FACTOR)


def tensor_in_list(module: Any) -> None:
    module.in_list[0].data.mul_(FACTOR)


def tensor_in_tuple(module: Any) -> None:
    module.in_tuple[0].mul_(FACTOR)


def tensor_in_object(module: Any) -> None:
    module.in_object.scale.mul_(FACTOR)


def tensor_on_class(module: Any) -> None:
    module.on_class.mul_(FACTOR)


def tensor_replaced(module: Any) -> None:
    module.in_list[0] = torch.tensor(FACTOR)


# Code.


def forward_of_the_class(private: Private) -> None:
    with pytest.MonkeyPatch.context() as patch:
        original = Configured.forward
        patch.setattr(Configured, "forward", lambda self, x: original(self, FACTOR * x))
        step(private)


def forward_of_a_layer(private: Private) -> None:
    with pytest.MonkeyPatch.context() as patch:
        original = nn.Linear.forward
        patch.setattr(nn.Linear, "forward", lambda self, x: FACTOR * original(self, x))
        step(private)


def call_of_a_class(private: Private) -> None:
    with pytest.MonkeyPatch.context() as patch:
        original = nn.Module.__call__
        patch.setattr(nn.Linear, "__call__", lambda self, x: FACTOR * original(self, x))
        step(private)


def method_of_the_class(private: Private) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Configured, "scaled", lambda self, logits: FACTOR * logits)
        step(private)


def other_class(module: Any) -> None:
    class Louder(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return FACTOR * super().forward(x)

    module.head.__class__ = Louder


def forward_of_an_instance(module: Any) -> None:
    original = module.head.forward
    module.head.forward = lambda x: FACTOR * original(x)


def call_of_an_instance(module: Any) -> None:
    original = module.head._call_impl
    module.head._call_impl = lambda x: FACTOR * original(x)


def compiled_call(module: Any) -> None:
    original = module.head._call_impl
    module.head._compiled_call_impl = lambda x: FACTOR * original(x)


class Louder(nn.Parameter):
    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = super().__torch_function__(func, types, args, kwargs or {})
        return FACTOR * found if func is nn.functional.linear else found


def class_of_a_parameter(module: Any) -> None:
    module.head.weight.__class__ = Louder


# Hooks.


@contextmanager
def registered(handle: RemovableHandle) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def global_forward_hook(private: Private) -> None:
    hook = torch_module.register_module_forward_hook(lambda m, x, output: FACTOR * output)
    with registered(hook):
        step(private)


def global_forward_hook_on_layers(private: Private) -> None:
    hook = torch_module.register_module_forward_hook(
        lambda m, x, output: FACTOR * output if isinstance(m, nn.Linear) else None
    )
    with registered(hook):
        step(private)


def global_forward_pre_hook(private: Private) -> None:
    hook = torch_module.register_module_forward_pre_hook(
        lambda m, x: scaled(x) if isinstance(m, nn.Linear) else None
    )
    with registered(hook):
        step(private)


def global_backward_hook(private: Private) -> None:
    hook = torch_module.register_module_full_backward_hook(
        lambda m, given, output: scaled(given) if isinstance(m, nn.Linear) else None
    )
    with registered(hook):
        step(private)


def global_backward_pre_hook(private: Private) -> None:
    hook = torch_module.register_module_full_backward_pre_hook(
        lambda m, output: scaled(output) if isinstance(m, nn.Linear) else None
    )
    with registered(hook):
        step(private)


def hook_between_forward_and_backward(private: Private) -> None:
    loss = forward(private)
    with registered(private.model.head.weight.register_hook(lambda g: FACTOR * g)):
        loss.backward()
    private.optimizer.step()


def hook_for_a_moment(private: Private) -> None:
    handle = private.model.head.weight.register_hook(lambda g: FACTOR * g)
    loss = forward(private)
    loss.backward()
    handle.remove()
    private.optimizer.step()


def hook_after_accumulation(private: Private) -> None:
    def hook(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(FACTOR)

    private.model.head.weight.register_post_accumulate_grad_hook(hook)
    loss = forward(private)
    (loss + private.model.head.weight.sum()).backward()
    private.optimizer.step()


def hook_on_the_input_of_the_network(module: Any) -> None:
    module.register_forward_pre_hook(lambda m, x: scaled(x))


# Modes around the passes.


class LouderFunctions(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = func(*args, **(kwargs or {}))
        return FACTOR * found if func is nn.functional.linear else found


class LouderKernels(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = func(*args, **(kwargs or {}))
        return FACTOR * found if func in (torch.ops.aten.mm.default,) else found


@contextmanager
def function_mode(private: Private) -> Iterator[None]:
    with LouderFunctions():
        yield


@contextmanager
def dispatch_mode(private: Private) -> Iterator[None]:
    with LouderKernels():
        yield


@contextmanager
def saved_tensors(private: Private) -> Iterator[None]:
    with saved_tensors_hooks(lambda x: x, lambda x: FACTOR * x if x.is_floating_point() else x):
        yield


def dispatch_mode_backward(private: Private) -> None:
    loss = forward(private)
    with LouderKernels():
        loss.backward()
    private.optimizer.step()


IN_A_MOMENT = (
    during(sharpness_aware),
    during(weight_noise),
    during(averaged_weights),
    during(other_storage),
    during(other_buffer),
    during(other_buffer_out_of_sight),
    during(other_plain_tensor),
    during(new_parameter_for_a_moment),
    weights_between_forward_and_backward,
    tensor_between_forward_and_backward,
    buffer_between_forward_and_backward,
    in_one_slice_alone,
)
PARAMETERS = (
    before(new_parameter),
    before(parameter_with_the_same_numbers),
    before(assigned_state),
    before(swapped_tensors),
    before(plain_tensor_for_parameter),
    before(parametrized),
    before(module_with_the_same_name),
    functional,
)
NUMBERS = tuple(
    before(change)
    for change in (
        number_in_dict,
        number_in_nested_list,
        number_in_list,
        number_in_dataclass,
        number_in_object,
        number_in_slots,
        number_in_namespace,
        number_on_another_class,
        number_in_array,
        number_on_class,
        number_for_training_alone,
        module_in_list,
        plain_tensor,
        plain_tensor_data,
        tensor_in_dict,
        tensor_in_list,
        tensor_in_tuple,
        tensor_in_object,
        tensor_on_class,
        tensor_replaced,
    )
)
CODE = (
    forward_of_the_class,
    forward_of_a_layer,
    call_of_a_class,
    method_of_the_class,
    before(other_class),
    before(forward_of_an_instance),
    before(call_of_an_instance),
    before(compiled_call),
    before(class_of_a_parameter),
)
HOOKS = (
    global_forward_hook,
    global_forward_hook_on_layers,
    global_forward_pre_hook,
    global_backward_hook,
    global_backward_pre_hook,
    hook_between_forward_and_backward,
    hook_for_a_moment,
    hook_after_accumulation,
    before(hook_on_the_input_of_the_network),
)
AROUND = (
    during(function_mode),
    during(dispatch_mode),
    during(saved_tensors),
    dispatch_mode_backward,
)
ATTACKS = (*IN_A_MOMENT, *PARAMETERS, *NUMBERS, *CODE, *HOOKS, *AROUND)


@pytest.fixture(autouse=True)
def class_as_it_was() -> Iterator[None]:
    """What attacks change on the class is of no other test."""
    yield
    Configured.shared = {"scale": 1.0}
    Configured.on_class = torch.ones(())
    Loudness.scale = 1.0


@pytest.mark.sample(8)
@pytest.mark.parametrize("attack", ATTACKS, ids=[item.__name__ for item in ATTACKS])
def test_an_attack_is_refused_before_its_release(attack: Callable[[Private], None]) -> None:
    private = private_run(network=Configured, record_every=None)
    with pytest.raises(LipCertError):
        attack(private)
    assert private.releases == 0


def test_every_attack_would_change_the_gradient() -> None:
    """Numbers that no bound knows have an effect; else their attacks would show nothing."""
    with private_run(network=Configured, record_every=None) as private:
        x, y = next(iter(private.loader))
        for change in (number_in_dict, number_in_slots, number_on_another_class, plain_tensor):
            ordinary = nn.functional.cross_entropy(private.model.eval()(x), y)
            change(private.model)
            assert not torch.allclose(ordinary, nn.functional.cross_entropy(private.model(x), y))
