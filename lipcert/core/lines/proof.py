"""Proof: what is known while the lines of a certificate are read, one after another.

    premises → facts of the inputs → norms → facts → loss → cotangents → gradients per tensor

Every table begins with what the premises state and grows by the lines. inf is "not known".
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import numpy as np

from lipcert.core.certificate import ScopeClaim
from lipcert.core.coverage import tensors_read
from lipcert.core.interval import Interval, exact
from lipcert.core.ledger.premises import Premises
from lipcert.core.line import Line, NotProved
from lipcert.core.lower.errors import Unsupported
from lipcert.core.norms import Engine
from lipcert.core.program import Program, Shape, Step
from lipcert.core.reader.records import shown
from lipcert.core.rules.base import Weights, rule_at, step_fact
from lipcert.core.rules.facts import Cotangent, Fact, box_norm

if TYPE_CHECKING:
    from lipcert.core.forms.signs import Differences
    from lipcert.core.lines.chains import Chain


K = TypeVar("K")
V = TypeVar("V")

_ROUNDING: Final = 2.0**-40

Seed: TypeAlias = Literal["loss", "output"]
"""what cotangents are of: the loss, or a unit vector at the output"""
LOSS: Final = "loss"
OUTPUT: Final = "output"


class Table(dict[K, V]):
    """What is proved, by what it is about. what: in words, for the reason where it is missing."""

    def __init__(self, what: str, known: Mapping[K, V] | None = None) -> None:
        super().__init__(known or {})
        self.what = what

    def __missing__(self, key: K) -> V:
        raise NotProved(f"no line before it proves {self.what} of {shown(str(key))}")


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Cotangents of one scalar: of the loss, or of a unit vector at the output.

    readers: for each value, the steps that read it, the last one first. edges: norms of the share
    of the cotangent of a value that one reader passes down, or, under None, of all shares together.
    """

    program: Program
    readers: Mapping[str, Sequence[Step]]
    cotangents: Table[str, Cotangent]
    edges: Table[tuple[str, str | None], float]


class Proof:
    """The tables of a proof about one program, under premises, for all weights in a scope.

    known: facts of the inputs, from the premises. norms: of linear steps, by their outputs. runs:
    norms of consecutive affine steps, by all their outputs. stacks: norms of matrices that read one
    value, by all their outputs. slices: norms of the rows that a move makes runs of, by the move.
    facts: of values. balls: facts of the values of one admissible example. radii: how far the
    values of any other example are from them. forms: of chains. Balls, radii and forms are kept by
    the numbers of their lines. passes: of the loss and of the output. kernels: gradients through
    convolutions, by their outputs. gradients: of tensors. differences: of classes, by the value
    where they begin and the one to which they are pulled back; each is computed once.
    number: of the current line. users: the steps that use each tensor. The constructor raises
    Unsupported if a tensor that may change enters a step as a plain number of the file.
    """

    def __init__(
        self,
        program: Program,
        premises: Premises,
        scope: ScopeClaim,
        engine: Engine,
        table: Callable[..., Table[Any, Any]] = Table,
    ) -> None:
        self.program, self.premises, self.engine = program, premises, engine
        self.free = frozenset(scope.trained if scope.kind == "constraint-set" else ())
        moving = program.untracked & self.free
        if moving:
            raise Unsupported(f"the trained tensor {shown(min(moving))} enters as a plain number")
        self.known = input_facts(program, premises)
        self.norms: Table[str, float] = table("a norm")
        self.runs: Table[tuple[str, ...], float] = table("the norm of a run")
        self.stacks: Table[tuple[str, ...], float] = table("the norm of a stack")
        self.slices: Table[str, float] = table("the norm of rows")
        self.weights = weights_in(scope, self.norms)
        self.facts: Table[str, Fact] = table("a bound")
        self.balls: Table[int, dict[str, Fact]] = table("a ball")
        self.radii: Table[tuple[int, str], float] = table("the radius of a ball")
        self.forms: Table[int, Chain] = table("a form")
        self.kernels: Table[str, float] = table("the gradient of a kernel")
        self.gradients: Table[str, float] = table("a gradient")
        unclipped = with_real_inputs(program)
        if any(step.op.clips_cotangents for step in program.steps):
            from lipcert.core.clips import without_cotangent_clips  # noqa: PLC0415  for such alone

            unclipped = without_cotangent_clips(unclipped)
        self.passes = {
            of: Pass(found, _readers(found), table("a cotangent"), table("an edge"))
            for of, found in ((LOSS, program), (OUTPUT, unclipped))
        }
        self.passes[OUTPUT].cotangents[program.output] = Cotangent(1.0)
        self.number = 0
        self.steps = {step.output: step for step in program.steps}
        self.reads = Counter(name for step in program.steps for name in step.inputs)
        self.reads[program.output] += 1
        self.users: dict[str, list[Step]] = {}
        for step in program.steps:
            for name in sorted(tensors_read([step])):
                self.users.setdefault(name, []).append(step)
        self.differences: dict[tuple[str, str], Differences] = {}
        self._images: dict[str, dict[str, Fact]] = {}
        self._shares: dict[str, tuple[tuple[str, float], ...]] = {}

    def add(self, number: int, line: Line[Any]) -> None:
        """Evaluates a line, compares its bound without tolerance, and keeps what it proves."""
        self.number, found = number, line.evaluate(self)
        least = line.least(found)
        if not line.stated >= least:
            raise NotProved(
                f"{line.what} of {shown(line.subject)}: {line.stated!r} is claimed, {least!r} is "
                "derived"
            )
        line.keep(self, found)

    @property
    def lipschitz(self) -> float:
        """The Lipschitz constant; inf if no line bounds the image of a unit vector at the input."""
        unit = self.passes[OUTPUT].cotangents.get(self.program.input)
        return math.inf if unit is None else unit.norm

    def gradient(self, tensor: str) -> float:
        """Return the bound that a line proves; 0 for a tensor that no step reads."""
        is_read = tensor in self.users or tensor in self.program.untracked
        return self.gradients.get(tensor, math.inf if is_read else 0.0)

    def step(self, value: str) -> Step:
        """Return the step that computes a value; raise NotProved if there is none."""
        if value not in self.steps:
            raise NotProved(f"no step computes {shown(value)}")
        return self.steps[value]

    def images(self, steps: Sequence[Step], start: str) -> Mapping[str, Fact]:
        """Return facts of the outputs of steps if the value at their start is 0."""
        at_start = {start: Fact.of(self.program.shapes[start], 0.0)}
        return self.carried(self._images.setdefault(start, at_start), steps)

    def carried(self, points: dict[str, Fact], steps: Sequence[Step]) -> Mapping[str, Fact]:
        """Return facts of a point and of its images under steps; each is computed once."""
        for step in steps:
            if step.output not in points:
                points[step.output] = step_fact(self.program, step, points, self.weights)
        return points

    def shares(self, step: Step) -> tuple[tuple[str, float], ...]:
        """Return a bound of the gradient through each use of a tensor by a step.

        It is called after all facts and cotangents are known.
        """
        if step.output not in self._shares:
            shapes = self.program.shapes
            before, behind = self.steps.get(step.inputs[0]), None
            if before is not None and len(before.inputs) == 1:
                behind = rule_at(shapes, before, self.facts, self.weights)
            rule = rule_at(shapes, step, self.facts, self.weights, behind)
            cotangent = self.passes[LOSS].cotangents[step.output]
            first = self.kernels.get(step.output, math.inf)
            self._shares[step.output] = tuple(rule.gradients(cotangent, first))
        return self._shares[step.output]


def with_real_inputs(program: Program) -> Program:
    """Return the program without the steps that take whole numbers from an input of real ones, too.

    The Lipschitz constant is that of the output in all real inputs together, for fixed ids and
    masks. Proof: for these, all values are functions of the real inputs, which form a convex set,
    a part of a box and of balls. Its constant is the largest norm of the gradient of a unit vector
    at the output by the real inputs, and the chain rule finds it as by all inputs: cotangents of
    values behind an input are the same, and those of whole numbers end there.
    """
    whole = {part.name for part in program.parts if part.whole}
    steps = tuple(step for step in program.steps if step.output not in whole)
    return replace(program, steps=steps) if len(whole) < len(program.parts) else program


def _readers(program: Program) -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = {}
    for step in reversed(program.steps):
        for name in dict.fromkeys(step.inputs):
            found.setdefault(name, []).append(step)
    return found


def input_facts(program: Program, premises: Premises) -> dict[str, Fact]:
    """Return what A-INPUT states of the input, and of each of several inputs that it holds.

    That numbers choose rows of a table adds nothing: other entries of the input may not do so.
    """
    shape = program.shapes[program.input]
    if input_faults(program, premises):
        raise Unsupported("the assumptions on the inputs do not fit the inputs of the model")
    if not program.parts:
        box = input_box(shape, premises.input_box)
        norm = math.inf if premises.input_norm is None else premises.input_norm
        return {program.input: input_fact(shape, norm, box)}
    from lipcert.core.lines.several_inputs import facts_of_several  # noqa: PLC0415  for such alone

    return facts_of_several(program, premises)


def input_faults(program: Program, premises: Premises) -> bool:
    """Whether premises describe other inputs than the program has."""
    stated = [(part.name, part.shape) for part in premises.input_parts]
    has_box = bool(stated) and premises.input_box is not None
    return has_box or stated != [(part.name, part.shape) for part in program.parts]


def input_fact(shape: Shape, norm: float, box: Interval | None) -> Fact:
    """Return the assumption on an input; raise Unsupported if the box lies outside of the ball."""
    if box is not None:
        nearest = np.clip(0.0, box.lo, box.hi)
        if box_norm(exact(nearest), shape) * (1.0 - _ROUNDING) > norm:
            raise Unsupported("no input has both the norm and the entries that are assumed")
    return Fact.of(shape, norm, box)


def input_box(shape: Shape, ends: tuple[float, float] | None) -> Interval | None:
    """Return the same interval for every entry; None if no interval is assumed."""
    if ends is None:
        return None
    low, high = (np.full((1,) * len(shape), end) for end in ends)
    return Interval(low, high)


def weights_in(scope: ScopeClaim, norms: Mapping[str, float]) -> Weights:
    """Return bounds of all weights in a scope. norms: of linear steps that training leaves as
    they are."""
    if scope.kind == "point":
        return Weights(norms)
    from lipcert.core.rules.constrained import Constrained  # noqa: PLC0415  for constraints only

    constraints = {item.tensor: (item.kind, item.radius) for item in scope.constraints}
    return Constrained(norms, constraints, frozenset(scope.trained))
