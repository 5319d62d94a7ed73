"""Attacks that change what the network is made of, or around it, some of them for a moment only.

Each of them multiplies a gradient by far more than its bound allows, were it to reach a release.
"""

from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lipcert.errors import LipCertError
from lipcert.training import BackpropClipping, GradientClipping, Private, guards
from tests.training.configured import FACTOR, Configured, scaled, step
from tests.training.runs import BACKWARD, DRAWN, FORWARD, STEP, clipless, lines, private_run


def played(script: str):
    """Lines of a training script; what is entered in `stack` ends with them."""

    def attack(private: Private) -> None:
        with ExitStack() as stack:
            lines(private, script, **globals(), stack=stack, module=private.model)

    return attack


def around(change: str, undone: str) -> str:
    """From before the forward pass to before the step."""
    return f"{change}\n{FORWARD}{BACKWARD}{undone}\n{STEP}"


def between(change: str, undone: str) -> str:
    """Behind the forward pass, until before the step."""
    return f"{FORWARD}{change}\n{BACKWARD}{undone}\n{STEP}"


def by_loss(change: str, undone: str) -> str:
    """While the criterion is computed."""
    passed = f"{DRAWN}logits = model(x)\n{change}\nloss = criterion(logits, y)\n{undone}\n"
    return f"{passed}{BACKWARD}{STEP}"


LOUDER = {
    f"{place}.data.mul_": (f"module.{place}.data.mul_(FACTOR)", f"module.{place}.data.div_(FACTOR)")
    for place in ("kept", "fleeting", "plain", "head.weight")
}
"""of buffers, of a tensor that is neither, and of a parameter; and back again"""
SHARPNESS = (
    "with torch.no_grad(): [item.mul_(FACTOR) for item in model.parameters()]",
    "with torch.no_grad(): [item.div_(FACTOR) for item in model.parameters()]",
)
MOMENTS = {
    "sharpness aware": SHARPNESS,
    "weight noise": (
        "own = [item.detach().clone() for item in model.parameters()]\n"
        "for item in model.parameters(): item.data.add_(torch.randn_like(item), alpha=FACTOR)",
        "for item, kept in zip(model.parameters(), own): item.data.copy_(kept)",
    ),
    "averaged weights": (
        "own = {name: item.clone() for name, item in model.state_dict().items()}\n"
        "model.load_state_dict({name: FACTOR * item for name, item in own.items()})",
        "model.load_state_dict(own)",
    ),
    "other storage": (
        "own = model.head.weight.data; model.head.weight.data = FACTOR * own",
        "model.head.weight.data = own",
    ),
    "new parameter for a moment": (
        "own = module.head.weight\nmodule.head.weight = nn.Parameter(FACTOR * own.detach())",
        "module.head.weight = own",
    ),
}
"""Weights that are others for forward and backward passes, and put back before the step."""
MODES = {
    name: (f"stack.enter_context({name}())", "stack.close()")
    for name in ("LouderFunctions", "LouderKernels", "LouderTensors")
}
STEPS = {
    "in one slice alone": DRAWN
    + "criterion(model(x[:half]), y[:half]).backward()\n"
    + f"{SHARPNESS[0]}\ncriterion(model(x[half:]), y[half:]).backward()\n{SHARPNESS[1]}\n{STEP}",
    "functional": DRAWN
    + "weights = {name: FACTOR * item for name, item in model.named_parameters()}\n"
    + f"criterion(torch.func.functional_call(model, weights, (x,)), y).backward()\n{STEP}",
    "hook between forward and backward": between(
        "handle = model.head.weight.register_hook(lambda g: FACTOR * g)", "handle.remove()"
    ),
    "hook after accumulation": "def hook(parameter): parameter.grad.mul_(FACTOR)\n"
    "model.head.weight.register_post_accumulate_grad_hook(hook)\n"
    + f"{FORWARD}(loss + model.head.weight.sum()).backward()\n{STEP}",
    "kernels in the backward pass": between(*MODES["LouderKernels"]),
}


class Scaling(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return FACTOR * weight


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
    "class of a layer": "module.head.__class__ = LouderLinear",
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


# Code.


def patched(owner: type, name: str, code):
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


class LouderLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return FACTOR * super().forward(x)


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


def everywhere(kind: str, hook):
    """A hook on all modules of the process during a step."""

    def attack(private: Private) -> None:
        with getattr(torch_module, f"register_module_{kind}")(hook):
            step(private)

    return attack


def on_layers(hook):
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


class LouderTensors(saved_tensors_hooks):
    def __init__(self) -> None:
        super().__init__(lambda x: x, lambda x: FACTOR + x if x.is_floating_point() else x)


SCRIPTS = {name: around(*moment) for name, moment in (MOMENTS | MODES).items()}
SCRIPTS |= {f"{name} by loss": by_loss(*moment) for name, moment in MODES.items()}
SCRIPTS |= {f"{name} around": around(*moment) for name, moment in LOUDER.items()}
SCRIPTS |= {f"{name} between": between(*moment) for name, moment in LOUDER.items()}
SCRIPTS |= {name: f"{change}\n{FORWARD}{BACKWARD}{STEP}" for name, change in CHANGES.items()}
ATTACKS = {name: played(script) for name, script in (SCRIPTS | STEPS).items()}
ATTACKS |= {**PATCHES, **EVERYWHERE}


@pytest.fixture(autouse=True)
def class_as_it_was():
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
    kind: str, attack, monkeypatch: pytest.MonkeyPatch
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
            lines(private, CHANGES[f"number {change}"], module=private.model, FACTOR=FACTOR)
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
def test_what_a_caller_has_does_not_reach_the_backward_pass(change) -> None:
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
