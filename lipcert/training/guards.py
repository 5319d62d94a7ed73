"""Guards: what happens between two releases, and what must not.

What enters: every event of a training step: a batch drawn, a forward pass, a loss, a backward
pass, the optimizer's step. What leaves: a `UsageError` that names what would make the released
noise too small, before anything is released. Invariant: a release goes through only if every
example of the batch that was drawn went through the network in training mode, through the
criterion and back exactly once, at the weights that the last step left, and if nobody has touched
the gradient since.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, final

import torch
from torch import Tensor, nn

from lipcert.audit.agreement import active_parts
from lipcert.errors import UsageError
from lipcert.settings import Settings
from lipcert.training.inputs import admitted

__all__ = ["StepGuard"]

_ORDER: Final = (
    "in each step: draw a batch from private.loader, then optimizer.zero_grad(), "
    "private.criterion(model(x), y).backward(), optimizer.step()"
)


@final
@dataclass(slots=True)
class _UnderWay:
    """The batch of the step: how many examples it has, and how far they have come."""

    examples: int
    entered: int = 0
    lost: int = 0
    """examples whose loss was computed"""
    returned: int = 0
    """… and whose backward pass has begun"""
    pending: list[int] = field(default_factory=list)
    inputs: Tensor | None = None
    output: weakref.ref[Tensor] | None = None


@final
class StepGuard:
    """Watches one module and the parameters that its optimizer trains.

    trained: by name. checks_versions: whether gradients must be those that backward() left; off
    where processes exchange them afterwards.
    """

    def __init__(
        self,
        module: nn.Module,
        trained: Mapping[str, nn.Parameter],
        settings: Settings,
        *,
        checks_versions: bool,
    ) -> None:
        self._module = module
        self._trained = dict(trained)
        self._settings = settings
        self._checks_versions = checks_versions
        self._batch: _UnderWay | None = None
        self._addresses = {name: item.data_ptr() for name, item in trained.items()}
        self._left: dict[str, Tensor] = {}
        self._versions: dict[str, tuple[int, int]] = {}
        self.settle()
        for name, parameter in trained.items():
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._noting(name)
            )

    @property
    def inputs(self) -> Tensor:
        """What went into the network last."""
        if self._batch is None or self._batch.inputs is None:
            raise UsageError(f"training: no forward pass in training mode yet; {_ORDER}")
        return self._batch.inputs

    def drawn(self, examples: int) -> None:
        """The loader gives a batch."""
        self._batch = _UnderWay(examples)

    def entering(self, x: Tensor) -> Tensor:
        """A forward pass in training mode begins; x as it may enter the network."""
        batch = self._under_way("a forward pass in training mode")
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

    def leaving(self, output: object) -> None:
        """The forward pass has this output."""
        if self._batch is not None and isinstance(output, Tensor):
            self._batch.output = weakref.ref(output)

    def losing(self, logits: Tensor) -> None:
        """The criterion is called."""
        batch = self._under_way("private.criterion")
        if batch.output is None or batch.output() is not logits:
            raise UsageError(
                "training: private.criterion takes the output of the model itself, from a forward "
                "pass in training mode: call model.train(), and nothing between the two"
            )
        batch.lost += len(logits)
        batch.pending.append(len(logits))
        if batch.lost > batch.examples:
            raise UsageError(
                f"training: {batch.lost} examples went through the criterion, and the batch that "
                f"was drawn has {batch.examples}; {_ORDER}"
            )

    def returning(self) -> None:
        """A backward pass through the criterion begins."""
        batch = self._under_way("backward()")
        if not batch.pending:
            raise UsageError(
                "training: backward() ran twice through one loss, so its examples count twice"
            )
        if batch.returned == 0:
            self._refuse_left_over()
        batch.returned += batch.pending.pop()

    def put(self, gradients: Mapping[str, Tensor]) -> None:
        """Gradients that the criterion has summed up itself are added to the others."""
        for name, parameter in self._trained.items():
            own = gradients[name].to(parameter, copy=True)
            parameter.grad = own if parameter.grad is None else parameter.grad.add_(own)
            self._versions[name] = _version(parameter.grad)

    def stepping(self, optimized: Mapping[str, Tensor | None]) -> None:
        """The optimizer is about to step. optimized: gradients of all that it trains, by name."""
        batch = self._under_way("optimizer.step()")
        if batch.returned != batch.examples:
            raise UsageError(
                f"training: the batch that was drawn has {batch.examples} examples, and "
                f"{batch.returned} of them went through backward(): every example counts once; "
                f"{_ORDER}"
            )
        self._refuse_strangers(optimized)
        self._refuse_moved()
        self._refuse_touched()

    def settle(self) -> None:
        """The step is done: these are the weights that the next one begins with."""
        self._batch = None
        for name, parameter in self._trained.items():
            if name in self._left:
                self._left[name].copy_(parameter.detach())
            else:
                self._left[name] = parameter.detach().clone()

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

    def _refuse_strangers(self, optimized: Mapping[str, Tensor | None]) -> None:
        strangers = [
            name
            for name, gradient in optimized.items()
            if name not in self._trained and gradient is not None
        ]
        if strangers:
            raise UsageError(
                f"training: the optimizer trains {', '.join(strangers[:3])}, which was not there, "
                "or frozen, when make_private was called; its gradient would be released without "
                "noise"
            )

    def _refuse_moved(self) -> None:
        """Weights that are not those that the last step left."""
        for name, parameter in self._trained.items():
            if parameter.data_ptr() != self._addresses[name]:
                raise UsageError(
                    f"training: {name} lies elsewhere in memory than when make_private was "
                    "called; move and convert the model before that"
                )
            if not torch.equal(parameter.detach(), self._left[name]):
                raise UsageError(
                    f"training: {name} was changed since the last step by something else than the "
                    "optimizer, so the bounds may not speak of these weights; use "
                    "private.restore() to go back to a checkpoint"
                )

    def _refuse_touched(self) -> None:
        """Gradients that were changed after backward()."""
        if not self._checks_versions:
            return
        for name, parameter in self._trained.items():
            gradient = parameter.grad
            if gradient is not None and self._versions.get(name) != _version(gradient):
                raise UsageError(
                    f"training: the gradient of {name} was changed between backward() and "
                    "optimizer.step(), where it is not noised yet; clip or scale in the mechanism, "
                    "or after the noise"
                )

    def _noting(self, name: str) -> Callable[[Tensor], None]:
        def note(parameter: Tensor) -> None:
            if parameter.grad is not None:
                self._versions[name] = _version(parameter.grad)

        return note


def _version(tensor: Tensor) -> tuple[int, int]:
    return id(tensor), tensor._version
