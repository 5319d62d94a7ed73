"""Detect changes of a module: of its composition, and of numbers that only a step may change.

`Composition` records everything that a module consists of except the numbers of its parameters and
buffers: its parts and their names, their classes and methods, hooks (also those on all modules of
the process and on parameters), the tensor behind every name, and everything that attributes of
parts and of classes hold: numbers and strings, also inside containers and objects, and tensors, of
which it keeps copies. Objects are compared by identity and kept alive, so that no new object can be
mistaken for an old one. What code reads elsewhere is not seen: global variables, variables of an
enclosing function, or what an object within an object within an object holds. No release depends on
it: the gradient is that of the bounded graph.

`KeptNumbers` compares the numbers themselves with those of the last step. It does not use torch's
counters of writes, because writes through `.data` and numpy bypass them. The comparisons never
report equality, or finiteness, that does not hold, however sums are rounded.
"""

import ctypes
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from lipcert.errors import UsageError
from lipcert.measure.gradient_norms.squares import is_channels_last

_PLAIN: Final = frozenset({torch.float32, torch.float64})
_memcmp: Final = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_PERTURBED: Final = (
    "forward and backward passes must see the weights of the last step: weights that are perturbed "
    "for a gradient and put back (SAM, weight noise, averaged weights) have other bounds; evaluate "
    "such weights in evaluation mode or under torch.no_grad()"
)


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same dtype, shape, and numbers (or bits)."""
    if one.dtype is not other.dtype or one.shape != other.shape:
        return False
    is_one_piece = one.stride() == other.stride() and other.is_cpu and _is_plain(one)
    if is_one_piece and _memcmp(one.data_ptr(), other.data_ptr(), one.nbytes) == 0:
        return True
    return torch.equal(one, other)


def first_difference(ones: Sequence[Tensor], others: Sequence[Tensor]) -> int | None:
    """Return the index of the first pair that is not equal; None if all are.

    Each question to a GPU stops it, so it is asked only once for all pairs.
    """
    pairs = list(zip(ones, others, strict=True))
    if not pairs or _are_here(ones):
        return next((place for place, pair in enumerate(pairs) if not are_equal(*pair)), None)
    if _are_alike(pairs) and torch.equal(_in_a_row(ones), _in_a_row(others)):
        return None
    differ = [
        torch.ne(one, other).any()
        if one.shape == other.shape and one.dtype is other.dtype
        else torch.ones((), dtype=torch.bool, device=one.device)
        for one, other in pairs
    ]
    places = torch.stack([item.to(ones[0].device) for item in differ]).nonzero()
    return int(places[0]) if len(places) else None


def is_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite.

    Proof: a sum over NaN or an infinite number is not finite. If finite numbers overflow when
    summed in their own type, they are summed in float64.
    """
    return math.isfinite(tensor.sum()) or math.isfinite(tensor.sum(dtype=torch.float64))


def first_without_number(tensors: Sequence[Tensor]) -> int | None:
    """Return the index of the first tensor with NaN or infinity; a GPU is asked once for all
    tensors."""
    are_many = len(tensors) > 1 and not _are_here(tensors)
    is_one_kind = are_many and _are_alike(list(zip(tensors, tensors, strict=True)))
    if is_one_kind and is_finite(_in_a_row(tensors)):
        return None
    return next((place for place, item in enumerate(tensors) if not is_finite(item)), None)


def _are_alike(pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Whether both tensors of each pair have one shape, and all tensors one dtype and one
    device."""
    kinds = {(item.dtype, item.device) for pair in pairs for item in pair}
    return len(kinds) == 1 and all(one.shape == other.shape for one, other in pairs)


def _in_a_row(tensors: Sequence[Tensor]) -> Tensor:
    """Return all entries in one vector, so that one operation covers all tensors."""
    return torch.cat([item.detach().reshape(-1) for item in tensors])


def _is_plain(tensor: Tensor) -> bool:
    """Whether the tensor is one piece of main memory whose bits determine its entries."""
    is_known = tensor.is_cpu and tensor.dtype in _PLAIN and not tensor.is_neg()
    return is_known and (tensor.is_contiguous() or is_channels_last(tensor))


def _are_here(tensors: Sequence[Tensor]) -> bool:
    return all(item.is_cpu for item in tensors)


_NAMING: Final = ("named_parameters", "named_buffers", "named_modules", "_named_members")


def _names_plainly(module: nn.Module) -> bool:
    """Whether a module lists its tensors by torch's own methods, from what its parts hold.

    `Composition` then notices every change of these names and tensors.
    """
    kind, own = type(module), vars(module)
    return all(getattr(kind, n) is getattr(nn.Module, n) and n not in own for n in _NAMING)


class KeptNumbers:
    """Compares a module's parameters and buffers with their values after the last step.

    trained: the trained parameters, by name. All other numbers are compared from `keep` on.
    """

    def __init__(self, module: nn.Module, trained: Mapping[str, nn.Parameter]) -> None:
        self._module = module
        self._is_plain = _names_plainly(module)
        self._present: Mapping[str, Tensor] = {}
        self._trained = trained
        self._addresses = {name: item.data_ptr() for name, item in trained.items()}
        self._left = {name: item.detach().clone() for name, item in trained.items()}
        self._is_here = _are_here(list(self._left.values()))
        self._kept: dict[str, Tensor] | None = None
        self._was_known = False
        """Whether all names and tensors were in order when they were last looked through."""

    @torch.no_grad()
    def settle(self) -> None:
        """Remember the present weights; call it after each step."""
        torch._foreach_copy_(list(self._left.values()), list(self._trained.values()))

    def keep(self) -> None:
        """Refuse changes of untrained numbers from now on."""
        self._present = self._untrained()
        self._kept = {name: item.detach().clone() for name, item in self._present.items()}

    def require(self, *, is_still: bool = False) -> None:
        """Raise UsageError unless all numbers have their remembered values and addresses.

        is_still: whether the module was found to hold the same tensors as before, or was searched
        for others, when the forward pass began.
        """
        for name, parameter in self._trained.items():
            if parameter.data_ptr() != self._addresses[name]:
                raise UsageError(
                    f"training: {name} lies elsewhere in memory than when make_private was "
                    "called; move and convert the model before that"
                )
        changed = self._first_moved() if self._is_here else _changed(self._trained, self._left)
        if changed is not None:
            raise UsageError(
                f"training: {changed} was changed since the last step by something other than the "
                f"optimizer, so the bounds may not apply to these weights; {_PERTURBED}; use "
                "private.restore() to go back to a checkpoint"
            )
        self._require_kept(is_still=is_still)

    def _first_moved(self) -> str | None:
        """Return the name of the first trained parameter that changed or left the CPU; None if all
        are equal."""
        pairs = zip(self._trained.items(), self._left.values(), strict=True)
        return next((n for (n, p), left in pairs if not (p.is_cpu and are_equal(p, left))), None)

    def require_released(self) -> None:
        """Raise UsageError unless all numbers have their remembered values, on any device."""
        changed = _changed(self._trained, self._left)
        if changed is not None:
            raise UsageError(
                f"training: {changed} was changed after the last step by something other than the "
                "optimizer, so the model differs from what was released, and no ε applies to its "
                "weights; private.restore() goes back to a checkpoint; average, quantise, or train "
                "on with public examples after the `with` block"
            )
        self._require_kept()

    def _require_kept(self, *, is_still: bool = False) -> None:
        """Raise UsageError if an untrained parameter or buffer changed, or is new and would be
        saved."""
        if self._kept is None:
            return
        is_known = is_still and self._is_plain and self._was_known
        if is_known and not self._kept:
            return
        if not is_known:
            self._present, self._was_known = self._untrained(), False
        changed = _changed(self._present, self._kept)
        if changed is not None:
            raise UsageError(
                f"training: {changed} is not trained, and was changed since make_private was "
                "called: bounds hold for its former values, and buffers computed from examples "
                "would be kept without noise"
            )
        new = self._present.keys() - self._kept.keys()
        saved = sorted(new & self._module.state_dict().keys()) if new else []
        if saved:
            raise UsageError(
                f"training: {saved[0]} was added to the module since make_private was called, and "
                "would be saved with it without noise; add it before, or as a buffer with "
                "persistent=False"
            )
        self._was_known = True

    def _untrained(self) -> Mapping[str, Tensor]:
        """Return the parameters and buffers that are not trained, by name, on whatever device they
        are."""
        own = {id(item) for item in self._trained.values()}
        named = [*self._module.named_parameters(), *self._module.named_buffers()]
        return {name: item for name, item in named if id(item) not in own}


def _changed(present: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> str | None:
    """Return the first name whose numbers differ from the known ones, or are missing."""
    missing = next((name for name in known if name not in present), None)
    if missing is not None:
        return missing
    pairs = [(present[name].detach(), item) for name, item in known.items()]
    moved = [one if one.device == item.device else one.to(item.device) for one, item in pairs]
    place = first_difference(moved, list(known.values()))
    return None if place is None else list(known)[place]


_Look: TypeAlias = Callable[[Any], Iterable[object]]
_SIMPLE: Final = frozenset({bool, int, float, complex, str, bytes, type(None)})
_OPAQUE: Final = (
    *(BuiltinFunctionType, FunctionType, MethodType, ModuleType),
    *(classmethod, property, staticmethod),
)
"""Types of objects whose attributes are not examined."""
_DEPTH: Final = 3
"""How deep attributes of objects within objects are examined."""
_GLOBAL: Final = tuple(
    item for item in vars(torch_module).values() if isinstance(item, OrderedDict)
)
"""Hooks on all modules of the process."""


class Composition:
    """The parts and tensors of one module at the time of construction."""

    def __init__(self, module: nn.Module) -> None:
        self._held: list[tuple[Any, _Look, tuple[object, ...]]] = []
        self._empty: list[Any] = []
        self._objects: list[object] = []
        self._tensors: list[tuple[Tensor, bool, bool]] = []
        self._arrays: list[tuple[np.ndarray[Any, Any], bytes]] = []
        self._registered: set[int] = set()
        self._seen: dict[int, object] = {}
        self._waiting: deque[tuple[Any, int]] = deque((item, 0) for item in (module, *_GLOBAL))
        while self._waiting:
            self._add(*self._waiting.popleft())
        self._kinds = [type(item) for item in self._objects]
        self._copies = [(item, item.detach().clone()) for item in self._unregistered()]

    def is_present(self) -> bool:
        """Whether everything is unchanged, except the numbers of parameters and buffers."""
        for holder, look, known in self._held:
            now = tuple(look(holder))
            if len(now) != len(known) or not all(map(is_, now, known)):
                return False
        return (
            not any(self._empty)
            and all(map(is_, map(type, self._objects), self._kinds))
            and all(
                item.requires_grad is is_trained and bool(item._backward_hooks) is is_hooked
                for item, is_trained, is_hooked in self._tensors
            )
            and all(array.tobytes() == known for array, known in self._arrays)
            and all(are_equal(item, copy) for item, copy in self._copies)
        )

    def _unregistered(self) -> Iterator[Tensor]:
        """Yield tensors that share no storage with a parameter or a buffer."""
        registered = [item for item, *_ in self._tensors if id(item) in self._registered]
        own = {item.untyped_storage().data_ptr() for item in registered}
        for item, *_ in self._tensors:
            if item.layout is torch.strided and item.untyped_storage().data_ptr() not in own:
                yield item

    def _add(self, value: Any, depth: int) -> None:
        """Record an object that is `depth` objects away from a part, and queue what it holds."""
        if type(value) in _SIMPLE or isinstance(value, _OPAQUE) or id(value) in self._seen:
            return
        if isinstance(value, nn.Module):
            depth = 0
            own = (*value._parameters.values(), *value._buffers.values())
            self._registered.update(map(id, own))
        elif depth > _DEPTH:
            return
        self._seen[id(value)] = value
        if isinstance(value, Tensor):
            self._objects.append(value)
            self._tensors.append((value, value.requires_grad, bool(value._backward_hooks)))
        elif isinstance(value, dict):
            self._hold(value, _entries, depth)
        elif isinstance(value, tuple | frozenset):
            self._waiting += [(item, depth) for item in value]
        elif isinstance(value, list | set | deque):
            self._hold(value, iter, depth)
        elif isinstance(value, np.ndarray):
            self._arrays.append((value, value.tobytes()))
        elif isinstance(value, type):
            self._class(value, depth)
        else:
            self._object(value, depth)

    def _object(self, value: Any, depth: int) -> None:
        """Record a part, or another object with attributes."""
        self._objects.append(value)
        self._hold(getattr(value, "__dict__", {}), _entries, depth + 1)
        if any("__slots__" in vars(kind) for kind in type(value).__mro__):
            self._hold((value,), _slots, depth + 1)
        if isinstance(value, partial):
            self._waiting += [(item, depth) for item in (value.func, value.args, value.keywords)]
        for kind in type(value).__mro__:
            self._waiting.append((kind, depth))

    def _class(self, kind: type, depth: int) -> None:
        """Record methods and constants of a class; those of torch are functions and strings."""
        if kind.__module__ == "builtins":
            return
        is_of_torch = kind.__module__.startswith("torch.")
        self._hold(vars(kind), _values, _DEPTH + 1 if is_of_torch else depth)

    def _hold(self, holder: Any, look: _Look, depth: int) -> None:
        """Remember what a holder contains, and queue its contents at this depth."""
        known = tuple(look(holder))
        if known or holder:
            self._held.append((holder, look, known))
        else:
            self._empty.append(holder)
        if depth <= _DEPTH:
            self._waiting += [(item, depth) for item in known]


def _entries(holder: Mapping[object, object]) -> Iterator[object]:
    return chain(holder, holder.values())


def _values(holder: Mapping[object, object]) -> Iterable[object]:
    return holder.values()


def _slots(holder: tuple[object]) -> Iterator[object]:
    (value,) = holder
    for kind in type(value).__mro__:
        names = vars(kind).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            yield getattr(value, name, None)
