"""Composition: what a module is made of, besides the numbers of its parameters and buffers.

What enters: a module. What leaves: whether it is still made of the same: its parts and what they
are called, their classes and methods, hooks, also those on all modules of the process and on
parameters, which tensor every name is, and all that attributes of parts and of classes hold:
numbers and words, also in containers and in objects, and tensors, of which copies are kept.
Invariant: what is held is told apart by its identity, and what was there is kept alive, so that no
other object passes for it. What code reads elsewhere (global variables, variables of an enclosing
function, what an object within an object within an object holds) is not seen.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from lipcert.training.comparing import are_equal

Copies: TypeAlias = list[tuple[Tensor, Tensor]]
"""tensors, and copies of them"""
_Look: TypeAlias = Callable[[Any], Iterable[object]]
_PLAIN: Final = frozenset({bool, int, float, complex, str, bytes, type(None)})
_WITHOUT: Final = (
    *(BuiltinFunctionType, FunctionType, MethodType, ModuleType),
    *(classmethod, property, staticmethod),
)
"""objects of which no attributes are looked at"""
_DEPTH: Final = 3
"""of objects within objects: how far attributes are looked at"""
_GLOBAL: Final = tuple(
    item for item in vars(torch_module).values() if isinstance(item, OrderedDict)
)
"""hooks on all modules of the process"""


@final
class Composition:
    """Of one module, as it is when this is made."""

    def __init__(self, module: nn.Module) -> None:
        self._held: list[tuple[Any, _Look, tuple[object, ...]]] = []
        self._objects: list[object] = []
        self._tensors: list[tuple[Tensor, bool, bool]] = []
        self._arrays: list[tuple[np.ndarray[Any, Any], bytes]] = []
        self._registered: set[int] = set()
        self._seen: dict[int, object] = {}
        self._waiting: deque[tuple[Any, int]] = deque((item, 0) for item in (module, *_GLOBAL))
        while self._waiting:
            self._add(*self._waiting.popleft())
        self._kinds = [type(item) for item in self._objects]
        self._copies: Copies = [(item, item.detach().clone()) for item in self._unregistered()]

    def is_present(self) -> bool:
        """Whether everything is what it was, but for numbers of parameters and buffers."""
        for holder, look, known in self._held:
            if holder or known:
                now = tuple(look(holder))
                if len(now) != len(known) or not all(map(is_, now, known)):
                    return False
        return (
            all(map(is_, map(type, self._objects), self._kinds))
            and all(
                item.requires_grad is is_trained and bool(item._backward_hooks) is is_hooked
                for item, is_trained, is_hooked in self._tensors
            )
            and all(array.tobytes() == known for array, known in self._arrays)
            and are_copies(self._copies)
        )

    def copies(self) -> Copies:
        """Of its tensors that are no parameters or buffers, as they are now."""
        return [(item, item.detach().clone()) for item, _ in self._copies]

    def _unregistered(self) -> Iterator[Tensor]:
        """Tensors that share no storage with a parameter or a buffer."""
        registered = [item for item, *_ in self._tensors if id(item) in self._registered]
        own = {item.untyped_storage().data_ptr() for item in registered}
        for item, *_ in self._tensors:
            if item.layout is torch.strided and item.untyped_storage().data_ptr() not in own:
                yield item

    def _add(self, value: Any, depth: int) -> None:
        """What is held somewhere, `depth` objects away from a part, and what it holds."""
        if type(value) in _PLAIN or isinstance(value, _WITHOUT) or id(value) in self._seen:
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
        """A part, or another object with attributes."""
        self._objects.append(value)
        self._hold(getattr(value, "__dict__", {}), _entries, depth + 1)
        if any("__slots__" in vars(kind) for kind in type(value).__mro__):
            self._hold((value,), _slots, depth + 1)
        if isinstance(value, partial):
            self._waiting += [(item, depth) for item in (value.func, value.args, value.keywords)]
        for kind in type(value).__mro__:
            self._waiting.append((kind, depth))

    def _class(self, kind: type, depth: int) -> None:
        """Methods and constants; those of torch are functions and words."""
        if kind.__module__ == "builtins":
            return
        is_of_torch = kind.__module__.startswith("torch.")
        self._hold(vars(kind), _values, _DEPTH + 1 if is_of_torch else depth)

    def _hold(self, holder: Any, look: _Look, depth: int) -> None:
        """depth: of what it holds."""
        known = tuple(look(holder))
        self._held.append((holder, look, known))
        if depth <= _DEPTH:
            self._waiting += [(item, depth) for item in known]


def are_copies(pairs: Copies) -> bool:
    """Whether nobody has written to the tensors since."""
    return all(are_equal(item, copy) for item, copy in pairs)


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
