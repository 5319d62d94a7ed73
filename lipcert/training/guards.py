"""Guards: what happens between two releases, and what must not.

Input: every event of a training step: a batch drawn, a forward pass, a loss, a backward pass, the
optimizer's step. Output: a copy of each output, with no path back to the network; a `UsageError`
that names what would make the released noise too small, before anything is released. Invariants: a
release goes through only if every example of the batch that was drawn went through the network in
training mode, through the criterion and back exactly once, at the weights that the last step left,
and if the gradient is what the criterion left there, and nothing else; only the criterion has an
output itself, so that no hook and no further term of the loss reaches the network through what the
caller has. What is active around a pass (autocast, modes that take over functions or kernels of
torch, hooks on saved tensors) is let through where it changes no number: the default device, and
torch's own ways to keep saved tensors elsewhere or to compute them again.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, FunctionCtx
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from lipcert.errors import NoVerdictError, UsageError
from lipcert.settings.settings import Settings
from lipcert.training.batches import admitted
from lipcert.training.composition import (
    KeptNumbers,
    are_equal,
    first_difference,
    first_without_number,
    is_finite,
)
from lipcert.training.modes import refused_parts
from lipcert.training.same_network import SameNetwork

_KEEPING: Final = ("torch.autograd.graph", "torch.utils.checkpoint")
"""modules whose hooks give saved tensors back as they were"""
NO_NUMBER: Final = (
    "NaN or infinite, which no noise hides; lower the learning rate, or look for examples that are "
    "not finite"
)
_OTHER_TERM: Final = (
    "training: something besides private.criterion depends on the output of the network, so its "
    "gradient is not the one that was bounded; leave out further terms of the loss, and hooks and "
    "changes of the output"
)
_ORDER: Final = (
    "in each step: draw a batch from private.loader, then optimizer.zero_grad(), "
    "private.criterion(model(x), y).backward(), optimizer.step(); evaluate under torch.no_grad()"
)


def refuse_autocast(device: torch.device) -> None:
    """16-bit products change gradients by up to 2^-8 of them, and no bound covers that."""
    if torch.is_autocast_enabled(device.type):
        raise UsageError(
            "training: under autocast the gradient of one example may exceed its bound by "
            "the rounding of 16-bit products; leave autocast out, or use GradientClipping"
        )


def refuse_modes() -> None:
    """Refuse modes and hooks that are active in this thread, since they intercept every
    operation."""
    functions = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    modes = [mode for mode in functions if type(mode) is not DeviceContext]
    modes += _get_current_dispatch_mode_stack()
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    what = ""
    if modes:
        what = f"the mode {type(modes[-1]).__name__}"
    elif hooks is not None and any(hook.__module__ not in _KEEPING for hook in hooks):
        what = f"saved_tensors_hooks ({', '.join(hook.__qualname__ for hook in hooks)})"
    if what:
        raise UsageError(
            f"training: {what} is active around the forward or the backward pass, and may change "
            "what is computed, so the gradient may not be that of the network that was bounded; "
            "leave the `with` block before the step, or close it around evaluation alone"
        )


class Shown:
    """One output. output: the input of the criterion. given: the copy, while its caller keeps
    it."""

    def __init__(self, output: Tensor) -> None:
        self.output = output
        if output.requires_grad:
            output.register_hook(_refuse_no_number)  # type: ignore[no-untyped-call]
        self._caller: weakref.ref[Tensor] | None = None

    def copied(self) -> Tensor:
        """The copy that the caller gets."""
        anchor = torch.empty(0, requires_grad=True)
        given: Tensor = _Apart.apply(anchor, self.output.detach())  # type: ignore[no-untyped-call]
        self._caller = weakref.ref(given)
        return given

    def is_of(self, logits: Tensor) -> bool:
        """Whether these are the copy, and still unchanged; where it was NaN, any entry passes."""
        if self._caller is None or self._caller() is not logits:
            return False
        if logits.shape != self.output.shape:
            return False
        with torch.no_grad():
            return are_equal(logits, self.output) or bool(
                ((logits == self.output) | self.output.isnan()).all()
            )

    def refuse_hooks(self) -> None:
        """A hook on the copy would never run."""
        given = None if self._caller is None else self._caller()
        if given is not None and given._backward_hooks:
            raise UsageError(_OTHER_TERM)


class _Apart(Function):
    """A copy with a history of its own, in which nothing may be differentiated."""

    @staticmethod
    def forward(ctx: FunctionCtx, anchor: Tensor, output: Tensor) -> Tensor:
        """The numbers of the output, copied."""
        del ctx, anchor
        return output.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, *cotangents: Any) -> tuple[None, None]:
        """Nobody but the criterion differentiates the output."""
        del ctx, cotangents
        raise UsageError(_OTHER_TERM)


def _refuse_no_number(cotangent: Tensor) -> None:
    if not is_finite(cotangent):
        raise NoVerdictError(f"training: the loss gradient at the output is {NO_NUMBER}")


@dataclass(slots=True, eq=False)
class _UnderWay:
    """The batch of the step: how many examples it has, and how far they have come."""

    examples: int
    entered: int = 0
    lost: int = 0
    """examples whose loss was computed"""
    returned: int = 0
    """… and whose backward pass has begun"""
    inputs: Tensor | None = None
    last: Passing | None = None


@dataclass(slots=True, eq=False)
class Passing:
    """One forward pass of examples of a batch, on its way through the criterion and back."""

    batch: _UnderWay
    shown: Shown
    examples: int
    is_back: bool = False


class StepGuard:
    """Watches one module and the parameters that its optimizer trains.

    trained: by name.
    """

    def __init__(
        self,
        module: nn.Module,
        trained: Mapping[str, nn.Parameter],
        settings: Settings,
        sameness: SameNetwork,
    ) -> None:
        self._module = module
        self._trained = dict(trained)
        self._settings = settings
        self._sameness = sameness
        self._numbers = KeptNumbers(module, self._trained)
        self._batch: _UnderWay | None = None
        self._sums: dict[str, Tensor] = {}

    @property
    def trained(self) -> Mapping[str, nn.Parameter]:
        """The trained parameters by their names."""
        return self._trained

    @property
    def is_still(self) -> bool:
        """Whether the module was found as it was, when the last forward pass began."""
        return self._sameness.is_still

    @property
    def inputs(self) -> Tensor:
        """What went into the network last."""
        if self._batch is None or self._batch.inputs is None:
            raise UsageError(f"training: no forward pass in training mode yet; {_ORDER}")
        return self._batch.inputs

    def drawn(self, examples: int) -> None:
        """The loader gives a batch, which may repeat one whose gradients were not released."""
        self._batch = _UnderWay(examples)
        self._sums.clear()

    def entering(self, x: Tensor) -> Tensor:
        """A forward pass in training mode begins; x as it may enter the network: a copy, which
        nobody else can write to."""
        batch = self._under_way("a forward pass in training mode")
        masks = self._settings.enforced.clips_gradients
        if not masks:  # gradient clipping sums what it has measured
            refuse_autocast(x.device)
        refuse_modes()
        self._sameness.require(lambda: self._refuse_active(masks=masks))
        self._numbers.require(is_still=self.is_still)
        batch.entered += len(x)
        batch.inputs = admitted(x.detach().as_subclass(Tensor), self._settings).clone()
        self._sameness.require_apart(batch.inputs)
        return batch.inputs

    def _refuse_active(self, *, masks: bool) -> None:
        """masks: dropout is clipped example by example, and may be active."""
        active = [f"{name or 'the module itself'} ({what})"
                  for name, what in refused_parts(self._module, masks=masks)]  # fmt: skip
        if active:
            raise UsageError(
                f"training: {', '.join(active)}: no bound holds for parts that are random or mix "
                "the examples of a batch; set them to evaluation mode after model.train()"
            )

    def require_inputs(self, given: Sequence[Tensor]) -> None:
        """UsageError unless these are the inputs of which the bounds speak, each in its shape."""
        parts = self._settings.input_parts
        shapes = [tuple(x.shape[1:]) for x in given]
        wanted = [part.shape[1:] for part in parts]
        if len({x.shape[:1] for x in given}) > 1 or (
            shapes != wanted and (parts or len(given) > 1)
        ):
            listed = ", ".join(f"{part.name} {list(part.shape[1:])}" for part in parts)
            raise UsageError(
                f"training: the model is given tensors of shape {', '.join(map(str, shapes))} for "
                f"each example, and reads {listed or 'one tensor'}"
            )

    def leaving(self, output: object) -> object:
        """The forward pass has this output; returns the copy for its caller."""
        batch = self._batch
        if batch is None or not isinstance(output, Tensor) or not output.dim():
            return output
        self._sameness.passed()
        shown = Shown(output)
        batch.last = Passing(batch, shown, len(output))
        return shown.copied()

    def losing(self, logits: Tensor) -> Passing:
        """The criterion is called with these logits."""
        batch = self._under_way("private.criterion")
        passing, batch.last = batch.last, None
        if passing is None or not passing.shown.is_of(logits):
            raise UsageError(
                "training: private.criterion takes the output of the model itself, from a forward "
                "pass in training mode: call model.train(), and nothing between the two"
            )
        batch.lost += len(logits)
        if batch.lost > batch.examples:
            raise UsageError(
                f"training: {batch.lost} examples went through the criterion, and the batch that "
                f"was drawn has {batch.examples}; {_ORDER}"
            )
        return passing

    def refuse_lost(self) -> None:
        """NoVerdictError for weights that are NaN or infinite: no example has a gradient there."""
        place = first_without_number(list(self._trained.values()))
        if place is not None:
            raise NoVerdictError(f"training: {list(self._trained)[place]} is {NO_NUMBER}")

    def returning(self, passing: Passing) -> None:
        """A backward pass through the criterion begins."""
        batch = self._under_way("backward()")
        if passing.is_back:
            raise UsageError(
                "training: backward() ran twice through one loss, so its examples count twice"
            )
        if passing.batch is not batch:
            raise UsageError(f"training: backward() through the loss of another batch; {_ORDER}")
        if batch.returned == 0:
            self._refuse_left_over()
        refuse_modes()
        passing.shown.refuse_hooks()
        self._sameness.require_unwritten()
        passing.is_back = True
        batch.returned += passing.examples

    @torch.no_grad()
    def put(self, gradients: Mapping[str, Tensor]) -> None:
        """The gradients of some examples, just computed, are added to those that are there.

        They are kept as they come, and never written to: two of them may be one tensor.
        """
        self._numbers.require(is_still=True)
        self._sameness.require_unwritten()
        for name, gradient in gradients.items():
            parameter, total = self._trained[name], self._sums.get(name)
            own = gradient.detach().to(parameter)
            self._sums[name] = own if total is None else total + own
            if parameter.grad is None:  # as it lies: fused optimizers ask for it
                parameter.grad = torch.empty_like(parameter).copy_(own)
            else:
                parameter.grad.add_(own)

    def stepping(self, unmanaged: Sequence[str]) -> None:
        """The optimizer is about to step. unmanaged: what else it would move, by name."""
        batch = self._under_way("optimizer.step()")
        if batch.returned != batch.examples:
            raise UsageError(
                f"training: the batch that was drawn has {batch.examples} examples, and "
                f"{batch.returned} of them went through backward(): every example counts once; "
                f"{_ORDER}"
            )
        _refuse_unmanaged(unmanaged)
        self._numbers.require(is_still=bool(batch.entered))
        self._refuse_touched()

    def settle(self) -> None:
        """The step is done: these are the weights that the next one begins with."""
        self._batch = None
        self._sums.clear()
        self._numbers.settle()

    def begin(self) -> None:
        """All hooks of the run are in place; from now on, changes of the module are refused."""
        self._sameness.settle()

    def keep(self) -> None:
        """From now on, changes of untrained numbers are refused."""
        self._numbers.keep()
        self._sameness.require()

    def refuse_moved(self) -> None:
        """Numbers that are not those that the last step left."""
        self._numbers.require()

    def refuse_unreleased(self) -> None:
        """The run ends: numbers that no release left, wherever they are by now."""
        self._numbers.require_released()

    def _under_way(self, what: str) -> _UnderWay:
        if self._batch is None:
            raise UsageError(f"training: {what} without a batch from private.loader; {_ORDER}")
        return self._batch

    def _refuse_left_over(self) -> None:
        """Gradients that a former step left."""
        for name, parameter in self._trained.items():
            if parameter.grad is not None and bool(parameter.grad.any()):
                raise UsageError(
                    f"training: {name} has a gradient from before this batch; call "
                    "optimizer.zero_grad() in every step"
                )

    def _refuse_touched(self) -> None:
        """Gradients that are not those of the criterion."""
        present = {name: item.grad for name, item in self._trained.items() if item.grad is not None}
        infinite = first_without_number(list(present.values()))
        if infinite is not None:
            name = list(present)[infinite]
            raise NoVerdictError(f"training: the gradient of {name} is {NO_NUMBER}")
        own = [name for name in present if name in self._sums]
        other = first_difference([present[n] for n in own], [self._sums[n] for n in own])
        touched = None if other is None else own[other]
        for name, gradient in present.items():
            if name == touched or (name not in self._sums and bool(gradient.any())):
                raise UsageError(
                    f"training: the gradient of {name} is not what private.criterion left there: "
                    "it was changed, or something else was differentiated, between backward() and "
                    "optimizer.step(), where it is not noised yet; leave out further terms of the "
                    "loss, and clip or scale in the mechanism, or after the noise"
                )


def _refuse_unmanaged(unmanaged: Sequence[str]) -> None:
    if unmanaged:
        raise UsageError(
            f"training: the optimizer trains {', '.join(unmanaged[:3])}, which was not there, "
            "or frozen, when make_private was called; its gradient would be released without "
            "noise"
        )
