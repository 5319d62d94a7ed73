"""Hooks around the forward pass, which report it to the guards and the recorder.

They are installed on a module, which may be wrapped for parallel training. Forward passes in
training mode are observed and their inputs checked; gradients stay in their process until the
release adds them up over the ranks.

Invariants: passes in evaluation mode, or without gradients, are left alone; ranks communicate only
through `World`, which can name a missing rank.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Final, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parallel import DistributedDataParallel

from lipcert.audit import tape
from lipcert.audit.observation import apart as split
from lipcert.audit.observation import side_by_side
from lipcert.audit.recorder import Recorder
from lipcert.audit.trace.records import IndexArray, Reduction
from lipcert.errors import UsageError
from lipcert.privacy.plan import TrainingPlan
from lipcert.training.batches import Arguments
from lipcert.training.clipping.backprop import CLIPS
from lipcert.training.exporting import OF_RUN
from lipcert.training.guards import StepGuard, as_it_is
from lipcert.training.kept_numbers import parts_of
from lipcert.training.modes import Resting


@contextmanager
def apart(module: nn.Module) -> Iterator[None]:
    """Keep DistributedDataParallel from exchanging gradients and buffers inside the block.

    It would exchange gradients in the backward pass and wait forever if a rank drew no example, has
    more slices than another, or clips gradients itself. `Release` adds them up once all ranks are
    known to be present.
    """
    if not isinstance(module, DistributedDataParallel):
        yield
        return
    if module.static_graph or module.mixed_precision is not None:
        raise UsageError(
            "training: DistributedDataParallel with static_graph or mixed_precision exchanges or "
            "converts gradients on its own; leave these options out"
        )
    if module.process_group.size() != torch.distributed.get_world_size():
        raise UsageError(
            f"training: DistributedDataParallel holds {module.process_group.size()} of "
            f"{torch.distributed.get_world_size()} ranks; one run takes all ranks of the default "
            "process group"
        )
    syncs_buffers = module.require_forward_param_sync
    module.require_forward_param_sync = False
    try:
        with module.no_sync():
            yield
    finally:
        module.require_forward_param_sync = syncs_buffers


_GLOBAL: Final = (
    torch_module._global_forward_hooks,
    torch_module._global_forward_pre_hooks,
)


_OWN: Final = (Resting, *CLIPS)
"""Types of hooks on parts that act on passes, and observe none."""


class Shorter:
    """Leaves out a module's own forward pass where that has no side effect to lose.

    The module still runs its own pass if it is compiled, if it is called outside a step, if hooks
    on its parts or on all modules would miss a pass, and until attributes of its parts are the same
    as before the last pass.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before = vars(module).get("forward")
        self._expected: tuple[Tensor, Tensor] | None = None
        self._known: list[tuple[object, int]] | None = None
        self._is_quiet = False
        own = module.forward

        @wraps(own)
        def forward(*arguments: Any, **keywords: Any) -> Any:
            expected, self._expected = self._expected, None
            is_alone = len(arguments) == 1 and not keywords
            if expected is None or not is_alone or arguments[0] is not expected[0]:
                return own(*arguments, **keywords)
            return expected[1]

        vars(forward)[OF_RUN] = own
        module.forward = forward

    def expect(self, x: Tensor, output: Tensor) -> None:
        """Announce a forward pass in training mode on x, whose output is known."""
        if not self._is_quiet:
            before, self._known = self._known, _attributes(self._module)
            self._is_quiet = before is not None and _are_the_same(before, self._known)
        is_seen = not self._is_quiet or self._is_watched() or torch.compiler.is_compiling()
        self._expected = None if is_seen else (x, output)

    def remove(self) -> None:
        """Restore the module's own forward pass."""
        if self._before is None:
            del self._module.forward
        else:
            self._module.forward = self._before

    def _is_watched(self) -> bool:
        return any(_GLOBAL) or any(
            not isinstance(hook, _OWN)
            for part in parts_of(self._module)
            if part is not self._module and (part._forward_hooks or part._forward_pre_hooks)
            for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
        )


def _attributes(module: nn.Module) -> list[tuple[object, int]]:
    """Return what the attributes of all parts hold, with lengths of containers and torch's counts
    of writes to tensors."""
    return [(value, _mark(value)) for part in module.modules() for value in vars(part).values()]


def _mark(value: object) -> int:
    if isinstance(value, Tensor):
        return 0 if value.is_inference() else value._version
    return len(value) if isinstance(value, dict | list | set) else 0


def _are_the_same(ones: Sequence[tuple[object, int]], others: Sequence[tuple[object, int]]) -> bool:
    return len(ones) == len(others) and all(
        one is other and mark == own for (one, mark), (other, own) in zip(ones, others, strict=True)
    )


def refuse_watched(module: nn.Module) -> None:
    """Raise UsageError if a run that is not closed has hooks on the module."""
    hooks = module._forward_pre_hooks.values()
    if any(isinstance(getattr(hook, "__self__", None), Hooks) for hook in hooks):
        raise UsageError(
            "training: the model is in a private run that is still open; end that one first: "
            "private.close(), or train inside `with private:`"
        )


class Hooks:
    """The hooks on one module, until they are removed."""

    def __init__(
        self,
        module: nn.Module,
        guard: StepGuard,
        plan: TrainingPlan,
        *,
        is_bare: bool,
    ) -> None:
        """is_bare: whether no other module is around this one."""
        self._guard = guard
        self._names = Arguments.of(module).names
        self._plan = plan
        self._recorder: Recorder | None = None
        self._index: IndexArray | None = None
        self._seen = 0
        self._passes = 0
        self._run_before, self._run_after = as_it_is(self._before), as_it_is(self._after)
        self._undo = ExitStack()
        self._undo.enter_context(apart(module))
        first = module.register_forward_pre_hook(self._enter, with_kwargs=True)
        self._undo.callback(first.remove)
        self._undo.callback(module.register_forward_hook(self._leave).remove)
        self._shorter = Shorter(module) if is_bare else None
        if self._shorter is not None:
            self._undo.callback(self._shorter.remove)

    def record_with(self, recorder: Recorder) -> None:
        """Report the examples of each forward pass to this recorder."""
        self._recorder = recorder

    def drawn(self, index: IndexArray) -> None:
        """Note that the loader hands out a batch of these examples."""
        self._index, self._seen, self._passes = index, 0, 0
        self._guard.drawn(len(index))
        twin = tape.current()
        if twin is not None:
            twin.takes(index)

    def stepping(self) -> None:
        """Note that a step is about to be made; an empty batch needs no forward pass."""
        if self._index is not None and not len(self._index) and not self._passes:
            self._describe(0)

    def remove(self) -> None:
        """Remove all hooks from the module."""
        self._undo.close()

    def __reduce__(self) -> NoReturn:
        """Refuse copies and pickles: hooks are copied with their module, and would watch a run of
        their own."""
        raise UsageError(
            "training: a module under private training is neither copied nor pickled, since the "
            "run watches it; copy it before make_private (torch's AveragedModel, too), save its "
            "state_dict(), or load that into another module"
        )

    def _enter(self, *given: Any) -> Any:
        """Run `_before` uncompiled. The hook is a method, so that who copies the module copies this
        object, too, and is refused; the function that `as_it_is` returns would be shared."""
        return self._run_before(*given)

    def _leave(self, *given: Any) -> Any:
        """Run `_after`, in the same way."""
        return self._run_after(*given)

    def _before(
        self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not (module.training and torch.is_grad_enabled()):
            return None
        if keywords:
            arguments = self._in_order(arguments, keywords)
        if not arguments or not all(isinstance(x, Tensor) for x in arguments):
            raise UsageError(
                "training: the model takes one tensor of examples, and nothing else, no labels: "
                "model(x); or one for each of its inputs: model(a, b), model(a=a, b=b)"
            )
        self._guard.require_inputs(arguments)
        twin = tape.current()
        if twin is not None:
            twin.enters(arguments)
        is_alone = len(arguments) == 1
        given = arguments[0] if is_alone else side_by_side(arguments)
        self._guard.entering(given)
        self._describe(len(given), given)
        x, known = self._guard.inputs.clone(), self._guard.output
        if is_alone and known is not None and self._shorter is not None:
            self._shorter.expect(x, known)
        return (x,) if is_alone else split(x, arguments), {}

    def _in_order(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments by position; empty if the keywords are not the next ones of
        forward()."""
        names = self._names[len(arguments) :][: len(keywords)]
        is_next = keywords.keys() == set(names)
        return (*arguments, *(keywords[name] for name in names)) if is_next else ()

    def _after(self, module: nn.Module, arguments: object, output: object) -> object:
        del arguments
        if module.training and torch.is_grad_enabled():
            return self._guard.leaving(output)
        return None

    def _describe(self, count: int, source: Tensor | None = None) -> None:
        if self._recorder is None or self._index is None:
            return
        start = self._seen
        self._seen += count
        self._passes += 1
        self._recorder.batch(
            index=self._index[start : start + count],
            sampler=self._plan.sampling,
            rate=self._plan.batch / self._plan.dataset_size,
            reduction=Reduction.SUM,
            divisor=float(self._plan.batch),
            source=source,
        )
