"""Tensors: which initializers of the file hold which parameter of the network.

What enters: the importer's graph, whose parameters are named as in the training program, and the
core's model and program. What leaves: for each parameter its tensors. A pairing by equal numbers
only ever joins more than is one parameter, which makes a sum of gradient bounds larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from lipcert.core.coverage import operands, tensors
from lipcert.core.program import Conv, Dense, Operand, Program, Step
from lipcert.core.reader.records import Model, Tensor
from lipcert.errors import NoVerdictError
from lipcert.ir import Graph
from lipcert.upper import FloatArray


def tensors_of(
    graph: Graph, model: Model, program: Program, scattered: frozenset[str] = frozenset()
) -> Mapping[str, tuple[str, ...]]:
    """Parameter → initializers: of the same name, otherwise the first unpaired one of its numbers.

    Parameters that share an initializer (an exporter stored equal numbers once) share it here.
    scattered: parameters that several tensors hold, which are all those of their numbers.
    """
    stored = tensors(model)
    found = {name: (name,) for name in graph.parameters if name in stored}
    used = list(dict.fromkeys(_sources(program)))
    free = [name for name in used if name not in found]
    keys = {name: _key(stored[name].values()) for name in used if name in stored}
    for name, array in _arrays(graph):
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


def with_biases(
    graph: Graph, program: Program, known: Mapping[str, tuple[str, ...]]
) -> tuple[Program, Mapping[str, tuple[str, ...]]]:
    """The program with the biases of zeros that an exporter left out of the file.

    Also of those that the file computes from a number, where there is no tensor to be trained.
    """
    left_out = {
        tensor: name
        for node in graph.nodes
        for slot, operand in (used := node.op.operands()).items()
        if slot == "bias" and (name := operand.parameter) is not None and name not in known
        if not np.any(operand.array) and "weight" in used
        for tensor in known.get(used["weight"].parameter or "", ())
    }
    if not left_out:
        return program, known
    steps, found = [], dict(known)
    for step in program.steps:
        weights = step.op.weight.sources if isinstance(step.op, Dense | Conv) else ()
        name = next((left_out[tensor] for tensor in weights if tensor in left_out), None)
        if name is not None and isinstance(step.op, Dense | Conv) and _is_zero(step.op.bias):
            zeros = np.zeros(graph.parameters[name].shape)
            sources = {} if step.op.bias is None else step.op.bias.sources
            bias = Operand(zeros, zeros, {**sources, name: 1.0})
            step = _biased(step, step.op, bias)  # noqa: PLW2901
            found[name] = (name,)
        steps.append(step)
    return replace(program, steps=tuple(steps)), found


def _is_zero(bias: Operand | None) -> bool:
    return bias is None or not (np.any(bias.lo) or np.any(bias.hi))


def _biased(step: Step, op: Dense | Conv, bias: Operand) -> Step:
    return replace(step, op=replace(op, bias=bias))


def exchanged_tensors(
    graph: Graph,
    model: Model,
    known: Mapping[str, tuple[str, ...]],
    weights: Mapping[str, FloatArray],
) -> Mapping[str, Tensor]:
    """The tensors of the file with other numbers of their parameters.

    How a tensor arranges its parameter is seen by the numbers of the file. NoVerdictError where
    that is none of: as it is, transposed, reshaped.
    """
    own = _whole_parameters(graph)
    found = {}
    for name, numbers in weights.items():
        for tensor in known.get(name, ()):
            before = model.initializers.get(tensor)
            arranged = None if before is None else _arranged(own.get(name), numbers, before)
            if arranged is None:
                raise NoVerdictError(
                    f"the tensor {tensor!r} of the file arranges the parameter {name!r} in a way "
                    "that is not understood; export with torch.onnx.export(..., dynamo=True, "
                    "optimize=False)"
                )
            exact = np.ascontiguousarray(arranged, dtype="<f8")
            found[tensor] = Tensor("float64", exact.shape, exact.tobytes())
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


def _whole_parameters(graph: Graph) -> Mapping[str, FloatArray]:
    """The numbers of the file of every parameter, in its own arrangement."""
    found: dict[str, FloatArray] = {}
    for node in graph.nodes:
        for operand in node.op.operands().values():
            name = operand.parameter
            if name is None or name in found:
                continue
            parameter = graph.parameters[name]
            if operand.places is None:
                found[name] = operand.array.reshape(parameter.shape)
                continue
            shown = operand.places >= 0
            numbers = np.full(parameter.size, np.nan)
            numbers[operand.places[shown]] = operand.array[shown] / operand.scale
            if not np.isnan(numbers).any():
                found[name] = numbers.reshape(parameter.shape)
    return found


def _sources(program: Program) -> Iterator[str]:
    for step in program.steps:
        for operand in operands(step.op):
            yield from operand.sources


def _arrays(graph: Graph) -> Iterator[tuple[str, FloatArray]]:
    """The operands that show a whole parameter, in the order of use."""
    for node in graph.nodes:
        for operand in node.op.operands().values():
            name = operand.parameter
            if name is not None and operand.array.size == math.prod(graph.parameters[name].shape):
                yield name, operand.array


def _key(array: FloatArray) -> bytes:
    """The same for the same numbers in any arrangement."""
    return np.sort(np.asarray(array, dtype=np.float64), axis=None).tobytes()
