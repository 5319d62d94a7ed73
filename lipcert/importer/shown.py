"""Shown: a graph in which steps compute what the nodes of a file compute from parameters.

In the graph of a file, a weight that is divided by its norm is a constant. Here its parameter is
the operand of a step that adds it to zeros, and further steps compute the weight from that, for
each example by itself: so the gradient of the parameter is known. No bound rests on this graph.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.conv_ops import images, windows
from lipcert.core.lower.entrywise import combined
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import Walk, lowered
from lipcert.core.lower.moves import arrange, indices, moved
from lipcert.core.lower.spelling import whole
from lipcert.core.lower.values import Data, literal
from lipcert.core.program import IndexArray, Move, Program, Shape, Step
from lipcert.core.reader.records import Model, Node
from lipcert.core.token_kinds import MatMul, Shift
from lipcert.core.window_kinds import Window
from lipcert.graph.ir import Graph, Parameter
from lipcert.importer.graph_of import graph_of


def shown_graph(
    model: Model, program: Program, parameters: Mapping[str, Parameter], outputs: Sequence[str]
) -> Graph | str:
    """Return the graph, or the node that steps cannot compute; "" if it is not known.

    Args:
        model: with all nodes that compute constants from parameters.
        program: of the same file; further values get other names than its values have, and the
            values of both have the same shapes: a file may reshape to the size of its batch.
        parameters: those of the graph of the file.
    """
    if program.place is not None:  # of one example, though the batch of the file may be fixed
        inputs = tuple(replace(item, dims=(1, *(item.dims or ())[1:])) for item in model.inputs)
        model = replace(model, inputs=inputs, stated=())
    try:
        walk = _Walk.of(model, *outputs, batched=False)
        walk.shapes = program.shapes
        walk.sink.taken.update(program.shapes)
        for name, parameter in parameters.items():
            if parameter.computed and name in model.initializers:
                walk.show(name)
        found = lowered(walk, outputs)
    except Unsupported as error:
        return "" if error.node is None else str(error).removesuffix(f": {error.reason}")
    plain = {name: replace(item, computed=False) for name, item in parameters.items()}
    graph = graph_of(found, model, plain)
    same = all(shape == program.shapes.get(name, shape) for name, shape in found.shapes.items())
    return graph if same and not graph.computed else ""


class _Walk(Walk):
    """A walk that knows convolutions with kernels that steps compute; shapes: of one example."""

    shapes: Mapping[str, Shape]

    def show(self, name: str) -> None:
        """Make a stored tensor a value: the zeros of its shape, to which a step adds it."""
        held, zeros = literal(self.model.initializers[name], name), self.sink.fresh(name)
        start, shape = self.starts[0].name, held.shape
        nothing = Move(np.full(shape, -1, dtype=np.int64))
        self.sink.steps += (
            Step(nothing, (start,), zeros, shape, 0),
            Step(Shift(held.operand(len(shape))), (zeros,), name, shape, 0),
        )
        self.values[name] = Data(name, shape, None)

    def node(self, node: Node, position: int) -> None:
        """Add the outputs of a node."""
        shape = self.shapes.get(node.outputs[0])
        if node.op_type == "Reshape" and shape is not None:
            sizes = self.sink.fresh(node.outputs[0])
            self.values[sizes] = whole(*shape)
            node = replace(node, inputs=(node.inputs[0], sizes))
        kernel = self.values.get(node.inputs[1]) if node.op_type == "Conv" else None
        if not isinstance(kernel, Data):
            for part in self._parts(node):
                super().node(part, position)
            return
        given = [self.known(name) if name else None for name in node.inputs]
        call = Call(node, position, self.model.opset.get("", 0), given, self.sink)
        self.values[node.outputs[0]] = _convolved(call, kernel)
        call.check_read()

    def _parts(self, node: Node) -> Iterator[Node]:
        """Yield a node, or those for a layer normalization whose factors steps compute."""
        others = node.inputs[1:] if node.op_type == "LayerNormalization" else ()
        if not any(isinstance(self.values.get(name), Data) for name in others):
            yield node
            return
        value = self.sink.fresh(node.outputs[0])
        yield replace(node, inputs=node.inputs[:1], outputs=(value,))
        for kind, other in zip(("Mul", "Add"), others, strict=False):
            inputs, value = (value, other), self.sink.fresh(value)
            value = node.outputs[0] if other is others[-1] else value
            yield replace(node, op_type=kind, inputs=inputs, outputs=(value,), attributes={})


def _convolved(call: Call, kernel: Data) -> Data:
    """Return the convolution of one image, as products of its windows with the kernel."""
    value, groups = images(call), call.integer("group", 1)
    (_, channels, *sizes), (outputs, inputs, *taps) = value.shape, kernel.shape
    window, _ = windows(call, tuple(sizes), tuple(taps))
    call.integers("kernel_shape")
    if value.shape[0] != 1 or inputs * groups != channels or outputs % groups:
        raise Unsupported("the weight does not fit the channels")
    places = _reads(window, sizes)  # [positions, taps]
    channel = np.arange(channels).reshape(groups, 1, inputs, 1) * math.prod(sizes)
    read = np.where(places[:, np.newaxis] < 0, -1, channel + places[:, np.newaxis])
    rows = moved(call, value, read.reshape(groups, len(places), -1), None)
    index = indices(kernel.shape).reshape(groups, outputs // groups, -1).swapaxes(1, 2)
    matrix = moved(call, kernel, index, None)
    shape = (groups, len(places), outputs // groups)
    product = call.step(MatMul(), rows, matrix, shape=shape, place=None)
    order = indices(shape).swapaxes(1, 2).reshape(1, outputs, *window.outputs)
    found = moved(call, product, order, None)
    if not call.has(2):
        return found
    bias = arrange(call, call.value(2), lambda own: own.reshape(-1, *[1] * len(sizes)), None)
    return combined(call, (found, bias), (1, 1))


def _reads(window: Window, sizes: Sequence[int]) -> IndexArray:
    """Return the place in one channel that each tap reads; −1: padding.  # [positions, taps]"""
    read = np.ix_(*(window.reads(axis, size).reshape(-1) for axis, size in enumerate(sizes)))
    inside = np.logical_and.reduce(np.broadcast_arrays(*(own >= 0 for own in read)))
    places = np.ravel_multi_index([np.maximum(own, 0) for own in read], tuple(sizes))
    pairs = [size for ends in zip(window.outputs, window.taps, strict=True) for size in ends]
    order = [*range(0, len(pairs), 2), *range(1, len(pairs), 2)]
    found = np.where(inside, places, -1).reshape(pairs).transpose(order)
    return found.reshape(math.prod(window.outputs), -1)
