"""Choosing among exact methods: each is timed once for every kind of layer, shape and device.

The fastest method whose error bounds are narrow on the data at hand is taken. Scratch memory stays
below the limit wherever a single example allows it. The choice changes speed and rounding, never
meaning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from math import inf
from typing import Final, final

import torch

from lipcert.measure.gradient_norms.layout import is_channels_last
from lipcert.measure.gradient_norms.operand import Method, OperandGradient, Pair
from lipcert.measure.gradient_norms.squares import Squares, sum_of_squares, widened

_ALONE: Final = 2**24
"""bytes of scratch memory for an operand with one method, which passes over its tensors once"""
_SCRATCH: Final = {"cpu": 2**22}
"""bytes for all others, that fit a cache; elsewhere the limit"""
_RUNS: Final = 3
_HOPELESS: Final = 3.0
_MOSTLY: Final = 0.2


@final
class Chooser:
    """Remembers the names of the methods that were fastest."""

    def __init__(self, memory_limit: int, timed: bool = True) -> None:
        self.memory_limit = memory_limit
        self._timed = timed
        self.chosen: dict[Hashable, str] = {}

    def squares(self, of: OperandGradient, pair: Pair, *, looks: bool = True) -> Squares:
        """Squares of every example, by the best method.

        looks: whether those known too loosely are measured again by instantiation.
        """
        methods = self._admitted(of.methods(pair))
        if len(methods) == 1:
            method, scratch = methods[0], max(_ALONE, self._scratch(pair))
        else:
            method, scratch = self._chosen(of, methods, pair), self._scratch(pair)
        squares = by_chunks(method.squares, pair, self._chunk(method, scratch))
        if not looks:
            return squares
        is_wide = squares.is_wide(method.widest(pair.b.dtype))
        if not is_wide.any():
            return squares
        wide = is_wide.nonzero().squeeze(1)
        return squares.replaced(wide, self._instantiated(of, pair.picked(wide)))

    def _chosen(self, of: OperandGradient, methods: Sequence[Method], pair: Pair) -> Method:
        orders = (is_channels_last(pair.a), is_channels_last(pair.b))
        key = (of.key, pair.a.shape[1:], pair.b.shape[1:], pair.b.dtype, pair.b.device, orders)
        if key not in self.chosen:
            found = self._fastest(methods, pair) if self._timed else _least(methods)
            self.chosen[key] = found.name
        return next(method for method in methods if method.name == self.chosen[key])

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

    def _scratch(self, pair: Pair) -> int:
        return _SCRATCH.get(pair.b.device.type, self.memory_limit)

    def _chunk(self, method: Method, scratch: int) -> int:
        return max(1, min(scratch, self.memory_limit) // max(method.scratch, 1))

    def _fastest(self, methods: Sequence[Method], pair: Pair) -> Method:
        """The least time per example among methods whose bounds are narrow, or else among all."""
        least = inf
        found: list[tuple[bool, float, Method]] = []
        for method in methods:
            part = pair.part(0, self._chunk(method, self._scratch(pair)))
            seconds, is_narrow = _timed(method, part, _HOPELESS * least)
            found.append((not is_narrow, seconds, method))
            least = min(least, seconds)
        return min(found, key=lambda each: each[:2])[2]


@cache
def shared_chooser(memory_limit: int, timed: bool) -> Chooser:
    """One for all networks of this process: other weights have the same fastest methods."""
    return Chooser(memory_limit, timed)


def _least(methods: Sequence[Method]) -> Method:
    """The least work, the first of equals: the same on every machine and every day."""
    return min(methods, key=lambda method: method.work)


def by_chunks(squares: Callable[[Pair], Squares], pair: Pair, chunk: int) -> Squares:
    """Squares of a pair, `chunk` examples at a time."""
    if chunk >= len(pair):
        return squares(pair)
    starts = range(0, len(pair), chunk)
    return Squares.joined([squares(pair.part(start, start + chunk)) for start in starts])


def _timed(method: Method, part: Pair, limit: float) -> tuple[float, bool]:
    """Seconds per example of some examples, and whether the bounds are narrow there."""
    best = inf
    squares = method.squares(part)
    for _ in range(_RUNS):
        start = _now(part)
        squares = method.squares(part)
        best = min(best, (_now(part) - start) / len(part))
        if best > limit:
            break
    wide = squares.is_wide(method.widest(part.b.dtype)).double().mean().item()
    return best, wide <= _MOSTLY


def _now(pair: Pair) -> float:
    """Seconds of this thread, blind to other programs; of the clock where a GPU works as well."""
    if pair.b.device.type == "cpu":
        return time.thread_time()
    torch.cuda.synchronize(pair.b.device)
    return time.perf_counter()
