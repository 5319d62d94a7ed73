"""Tensors: which initializers of the file hold which parameter of the network.

The importer names parameters as the training program does, the core as the file does. Pairing by
equal numbers can only join several parameters, which makes a sum of gradient bounds larger.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from lipcert.core.coverage import tensors
from lipcert.core.program import Dense, FloatArray, Operand, Program, operands
from lipcert.core.reader.records import Model, Tensor
from lipcert.core.window_kinds import Conv
from lipcert.diagnostics import EXPORT
from lipcert.errors import NoVerdictError
from lipcert.graph.ir import Graph, parameters_of
from lipcert.graph.ir import Operand as Bias
from lipcert.importer.computed import numbers_of
from lipcert.settings.settings import ConstraintSpec

SEPARATELY: Final = f"export with {EXPORT}"
"""The remedy that stores every parameter separately."""


def tensors_of(
    graph: Graph,
    model: Model,
    program: Program,
    scattered: frozenset[str] = frozenset(),
    left_out: frozenset[str] = frozenset(),
) -> Mapping[str, tuple[str, ...]]:
    """Map parameters to initializers of the same name, or else with the same numbers.

    Of several with the same numbers, the first unpaired one is taken. Parameters that share an
    initializer (an exporter stored equal numbers once) share it here.

    scattered: parameters that several tensors hold; these are all with their numbers. One that
    weights are computed from, and that no operand shows, is left out.
    left_out: biases that `with_biases` put into the program; no tensor of the file holds one that
    is used only as such.
    """
    stored = tensors(model)
    hidden = {name for name in scattered if graph.parameters[name].computed}
    known = (stored.keys() - hidden) | left_out
    found = {name: (name,) for name in graph.parameters if name in known}
    used = list(dict.fromkeys(_sources(program)))
    free = [name for name in used if name not in found]
    keys = {name: _key(stored[name].values()) for name in used if name in stored}
    for name, array in _arrays(graph, left_out, program):
        if name in found and name not in scattered:
            continue
        key = _key(array)
        same = [tensor for tensor in used if keys.get(tensor) == key]
        if name in scattered:
            found[name] = tuple(dict.fromkeys((*found.get(name, ()), *same)))
            continue
        match = next((tensor for tensor in free if keys.get(tensor) == key), None)
        if match is not None:
            free.remove(match)
        if match is not None or same:
            found[name] = (match or same[0],)
    return {name: names for name, names in found.items() if names}


def with_biases(graph: Graph, program: Program) -> tuple[Program, frozenset[str]]:
    """Return the program with the zero biases that an exporter left out, and their names.

    It also gets those that the file computes from one number that is not a parameter. A step is
    found by its output, or by its weight if no step has an output of this name.
    """
    zeros: dict[str, Bias] = {}
    for node in graph.nodes:
        used = node.operands
        bias, weight = used.get("bias"), used.get("weight")
        if bias is None or bias.parameter is None or np.any(bias.array):
            continue
        key = node.output
        if key not in program.shapes and weight is not None and weight.parameter is not None:
            key = weight.parameter
        zeros[key] = bias
    steps, found = [], set()
    for step in program.steps:
        if isinstance(step.op, Dense | Conv) and _is_left_out(step.op.bias):
            keys = (step.output, *step.op.weight.sources)
            bias = next((zeros[key] for key in keys if key in zeros), None)
            sources = {} if step.op.bias is None else step.op.bias.sources
            if bias is not None and bias.parameter is not None and bias.parameter not in sources:
                known = {**sources, bias.parameter: bias.gain}
                numbers = bias.array.reshape(-1)
                op = replace(step.op, bias=Operand(numbers, numbers, known))
                step = replace(step, op=op)  # noqa: PLW2901
                found.add(bias.parameter)
        steps.append(step)
    return replace(program, steps=tuple(steps)), frozenset(found)


def _is_left_out(bias: Operand | None) -> bool:
    """Whether there is none, or only copies of a number that is 0."""
    if bias is None:
        return True
    repeated = all(1.0 < gain < math.inf for gain in bias.sources.values())
    return repeated and not (np.any(bias.lo) or np.any(bias.hi))


def check_held_alike(
    tensors: Mapping[str, tuple[str, ...]], constraints: Mapping[str, ConstraintSpec]
) -> None:
    """Raise NoVerdictError if parameters share a tensor of the file but no constraint.

    A constraint of the tensor would then apply to every parameter that it holds, even to a frozen
    one whose numbers may be outside.
    """
    first: dict[str, str] = {}
    for name, held in tensors.items():
        for tensor in held:
            other = first.setdefault(tensor, name)
            if constraints.get(name) != constraints.get(other):
                raise NoVerdictError(
                    f"the file stores {other!r} and {name!r} as one tensor, {tensor!r}, and "
                    f"their constraints differ; {SEPARATELY}"
                )


def exchanged_tensors(
    graph: Graph,
    model: Model,
    known: Mapping[str, tuple[str, ...]],
    weights: Mapping[str, FloatArray],
) -> Mapping[str, Tensor]:
    """Return the tensors of the file with other numbers for their parameters.

    known: the tensors of all parameters; those without other numbers keep theirs. How a tensor
    arranges its parameter is recognised by the numbers of the file.

    Raises:
        NoVerdictError: if it is neither unchanged, transposed nor reshaped, or if parameters share
            a tensor and no longer have the same numbers.
    """
    own = parameters_of(graph)
    kept = {tensor for name, held in known.items() if name not in weights for tensor in held}
    found: dict[str, Tensor] = {}
    for name, numbers in weights.items():
        for tensor in known.get(name, ()):
            before = model.initializers.get(tensor)
            arranged = None if before is None else _arranged(own.get(name), numbers, before)
            if before is None or arranged is None:
                raise NoVerdictError(
                    f"the tensor {tensor!r} of the file arranges the parameter {name!r} in a way "
                    f"that is not understood; {SEPARATELY}"
                )
            numbers_there = numbers_of(arranged)
            differs = tensor in kept and not np.array_equal(before.values(), arranged)
            if differs or found.setdefault(tensor, numbers_there) != numbers_there:
                raise NoVerdictError(
                    f"the file stores {name!r} and another parameter as one tensor, {tensor!r}, "
                    f"and their numbers differ by now; {SEPARATELY}"
                )
    return found


def _arranged(own: FloatArray | None, numbers: FloatArray, tensor: Tensor) -> FloatArray | None:
    there = np.asarray(tensor.values(), np.float64)
    if own is None or own.size != there.size:
        return None
    if np.array_equal(own.T, there) and own.shape != there.shape:
        return numbers.T
    if np.array_equal(own.reshape(there.shape), there):
        return numbers.reshape(there.shape)
    return numbers.T if np.array_equal(own.T, there) else None


def _sources(program: Program) -> Iterator[str]:
    for step in program.steps:
        for operand in operands(step.op):
            yield from operand.sources


def _arrays(
    graph: Graph, left_out: frozenset[str], program: Program
) -> Iterator[tuple[str, FloatArray]]:
    """Yield what operands show of whole parameters, in the order of use, except left-out biases."""
    put_in = {
        step.output
        for step in program.steps
        if isinstance(step.op, Dense | Conv) and step.op.bias is not None
        if left_out.intersection(step.op.bias.sources)
    }
    for use in graph.uses():
        name, array = use.parameter, use.operand.array
        if name in left_out and use.slot == "bias" and use.node.output in put_in:
            continue
        if array.size == graph.parameters[name].size and use.operand.plus is None:
            yield name, array if use.operand.scale == 1.0 else array / use.operand.scale


def _key(array: FloatArray) -> bytes:
    """Return a key that is the same for the same numbers in any arrangement."""
    return np.sort(np.asarray(array, dtype=np.float64), axis=None).tobytes()
