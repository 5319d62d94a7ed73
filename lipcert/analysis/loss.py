"""The loss of a planned run, chosen by the settings and the end of the network.

What enters: the settings and the graph. What leaves: a `Loss` that fits the output, or a
UsageError that says which would; and, where nobody stated a loss, what speaks against the one
that is assumed.
"""

from __future__ import annotations

from typing import Final

from lipcert.core.losses.base import Loss, class_axis
from lipcert.core.program import Shape
from lipcert.errors import UsageError
from lipcert.ir import Graph, Node
from lipcert.losses import make_loss
from lipcert.settings import Settings, loss_parameters

_REGRESSION: Final = "mse, mae or huber (with --label-norm)"
_BOUNDED: Final = {"Sigmoid": "0 and 1", "HardSigmoid": "0 and 1", "Tanh": "-1 and 1"}
_RESHAPING: Final = "Move"


def assumed_loss(graph: Graph) -> str:
    """The loss where nobody states one.

    A vector of at least two class scores: nll behind LogSoftmax, of which nll is the cross-entropy
    of the logits, otherwise cross-entropy. Anything else: binary cross-entropy of every entry.
    """
    if _class_count(graph.output_shape) < 2:
        return "bce"
    last = _last_node(graph)
    return "nll" if last is not None and last.kind == "LogSoftmax" else "cross-entropy"


def doubt_of_loss(graph: Graph) -> tuple[str, str]:
    """What speaks against the assumed loss, and which losses would fit; "" where nothing does."""
    last, shape = _last_node(graph), graph.output_shape
    kind = "" if last is None else last.kind
    long = sum(size != 1 for size in shape)
    if kind in _BOUNDED:
        ends = f"the network ends in {kind}, whose outputs lie between {_BOUNDED[kind]}"
        if kind == "Tanh":
            return f"{ends} and are no scores", _REGRESSION
        return (
            f"{ends} and are no scores: bce and cross-entropy take logits",
            f"{_REGRESSION}; or bce, if the network is exported without its {kind}",
        )
    if long > 1:
        return f"the output of shape {list(shape)} is no vector of class scores", _REGRESSION
    if kind == "Softmax":
        return "the network ends in Softmax, and the loss takes logits", "cross-entropy without it"
    if long and shape == graph.input_shape:
        return "the output has the shape of the input, as that of an autoencoder", _REGRESSION
    return "", ""


def planned_loss(settings: Settings, graph: Graph) -> Loss:
    """The loss that the settings name, or the one that is assumed for this network."""
    shape = graph.output_shape
    kind = assumed_loss(graph) if settings.loss == "auto" else settings.loss
    loss = make_loss(kind, **loss_parameters(settings))
    if loss.of_classes and loss.targets is None and _class_count(shape) < 2:
        raise UsageError(
            f"loss: {kind} needs one vector of at least two class scores per example, but the "
            f"output has shape {list(shape)}; use --loss bce, or mse with --label-norm"
        )
    if settings.classes is not None and settings.classes != _class_count(shape):
        raise UsageError(
            f"classes: {settings.classes} labels are declared, but the output of one example has "
            f"shape {list(shape)}; give the label count the network was built for"
        )
    return loss


def _class_count(output_shape: Shape) -> int:
    axis = class_axis(output_shape)
    return axis.classes if axis is not None else 0


def _last_node(graph: Graph) -> Node | None:
    """The node that computes the output, before whatever only rearranges it."""
    makers = {node.output: node for node in graph.nodes}
    node = makers.get(graph.output_name)
    while node is not None and node.kind == _RESHAPING:
        node = makers.get(node.inputs[0])
    return node
