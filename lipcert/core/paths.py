"""Find the steps of a program between two of its values, and the readers of their results."""

from collections import Counter
from collections.abc import Sequence

from lipcert.core.program import Program, Step


def steps_between(program: Program, start: str, stop: str) -> tuple[Step, ...] | None:
    """Return all steps, in order, that compute the value `stop` from the value `start`.

    Return None if `stop` does not depend on `start`, or also depends on the input another way.
    """
    needed, found = {stop}, []
    for step in reversed(program.steps):
        if step.output in needed and step.output != start:
            needed.remove(step.output)
            needed.update(step.inputs)
            found.append(step)
    return tuple(reversed(found)) if found and needed == {start} else None


def steps_on_ways(program: Program, start: str, stop: str) -> tuple[Step, ...] | None:
    """Return all steps, in order, through which `stop` depends on `start`; None if none do."""
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
    """Whether only these steps read the values between them, and none of these is the output."""
    inside = {step.output for step in steps[:-1]}
    own = {step.output for step in steps}
    readers = (step.output for step in program.steps if inside.intersection(step.inputs))
    return program.output not in inside and own.issuperset(readers)


def reads_of(steps: Sequence[Step], value: str) -> Counter[str]:
    """Count how often each of these steps reads a value, by the step's output."""
    return Counter(step.output for step in steps for name in step.inputs if name == value)
