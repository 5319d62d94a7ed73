"""Build the graph of a program: its steps under the names of the file, with views of parameters.

The graph has the values of the program under the same names, except between a scaling and a shift
that are one node of the file.

`Operands` finds which entries of which stored tensor each operand shows. Lowering records what it
did to the entries of a tensor (`Acts`). Doing the same to their numbers in the tensor, and to ones,
shows which entry stands where, and by what it is multiplied. The values in the tensor decide
nothing.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce

import numpy as np

from lipcert.core import kinds, token_kinds
from lipcert.core import program as p
from lipcert.core.arithmetic import sqrt_up
from lipcert.core.coverage import tensors
from lipcert.core.lower.values import Arrange, Constant
from lipcert.core.program import FloatArray
from lipcert.core.reader.records import Model, Tensor
from lipcert.graph.evaluate import member
from lipcert.graph.ir import (
    JOINED,
    ROLES,
    Graph,
    Node,
    Operand,
    Parameter,
    PlaceArray,
    example,
    viewed,
)

Slot = tuple[int, str]
"""A step, by its position, and the name of an operand in its op."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """array = scale·θ[places] + plus, or 1/θ[places] if inverted; see `graph.ir.Operand`."""

    origin: str
    places: PlaceArray | None
    scale: float = 1.0
    inverted: bool = False
    plus: FloatArray | None = None


def view_of(constant: Constant | p.Operand, stored: Mapping[str, Tensor]) -> View | None:
    """Return the constant as a view of a stored tensor; None if it is not a view of one alone."""
    origin, *others = constant.sources.keys() - {p.PLUS} or [""]
    tensor, acts = stored.get(origin), constant.acts
    if tensor is None or others or acts is None:
        return None
    inverted = math.isinf(constant.sources[origin])
    ones, numbers = np.ones(tensor.dims), np.arange(1.0, tensor.size + 1.0).reshape(tensor.dims)
    linear = tuple(act for act in acts if not isinstance(act, p.Added))
    plus = None
    with np.errstate(divide="ignore", invalid="ignore"):
        units, shown = (_after_acts(linear, own) for own in (ones, numbers))
        if p.PLUS in constant.sources:
            plus = _after_acts(acts, np.zeros(tensor.dims)).reshape(constant.shape)
        units, shown = (1.0 / units, 1.0 / shown) if inverted else (units, shown)
    scale = float(units.flat[np.argmax(np.abs(units))]) if units.any() else 1.0
    if not np.isin(units, (0.0, scale)).all():
        return None
    if inverted and not (plus is None and (units == 1.0).all()):
        return None
    places = np.rint(shown / scale).astype(np.int32).reshape(constant.shape) - 1
    whole = np.array_equal(places.reshape(-1), np.arange(tensor.size))
    return View(origin, None if whole else places, scale, inverted, plus)


def _after_acts(acts: Iterable[Arrange], array: FloatArray) -> FloatArray:
    return reduce(lambda own, act: act(own), acts, array)


class Operands:
    """The operands of a program: views of parameters, constants, and computed tensors.

    parameters: all that operands may show. An operand that is computed from parameters otherwise
    than by moving, repeating and scaling the entries of one is a constant, and marks them as
    `computed`. With as_exported it is a parameter of its own, named after its value in the program
    and its place in the step.
    """

    def __init__(
        self,
        program: p.Program,
        model: Model,
        parameters: Mapping[str, Parameter],
        *,
        as_exported: bool = False,
    ) -> None:
        self.parameters = dict(parameters)
        self._as_exported = as_exported
        self._model = model
        self._stored = tensors(model)
        self._views: dict[Slot, View] = {}
        for slot, operand in operands_of(program):
            shown = parameters.keys() & operand.sources.keys() - program.untracked
            view = view_of(operand, self._stored) if shown else None
            if view is not None and view.inverted and slot[1] != "factor":
                view = None
            if view is not None:
                self._views[slot] = view
            elif self._as_exported and any(parameters[name].trainable for name in shown):
                self._views[slot] = self._own(program, slot, operand)
            else:
                for name in shown:
                    self.parameters[name] = replace(self.parameters[name], computed=True)

    def _own(self, program: p.Program, slot: Slot, operand: p.Operand) -> View:
        name = f"{program.steps[slot[0]].output}.{slot[1]}"
        while name in self.parameters:
            name += "'"
        self.parameters[name] = Parameter(name, operand.shape)
        return View(name, None)

    def stored(self, operand: p.Operand) -> FloatArray | None:
        """Return the one tensor of the file, of equal shape, behind an operand; else None."""
        held = [self._model.initializers.get(name) for name in operand.sources]
        if len(held) != 1 or held[0] is None or held[0].dims != operand.shape:
            return None
        return held[0].values()

    def is_inverted(self, slot: Slot) -> bool:
        """Whether the operand is the reciprocal of a view."""
        view = self._views.get(slot)
        return view is not None and view.inverted

    def of(self, slot: Slot, operand: p.Operand) -> Operand:
        """Return the operand; for a reciprocal, the divisor."""
        view = self._views.get(slot)
        if view is None:
            return Operand(member(operand))
        name, places = view.origin, view.places
        if view.inverted:
            own = self._stored[name].values().reshape(-1)
            divisor = own.reshape(operand.shape) if places is None else own[places]
            repeats = 1 if places is None else int(np.bincount(places.reshape(-1)).max())
            return Operand(divisor, name, sqrt_up(float(repeats)), places)
        gain = operand.sources.get(name, 1.0)
        found = Operand(member(operand), name, gain, places, view.scale, view.plus)
        if view.plus is None:
            return found
        return replace(found, array=viewed(found, self._stored[name].values()))  # to the last bit


def operands_of(program: p.Program) -> Iterator[tuple[Slot, p.Operand]]:
    """Yield the operands of all steps."""
    for number, step in enumerate(program.steps):
        for item in fields(step.op):
            operand = getattr(step.op, item.name)
            if isinstance(operand, p.Operand):
                yield (number, item.name), operand


def graph_of(
    program: p.Program,
    model: Model,
    parameters: Mapping[str, Parameter],
    *,
    as_exported: bool = False,
) -> Graph:
    """Return the graph of a program; `parameters` are named after initializers of the model.

    The graph has all of them, see `Operands`: first those that operands show, in order of use.
    """
    operands = Operands(program, model, parameters, as_exported=as_exported)
    readers = Counter(name for step in program.steps for name in step.inputs)
    nodes: list[Node] = []
    for number, step in enumerate(program.steps):
        given = tuple(program.shapes[name] for name in step.inputs)
        node = Node(step.output, step, given, _operands(number, step, operands))
        if nodes and _is_one_affine_map(nodes[-1], node, readers):
            last = nodes.pop()
            joined = replace(last.step, output=step.output, shape=step.shape)
            node = replace(last, step=joined, operands={**last.operands, **node.operands})
        nodes.append(node)
    used = dict.fromkeys(use.parameter for node in nodes for use in node.uses())
    shape = example(program.shapes[program.input])
    shown = {name: operands.parameters[name] for name in (*used, *operands.parameters)}
    made = {part.name: part.name for part in program.parts}
    if program.heads:
        made[program.output] = JOINED
    named = _with_names(nodes, model, made)
    return Graph(
        program.input,
        shape,
        program.output,
        named,
        shown,
        ids=program.ids,
        whole=any(
            item.name == program.input and item.dtype.startswith(("int", "uint"))
            for item in model.inputs
        ),
        heads=program.heads,
        parts=program.parts,
    )


def _operands(number: int, step: p.Step, operands: Operands) -> Mapping[str, Operand]:
    """Return the operands of a step by their roles."""
    found: dict[str, Operand] = {}
    for item in fields(step.op):
        operand = getattr(step.op, item.name)
        if isinstance(operand, p.Operand) and item.name in ROLES:
            slot, role = (number, item.name), ROLES[item.name]
            role = "divisor" if operands.is_inverted(slot) else role
            found[role] = operands.of(slot, operand)
    if isinstance(step.op, kinds.BatchNorm):
        found["mean"] = Operand(member(step.op.mean))
        variance = operands.stored(step.op.inverse)
        if variance is not None:
            found["variance"] = Operand(variance)
    return found


def _is_one_affine_map(scale: Node, shift: Node, readers: Mapping[str, int]) -> bool:
    """Whether a shift and the scaling before it are one node of the file."""
    alone = scale.output == shift.inputs[0] and readers[scale.output] == 1
    return (
        alone
        and isinstance(shift.op, token_kinds.Shift)
        and scale.operands.keys() == {"scale"}
        and scale.step.node == shift.step.node
    )


def _with_names(nodes: Sequence[Node], model: Model, made: Mapping[str, str]) -> tuple[Node, ...]:
    """Name the nodes as in the file; several nodes from one node of the file get numbers.

    made: names for values that no node of the file computes: joined outputs, and each of several
    inputs.
    """
    owners = [
        made.get(node.output) or model.nodes[node.step.node].name or node.output for node in nodes
    ]
    several = Counter(owners)
    taken: set[str] = set()
    found = []
    for owner, node in zip(owners, nodes, strict=True):
        number, name = 1, owner if several[owner] == 1 else f"{owner}/1"
        while name in taken:
            number += 1
            name = f"{owner}/{number}"
        taken.add(name)
        found.append(replace(node, name=name))
    return tuple(found)
