"""`dataclass` as the standard library has it; frozen records are compiled when they are first made.

The standard decorator compiles six functions for each frozen class: a seventh of the time that a
small network takes from its file to its report. Here a frozen class with slots has its fields and
slots from the standard library; equality, hash, text and the refusal of changes are functions that
all classes share, and `__init__` is compiled when the first object is made.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

__all__ = ["dataclass"]

_MISSING: Final = dataclasses.MISSING
_assign: Final = object.__setattr__


def _record(plain: type, *, eq: bool = True, **options: Any) -> type:
    """A class that is frozen and has slots; options: others of the standard decorator."""
    own = dict(vars(plain))
    plain.__doc__ = plain.__doc__ or plain.__name__  # the standard library would work one out
    standard: Any = dataclasses.dataclass
    cls: Any = standard(plain, init=False, repr=False, eq=False, slots=True, **options)
    compared = tuple(item.name for item in dataclasses.fields(cls) if item.compare)
    methods = {"__repr__": _text, "__getstate__": _state, "__setstate__": _restore}
    if eq:
        methods |= {"__eq__": _equality(compared), "__hash__": _hash_of(compared)}
    for name, method in methods.items():
        if own.get(name) is None:
            setattr(cls, name, method)
    cls.__init__ = _first_init(cls)
    cls.__setattr__ = _refuse_to_set
    cls.__delattr__ = _refuse_to_delete
    return cls  # type: ignore[no-any-return]


def _first_init(cls: Any) -> Any:
    """What puts the real `__init__` in its place when it is first called."""

    def init(self: object, *values: object, **named: object) -> None:
        cls.__init__ = _compiled_init(cls)
        cls.__init__(self, *values, **named)

    return init


def _compiled_init(cls: Any) -> Any:
    """Takes the fields in their order, those by keyword last, and calls `__post_init__`, if any.

    A field that `init` leaves out has its default, or is left to `__post_init__`.
    """
    known: dict[str, Any] = {"_assign": _assign, "_MISSING": _MISSING}
    plain, by_keyword, lines = ["self"], ["*"], []
    for item in dataclasses.fields(cls):
        name, value, default = item.name, item.name, ""
        if item.default_factory is not _MISSING:
            known[f"_make_{name}"] = item.default_factory
            value, default = f"_make_{name}()", "=_MISSING"
            if item.init:
                value += f" if {name} is _MISSING else {name}"
        elif item.default is not _MISSING:
            known[f"_default_{name}"] = item.default
            value, default = name if item.init else f"_default_{name}", f"=_default_{name}"
        if item.init:
            (by_keyword if item.kw_only else plain).append(f"{name}{default}")
        if item.init or default:
            lines.append(f" _assign(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    taken = ", ".join(plain + by_keyword[len(by_keyword) == 1 :])
    exec("\n".join([f"def __init__({taken}):", *lines, " return None"]), known)
    known["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return known["__init__"]


def _refuse_to_set(_: object, name: str, __: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, item.name) for item in dataclasses.fields(self)]


def _restore(self: Any, state: list[object]) -> None:
    for item, value in zip(dataclasses.fields(self), state, strict=True):
        _assign(self, item.name, value)


def _values(self: object, names: tuple[str, ...]) -> tuple[object, ...]:
    return tuple([getattr(self, name) for name in names])


def _equality(names: tuple[str, ...]) -> Any:
    """Whether an object of the very same class has the same values."""

    def equal(self: object, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return _values(self, names) == _values(other, names)

    return equal


def _hash_of(names: tuple[str, ...]) -> Any:
    """The hash of the values that are compared."""
    return lambda self: hash(_values(self, names))


def _text(self: Any) -> str:
    shown = [item.name for item in dataclasses.fields(self) if item.repr]
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{self.__class__.__qualname__}({values})"


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: Any = None, /, **options: Any) -> Any:
        """As in the standard library."""
        if cls is not None or not {"frozen", "slots"} <= options.keys() or "order" in options:
            return dataclasses.dataclass(cls, **options)
        rest = {name: value for name, value in options.items() if name not in {"frozen", "slots"}}
        return lambda plain: _record(plain, **rest)
