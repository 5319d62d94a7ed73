"""Guards: check everything that happens between two releases, and refuse what would break a bound.

The guard is notified of every event of a training step: a drawn batch, a forward pass, a loss, a
backward pass, the optimizer's step. It hands out a copy of each output, with no path back to the
network. Before anything is released, it raises a `UsageError` that names what would make the noise
too small.

Invariants: a release goes through only if every example of the drawn batch went exactly once
through the network in training mode, through the criterion and back, at the weights that the last
step left, and if the gradient is exactly what the criterion left there. The pass is that of the
bounded graph, on a copy of the examples that the module's code never has, and beyond the reach of
hooks on saved tensors. Only the criterion has its output, so that no hook and no further term of
the loss can reach the network through the caller's copy. Autocast, and modes that intercept
functions or kernels of torch, are refused around what is released, except for the default device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from lipcert.errors import NoVerdictError, UsageError
from lipcert.settings.settings import Settings
from lipcert.training.batches import admitted
from lipcert.training.kept_numbers import (
    KeptNumbers,
    are_equal,
    first_difference,
    first_without_number,
)
from lipcert.training.modes import kept_as_they_are
from lipcert.training.same_network import refuse_hooked, require_output

NO_NUMBER: Final = (
    "NaN or infinite, which no noise hides; lower the learning rate, or look for examples that are "
    "not finite"
)
_OTHER_TERM: Final = (
    "training: something besides private.criterion depends on the output of the network, so its "
    "gradient is not the one that was bounded; call private.criterion(model(x), y) in place of a "
    "loss of your own, state that loss to the mechanism (loss=Loss('cross-entropy', "
    "label_smoothing=0.1)), and leave out further terms, hooks and changes of the output"
)
_ORDER: Final = (
    "in each step: draw a batch from private.loader, then optimizer.zero_grad(), "
    "private.criterion(model(x), y).backward(), optimizer.step(); evaluate under torch.no_grad()"
)


def refuse_autocast(device: torch.device) -> None:
    """Raise UsageError under autocast: 16-bit products are off by up to 2^-8, which no bound
    covers."""
    if torch.is_autocast_enabled(device.type):
        raise UsageError(
            "training: under autocast the gradient of one example may exceed its bound by "
            "the rounding of 16-bit products; leave autocast out, or use GradientClipping"
        )


def refuse_modes() -> None:
    """Raise UsageError for active modes of this thread that intercept every operation."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise UsageError(
            "training: a transformation of torch.func (grad, vmap, jvp) is active around the "
            "forward pass; use it only in evaluation mode, on model.eval() or under no_grad()"
        )
    if not (torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack()):
        return
    functions = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    modes = [mode for mode in functions if type(mode) is not DeviceContext]
    modes += _get_current_dispatch_mode_stack()
    if modes:
        raise UsageError(
            f"training: the mode {type(modes[-1]).__name__} is active around the forward or the "
            "backward pass, and may change what is computed, so the gradient may not be that of "
            "the network that was bounded; exit the `with` block before the step, or use it only "
            "around evaluation"
        )


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs uncompiled, also if torch.compile compiles the code around it."""
    uncompiled = torch.compiler.disable(function)  # type: ignore[no-untyped-call]

    def run(*given: Any) -> Any:  # the wrapper of `disable` costs more than a small step can spare
        return (uncompiled if torch.compiler.is_compiling() else function)(*given)

    return run


def _refuse_other_terms(cotangent: Tensor) -> None:
    del cotangent
    raise UsageError(_OTHER_TERM)


@cache
def _anchor() -> Tensor:
    """Return a 0 that gives copies of outputs a history, through which nothing may be
    differentiated."""
    anchor = torch.zeros((), device="cpu", requires_grad=True)
    anchor.register_hook(_refuse_other_terms)  # type: ignore[no-untyped-call]
    return anchor


@dataclass(slots=True, eq=False)
class _CurrentBatch:
    """The batch of the current step: its size, and how many examples have reached each stage."""

    examples: int
    lost: int = 0
    """Examples whose loss was computed."""
    returned: int = 0
    """Examples whose backward pass has begun."""
    inputs: Tensor | None = None
    begun: Passing | None = None
    """Of the bounded graph, in the place of the module's own."""
    is_open: bool = False
    """Whether a forward pass has begun whose output is awaited."""
    last: Passing | None = None


class Passing:
    """One forward pass of examples of a batch, on its way through the criterion and back.

    output: the tensor for the criterion. copied: what the module's hooks and the caller get, kept
    here until the caller has it.
    """

    def __init__(self, batch: _CurrentBatch, output: Tensor) -> None:
        self.batch, self.output = batch, output
        self.is_back = False
        self.copied: Tensor | None = output.detach() + _anchor()
        self._caller = weakref.ref(self.copied)

    def is_of(self, logits: Tensor) -> bool:
        """Whether these logits are the copy, unchanged; where the output is NaN, any entry is
        accepted."""
        if self._caller() is not logits or logits.shape != self.output.shape:
            return False
        with torch.no_grad():
            return are_equal(logits, self.output) or bool(
                ((logits == self.output) | self.output.isnan()).all()
            )

    def refuse_hooks(self) -> None:
        """Raise UsageError if the copy has a hook, which would never run."""
        given = self._caller()
        if given is not None and given._backward_hooks:
            raise UsageError(_OTHER_TERM)


class StepGuard:
    """Watches one module and the parameters that its optimizer trains.

    trained: the trained parameters, by name. bounded: returns the output of the bounded graph; None
    if the module's own is released. leaves: what the bounded graph reads, by name; those of the
    trained parameters are kept at the values after the last step, and nobody else has them.
    numbers: refuses changes of numbers outside of steps.
    """

    def __init__(
        self,
        module: nn.Module,
        trained: Mapping[str, nn.Parameter],
        settings: Settings,
        leaves: Mapping[str, Tensor],
        bounded: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.trained = dict(trained)
        self._settings = settings
        self._bounded = bounded
        self._takes_autocast = settings.enforced.clips_gradients  # sums what it has measured
        self.leaves = {name: own for name, own in leaves.items() if name in self.trained}
        self.numbers = KeptNumbers(module, self.trained, self.leaves)
        self._batch: _CurrentBatch | None = None
        self._sums: dict[str, Tensor] = {}

    @property
    def output(self) -> Tensor | None:
        """A copy of what the bounded graph returned for the last input; None if it is not
        evaluated."""
        begun = None if self._batch is None else self._batch.begun
        return None if begun is None else begun.copied

    @property
    def inputs(self) -> Tensor:
        """The last input of the network."""
        if self._batch is None or self._batch.inputs is None:
            raise UsageError(f"training: no forward pass in training mode yet; {_ORDER}")
        return self._batch.inputs

    def drawn(self, examples: int) -> None:
        """Begin the step of a drawn batch, which may repeat one whose gradients were not
        released."""
        self._batch = _CurrentBatch(examples)
        self._sums.clear()

    def entering(self, x: Tensor) -> None:
        """Check the start of a forward pass in training mode, and keep an admissible copy of x.

        What is released is computed from this copy, which no code of the module sees.
        """
        batch = self._current_batch("a forward pass in training mode")
        self._require_plain(x.device)
        self.numbers.require()
        batch.is_open = True
        batch.inputs = admitted(x.detach().as_subclass(Tensor), self._settings).clone()
        if self._bounded is not None:
            with kept_as_they_are():
                batch.begun = Passing(batch, self._bounded(batch.inputs))

    def require_inputs(self, given: Sequence[Tensor]) -> None:
        """Raise UsageError unless these have the number and the shapes of the bounded network's
        inputs."""
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
        """Register the output of a forward pass; return the copy for its caller."""
        batch = self._batch
        if batch is None or not isinstance(output, Tensor) or not output.dim():
            return output
        if not batch.is_open:
            raise UsageError(
                "training: the output of a forward pass came whose input was not checked: the "
                "run's hooks before forward() are no longer in the model; clear no hooks while a "
                "private run is open"
            )
        batch.is_open = False
        batch.last, batch.begun = batch.begun or Passing(batch, output), None
        if self._bounded is not None and output is not batch.last.copied:
            require_output(output, batch.last.output)
        given, batch.last.copied = batch.last.copied, None
        return given

    def losing(self, logits: Tensor) -> Passing:
        """Check that the criterion is called with the output of the last pass; return that pass."""
        batch = self._current_batch("private.criterion")
        passing, batch.last = batch.last, None
        if passing is None or not passing.is_of(logits) or not torch.is_grad_enabled():
            raise UsageError(
                "training: private.criterion takes the output of the model itself, from a forward "
                "pass in training mode: call model.train(), change nothing in between, and call "
                "both where gradients are enabled; wrap a model that returns a mapping, as of "
                "Hugging Face, in one whose forward() returns self.model(x).logits"
            )
        self._require_plain(logits.device)
        batch.lost += len(logits)
        if batch.lost > batch.examples:
            raise UsageError(
                f"training: {batch.lost} examples went through the criterion, and the batch that "
                f"was drawn has {batch.examples}; {_ORDER}"
            )
        return passing

    def refuse_lost(self) -> None:
        """Raise NoVerdictError if weights are NaN or infinite: no example has a gradient there."""
        place = first_without_number(list(self.trained.values()))
        if place is not None:
            raise NoVerdictError(f"training: {list(self.trained)[place]} is {NO_NUMBER}")

    def returning(self, passing: Passing) -> None:
        """Check the start of a backward pass through the criterion."""
        batch = self._current_batch("backward()")
        if passing.is_back:
            raise UsageError(
                "training: backward() ran twice through one loss, so its examples count twice"
            )
        if passing.batch is not batch:
            raise UsageError(f"training: backward() through the loss of another batch; {_ORDER}")
        if batch.returned == 0:
            self._refuse_left_over()
        self._require_plain(passing.output.device)
        passing.refuse_hooks()
        refuse_hooked(self.trained)
        passing.is_back = True
        batch.returned += len(passing.output)

    def put(self, gradients: Mapping[str, Tensor]) -> None:
        """Add newly computed gradients of some examples to `.grad`.

        They are kept as they come, and never written to: two of them may be one tensor.
        """
        (self.numbers.require if self._bounded is None else self.numbers.require_kept)()
        with torch.no_grad():
            for name, gradient in gradients.items():
                parameter, total = self.trained[name], self._sums.get(name)
                own = gradient.to(parameter)
                self._sums[name] = own if total is None else total + own
                present = parameter.grad
                if present is None:  # in the same memory layout, as fused optimizers require
                    parameter.grad = torch.empty_like(parameter).copy_(own)
                else:
                    present.add_(own)

    def stepping(self, unmanaged: Sequence[str]) -> None:
        """Check that the optimizer may step.

        unmanaged: names of parameters that it would move besides the trained ones.
        """
        batch = self._current_batch("optimizer.step()")
        if batch.returned != batch.examples:
            raise UsageError(
                f"training: the batch that was drawn has {batch.examples} examples, and "
                f"{batch.returned} of them went through backward(): every example counts once; "
                f"{_ORDER}"
            )
        if unmanaged:
            raise UsageError(
                f"training: the optimizer trains {', '.join(unmanaged[:3])}, which did not exist, "
                "or was frozen, when make_private was called; no bound or noise is of its "
                "gradient: train it in a run of its own, or from the beginning"
            )
        refuse_modes()
        self.numbers.require(anew=True)
        self._refuse_touched()

    def settle(self) -> None:
        """End the step: the next one begins with the present weights."""
        self._batch = None
        self._sums.clear()
        self.numbers.settle()

    def _require_plain(self, device: torch.device) -> None:
        """Raise UsageError where torch computes something else than it is asked for."""
        if not self._takes_autocast:
            refuse_autocast(device)
        refuse_modes()

    def _current_batch(self, what: str) -> _CurrentBatch:
        if self._batch is None:
            raise UsageError(f"training: {what} without a batch from private.loader; {_ORDER}")
        return self._batch

    def _refuse_left_over(self) -> None:
        """Raise UsageError for gradients from an earlier step."""
        for name, parameter in self.trained.items():
            if parameter.grad is not None and bool(parameter.grad.any()):
                raise UsageError(
                    f"training: {name} has a gradient from before this batch; call "
                    "optimizer.zero_grad() in every step"
                )

    def _refuse_touched(self) -> None:
        """Raise UsageError for gradients that the criterion did not put there."""
        present = {name: item.grad for name, item in self.trained.items() if item.grad is not None}
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
