"""Operands of a program as views of the parameters that they show.

What enters: a model, its program, and which initializers are parameters. What leaves: for each
operand of each step an `operand.Operand`.

Lowering moves constants without copying them, so most operands lie in the memory of the very array
that holds the numbers of their parameter, and their strides say which entries they show. How any
other operand arranges its parameter is seen by what it becomes when numbers that tell the entries
apart stand in the place of the parameter. Numbers that happen to be equal decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Final, final

import numpy as np

from lipcert.core import program as p
from lipcert.core.coverage import tensors
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from lipcert.core.reader.records import Model
from lipcert.graph.evaluate import member
from lipcert.graph.ir import Parameter
from lipcert.graph.operand import Operand, PlaceArray
from lipcert.importer.computed import numbers_of
from lipcert.importer.memory import lies_in, places_in
from lipcert.upper import FloatArray, Upper

_ROUNDINGS: Final = 2.0**-46
_LOWEST: Final = (127 - 8) << 23
"""the bits of 2⁻⁸ in float32"""
_MASK: Final = (1 << 27) - 1
"""the bits of numbers from 2⁻⁸ to 2⁸, less the lowest"""
_FACTORS: Final = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_SHIFT: Final = 14

Slot = tuple[int, str]
"""a step, by its position, and the name of an operand in its op"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class View:
    """operand = scale · θ[places], or 1/θ[places] if inverted; places as of `operand.Operand`."""

    parameter: str
    places: PlaceArray | None
    scale: float
    inverted: bool


@final
class Operands:
    """The operands of a program: views of parameters, constants, and what is neither.

    parameters: all that operands may show. An operand that is computed from parameters in another
    way than by moving, repeating and scaling the entries of one is a parameter of its own, `folded`
    and named by its value in the program and its place in the step; a constant where these are
    frozen.
    """

    def __init__(
        self, program: p.Program, model: Model, parameters: Mapping[str, Parameter]
    ) -> None:
        shown = {
            slot: sorted(parameters.keys() & operand.sources.keys() - program.untracked)
            for slot, operand in operands_of(program)
        }
        self.parameters = dict(parameters)
        self._model = model
        self._views: dict[Slot, View] = {}
        alone = {slot: names[0] for slot, names in shown.items() if len(names) == 1}
        stored = tensors(model)
        for slot, operand in operands_of(program):
            tensor = stored.get(alone.get(slot, ""))
            if tensor is not None and operand.is_exact and lies_in(operand.lo, tensor):
                places = places_in(operand.lo, tensor)
                self._views[slot] = View(alone[slot], places, 1.0, inverted=False)
        others = {slot: name for slot, name in alone.items() if slot not in self._views}
        coded = _Coded(program, model, {name: parameters[name] for name in others.values()})
        for slot, operand in operands_of(program):
            if not shown[slot] or slot in self._views:
                continue
            view = coded.view(slot, others[slot], operand) if slot in others else None
            if view is not None or any(parameters[name].trainable for name in shown[slot]):
                self._views[slot] = view or self._computed(program, slot, operand)

    def _computed(self, program: p.Program, slot: Slot, operand: p.Operand) -> View:
        name = f"{program.steps[slot[0]].output}.{slot[1]}"
        while name in self.parameters:
            name += "'"
        self.parameters[name] = Parameter(name, operand.shape, folded=True)
        return View(name, None, 1.0, inverted=False)

    def stored(self, operand: p.Operand) -> FloatArray | None:
        """The tensor of the file that an operand of its shape is computed from, if it is one."""
        held = [self._model.initializers.get(name) for name in operand.sources]
        if len(held) != 1 or held[0] is None or held[0].dims != operand.shape:
            return None
        return held[0].values()

    def is_inverted(self, slot: Slot) -> bool:
        """Whether the operand is the reciprocal of what it shows."""
        view = self._views.get(slot)
        return view is not None and view.inverted

    def of(self, slot: Slot, operand: p.Operand) -> Operand:
        """The operand; of a reciprocal, what it divides by."""
        view = self._views.get(slot)
        if view is None:
            return Operand(member(operand))
        name, places = view.parameter, view.places
        if view.inverted:
            own = self._model.initializers[name].values().reshape(-1)
            divisor = own.reshape(operand.shape) if places is None else own[places]
            return Operand(divisor, name, _gain(places), places)
        gain = Upper(operand.sources.get(name, 1.0))
        return Operand(member(operand), name, gain, places, view.scale)


def _gain(places: PlaceArray | None) -> Upper:
    """Of a parameter of which no entry is multiplied: by how often it is repeated."""
    repeats = 1 if places is None else int(np.bincount(places.reshape(-1)).max())
    return Upper(float(repeats)).sqrt()


def operands_of(program: p.Program) -> Iterator[tuple[Slot, p.Operand]]:
    """The operands of all steps."""
    for number, step in enumerate(program.steps):
        for item in fields(step.op):
            operand = getattr(step.op, item.name)
            if isinstance(operand, p.Operand):
                yield (number, item.name), operand


@final
class _Coded:
    """The operands of the same program with other numbers in its parameters.

    Each entry becomes a scattered number of float32, which the file may convert to and which no
    combination of others is likely to be; or 1, which shows by what number it is multiplied.
    """

    def __init__(self, program: p.Program, model: Model, used: Mapping[str, Parameter]) -> None:
        self._program = program
        self._model = model
        self._used = used
        self._coded = self._with(_codes)
        self._ones: Mapping[Slot, FloatArray] | None = None

    def view(self, slot: Slot, name: str, operand: p.Operand) -> View | None:
        """How an operand shows a parameter; None where it does not."""
        coded, size = self._coded.get(slot), self._used[name].size
        if coded is None or not np.isfinite(coded).all():
            return None
        inverted, scale = math.isinf(operand.sources[name]), 1.0
        if inverted and slot[1] != "factor":
            return None
        if inverted:
            coded = 1.0 / np.where(coded == 0.0, math.inf, coded)
        places = _places(coded, size)
        if places is None and not inverted:
            scale = self._scale(slot)
            places = _places(coded / scale, size) if scale else None
        if places is None or (inverted and (places < 0).any()):
            return None
        whole = np.array_equal(places.reshape(-1), np.arange(size))
        return View(name, None if whole else places, scale, inverted)

    def _scale(self, slot: Slot) -> float:
        """By what number the entries are multiplied; 0 where that is not one number."""
        if self._ones is None:
            self._ones = self._with(np.ones)
        units = self._ones.get(slot)
        largest = 0.0 if units is None else float(units.flat[np.argmax(np.abs(units))])
        return largest if units is not None and np.isin(units, (0.0, largest)).all() else 0.0

    def _with(self, numbers: Callable[[int], FloatArray]) -> Mapping[Slot, FloatArray]:
        """The operands; none where other numbers make another program."""
        if not self._used:
            return {}
        stored = self._model.initializers
        marked = {
            name: numbers_of(numbers(item.size).reshape(item.shape))
            for name, item in self._used.items()
        }
        nodes = tuple(  # a constant of the file may be a parameter
            node for node in self._model.nodes if marked.keys().isdisjoint(node.outputs)
        )
        model = replace(self._model, nodes=nodes, initializers={**stored, **marked})
        try:
            heads = [head.output for head in self._program.heads]
            other = lower(model, *(heads or [self._program.output]))
        except Unsupported:
            return {}
        if list(map(_frame, other.steps)) != list(map(_frame, self._program.steps)):
            return {}
        return {slot: member(operand) for slot, operand in operands_of(other)}


def _frame(step: p.Step) -> tuple[object, ...]:
    """What must not depend on the numbers in parameters."""
    return type(step.op), step.inputs, step.output, step.shape


def _codes(size: int) -> FloatArray:
    """Different numbers of float32 between 2⁻⁸ and 2⁸, in no order: entry k has the bits of
    k + 1, mixed by steps that can be undone."""
    bits = np.arange(1, size + 1, dtype=np.uint64)
    for factor in _FACTORS:
        bits = (bits * np.uint64(factor)) & np.uint64(_MASK)
        bits ^= bits >> np.uint64(_SHIFT)
    return (bits + np.uint64(_LOWEST)).astype(np.uint32).view(np.float32).astype(np.float64)


def _places(numbers: FloatArray, size: int) -> PlaceArray | None:
    """Where each number stands among so many codes, −1 for 0; None where one is not there."""
    zero = numbers == 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.where(zero, 1.0, numbers).astype(np.float32)
        same = np.abs(numbers - near) <= _ROUNDINGS * np.abs(near)
    stored = near.view(np.uint32).astype(np.int64) - _LOWEST
    if not (zero | (same & (stored >= 0) & (stored <= _MASK))).all():
        return None
    bits = stored.astype(np.uint64)
    for factor in reversed(_FACTORS):
        bits ^= bits >> np.uint64(_SHIFT)
        bits = (bits * np.uint64(pow(factor, -1, _MASK + 1))) & np.uint64(_MASK)
    if not (zero | ((bits > 0) & (bits <= size))).all():
        return None
    return np.where(zero, -1, bits.astype(np.int64) - 1).astype(np.int32)
