"""Choosing among exact methods: each is timed once for every kind of layer, shape and device.

What enters: the methods of an operand, and a pair. What leaves: its squares, by the method that was
fastest and whose error bounds are narrow on this data. Invariant: scratch memory stays below the
limit wherever a single example allows it. The choice changes speed and rounding, never meaning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Final, final

import torch
from torch import Tensor

from lipcert.measure.gradient_norms.layout import is_channels_last
from lipcert.measure.gradient_norms.operand import Method, OperandGradient, Pair
from lipcert.measure.gradient_norms.squares import Squares, sum_of_squares, widened

_TYPICAL: Final = 2**24
_MODEST: Final = 2**22
_SCRATCH: Final = {"cpu": (2**20, 2**22, 2**24), "cuda": (2**26, 2**29)}
_RUNS: Final = 3
_HOPELESS: Final = 3.0
_MOSTLY: Final = 0.2


@final
@dataclass(frozen=True, slots=True)
class _Choice:
    """The name of a method, and how many bytes of scratch memory it works best with."""

    name: str
    scratch: int


@final
class Chooser:
    """Remembers what was fastest."""

    def __init__(self, memory_limit: int, timed: bool = True) -> None:
        self.memory_limit = memory_limit
        self._timed = timed
        self.chosen: dict[Hashable, _Choice] = {}

    def squares(
        self, of: OperandGradient, pair: Pair, doubts: list[Tensor] | None = None
    ) -> Squares:
        """Squares of every example, by the best method.

        Those known too loosely are measured again by instantiation; with `doubts` they are only
        marked there, so that nobody waits for a GPU.
        """
        methods = self._admitted(of.methods(pair))
        method, scratch = methods[0], _TYPICAL
        if len(methods) > 1:
            choice = self._choice(of, methods, pair)
            method = next(method for method in methods if method.name == choice.name)
            scratch = choice.scratch
        squares = by_chunks(method.squares, pair, self._chunk(method, scratch))
        is_wide = squares.is_wide(method.widest(pair.b.dtype))
        if doubts is not None:
            doubts.append(is_wide)
            return squares
        if not is_wide.any():
            return squares
        wide = is_wide.nonzero().squeeze(1)
        return squares.replaced(wide, self._instantiated(of, pair.picked(wide)))

    def _choice(self, of: OperandGradient, methods: Sequence[Method], pair: Pair) -> _Choice:
        orders = (is_channels_last(pair.a), is_channels_last(pair.b))
        key = (of.key, pair.a.shape[1:], pair.b.shape[1:], pair.b.dtype, pair.b.device, orders)
        if key not in self.chosen:
            self.chosen[key] = self._fastest(methods, pair) if self._timed else _least(methods)
        return self.chosen[key]

    def _instantiated(self, of: OperandGradient, pair: Pair) -> Squares:
        """From the gradients themselves, in float64."""

        def squares(part: Pair) -> Squares:
            found = of.gradients(part.double())
            return widened(sum_of_squares(found.gradient), found.distance)

        return by_chunks(squares, pair, max(1, self.memory_limit // of.gradient_scratch(pair)))

    def _admitted(self, methods: Sequence[Method]) -> Sequence[Method]:
        """Those that fit one example into the memory, or else the most modest one."""
        fitting = [method for method in methods if method.scratch <= self.memory_limit]
        return fitting or [min(methods, key=lambda method: method.scratch)]

    def _chunk(self, method: Method, scratch: int) -> int:
        return max(1, min(scratch, self.memory_limit) // max(method.scratch, 1))

    def _fastest(self, methods: Sequence[Method], pair: Pair) -> _Choice:
        """The least time per example among candidates whose bounds are narrow."""
        narrow: tuple[float, _Choice] | None = None
        any_width: tuple[float, _Choice] | None = None
        sizes = _SCRATCH.get(pair.b.device.type, _SCRATCH["cpu"])
        for method in methods:
            chunks = {min(len(pair), self._chunk(method, size)): size for size in sizes}
            for chunk, size in chunks.items():
                limit = _HOPELESS * (inf if any_width is None else any_width[0])
                seconds, is_narrow = _timed(method, pair, chunk, limit)
                candidate = (seconds, _Choice(method.name, size))
                if any_width is None or seconds < any_width[0]:
                    any_width = candidate
                if is_narrow and (narrow is None or seconds < narrow[0]):
                    narrow = candidate
        best = narrow or any_width
        if best is None:
            raise ValueError("an operand without any method")
        return best[1]


@cache
def shared_chooser(memory_limit: int, timed: bool) -> Chooser:
    """One for all networks of this process: other weights have the same fastest methods."""
    return Chooser(memory_limit, timed)


def _least(methods: Sequence[Method]) -> _Choice:
    """The least work, the first of equals: the same on every machine and every day."""
    return _Choice(min(methods, key=lambda method: method.work).name, _MODEST)


def by_chunks(squares: Callable[[Pair], Squares], pair: Pair, chunk: int) -> Squares:
    """Squares of a pair, `chunk` examples at a time."""
    if chunk >= len(pair):
        return squares(pair)
    starts = range(0, len(pair), chunk)
    return Squares.joined([squares(pair.part(start, start + chunk)) for start in starts])


def _timed(method: Method, pair: Pair, chunk: int, limit: float) -> tuple[float, bool]:
    """Seconds per example on the first chunk, and whether its bounds are narrow there."""
    part = pair.part(0, chunk)
    best = inf
    squares = method.squares(part)
    for _ in range(_RUNS):
        start = _now(part)
        squares = method.squares(part)
        best = min(best, (_now(part) - start) / len(part))
        if best > limit:
            break
    wide = squares.is_wide(method.widest(pair.b.dtype)).double().mean().item()
    return best, wide <= _MOSTLY


def _now(pair: Pair) -> float:
    """Seconds of this thread, blind to other programs; of the clock where a GPU works as well."""
    if pair.b.device.type == "cpu":
        return time.thread_time()
    torch.cuda.synchronize(pair.b.device)
    return time.perf_counter()
