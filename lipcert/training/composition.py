"""Composition: what a module is made of, besides the numbers of its parameters and buffers.

What enters: a module. What leaves: marks of everything that decides about what it computes and can
be told apart: its parts, their classes and methods, hooks, also those on all modules of the process
and on parameters, which tensor every name is, and all that attributes of parts and classes hold:
numbers and words, also in containers and in objects, and tensors, of which copies are kept.
Invariant: whoever holds a composition keeps all objects alive that it marks, so that no other
object gets the mark of one that is gone. What code reads elsewhere (global variables, variables of
an enclosing function, what an object within an object within an object holds) is not seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from lipcert.training.comparing import are_equal

__all__ = ["Composition"]

_PLAIN: Final = frozenset({bool, int, float, complex, str, bytes, type(None)})
_DEPTH: Final = 2
"""of objects within objects whose attributes are looked at"""
_REGISTERED: Final = ("_parameters", "_buffers")
_GLOBAL: Final = tuple(name for name in vars(torch_module) if name.startswith("_global"))
"""what applies to all modules of the process"""
_CONTAINERS: Final = (dict, list, tuple, set, frozenset, deque, Mapping, Set)
_WITHOUT: Final = (
    BuiltinFunctionType,
    FunctionType,
    MethodType,
    ModuleType,
    classmethod,
    property,
    staticmethod,
    type,
)
"""of these objects no attributes are looked at"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """Of one module at one moment.

    marks: compared by `==`. unregistered: tensors that are no parameter or buffer and share no
    storage with one. copies: of them, as they were. alive: what is marked by its identity.
    """

    marks: list[object]
    unregistered: tuple[Tensor, ...]
    copies: tuple[Tensor, ...]
    alive: list[object]

    @classmethod
    def of(cls, module: nn.Module) -> Composition:
        """As it is now."""
        walk = _Walk()
        walk.through(module)
        found = tuple(walk.unregistered())
        return cls(walk.marks, found, tuple(item.detach().clone() for item in found), walk.alive)

    def is_of(self, module: nn.Module) -> bool:
        """Whether the module is still made of the same."""
        walk = _Walk()
        walk.through(module)
        return walk.marks == self.marks and self.holds_same_numbers()

    def holds_same_numbers(self) -> bool:
        """Whether nobody has written to its tensors that are no parameters or buffers."""
        pairs = zip(self.unregistered, self.copies, strict=True)
        return all(
            one.shape == other.shape and one.dtype is other.dtype and are_equal(one, other)
            for one, other in pairs
        )


class _Walk:
    """Through a module and all that belongs to it, in an order that only it decides."""

    def __init__(self) -> None:
        self.marks: list[object] = []
        self.alive: list[object] = []
        self._parts: list[nn.Module] = []
        self._kinds: dict[type, None] = {}
        self._seen: set[int] = set()
        self._registered: list[Tensor] = []
        self._others: list[Tensor] = []

    def through(self, module: nn.Module) -> None:
        """The module, its parts and classes, and what concerns all modules of the process."""
        self._object(module, 0)
        while self._parts:
            part = self._parts.pop()
            self._kinds[type(part)] = None
            for name, value in vars(part).items():
                self.marks.append(name)
                if name in _REGISTERED:
                    self._register(value)
                else:
                    self._value(value, 0)
        for kind in dict.fromkeys(item for found in self._kinds for item in found.__mro__):
            self._class(kind)
        for name in _GLOBAL:
            self._value(getattr(torch_module, name), 0)

    def unregistered(self) -> Iterable[Tensor]:
        """Tensors whose numbers nobody else looks at."""
        if not self._others:
            return
        own = {item.untyped_storage().data_ptr() for item in self._registered}
        for item in self._others:
            if item.layout is torch.strided and item.untyped_storage().data_ptr() not in own:
                yield item

    def _register(self, tensors: Mapping[str, Tensor | None]) -> None:
        for name, item in tensors.items():
            self.marks.append(name)
            if item is not None:
                self._tensor(item)
                self._registered.append(item)

    def _tensor(self, item: Tensor) -> None:
        """Which one it is, and whether gradients reach it unchanged; its numbers are no marks."""
        self._identity(item)
        self.marks += (id(type(item)), item.requires_grad, bool(item._backward_hooks))

    def _class(self, kind: type) -> None:
        """Its own methods and constants; those of torch are never changed in place."""
        own = list(vars(kind).values())
        self._identity(kind)
        self.marks.append(tuple(map(id, own)))
        self.alive += own
        if not kind.__module__.startswith(("torch.", "builtins")):
            for value in own:
                self._value(value, 0)

    def _value(self, value: Any, depth: int) -> None:
        """What an attribute holds, `depth` objects away from the module."""
        kind = type(value)
        if kind in _PLAIN:
            self.marks.append(value)
        elif isinstance(value, _CONTAINERS):
            self._container(value, depth)
        elif isinstance(value, Tensor):
            self._tensor(value)
            self._others.append(value)
        elif isinstance(value, np.ndarray | np.generic):
            self.marks += (str(value.dtype), value.shape, value.tobytes())
        else:
            self._object(value, depth)

    def _container(self, value: Collection[Any], depth: int) -> None:
        if not value:
            self.marks.append(0)
        elif self._is_new(value):
            self._items(value, depth)
            if isinstance(value, Mapping):
                self._items(value.values(), depth)

    def _items(self, items: Collection[Any], depth: int) -> None:
        if _PLAIN.issuperset(map(type, items)):
            self.marks.append(tuple(items))
            return
        self.marks.append(len(items))
        for item in items:
            self._value(item, depth)

    def _object(self, value: Any, depth: int) -> None:
        if not self._is_new(value):
            return
        if isinstance(value, nn.Module):
            self._parts.append(value)
        elif isinstance(value, partial):
            self._items((value.func, value.args, value.keywords), depth)
        elif depth < _DEPTH and not isinstance(value, _WITHOUT):
            self._attributes(value, depth + 1)

    def _attributes(self, value: object, depth: int) -> None:
        own = getattr(value, "__dict__", {})
        self._items(own, depth)
        self._items(own.values(), depth)
        for kind in type(value).__mro__:
            names = vars(kind).get("__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                self._value(getattr(value, name, None), depth)

    def _is_new(self, item: object) -> bool:
        """Marks which one it is, and tells whether what it holds has yet to be looked at."""
        self._identity(item)
        is_new = id(item) not in self._seen
        self._seen.add(id(item))
        return is_new

    def _identity(self, item: object) -> None:
        self.marks.append(id(item))
        self.alive.append(item)
