"""Regions: the steps of a program between two of its values, and who reads what they compute."""

from collections import Counter
from collections.abc import Sequence

from lipcert.core.program import Program, Step


def steps_between(program: Program, start: str, stop: str) -> tuple[Step, ...] | None:
    """All steps that the upper value needs besides the lower one, in order.

    None where the upper value depends on the input in another way too, or not on the lower one.
    """
    needed, found = {stop}, []
    for step in reversed(program.steps):
        if step.output in needed and step.output != start:
            needed.remove(step.output)
            needed.update(step.inputs)
            found.append(step)
    return tuple(reversed(found)) if found and needed == {start} else None


def steps_on_ways(program: Program, start: str, stop: str) -> tuple[Step, ...] | None:
    """All steps through which the upper value depends on the lower one, in order; None for none."""
    behind, needed = {start}, {stop}
    for step in program.steps:
        if behind.intersection(step.inputs):
            behind.add(step.output)
    found = []
    for step in reversed(program.steps):
        if step.output in needed & behind and step.output != start:
            needed.update(step.inputs)
            found.append(step)
    return tuple(reversed(found)) or None


def is_only_way(program: Program, steps: Sequence[Step]) -> bool:
    """Whether what reaches the values between these steps reaches them through these steps only."""
    inside = {step.output for step in steps[:-1]}
    own = {step.output for step in steps}
    readers = (step.output for step in program.steps if inside.intersection(step.inputs))
    return program.output not in inside and own.issuperset(readers)


def reads_of(steps: Sequence[Step], value: str) -> Counter[str]:
    """How often each of these steps reads a value, by what it computes."""
    return Counter(step.output for step in steps for name in step.inputs if name == value)
