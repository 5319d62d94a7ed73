"""Attacks that change what the network is made of, or around it, some of them for a moment only.

Each of them multiplies a gradient by far more than its bound allows; none may be released.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.func import functional_call
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

from lipcert.audit.trace.reading import read_trace
from lipcert.errors import LipCertError, NoVerdictError, UsageError
from lipcert.training import Private
from lipcert.training.network import export
from tests.training.runs import CLASSES, Small, private_run, train

FACTOR = 128.0
"""a power of 2, so that what is multiplied and divided again is the same to the bit"""


@dataclasses.dataclass
class Options:
    scale: float = 1.0


@dataclasses.dataclass(slots=True)
class Slotted:
    scale: float = 1.0


class Settings:
    def __init__(self) -> None:
        self.scale = 1.0


class Loudness:
    scale = 1.0


class Configured(Small):
    """Holds numbers in every way in which a module may hold them outside parameters and buffers."""

    shared: ClassVar[dict[str, float]] = {"scale": 1.0}
    on_class: ClassVar[Tensor] = torch.ones(())
    loudness = Loudness

    def __init__(self) -> None:
        super().__init__()
        self.cfg = {"scale": 1.0, "nested": {"scales": [1.0]}}
        self.scales = [1.0]
        self.options = Options()
        self.settings = Settings()
        self.slotted = Slotted()
        self.namespace = SimpleNamespace(model=SimpleNamespace(scale=1.0))
        self.array = np.ones(1)
        self.plain = torch.ones(())
        self.in_dict = {"scale": torch.ones(())}
        self.in_list = [torch.ones(())]
        self.in_tuple = (torch.ones(()),)
        self.in_object = SimpleNamespace(scale=torch.ones(()))
        self.for_training = 1.0
        self.unregistered = [nn.Hardtanh(-64.0, 64.0)]
        self.register_buffer("kept", torch.ones(()))
        self.register_buffer("fleeting", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        numbers = (
            self.cfg["scale"] * self.cfg["nested"]["scales"][0],  # type: ignore[index, operator]
            self.scales[0] * self.options.scale * self.settings.scale,
            self.slotted.scale * self.namespace.model.scale * self.loudness.scale,
            float(self.array[0]) * self.shared["scale"],
            self.for_training if self.training else 1.0,
        )
        hidden = self.unregistered[0](self.hidden(x)).relu()
        for number in numbers:
            hidden = hidden * number
        hidden = hidden * self.plain * self.in_dict["scale"] * self.in_list[0] * self.in_tuple[0]
        hidden = hidden * self.in_object.scale * self.on_class * self.kept * self.fleeting
        return self.scaled(self.head(hidden))

    def scaled(self, logits: Tensor) -> Tensor:
        return logits


def forward(private: Private) -> Tensor:
    """The criterion of a batch that was drawn."""
    x, y = next(iter(private.loader))
    private.optimizer.zero_grad()
    return private.criterion(private.model(x), y)


def step(private: Private) -> None:
    forward(private).backward()
    private.optimizer.step()


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
    state = {name: FACTOR * item for name, item in module.state_dict().items()}
    module.load_state_dict(state, assign=True)


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


def _scaled(item: Any) -> Any:
    return tuple(None if part is None else FACTOR * part for part in item)


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
        lambda m, x: _scaled(x) if isinstance(m, nn.Linear) else None
    )
    with registered(hook):
        step(private)


def global_backward_hook(private: Private) -> None:
    hook = torch_module.register_module_full_backward_hook(
        lambda m, given, output: _scaled(given) if isinstance(m, nn.Linear) else None
    )
    with registered(hook):
        step(private)


def global_backward_pre_hook(private: Private) -> None:
    hook = torch_module.register_module_full_backward_pre_hook(
        lambda m, output: _scaled(output) if isinstance(m, nn.Linear) else None
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
    module.register_forward_pre_hook(lambda m, x: _scaled(x))


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


@pytest.mark.parametrize("attack", ATTACKS, ids=[item.__name__ for item in ATTACKS])
def test_an_attack_is_refused_before_its_release(attack: Callable[[Private], None]) -> None:
    with private_run(network=Configured, record_every=None) as private:
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


# What the caller has of a pass leads to nothing that could change its gradient.


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
            node.register_prehook(_scaled)
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
            x, y = x.clone(), y.clone()
            logits = private.model(x)
            loss = private.criterion(logits, y)
            if attack is not None:
                attack(x, y, logits)
            loss.backward()
            found.append(gradients(private))
            private.optimizer.step()
            assert private.releases == 1
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


class LouderExamples(Tensor):
    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = super().__torch_function__(func, types, args, kwargs or {})
        return FACTOR * found if func is nn.functional.linear else found


def test_examples_of_another_class_are_plain_tensors_within_the_network() -> None:
    found: list[dict[str, Tensor]] = []
    for kind in (Tensor, LouderExamples):
        with private_run(record_every=None) as private:
            x, y = next(iter(private.loader))
            private.criterion(private.model(x.as_subclass(kind)), y).backward()
            found.append(gradients(private))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


# What else a caller may do around the model.


class Named(Small):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        logits: Tensor = self.head(scale * self.hidden(x).relu())
        return logits


def test_a_further_argument_is_refused() -> None:
    with private_run(network=Named, record_every=None) as private:
        x, _ = next(iter(private.loader))
        with pytest.raises(UsageError, match="nothing else"):
            private.model(x, scale=FACTOR)


class LouderInEvaluation(Small):
    """Its hidden part does something else in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Part()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.part(self.hidden(x)))
        return logits


class Part(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu() if self.training else FACTOR * x.relu()


def test_a_part_in_another_mode_is_compared_in_that_mode(tmp_path: Path) -> None:
    export(Small(), torch.zeros(1, 6), tmp_path / "given.onnx")
    with private_run(
        network=LouderInEvaluation, record_every=None, model_file=tmp_path / "given.onnx"
    ) as private:
        step(private)
        private.model.part.eval()
        with pytest.raises(NoVerdictError, match="output"):
            step(private)
        assert private.releases == 1


def test_hooks_on_a_wrapper_are_refused() -> None:
    with private_run(network=lambda: nn.DataParallel(Small()), record_every=None) as private:
        step(private)
        private.model.register_forward_pre_hook(lambda m, x: _scaled(x))
        with pytest.raises(UsageError, match="DataParallel"):
            step(private)
        assert private.releases == 1


def test_layers_that_change_places_are_refused() -> None:
    def network() -> nn.Sequential:
        return nn.Sequential(
            *(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, CLASSES))
        )

    with private_run(network=network, record_every=None) as private:
        step(private)
        private.model[1], private.model[3] = private.model[3], private.model[1]
        with pytest.raises(NoVerdictError, match="output"):
            step(private)


def test_a_parameter_that_is_frozen_later_is_named() -> None:
    with private_run(record_every=None) as private:
        private.model.head.weight.requires_grad_(requires_grad=False)
        with pytest.raises(UsageError, match=r"head\.weight .* frozen"):
            step(private)


def test_changes_are_not_forgotten_by_a_return_to_a_checkpoint(tmp_path: Path) -> None:
    with private_run(tmp_path, network=Configured, record_every=None) as private:
        step(private)
        private.save()
        number_in_dict(private.model)
        with pytest.raises(LipCertError):
            private.restore()


# What ordinary programs do, and may go on doing.


def test_averaged_weights_may_be_evaluated_between_steps() -> None:
    with private_run(record_every=None) as private:
        for x, y in private.loader:
            private.step(x, y)
            kept = [item.detach().clone() for item in private.model.parameters()]
            with torch.no_grad():
                for parameter in private.model.parameters():
                    parameter.mul_(0.5)
                private.model.eval()(x)
                for parameter, own in zip(private.model.parameters(), kept, strict=True):
                    parameter.copy_(own)
            private.model.train()
        assert private.releases == 6


class Remembering(Small):
    """Keeps what it saw and how often, for whoever looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.seen: list[Tensor] = []
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = self.hidden(x)
        self.seen.append(self.last.detach())
        logits: Tensor = self.head(self.last.relu())
        return logits


def test_a_module_that_remembers_its_passes_is_allowed() -> None:
    with private_run(network=Remembering, record_every=None) as private:
        train(private)
        assert private.releases == 6


def test_what_changes_no_number_is_let_through() -> None:
    with private_run(record_every=None) as private:
        for x, y in private.loader:
            private.optimizer.zero_grad()
            with torch.device("cpu"), save_on_cpu():
                logits = checkpoint(private.model, x, use_reentrant=False)
            private.criterion(logits, y).backward()
            private.optimizer.step()
        assert private.releases == 6


def test_a_trace_holds_no_pass_that_was_made_to_compare(tmp_path: Path) -> None:
    with private_run(tmp_path, network=Remembering) as private:
        train(private)
    batches = [item.batches for item in read_trace(tmp_path / "trace").steps(0)]
    assert len(batches) == 6
    assert all(len(item) == 1 for item in batches)
