"""Rewriter: replace a step, seen with those before it, by steps that compute the same value.

Invariant: a rule returns steps whose last one computes, in real arithmetic, exactly the value of
the step it replaces, from values that are still computed. A value without readers is dropped, so a
value with another reader stays; it gets a new name, because its cotangent misses the paths that now
bypass it, and so differs from that of the tensor of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from lipcert.core.budget import spend
from lipcert.core.lower.call import Sink
from lipcert.core.lower.moves import indices
from lipcert.core.program import (
    Activation,
    Move,
    Op,
    Operand,
    Shape,
    Step,
    kept_entries,
    needed_steps,
)
from lipcert.core.token_kinds import Scale, Shift

_Kind = TypeVar("_Kind", bound=Op)


class Rewriter:
    """Rewrites steps in order, and keeps the steps that it has rewritten so far."""

    def __init__(self, starts: Mapping[str, Shape], raw: Sequence[Step], sink: Sink) -> None:
        self.sink = sink
        self.shapes: dict[str, Shape] = dict(starts)
        self.readers: dict[str, int] = {}
        self.steps: list[Step] = []
        self._producers: dict[str, Step] = {}
        self._same: dict[str, str] = {}
        self._seen: set[str] = set()
        self._passed: set[str] = set()
        for step in raw:
            for name in step.inputs:
                self.readers[name] = self.readers.get(name, 0) + 1

    def run(
        self,
        raw: Sequence[Step],
        rules: Callable[[Step, Mapping[str, Step]], list[Rule]],
        output: str,
    ) -> tuple[Step, ...]:
        """Return the steps, each replaced by the first rule that applies, if any."""
        for old in raw:
            spend()
            step = replace(old, inputs=tuple(self._same.get(name, name) for name in old.inputs))
            while True:
                tried = (self._tried(rule, step) for rule in rules(step, self._producers))
                found = next(filter(None, tried), None)
                if found is None:
                    break
                for made in found[:-1]:
                    self._append(made)
                step = found[-1]
            if step.output != output and self._changes_nothing(step):
                self._same[step.output] = step.inputs[0]
            else:
                self._append(step)
        return self._renamed(needed_steps(self.steps, output), output)

    def _tried(self, rule: Rule, step: Step) -> list[Step] | None:
        """Return a rule's replacement of a step; values that it no longer reads are bypassed."""
        self._seen.clear()
        found = rule(self, step)
        if found is not None:
            self._passed |= self._seen.difference(*(made.inputs for made in found))
        return found

    def _renamed(self, steps: tuple[Step, ...], output: str) -> tuple[Step, ...]:
        """Return the steps, with new names for values that are bypassed but still computed."""
        kept = {step.output for step in steps} & self._passed - {output}
        names = {name: self.sink.fresh(name) for name in sorted(kept)}
        return tuple(
            replace(
                step,
                output=names.get(step.output, step.output),
                inputs=tuple(names.get(name, name) for name in step.inputs),
            )
            for step in steps
        )

    def _append(self, step: Step) -> None:
        spend(kept_entries(step))
        self.steps.append(step)
        self.shapes[step.output] = step.shape
        self._producers[step.output] = step

    def _changes_nothing(self, step: Step) -> bool:
        if not isinstance(step.op, Move) or step.shape != self.shapes[step.inputs[0]]:
            return False
        return np.array_equal(step.op.sources, indices(step.shape))

    def made(self, name: str, kind: type[_Kind]) -> tuple[_Kind, Step] | None:
        """Return the op and the step that computes a value, if it is of this kind."""
        self._seen.add(name)
        step = self._producers.get(name)
        return (step.op, step) if step is not None and isinstance(step.op, kind) else None

    def function(self, name: str, *kinds: str) -> tuple[Activation, str] | None:
        """Return the function and its argument, if a value is one of these functions of another."""
        found = self.made(name, Activation)
        return (found[0], found[1].inputs[0]) if found and found[0].name in kinds else None

    def scaled(self, name: str) -> tuple[Operand | None, str]:
        """Return c and x for a value c·x with one number c; otherwise None and the value itself."""
        found = self.made(name, Scale)
        if found is None or found[0].factor.lo.size != 1:
            return None, name
        return found[0].factor, found[1].inputs[0]

    def shifted(self, name: str) -> tuple[Operand, str] | None:
        """Return c and x for a value x + c with one number c, else None."""
        found = self.made(name, Shift)
        if found is None or found[0].offset.lo.size != 1:
            return None
        return found[0].offset, found[1].inputs[0]

    def swallow(self, *operands: Operand | None) -> None:
        """Record that these numbers are now part of a function, and no longer parameters."""
        for operand in operands:
            self.sink.untracked.update({} if operand is None else operand.sources)


Rule = Callable[[Rewriter, Step], "list[Step] | None"]
