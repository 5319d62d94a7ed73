"""What a constant shows of the one tensor that it is computed from, and the operands of a program.

Lowering says what it did to the entries of a tensor (`Acts`): doing the same to their numbers in
the tensor, and to ones, tells which of them stands where, and by what it is multiplied. The numbers
of the tensor itself decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import reduce
from typing import final

import numpy as np

from lipcert.core import program as p
from lipcert.core.coverage import tensors
from lipcert.core.lower.values import Constant
from lipcert.core.reader.records import Model, Tensor
from lipcert.graph.evaluate import member
from lipcert.graph.ir import Operand, Parameter, PlaceArray
from lipcert.upper import FloatArray, Upper

Slot = tuple[int, str]
"""a step, by its position, and the name of an operand in its op"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class View:
    """array = scale·θ[places], or 1/θ[places] if inverted; places as of `graph.ir.Operand`."""

    origin: str
    places: PlaceArray | None
    scale: float = 1.0
    inverted: bool = False


def view_of(constant: Constant | p.Operand, stored: Mapping[str, Tensor]) -> View | None:
    """What a constant shows; None where it does not show one of these tensors alone."""
    origin, *others = constant.sources or [""]
    tensor, acts = stored.get(origin), constant.acts
    if tensor is None or others or acts is None:
        return None
    inverted = math.isinf(constant.sources[origin])
    ones, numbers = np.ones(tensor.dims), np.arange(1.0, tensor.size + 1.0).reshape(tensor.dims)
    with np.errstate(divide="ignore", invalid="ignore"):
        units, shown = (reduce(lambda array, act: act(array), acts, own) for own in (ones, numbers))
        units, shown = (1.0 / units, 1.0 / shown) if inverted else (units, shown)
    scale = float(units.flat[np.argmax(np.abs(units))]) if units.any() else 1.0
    if not np.isin(units, (0.0, scale)).all() or (inverted and not (units == 1.0).all()):
        return None
    places = np.rint(shown / scale).astype(np.int32).reshape(constant.shape) - 1
    whole = np.array_equal(places.reshape(-1), np.arange(tensor.size))
    return View(origin, None if whole else places, scale, inverted)


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
        self.parameters = dict(parameters)
        self._model = model
        self._stored = tensors(model)
        self._views: dict[Slot, View] = {}
        for slot, operand in operands_of(program):
            shown = parameters.keys() & operand.sources.keys() - program.untracked
            view = view_of(operand, self._stored) if shown else None
            if view is not None and view.inverted and slot[1] != "factor":
                view = None
            if view is not None or any(parameters[name].trainable for name in shown):
                self._views[slot] = view or self._computed(program, slot, operand)

    def _computed(self, program: p.Program, slot: Slot, operand: p.Operand) -> View:
        name = f"{program.steps[slot[0]].output}.{slot[1]}"
        while name in self.parameters:
            name += "'"
        self.parameters[name] = Parameter(name, operand.shape, folded=True)
        return View(name, None)

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
        name, places = view.origin, view.places
        if view.inverted:
            own = self._stored[name].values().reshape(-1)
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
