"""Guards: what happens between two releases, and what must not.

What enters: every event of a training step: a batch drawn, a forward pass, a loss, a backward
pass, the optimizer's step. What leaves: a `UsageError` that names what would make the released
noise too small, before anything is released. Invariant: a release goes through only if every
example of the batch that was drawn went through the network in training mode, through the
criterion and back exactly once, at the weights that the last step left, and if the gradient is
what the criterion left there, and nothing else.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

import torch
from torch import Tensor, nn

from lipcert.audit.agreement import active_parts
from lipcert.errors import NoVerdictError, UsageError
from lipcert.settings import Settings
from lipcert.training.comparing import are_equal, is_finite
from lipcert.training.inputs import admitted

__all__ = ["Passing", "StepGuard"]

_ORDER: Final = (
    "in each step: draw a batch from private.loader, then optimizer.zero_grad(), "
    "private.criterion(model(x), y).backward(), optimizer.step(); evaluate under torch.no_grad()"
)
_OTHER_TERM: Final = (
    "training: something besides private.criterion depends on the output of the network, so its "
    "gradient is not the one that was bounded; leave out further terms of the loss, and hooks and "
    "changes of the output"
)
_NO_NUMBER: Final = (
    "NaN or infinite, which no noise hides; lower the learning rate, or look for examples that are "
    "not finite"
)
_NOT_FINITE: Final = f"training: the loss gradient at the output is {_NO_NUMBER}"


@final
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


@final
@dataclass(slots=True, eq=False)
class Passing:
    """One forward pass of examples of a batch, on its way through the criterion and back.

    output: what the module gave to its caller. cotangents: what the criterion sent back to it.
    """

    batch: _UnderWay
    output: weakref.ref[Tensor]
    examples: int
    cotangents: list[Tensor] = field(default_factory=list)
    is_back: bool = False

    def arriving(self, cotangent: Tensor) -> None:
        """At the output of the module; it must come from the criterion alone, and unchanged."""
        if not is_finite(cotangent):
            raise NoVerdictError(_NOT_FINITE)
        if not (self.cotangents and are_equal(self.cotangents[-1], cotangent)):
            raise UsageError(_OTHER_TERM)


@final
class StepGuard:
    """Watches one module and the parameters that its optimizer trains.

    trained: by name.
    """

    def __init__(
        self,
        module: nn.Module,
        trained: Mapping[str, nn.Parameter],
        settings: Settings,
    ) -> None:
        self._module = module
        self._trained = dict(trained)
        self._settings = settings
        self._batch: _UnderWay | None = None
        self._addresses = {name: item.data_ptr() for name, item in trained.items()}
        self._left: dict[str, Tensor] = {}
        self._kept: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}
        self.settle()

    @property
    def trained(self) -> Mapping[str, nn.Parameter]:
        """By name."""
        return self._trained

    @property
    def inputs(self) -> Tensor:
        """What went into the network last."""
        if self._batch is None or self._batch.inputs is None:
            raise UsageError(f"training: no forward pass in training mode yet; {_ORDER}")
        return self._batch.inputs

    def drawn(self, examples: int) -> None:
        """The loader gives a batch, perhaps again one whose gradients were left."""
        self._batch = _UnderWay(examples)
        self._sums.clear()

    def entering(self, x: Tensor) -> Tensor:
        """A forward pass in training mode begins; x as it may enter the network."""
        batch = self._under_way("a forward pass in training mode")
        self._refuse_autocast(x)
        active = [f"{name or 'the module itself'} ({what})"
                  for name, what in active_parts(self._module)]  # fmt: skip
        if active:
            raise UsageError(
                f"training: {', '.join(active)}: no bound holds for parts that are random or mix "
                "the examples of a batch; set them to evaluation mode after model.train()"
            )
        batch.entered += len(x)
        batch.inputs = admitted(x, self._settings)
        return batch.inputs

    def leaving(self, output: object) -> object:
        """The forward pass has this output; what its caller gets, from which nothing leads back to
        the module unseen."""
        batch = self._batch
        if batch is None or not isinstance(output, Tensor) or not output.dim():
            return output
        given = output.view_as(output)
        batch.last = Passing(batch, weakref.ref(given), len(given))
        if output.requires_grad:
            output.register_hook(batch.last.arriving)  # type: ignore[no-untyped-call]
        return given

    def losing(self, logits: Tensor) -> Passing:
        """The criterion is called."""
        batch = self._under_way("private.criterion")
        passing, batch.last = batch.last, None
        if passing is None or passing.output() is not logits:
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
        passing.is_back = True
        batch.returned += passing.examples

    @torch.no_grad()
    def put(self, gradients: Mapping[str, Tensor]) -> None:
        """The gradients of some examples are added to those that are there.

        They are kept as they come, and never written to: two of them may be one tensor.
        """
        for name, gradient in gradients.items():
            parameter = self._trained[name]
            own = gradient.detach().to(parameter)
            total = self._sums.get(name)
            self._sums[name] = own if total is None else total + own
            parameter.grad = own.clone() if parameter.grad is None else parameter.grad.add_(own)

    def stepping(self, strangers: Sequence[str]) -> None:
        """The optimizer is about to step. strangers: what else it would move, by name."""
        batch = self._under_way("optimizer.step()")
        if batch.returned != batch.examples:
            raise UsageError(
                f"training: the batch that was drawn has {batch.examples} examples, and "
                f"{batch.returned} of them went through backward(): every example counts once; "
                f"{_ORDER}"
            )
        _refuse_strangers(strangers)
        self.refuse_moved()
        self._refuse_touched()

    @torch.no_grad()
    def settle(self) -> None:
        """The step is done: these are the weights that the next one begins with."""
        self._batch = None
        self._sums.clear()
        for name, parameter in self._trained.items():
            if name in self._left:
                self._left[name].copy_(parameter)
            else:
                self._left[name] = parameter.detach().clone()

    def keep(self) -> None:
        """What is not trained stays what it is now."""
        others = _others(self._module, self._trained)
        self._kept = {name: item.clone() for name, item in others.items()}

    def _under_way(self, what: str) -> _UnderWay:
        if self._batch is None:
            raise UsageError(f"training: {what} without a batch from private.loader; {_ORDER}")
        return self._batch

    def _refuse_autocast(self, x: Tensor) -> None:
        """16-bit products change gradients by up to 2^-8 of them, and no bound covers that; clipped
        gradients are summed from what was measured, however it was rounded."""
        is_measured = self._settings.mechanism == "gradient-clipping"
        if torch.is_autocast_enabled(x.device.type) and not is_measured:
            raise UsageError(
                "training: under autocast the gradient of one example may be longer than its "
                "bound, by what 16-bit products round; leave autocast out, or use GradientClipping"
            )

    def _refuse_left_over(self) -> None:
        """Gradients that a former step left."""
        for name, parameter in self._trained.items():
            if parameter.grad is not None and bool(parameter.grad.any()):
                raise UsageError(
                    f"training: {name} has a gradient from before this batch; call "
                    "optimizer.zero_grad() in every step"
                )

    def refuse_moved(self) -> None:
        """Weights that are not those that the last step left."""
        for name, parameter in self._trained.items():
            if parameter.data_ptr() != self._addresses[name]:
                raise UsageError(
                    f"training: {name} lies elsewhere in memory than when make_private was "
                    "called; move and convert the model before that"
                )
            if not are_equal(parameter, self._left[name]):
                raise UsageError(
                    f"training: {name} was changed since the last step by something else than the "
                    "optimizer, so the bounds may not speak of these weights; use "
                    "private.restore() to go back to a checkpoint"
                )
        others = _others(self._module, self._trained) if self._kept else {}
        for name, kept in self._kept.items():
            if name not in others or not are_equal(others[name], kept):
                raise UsageError(
                    f"training: {name} is not trained, and was changed since make_private was "
                    "called: bounds hold for what it was, and buffers of what examples gave would "
                    "be kept without noise"
                )

    def _refuse_touched(self) -> None:
        """Gradients that are not those of the criterion."""
        for name, parameter in self._trained.items():
            gradient = parameter.grad
            if gradient is None:
                continue
            if not is_finite(gradient):
                raise NoVerdictError(f"training: the gradient of {name} is {_NO_NUMBER}")
            own = self._sums.get(name)
            if bool(gradient.any()) if own is None else not are_equal(gradient, own):
                raise UsageError(
                    f"training: the gradient of {name} is not what private.criterion left there: "
                    "it was changed, or something else was differentiated, between backward() and "
                    "optimizer.step(), where it is not noised yet; leave out further terms of the "
                    "loss, and clip or scale in the mechanism, or after the noise"
                )


def _others(module: nn.Module, trained: Mapping[str, nn.Parameter]) -> Mapping[str, Tensor]:
    """Parameters and buffers that are not trained, by name."""
    own = {id(item) for item in trained.values()}
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: item.detach() for name, item in named if id(item) not in own}


def _refuse_strangers(strangers: Sequence[str]) -> None:
    if strangers:
        raise UsageError(
            f"training: the optimizer trains {', '.join(strangers[:3])}, which was not there, "
            "or frozen, when make_private was called; its gradient would be released without "
            "noise"
        )
