"""Trained: which initializers of a model are parameters of the network, and which are folded.

`trained_of` takes a model with one initializer per tensor that training may change. It returns the
parameters in the order of use; one is `folded` if its numbers are not those that are trained, or if
not all of its uses are visible. Invariant: a tensor is a parameter without being folded only if all
its uses are operands of steps, or numbers for which the core knows no bound.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from lipcert.core.coverage import tensors
from lipcert.core.kinds import BatchNorm, PRelu
from lipcert.core.program import Activation, Operand, Program, operands
from lipcert.core.reader.records import Model, Node, Tensor
from lipcert.core.token_kinds import Attention, Scale
from lipcert.graph.ir import Parameter
from lipcert.importer.computed import Computed
from lipcert.importer.metadata import LAYERS, Provenance, is_anonymous
from lipcert.importer.nodes import FX_NODE, NotedNode
from lipcert.importer.origins import RECURRENT

_LIMITS: Final = frozenset({"Max", "Min"})
"""Operators whose constants may be trained, although no rule bounds their gradients."""
_CALCULATING: Final = frozenset(
    {"Add", "Div", "Gather", "Mul", "Slice", "Split", "Sub", "Where"}
    | {"ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"}
)
"""Operators that compute a number of a formula from trained tensors."""
_BESIDE: Final = {"gelu": {0.5, 2.0}, "gelu_tanh": {0.5, 2.0}, "hard_swish": {6.0, 1 / 6}}
"""Numbers by which the formula of an activation multiplies or divides it."""
_QUICK_GELU: Final = 1.702
_NEAR: Final = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """The parameters; lost: known ones without a rule; numbers: those that are part of a formula.

    fixed: other tensors that steps compute with and that are not trained, with the reason.
    """

    parameters: Mapping[str, Parameter]
    lost: tuple[str, ...]
    numbers: tuple[str, ...]
    fixed: Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """What the exporter's notes say about a file.

    missing: parameters that it lacks; nodes: those that depend on the data; hidden: whether some
    notes belong to nodes that are not among them; unseen: tensors that may have other uses;
    suspects: those that a tool computed, by their names, in a file without notes.
    """

    provenance: Provenance
    missing: frozenset[str]
    nodes: Sequence[NotedNode]
    hidden: bool
    unseen: frozenset[str]
    suspects: frozenset[str]
    as_exported: bool


def trained_of(program: Program, found: Computed, marks: Marks) -> Trained:
    """Return the parameters of a program. found: its model, computed tensors as initializers."""
    model, notes = found.model, marks.provenance
    stored = tensors(model)
    uses = _Uses(program, model)
    literals = not notes.signed or bool(marks.missing) or marks.as_exported
    own = frozenset() if notes.signed else _unnoted(model, notes, marks.nodes) | found.reduced
    followed = frozenset[str]() if marks.as_exported else _followed(found, own, marks)
    mixed = frozenset() if marks.as_exported else _mixed(found, stored, marks, followed)
    inside = own.union(uses.odd(stored), _limits(marks, stored, model.outputs))
    hidden = stored.keys() if marks.suspects else marks.unseen
    formulas = set(formula_numbers(program, model, notes))
    plain = uses.plain | program.untracked  # such a number is fixed, even if others are trained
    parameters: dict[str, Parameter] = {}
    numbers: list[str] = []
    fixed: dict[str, str] = {}
    inner = sorted(followed - uses.with_rule.keys())
    for name in (*uses.with_rule, *inner, *sorted(program.untracked - {*uses.with_rule, *inner})):
        tensor = stored.get(name)
        if name in followed:
            is_folded = name in mixed or name in uses.plain
            dims = found.model.initializers[name].dims
            is_trained = name not in notes.frozen
            parameters[name] = Parameter(name, dims, is_trained, is_folded, computed=True)
        if name in followed or (followed and name in found.names):
            continue
        if tensor is not None and name in notes.frozen and name in uses.with_rule:
            parameters[name] = Parameter(name, tensor.dims, trainable=False)
        if tensor is None or not tensor.size or notes.is_statistic(name):
            continue
        is_literal = name not in model.initializers or (
            name not in found.names | hidden and notes.is_literal(name, tensor.size)
        )
        if is_literal:
            is_parameter = literals and tensor.size > 1 and uses.with_rule.get(name, False)
            if not notes.signed and name in model.initializers:  # merged with a parameter, perhaps
                is_parameter = name in uses.with_rule and name not in formulas
        elif name in uses.with_rule:
            is_number = name in formulas | plain and name not in own and tensor.size == 1
            is_parameter = notes.is_known(name) or not is_number
        else:
            is_parameter = name in inside
        if is_parameter:
            is_computed = name in found.names and not marks.as_exported
            is_folded = is_computed or name in mixed or name in uses.plain
            parameters[name] = Parameter(name, tensor.dims, folded=is_folded)
        elif tensor.size == 1 and not is_literal:
            numbers.append(name)
    known = parameters.keys() | (found.names if followed else frozenset())
    for name in uses.with_rule.keys() - known - notes.frozen:
        if name in stored and (stored[name].size > 1 or name in notes.folded):
            fixed[name] = notes.why_fixed(name)
    lost = (uses.plain | program.untracked) & notes.targets - parameters.keys()
    fixed = dict(sorted(fixed.items()))
    return Trained(parameters, tuple(sorted(lost)), tuple(sorted(numbers)), fixed)


def _followed(found: Computed, own: Set[str], marks: Marks) -> frozenset[str]:
    """Return the parameters that the file computes tensors from, if it shows the computation.

    own: single numbers of modules. If no notes say what is trained, another single number may
    belong to a formula; then the result is empty.
    """
    stored = found.model.initializers
    names = (found.absorbed & stored.keys()) - found.names
    several = {name for name in names if stored[name].size > 1}
    is_known = all(name in own or marks.provenance.is_known(name) for name in names - several)
    return frozenset(names if is_known and not marks.missing else ())


def _unnoted(model: Model, notes: Provenance, noted: Sequence[NotedNode]) -> frozenset[str]:
    """Return what may be trained even as a plain number, if no notes say what is trained.

    A tensor of several numbers that a node moves or computes with is not part of a formula, except
    for masks of attention. Neither is a number that a torch module holds under a name: a literal of
    the code has no name there. Scales of quantised numbers are not trained.
    """
    scales = scales_of_quantised(model)
    read = (item.tensors for item in noted if item.node.op_type in _CALCULATING)
    several = {
        name
        for name in set[str]().union(*read) & model.initializers.keys()
        if model.initializers[name].is_float
        and np.isfinite(model.initializers[name].values()).all()
    }
    return frozenset(
        name
        for name, tensor in model.initializers.items()
        if name not in scales
        and (name in several if tensor.size > 1 else notes.is_torch and not is_anonymous(name))
    )


def dequantised(model: Model) -> Iterator[Node]:
    """Return the nodes that read quantised numbers."""
    return (node for node in model.nodes if node.op_type == "DequantizeLinear")


def scales_of_quantised(model: Model) -> frozenset[str]:
    """Return the names of the scales of quantised numbers."""
    return frozenset(name for node in dequantised(model) for name in node.inputs[1:2])


def _limits(marks: Marks, stored: Mapping[str, Tensor], outputs: Iterable[str]) -> Iterator[str]:
    """Yield the tensors of maxima and minima, but for single numbers below divisors alone.

    Such a floor only keeps a division away from 0, unless its name shows a parameter.
    """
    divisors, others, is_known = set[str](), set(outputs), marks.provenance.is_known
    for item in reversed(marks.nodes):
        kind, given, made = item.node.op_type, item.node.inputs, item.node.outputs
        is_divisor = not divisors.isdisjoint(made) and others.isdisjoint(made)
        is_below = kind == "Reciprocal" or (kind in {"Expand", "Sqrt"} and is_divisor)
        first = 0 if is_below else 1 if kind == "Div" else len(given)
        others.update(given[:first])
        divisors.update(given[first:])
        if kind in _LIMITS:
            floors = {x for x in item.tensors if stored[x].size == 1 and not is_known(x)}
            yield from item.tensors - (floors if is_divisor and kind == "Max" else set())


class _Uses:
    """How steps use tensors.

    with_rule: operands that have rules, in order, and whether they are weights;
    plain: what else steps compute with.
    """

    def __init__(self, program: Program, model: Model) -> None:
        self.with_rule: dict[str, bool] = {}
        self.plain: set[str] = set()
        self._program = program
        for step in program.steps:
            own = operands(step.op)
            for item in fields(step.op):
                operand = getattr(step.op, item.name)
                if not isinstance(operand, Operand):
                    continue
                fixed = isinstance(step.op, BatchNorm) and item.name in {"mean", "inverse"}
                fixed = fixed or not any(operand is other for other in own)
                if fixed or np.isneginf(operand.lo).any():
                    self.plain.update(operand.sources)
                    continue
                kind = model.nodes[step.node].op_type
                is_weight = item.name == "weight" or isinstance(step.op, PRelu) or kind in RECURRENT
                is_weight = is_weight or (item.name == "bias" and kind in LAYERS)
                for name in operand.sources:
                    self.with_rule[name] = self.with_rule.get(name, False) or is_weight

    def odd(self, stored: Mapping[str, Tensor]) -> frozenset[str]:
        """Return constants inside activations that no standard formula has: they may be trained."""
        found = {
            step.op.numbers[0]
            for step in self._program.steps
            if isinstance(step.op, Activation) and step.op.name == "quick_gelu"
            if abs(step.op.numbers[0] / _QUICK_GELU - 1.0) > _NEAR
        }
        return frozenset(
            name
            for name in self._program.untracked
            if name in stored
            and any(_is_number(stored[name], {number, 1.0 / number}) for number in found)
        )


def _is_number(tensor: Tensor, numbers: Iterable[float], share: float = 1e-6) -> bool:
    """Whether a tensor is one of these numbers, or close to it."""
    own = float(tensor.values().reshape(-1)[0]) if tensor.size == 1 else math.nan
    return any(math.isclose(own, number, rel_tol=share) for number in numbers)


def formula_numbers(program: Program, model: Model, notes: Provenance) -> Iterator[str]:
    """Yield single numbers beside a function that belong to its formula: 1/2, 1/6, and 1/√n.

    Attention multiplies or divides its queries of n entries by it, or queries and keys by its root,
    in steps of their own. If notes list the parameters, there are none; torch names literals.
    """
    stored = {} if notes.signed else tensors(model)
    makers = {step.output: step for step in program.steps}
    readers = {name: step for step in program.steps for name in step.inputs[:2]}
    for step in program.steps:
        if not isinstance(step.op, Scale) or step.op.factor.lo.size != 1:
            continue
        before, behind = makers.get(step.inputs[0]), readers.get(step.output)
        numbers: set[float] = set()
        if behind is not None and isinstance(behind.op, Attention):
            size = float(program.shapes[behind.inputs[0]][-1])
            numbers = {size**power for power in (-0.5, -0.25, 0.25, 0.5)}
        elif before is not None and isinstance(before.op, Activation) and not notes.is_torch:
            numbers = _BESIDE.get(before.op.name, numbers)
        for name in step.op.factor.sources:
            is_free = name in stored and notes.is_of_sizes(name)
            if is_free and _is_number(stored[name], numbers, _NEAR):
                yield name


def noted_nodes(model: Model, program: Program) -> Iterator[NotedNode]:
    """Yield the nodes that depend on the data, in order."""
    behind = {name: frozenset([name]) for name in model.initializers}
    for node, role in zip(model.nodes, program.covered, strict=True):
        read = frozenset[str]().union(*(behind.get(name, ()) for name in node.inputs))
        if role in {"step", "part"}:
            yield NotedNode(node, read)
        else:
            own = read if any(node.inputs) else frozenset(node.outputs)
            behind.update(dict.fromkeys(node.outputs, own))


def _mixed(
    found: Computed, stored: Mapping[str, Tensor], marks: Marks, followed: Set[str]
) -> frozenset[str]:
    """Return the tensors that differ from what is trained, or that others may be folded into."""
    notes, missing = marks.provenance, marks.missing
    everything = frozenset(name for name in stored if not notes.is_statistic(name))
    mixed = set() if followed else set(found.absorbed)
    touched = [item for item in marks.nodes if notes.is_folded(item.node, missing)]
    mixed.update(*(item.tensors for item in touched))
    mentioned = {name for item in marks.nodes for name in notes.mentioned(item.node)}
    if marks.hidden or marks.suspects or missing - mentioned:
        mixed |= everything  # the missing ones may be folded into any tensor
    elif missing:
        mixed |= everything - notes.targets
    mixed |= marks.unseen | _unread(notes, marks.nodes)
    return frozenset(mixed | found.absorbed if mixed & found.names else mixed)


def _unread(provenance: Provenance, nodes: Sequence[NotedNode]) -> set[str]:
    """Return the parameters that a call reads, while its nodes read other numbers instead."""
    read: dict[str, set[str]] = {}
    said: dict[str, set[str]] = {}
    for item in nodes:
        note = item.node.metadata.get(FX_NODE, "")
        read.setdefault(note, set()).update(item.tensors)
        said.setdefault(note, set()).update(provenance.mentioned(item.node))
    return {name for note in said for name in said[note] - read[note]}
