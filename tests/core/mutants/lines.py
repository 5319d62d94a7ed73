"""Mutants of the lines of a proof: their numbers, their order, what they name, their rules."""

import itertools
import math
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from lipcert.core.coverage import rule_of
from lipcert.core.line import Line
from lipcert.core.lines.attention import AttentionPull
from lipcert.core.lines.balls import BallFact, InputBall
from lipcert.core.lines.chains import ChainForm, FormPull
from lipcert.core.lines.gains import GainFact
from lipcert.core.lines.kernels import KernelGradient
from lipcert.core.lines.moved_balls import MovedBall, ZeroFact
from lipcert.core.lines.norms import StepNorm
from lipcert.core.lines.products import ProductFact
from lipcert.core.lines.proof import LOSS, OUTPUT
from lipcert.core.lines.runs import AffineFact, RunNorm, RunPull
from lipcert.core.lines.signs import SignPull
from lipcert.core.lines.stacks import SliceFact, StackNorm, StackPull
from lipcert.core.lines.steps import (
    InputFact,
    LossPull,
    PullLine,
    StepFact,
    TensorGradient,
    ValuePull,
)
from lipcert.core.lines.windows import WindowFact
from tests.core.mutants.record import Effect, mutant
from tests.core.mutants.tight import proof_of

Lines = tuple[Line[Any], ...]
_WEAK, _EITHER = Effect.WEAKENING, Effect.WITNESS
_LARGEST: Final = 1.7976931348623157e308
_WAYS: tuple[Literal["norm", "hull"], ...] = ("norm", "hull")
_USES: Final = ("values", "chords", "cotangents")


@dataclass(frozen=True)
class Variant:
    """Other lines than those of a certificate, with the same claims."""

    kind: str
    effect: Effect
    lines: Lines
    stages: frozenset[int] = frozenset()


def bound_mutants(case):
    """Every number that a line states, by itself; norms of steps and forms apart, of which none is
    derived."""
    lines = case.certificate.lines
    for place, line in enumerate(lines):
        if line.bound is None or line.stage == 3 or isinstance(line, ChainForm):
            continue
        changes = [
            ("raised by an ulp", _EITHER, math.nextafter(line.bound, math.inf)),
            ("doubled", _EITHER, 2.0 * line.bound),
            ("enormous", _EITHER, _LARGEST),
            ("not stated", _EITHER, None),
        ]
        if line.bound > 0.0:
            changes += [
                ("lowered by an ulp", _WEAK, math.nextafter(line.bound, 0.0)),
                ("lowered by a millionth", _WEAK, line.bound * (1.0 - 1e-6)),
                ("zero", _WEAK, 0.0),
            ]
        for kind, effect, bound in changes:
            changed = replace(
                case.certificate, lines=_put(lines, place, replace(line, bound=bound))
            )
            yield mutant(f"{line.rule}: bound {kind}", effect, changed, {line.stage})


def line_mutants(case):
    """All variants, as certificates."""
    for item in line_variants(case):
        changed = replace(case.certificate, lines=item.lines)
        yield mutant(item.kind, item.effect, changed, set(item.stages) or None)


def line_variants(case):
    """All that leave the claims as they are."""
    lines = case.certificate.lines
    program = proof_of(case.certificate, case.path).program
    yield from _orders(lines)
    for place, line in enumerate(lines):
        yield from _presence(lines, place)
        yield from _references(lines, place)
        yield from _names(lines, place, program)
        if isinstance(line, InputBall):
            yield from _shares(lines, place)
    yield from _exchanged(lines, program)


def _put(lines: Lines, place: int, *items: Line[Any]) -> Lines:
    """With other lines in the place of one."""
    return (*lines[:place], *items, *lines[place + 1 :])


def _moved(line: Line[Any], places: dict[int, int]) -> Line[Any]:
    """Named lines by their new numbers."""
    names = {name: getattr(line, name) for name in ("ball", "form") if hasattr(line, name)}
    moved: dict[str, Any] = {name: places[k] for name, k in names.items() if places.get(k, k) != k}
    return replace(line, **moved) if moved else line


def _ordered(lines: Lines, order: list[int]) -> Lines:
    """In another order, perhaps some of them; names follow."""
    places = {old: new for new, old in enumerate(order)}
    return tuple(_moved(lines[old], places) for old in order)


def _inserted(lines: Lines, place: int, line: Line[Any]) -> Lines:
    """With one more, which names the others by their old numbers."""
    places = {old: old + (old >= place) for old in range(len(lines))}
    found = [_moved(item, places) for item in lines]
    return (*found[:place], _moved(line, places), *found[place:])


def _orders(lines: Lines):
    numbers = list(range(len(lines)))
    yield Variant("no lines", _WEAK, (), frozenset({6}))
    yield Variant("lines reversed", _WEAK, lines[::-1], frozenset({0}))
    for place in numbers[1:]:
        order = [*numbers[: place - 1], place, place - 1, *numbers[place + 1 :]]
        known = lines[place - 1].stage == lines[place].stage
        effect, stages = (_EITHER, frozenset[int]()) if known else (_WEAK, frozenset({0}))
        yield Variant("lines exchanged", effect, _ordered(lines, order), stages)
        yield Variant("lines exchanged", effect, tuple(lines[k] for k in order), stages)
        first = min(k for k in numbers if lines[k].stage == lines[place].stage)
        rest = [k for k in numbers if k != place]
        order = [*rest[:first], place, *rest[first:]]
        yield Variant("line first of its stage", _EITHER, _ordered(lines, order))


def _presence(lines: Lines, place: int):
    line, numbers = lines[place], [k for k in range(len(lines)) if k != place]
    effect, stages = _EITHER, frozenset[int]()
    if isinstance(line, TensorGradient | LossPull | InputFact):
        effect, stages = _WEAK, frozenset({line.stage})
    yield Variant(f"{line.rule}: dropped", effect, _ordered(lines, numbers), stages)
    yield Variant(f"{line.rule}: dropped", effect, _put(lines, place), stages)
    effect = _WEAK if isinstance(line, PullLine) else _EITHER
    stages = frozenset({5} if effect is _WEAK else ())
    yield Variant(f"{line.rule}: doubled", effect, _inserted(lines, place, line), stages)
    if hasattr(line, "of"):
        other: Any = replace(line, of=OUTPUT if line.of == LOSS else LOSS)  # type: ignore[call-arg]
        yield Variant(f"{line.rule}: of the other", _EITHER, _put(lines, place, other))


def _references(lines: Lines, place: int):
    """To lines of all kinds, before and behind, and to none."""
    line = lines[place]
    named = {k for k, item in enumerate(lines) if item.rule.startswith(("form/", "ball/"))}
    numbers = named | {0, place - 1, place, place + 1, len(lines) - 1, len(lines), 1 << 20, 1 << 53}
    for name in ("ball", "form"):
        if hasattr(line, name):
            for number in sorted(numbers - {getattr(line, name), -1}):
                other: Any = replace(line, **{name: number})
                yield Variant(f"{line.rule}: another {name}", _EITHER, _put(lines, place, other))


def _names(lines: Lines, place: int, program):
    """Of all values of the program, of its tensors, of nothing."""
    line = lines[place]
    known = [*program.shapes, program.output, *_tensors(lines)]
    strange = ("absent", "", "x" * 60_000, "v0\n", "\u202ev0")
    for field in fields(line):
        value = getattr(line, field.name)
        if field.name in {"value", "start", "stop", "tensor"}:
            for other in dict.fromkeys([*known, *strange]):
                changed = _put(lines, place, replace(line, **{field.name: other}))
                effect = _WEAK if other in strange else _EITHER
                stages = frozenset({line.stage} if effect is _WEAK else ())
                if other != value:
                    yield Variant(f"{line.rule}: another {field.name}", effect, changed, stages)
        if field.name == "values":
            for names in (
                *((other,) for other in known[:8]),
                *((*value[:-1], other) for other in known[:8]),
                *((other, *value[1:]) for other in known[:8]),
                (), value[::-1], value[:1], value[1:], value + value, (*value, "absent"),
                (value[0],) * 1000,
            ):  # fmt: skip
                if names != value:
                    changed = _put(lines, place, replace(line, values=names))
                    yield Variant(f"{line.rule}: other values", _EITHER, changed)
    if isinstance(line, StepFact):
        changed = _put(lines, place, replace(line, step=f"{line.step}1"))
        yield Variant("fact/step: another step", _WEAK, changed, frozenset({4}))


def _tensors(lines: Lines) -> list[str]:
    return [line.tensor for line in lines if isinstance(line, TensorGradient)]


def _shares(lines: Lines, place: int):
    line = lines[place]
    refused = ((), (0.5,) * 7, (1.5,), (math.nextafter(1.0, 2.0),), (_LARGEST,))
    for shares in (*refused, (0.0,), (0.25,), (1.0,), (5e-324,), (0.5, 0.5)):
        changed: Any = replace(line, shares=shares)
        effect = _WEAK if shares in refused else _EITHER
        stages = frozenset({4} if effect is _WEAK else ())
        yield Variant("ball/input: shares", effect, _put(lines, place, changed), stages)


def _exchanged(lines: Lines, program):
    """Every rule about every value, from every line that there is: as one more line at the end of
    its stage, at its beginning, and in the place of a line about the same."""
    for line in _all_lines(lines, program):
        stage = [k for k, item in enumerate(lines) if item.stage == line.stage]
        kind = f"{line.rule}: one more"
        ends = (min(stage), max(stage) + 1) if stage else (0,)
        for place in ends:
            yield Variant(kind, _EITHER, _inserted(lines, place, line))
        for place in stage:
            held = lines[place]
            if held.rule != line.rule and held.subject == line.subject:
                other = replace(line, bound=held.bound)
                yield Variant(f"{held.rule}: {line.rule}", _EITHER, _put(lines, place, other))
                yield Variant(kind, _EITHER, _inserted(lines, place, line))
                yield Variant(kind, _EITHER, _inserted(lines, place + 1, line))


def _all_lines(lines: Lines, program):
    values, inputs = list(program.shapes), {step.output: step.inputs for step in program.steps}
    forms = [k for k, line in enumerate(lines) if isinstance(line, ChainForm)]
    balls = [k for k, line in enumerate(lines) if isinstance(line, InputBall)]
    rules = {step.output: rule_of(step.op) for step in program.steps}
    runs = [line.values for line in lines if isinstance(line, RunNorm)]
    raised = [line for line in lines if isinstance(line, GainFact)]
    products = [line for line in lines if isinstance(line, ProductFact)]
    windows = [line for line in lines if isinstance(line, WindowFact)]
    listed = [line.multipliers for line in lines if isinstance(line, ChainForm)]
    slices = [line for line in lines if isinstance(line, SliceFact)]
    stacks = [line.values for line in lines if isinstance(line, StackNorm)]
    rows = {(v,) for v in values} | {(a, v) for v in inputs for a in inputs[v]} | set(runs)
    for value in values:
        yield InputFact(value=value)
        yield StepFact(value=value, step=rules.get(value, "dense/1"))
        yield StepNorm(value=value, method="dense", bound=1e6)
        yield StepNorm(value=value, method="dense")
        for row in sorted(rows):
            if value in row or set(inputs.get(value, ())) & set(row):
                yield AffineFact(value=value, values=row)
        for below in inputs.get(value, ()):
            yield from (replace(line, value=value, values=(below,)) for line in raised)
        for line, level in itertools.product(products, (1e-3, 1e3)):
            yield replace(line, value=value, level=level)
            yield from (replace(line, value=value, start=start, level=level) for start in values)
        yield from (replace(line, value=value) for line in (*slices, *windows))
        for form in forms:
            for level in (None, 1e-3, 1e3):
                yield ZeroFact(value=value, form=form, level=level)
                for ball in balls:
                    yield BallFact(value=value, ball=ball, form=form, level=level)
        for of in (LOSS, OUTPUT):
            yield ValuePull(of=of, value=value)
            yield AttentionPull(of=of, value=value)
            yield LossPull(of=of, value=value)
    for row in sorted(rows):
        yield RunNorm(values=row, method="dense", bound=1e6)
        yield RunNorm(values=row, method="dense")
        yield from (RunPull(of=of, values=row) for of in (LOSS, OUTPUT))
    for row in [*stacks, *(row[:2] for row in stacks), *sorted(rows)[:3]]:
        yield StackNorm(values=row, bound=1e6)
        yield from (StackPull(of=of, values=row) for of in (LOSS, OUTPUT))
    for form in forms:
        yield from (FormPull(of=of, form=form, by=by) for of in (LOSS, OUTPUT) for by in _WAYS)
        yield from (FormPull(form=form, by="hull", others=(other,)) for other in forms)
        yield from (MovedBall(ball=ball, form=form) for ball in balls)
    for shares in ((0.0,), (1.0,), (0.5,)):
        yield InputBall(shares=shares)
    for line in lines:
        if isinstance(line, ChainForm):
            yield from (replace(line, use=use) for use in _USES)
            yield from (replace(line, multipliers=numbers) for numbers in listed[:3])
    for line in lines:
        if isinstance(line, KernelGradient):
            yield from (replace(line, value=value) for value in values)
            yield from (SignPull(value=value, stop=line.stop) for value in values)
    for tensor in (*_tensors(lines), *values[:1], "absent"):
        yield TensorGradient(tensor=tensor)
