"""Modes: parts of a module that stay in evaluation mode, and dropout with masks that are kept.

    features.eval().requires_grad_(False)  # before make_private
    …
    model.train()  # leaves them in evaluation mode

A resting part stays in evaluation mode whatever `model.train()` sets. Two kinds of part rest: a
layer that normalises by fixed statistics, which in training mode would mix the examples of a batch;
and a part in evaluation mode inside a part whose parameters are all frozen, such as pretrained
features. Everything else has the mode that it is put in. Fixed statistics are constants, like
frozen parameters: with mean m, variance v and ε, x ↦ γ(x − m)/√(v + ε) + β is an affine map of each
channel of each example by itself.

Dropout is harmless if the gradient of each example is clipped, since masks mix no examples. The
masks of a forward pass are kept and used again in a second pass, so that the gradient that is
clipped is that of the function whose losses the criterion reported. Proof that masks cost no
privacy under gradient clipping: they are drawn independently of the examples, each entry for one
example; given all masks, a release is a clipped sum with noise, as without dropout, and what holds
for every value of the masks holds for their mixture.
"""

import warnings
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils.hooks import RemovableHandle

from lipcert.audit.observation import unwrapped
from lipcert.errors import NoVerdictError, UsageError
from lipcert.text.numbers import first_of


def holds_statistics(part: nn.Module) -> bool:
    """Whether a part normalises by fixed running statistics, because it is in evaluation mode."""
    return (
        isinstance(part, _BatchNorm)
        and not part.training
        and part.running_mean is not None
        and part.running_var is not None
    )


def has_learnt(part: nn.Module) -> bool:
    """Whether a BatchNorm has learnt running statistics; those of a new layer are 0 and 1."""
    if not isinstance(part, _BatchNorm) or part.running_mean is None or part.running_var is None:
        return False
    return bool(part.running_mean.any()) or not bool(part.running_var.eq(1.0).all())


def frozen(module: nn.Module) -> frozenset[nn.Module]:
    """Return the parts that lie in, or are, a part whose parameters are all frozen."""
    found: set[nn.Module] = set()
    for part in module.modules():
        if part not in found and part is not module and _is_frozen(part):
            found.update(part.modules())
    return frozenset(found)


def resting(module: nn.Module) -> frozenset[nn.Module]:
    """Return the parts that stay in evaluation mode."""
    still = frozen(module)
    return frozenset(
        part
        for part in module.modules()
        if holds_statistics(part) or (part in still and not part.training)
    )


_PLAIN: Final = {"padding_idx": None, "sparse": False, "scale_grad_by_freq": False}


class EvalMode:
    """Keeps parts of a module in evaluation mode, from now until `remove`.

    Until then a trained table leaves out no row of padding, since no file says which row that is,
    and the noise of a run moves all of them; and its gradient is dense, and not scaled by how often
    a batch has a row.
    """

    def __init__(self, model: nn.Module) -> None:
        """model: the module, or a wrapper around it."""
        self._tables: dict[nn.Embedding, Mapping[str, object]] = {}
        for part in model.modules():
            if isinstance(part, nn.Embedding) and part.weight.requires_grad:
                self._tables[part] = {name: getattr(part, name) for name in _PLAIN}
                vars(part).update(_PLAIN)
        self.parts = resting(unwrapped(model))
        self._handles: list[RemovableHandle] = []
        below = {child for part in self.parts for child in part.children()}
        for part in {model, *(self.parts - below)} if self.parts else ():
            resting_there = self.parts.intersection(part.modules())
            self._handles.append(part.register_forward_pre_hook(Resting(resting_there)))

    def remove(self) -> None:
        """Let the parts have the mode that they are put in again, and tables leave out rows."""
        for table, own in self._tables.items():
            vars(table).update(own)
        _put_to_rest(self.parts)
        for handle in self._handles:
            handle.remove()


class Resting:
    """A forward pre-hook that puts these parts into evaluation mode."""

    def __init__(self, parts: frozenset[nn.Module]) -> None:
        self._parts = parts

    def __call__(self, module: nn.Module, arguments: object) -> None:
        """Set the modes; the inputs of the pass are unchanged."""
        del module, arguments
        _put_to_rest(self._parts)


def _put_to_rest(parts: Iterable[nn.Module]) -> None:
    for part in parts:
        part.training = False


def _is_frozen(part: nn.Module) -> bool:
    """Whether a part has parameters and none of them is trained."""
    trained = [item.requires_grad for item in part.parameters()]
    return bool(trained) and not any(trained)


MASKED: Final = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Modules that multiply their input by a mask and do nothing else."""


class DropoutWarning(UserWarning):
    """A run trains without dropout that the module asks for."""


def drawn(part: nn.Module) -> list[tuple[Any, str]]:
    """Return the numbers, with the parts that have them, by which a part draws masks of its own:
    those called so (also of torch's attention and recurrent layers), the p of somebody's own part
    called so (stochastic depth of torchvision), and the p of dropouts in an attention, which
    computes with them and does not call the dropouts."""
    kind, is_torch = type(part).__name__.lower(), type(part).__module__.startswith("torch.")
    is_drawing = not is_torch and any(word in kind for word in ("drop", "stochastic"))
    own = [name for name in vars(part) if "drop" in name or (is_drawing and name == "p")]
    inner = [child for child in part.children() if isinstance(child, _DropoutNd)]
    found: list[tuple[Any, str]] = [(part, name) for name in own]
    found += [(child, "p") for child in inner if "attention" in kind]
    return [(at, name) for at, name in found if isinstance(p := getattr(at, name), float) and p]


def without_drawn(module: nn.Module) -> AbstractContextManager[None]:
    """Warn of dropout that parts draw themselves, which is 0 inside the block."""
    still = resting(module)
    parts = {name: drawn(part) for name, part in module.named_modules() if part not in still}
    names = [name or "the module itself" for name, found in parts.items() if found]
    if names:
        warnings.warn(
            f"training: dropout that is drawn within {first_of(names, 3)} is 0 until the run ends, "
            "as no file shows its masks",
            DropoutWarning,
            stacklevel=4,
        )
    return _zeroed([number for found in parts.values() for number in found])


@contextmanager
def _zeroed(numbers: Iterable[tuple[Any, str]]) -> Iterator[None]:
    """Have 0 for these attributes inside the block."""
    held = [(at, name, getattr(at, name)) for at, name in numbers]
    try:
        for at, name, _ in held:
            setattr(at, name, 0.0)
        yield
    finally:
        for at, name, before in held:
            setattr(at, name, before)


def dropouts(module: nn.Module) -> dict[str, _DropoutNd]:
    """Return, by name, the dropout layers whose masks can be drawn once and used twice."""
    found = ((name, part) for name, part in module.named_modules() if type(part) in MASKED)
    return {name: part for name, part in found if isinstance(part, _DropoutNd)}


def refused_parts(module: nn.Module, *, masks: bool) -> Iterator[tuple[str, str]]:
    """Yield the parts whose mode makes them random, or makes them mix or remember examples, and
    why.

    masks: whether active dropout is accepted, because gradients are clipped example by example.
    """
    for name, part in module.named_modules():
        kind = type(part).__name__
        match part:
            case _DropoutNd() if part.training and part.p > 0.0:
                if not (masks and type(part) in MASKED):
                    yield name, f"{kind} in training mode"
            case _BatchNorm() if part.training or part.running_mean is None:
                yield name, f"{kind} with batch statistics"
            case nn.RReLU() if part.training:
                yield name, f"{kind} in training mode"
            case _InstanceNorm() if part.training and part.track_running_stats:
                yield name, f"{kind} that tracks running statistics"


def refuse_active(module: nn.Module, remedy: str, *, masks: bool) -> None:
    """Raise UsageError with the first `refused_parts`, and what to do."""
    parts = refused_parts(module, masks=masks)
    active = first_of([f"{name or 'the module itself'} ({what})" for name, what in parts], 3)
    if active:
        raise UsageError(
            f"training: {active}: no bound holds for parts that are random or mix the examples of "
            f"a batch; {remedy}"
        )


@contextmanager
def at_rest(module: nn.Module) -> Iterator[None]:
    """Put the module's dropout into evaluation mode inside the block, draw no other masks, and
    change nothing else.

    A pass with other weights (functional_call) leaves them in the lists of recurrent parts.
    """
    recurrent = [part for part in module.modules() if isinstance(part, nn.RNNBase)]
    before = [(part, dict(vars(part))) for part in (*dropouts(module).values(), *recurrent)]
    try:
        with _zeroed([number for part in module.modules() for number in drawn(part)]):
            _put_to_rest(dropouts(module).values())
            yield
    finally:
        for part, own in before:
            vars(part).update(own)


class DropoutMasks:
    """The masks of a module's last forward pass in training mode with gradients enabled.

    single: a copy of the module, to which they are applied; only single examples pass through it.
    handles: the hooks that record the masks.
    """

    def __init__(self, module: nn.Module, single: nn.Module, still: Container[nn.Module]) -> None:
        """still: the parts of the module that stay in evaluation mode."""
        self.single = single.train()
        own = dict(zip(module.modules(), single.modules(), strict=True))
        _put_to_rest(copied for part, copied in own.items() if part in still)
        names = dropouts(module)
        self._copies: dict[nn.Module, nn.Module] = {part: own[part] for part in names.values()}
        self._names = {own[part]: name for name, part in names.items()}
        self._passes: list[bool] = []  # per open pass, innermost last: whether it records
        self._drawn: list[tuple[nn.Module, Tensor]] = []
        self._again: deque[tuple[nn.Module, Tensor]] = deque()
        self._waiting: list[Tensor] = []
        self.handles: tuple[RemovableHandle, ...] = (
            module.register_forward_pre_hook(self._begin),
            module.register_forward_hook(self._end, always_call=True),
            *(part.register_forward_pre_hook(self._enter) for part in self._copies),
            *(part.register_forward_hook(self._leave) for part in self._copies),
        )
        for part in self._copies.values():
            part.register_forward_hook(self._apply)

    def drawn(self) -> Sequence[tuple[nn.Module, Tensor]]:
        """Return each part with its mask, [rows of all examples, …], in the order of use."""
        return tuple(self._drawn)

    @contextmanager
    def again(self, parts: Sequence[nn.Module], masks: Sequence[Tensor]) -> Iterator[None]:
        """Apply these masks, each [rows of the example, …], to the evaluation of one example."""
        self._again = deque(zip(parts, masks, strict=True))
        try:
            with at_rest(self.single):
                yield
            if self._again:
                raise self._other_pass(self._again[0][0])
        finally:
            self._again.clear()
            self._waiting.clear()

    def _begin(self, module: nn.Module, arguments: object) -> None:
        del arguments
        self._passes.append(module.training and torch.is_grad_enabled())
        if self._records:
            self._drawn.clear()
            self._waiting.clear()

    def _end(self, *unused: object) -> None:
        del unused
        if self._passes:  # empty where another hook failed before `_begin`
            self._passes.pop()

    @property
    def _records(self) -> bool:
        return bool(self._passes) and self._passes[-1]

    def _enter(self, part: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Give a part in training mode ones, so that its output is the mask."""
        if not (self._records and part.training):
            return None
        (x,) = arguments
        self._waiting.append(x)
        return (torch.ones_like(x),)

    def _leave(self, part: nn.Module, arguments: object, output: Tensor) -> Tensor | None:
        del arguments
        if self._records and part.training:
            self._drawn.append((self._copies[part], output.detach()))
            return self._waiting.pop() * output
        return None

    def _apply(self, part: nn.Module, arguments: object, output: Tensor) -> Tensor | None:
        del arguments
        if self._again and self._again[0][0] is part:
            _, mask = self._again.popleft()
            if output.shape != mask.shape:
                raise self._other_pass(part)
            return output * mask
        return None

    def _other_pass(self, part: nn.Module) -> NoVerdictError:
        return NoVerdictError(
            f"training: the masks of {self._names[part]} ({type(part).__name__}) cannot be split "
            "by example: dropout has to read the examples along the first axis, and a "
            "forward pass has to call the same parts for one example as for many; replace it: "
            "lipcert.training.make_trainable(module)"
        )


def kept_as_they_are() -> AbstractContextManager[object]:
    """Keep hooks on saved tensors, such as those of a checkpoint around the module, from what is
    computed inside the block."""
    is_hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    return saved_tensors_hooks(_as_it_is, _as_it_is) if is_hooked else nullcontext()


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
