"""Names: which initializer of the file holds which parameter of the network.

What enters: the engine's graph, whose parameters are named as in the training program, and the
checker's model and program. What leaves: a tensor for each parameter that was found. A pairing
only chooses labels: what a certificate says, it says of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from lipcert.core.coverage import operands, tensors
from lipcert.core.program import Program
from lipcert.core.reader.records import Model
from lipcert.ir import Graph
from lipcert.upper import FloatArray


def tensors_of(graph: Graph, model: Model, program: Program) -> Mapping[str, str]:
    """Parameter → initializer: of the same name, otherwise the first unpaired one of its numbers.

    Parameters that share an initializer (an exporter stored equal numbers once) share it here.
    """
    stored = tensors(model)
    found = {name: name for name in graph.parameters if name in stored}
    used = list(dict.fromkeys(_sources(program)))
    free = [name for name in used if name not in found]
    keys = {name: _key(stored[name].values()) for name in used if name in stored}
    for name, array in _arrays(graph):
        if name in found:
            continue
        key = _key(array)
        match = next((tensor for tensor in free if keys.get(tensor) == key), None)
        if match is not None:
            free.remove(match)
        else:
            match = next((tensor for tensor in used if keys.get(tensor) == key), None)
        if match is not None:
            found[name] = match
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
            if name is not None and operand.array.size == graph.parameters[name].size:
                yield name, operand.array


def _key(array: FloatArray) -> bytes:
    """The same for the same numbers in any arrangement."""
    return np.sort(np.asarray(array, dtype=np.float64), axis=None).tobytes()
