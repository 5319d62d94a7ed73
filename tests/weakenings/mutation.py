"""Mutation: one edit of the source of one function, and an ordinary test that has to fail for it.

What enters: a function by its module and name, a text that occurs once in its source, and what
stands there instead. Within `mutated`, everybody who calls the function runs the edited code.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import CodeType, FunctionType

import pytest
from hypothesis import Phase, settings

CORE = "lipcert.core"
_UP_TO_THE_FIRST_FAILURE = settings(
    settings.get_profile("nightly"), phases=(Phase.explicit, Phase.generate), derandomize=True
)


@dataclass(frozen=True)
class Kill:
    """A test and the arguments of some of its runs, one of which fails for the mutant."""

    test: Callable[..., object]
    runs: tuple[tuple[object, ...], ...] = ((),)

    @classmethod
    def of(cls, test: Callable[..., object], *arguments: object) -> Kill:
        """By one run."""
        return cls(test, (arguments,))

    @classmethod
    def seeds(cls, test: Callable[..., object], *arguments: object, count: int = 12) -> Kill:
        """By one of several seeds, which are the last argument."""
        return cls(test, tuple((*arguments, seed) for seed in range(count)))

    def __str__(self) -> str:
        name = self.test.__module__.removeprefix("tests.") + "." + self.test.__name__
        shown = ", ".join(getattr(item, "__name__", str(item)) for item in self.runs[0])
        return f"{name}({shown}{', …' if len(self.runs) > 1 else ''})"

    def failure(self) -> str | None:
        """What the first run that fails says; None: all pass."""
        for arguments in self.runs:
            try:
                _run(self.test, arguments)
            except (AssertionError, pytest.fail.Exception) as error:
                return (str(error).splitlines() or [""])[0] or "assertion failed"
        return None


def _run(test, arguments: tuple[object, ...]) -> None:
    """Tests of drawn examples draw those of a nightly run, the same each time, up to the first
    failure."""
    if not hasattr(test, "hypothesis"):
        test(*arguments)
        return
    name = "_hypothesis_internal_use_settings"
    before = getattr(test, name, None)
    setattr(test, name, _UP_TO_THE_FIRST_FAILURE)
    try:
        test(*arguments)
    finally:
        setattr(test, name, before)


@dataclass(frozen=True)
class Mutation:
    """A text in the source of a rule, "module:function" in the core, and what replaces it.

    of: the kind of step or loss whose bound becomes too small; "" for what many rules share.
    """

    rule: str
    old: str
    new: str
    killer: Kill
    of: str = ""

    def __str__(self) -> str:
        return f"{_line(self.old)} → {_line(self.new)}"


def by(
    rule: str, old: str, new: str, test: Callable[..., object], *arguments: object, of: str = ""
) -> Mutation:
    """A mutation that one run of a test kills."""
    return Mutation(rule, old, new, Kill.of(test, *arguments), of)


def by_seeds(
    rule: str, old: str, new: str, test: Callable[..., object], *arguments: object, count: int = 12
) -> Mutation:
    """A mutation that a test kills for one of several seeds."""
    return Mutation(rule, old, new, Kill.seeds(test, *arguments, count=count))


def _line(text: str) -> str:
    return " ".join(text.split()) or "nothing"


def killed_by(mutation: Mutation) -> str | None:
    """What its killer says of the mutant; None: it survives."""
    with mutated(mutation):
        return mutation.killer.failure()


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """With the edited code in place; ValueError where the text is not there, or twice."""
    function = found(mutation.rule)
    original = function.__code__
    function.__code__ = _edited(function, mutation)
    try:
        yield
    finally:
        function.__code__ = original


def found(rule: str) -> FunctionType:
    """The function of a rule, out of what wraps it."""
    module, _, path = rule.partition(":")
    held = import_module(f"{CORE}.{module}")
    for name in path.split("."):
        held = vars(held)[name]
    for wrapper in ("fget", "__func__", "func"):
        held = getattr(held, wrapper, held) if not isinstance(held, FunctionType) else held
    held = inspect.unwrap(held)
    if not isinstance(held, FunctionType):
        raise TypeError(f"{rule} is no function of Python")
    return held


def _edited(function: FunctionType, mutation: Mutation) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(mutation.old) != 1:
        raise ValueError(f"{mutation.rule} does not hold {mutation.old!r} once")
    start = source.index("def ")
    body = source[start:].replace(mutation.old, mutation.new, 1)
    if function.__closure__:
        raise TypeError(f"{mutation.rule} refers to what surrounds it")
    file = f"<{mutation.rule}, mutated>"
    whole = compile(f"from __future__ import annotations\n{body}", file, "exec")
    (code,) = (item for item in whole.co_consts if isinstance(item, CodeType))
    return code
