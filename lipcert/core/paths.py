"""Paths: the steps of a program between two of its values, each of which reads the one before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lipcert.core.program import Program, Step


def steps_between(program: Program, start: str, stop: str) -> tuple[Step, ...] | None:
    """The steps from one value up to another; None where one of them reads something else."""
    makers = {step.output: step for step in program.steps}
    found: list[Step] = []
    value = stop
    while value != start:
        step = makers.get(value)
        if step is None or len(step.inputs) != 1:
            return None
        found.append(step)
        (value,) = step.inputs
    return tuple(reversed(found)) or None


def is_only_way(program: Program, steps: Sequence[Step]) -> bool:
    """Whether what reaches the values between these steps reaches them through these steps only."""
    readers = Counter(name for step in program.steps for name in step.inputs)
    return all(readers[step.output] == 1 and step.output != program.output for step in steps[:-1])
