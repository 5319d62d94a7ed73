"""The loss of a planned run, chosen by the settings and the end of the network.

A loss that does not fit the output is a UsageError that says which one would; where no loss was
given, this module says what makes the assumed one doubtful.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lipcert.core.losses.base import ClassLoss, Loss, parameters_of
from lipcert.core.losses.joint import Joint, Part
from lipcert.core.losses.softmax import CrossEntropy
from lipcert.core.losses.tokens import scores_of
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Conv, Dense, Embedding, Move, Shape
from lipcert.core.rules.moves import keeps_order
from lipcert.errors import UsageError
from lipcert.graph.ir import Graph, Node, example
from lipcert.losses import make_loss
from lipcert.settings.settings import Settings, loss_parameters
from lipcert.settings.values import LOSSES, check_choice

_REGRESSION: Final = "mse, mae or huber (with --label-norm)"
_BOUNDED: Final = {"Sigmoid": "0 and 1", "HardSigmoid": "0 and 1", "Tanh": "-1 and 1"}
_RESHAPING: Final = "Move"
_SINGLE: Final = CrossEntropy()


def assumed_loss(graph: Graph, *, per_token: bool = False) -> str:
    """The loss that is assumed where none is given.

    A vector of at least two class scores, or whatever is stated to hold one for each token: nll
    behind LogSoftmax, of which nll is the cross-entropy of the logits, otherwise cross-entropy.
    Anything else: binary cross-entropy of every entry.
    """
    if not per_token and _class_count(graph.output_shape) < 2:
        return "bce"
    last = _last_node(graph)
    return "nll" if last is not None and last.kind == "LogSoftmax" else "cross-entropy"


def doubt_of_loss(graph: Graph, *, per_token: bool = False) -> tuple[str, str]:
    """What makes the assumed loss doubtful, and which losses would fit; "" where nothing does."""
    last, shape = _last_node(graph), graph.output_shape
    kind = "" if last is None else last.kind
    long = sum(size != 1 for size in shape)
    if kind in _BOUNDED:
        ends = f"the network ends in {kind}, whose outputs lie between {_BOUNDED[kind]}"
        if kind == "Tanh":
            return f"{ends} and are not scores", _REGRESSION
        return (
            f"{ends} and are not scores: bce and cross-entropy take logits",
            f"{_REGRESSION}; or bce, if the network is exported without its {kind}",
        )
    if long > 1 and not per_token:
        said = f"the output of shape {list(shape)} is not a vector of class scores"
        return (
            said,
            f"{_REGRESSION}; cross-entropy with --per-token mean, if each token has a label",
        )
    if kind == "Softmax":
        return "the network ends in Softmax, and the loss takes logits", "cross-entropy without it"
    if long and shape == graph.input_shape:
        return "the output has the shape of the input, as that of an autoencoder", _REGRESSION
    return "", ""


def planned_loss(settings: Settings, graph: Graph) -> Loss:
    """The loss that the settings name, or the one that is assumed for this network."""
    heads = settings.heads
    named = tuple(head.output for head in heads) if len(heads) > 1 else ()
    if named != tuple(head.output for head in graph.heads):
        raise UsageError(
            "loss: its outputs are not those with which the model was imported; give load_model "
            "output=settings.outputs"
        )
    if named:
        return _joint_loss(settings, graph)
    given, shape = loss_parameters(settings), graph.output_shape
    kind = settings.loss
    if heads:
        kind, given = heads[0].kind, {**given, **dict(heads[0].parameters)}
    elif kind == "auto":
        kind = assumed_loss(graph, per_token=settings.per_token is not None)
    loss = make_loss(kind, **given)
    _check_fits(loss, shape)
    _check_axis(loss, given, graph, graph.output_name, shape)
    if settings.classes not in {None, _class_count(shape, loss)}:
        raise UsageError(
            f"classes: {settings.classes} labels are declared, but the output of one example has "
            f"shape {list(shape)}; give the label count the network was built for"
        )
    return loss


def _joint_loss(settings: Settings, graph: Graph) -> Joint:
    """The sum of the losses of several outputs; parameters of all are of those that have them."""
    shared = {name: x for name, x in loss_parameters(settings).items() if x is not None}
    unused, parts = set(shared), []
    for choice, head in zip(settings.heads, graph.heads, strict=True):
        check_choice(f"loss of {head.output!r}", choice.kind, LOSSES[1:])
        own = {name: shared[name] for name in shared.keys() & parameters_of(choice.kind).keys()}
        unused -= own.keys()
        own |= dict(choice.parameters)
        loss = make_loss(choice.kind, **own)
        _check_fits(loss, example(head.shape), f" {head.output!r}")
        _check_axis(loss, own, graph, head.output, example(head.shape))
        parts.append(Part(head.output, head.shape, loss, choice.weight))
    if unused:
        option = min(unused).replace("_", "-")
        raise UsageError(f"{option}: none of the losses of the outputs has it; leave it out")
    counts = {_class_count(example(part.shape), part.loss) for part in parts}
    if settings.classes is not None and settings.classes not in counts:
        raise UsageError(
            f"classes: {settings.classes} labels are declared, but no output of one example has as "
            "many entries; give the label count the network was built for"
        )
    try:
        return Joint(tuple(parts))
    except Unsupported as error:
        raise UsageError(f"loss: {error}") from None


def _check_fits(loss: Loss, shape: Shape, name: str = "") -> None:
    """Raise UsageError where a loss over classes is given an output without class scores."""
    if not isinstance(loss, ClassLoss) or _class_count(shape, loss) > 1:
        return
    if loss.per_token is not None:
        raise UsageError(
            f"per-token: the {loss.class_axis} axis of the output{name} of shape {list(shape)} "
            "holds no scores of two or more classes; give --class-axis first or last"
        )
    is_large = sum(size != 1 for size in shape) > 1
    if is_large or not loss.of_one_score:
        hint = "add --per-token mean or sum, if each token has scores and a label; or "
        raise UsageError(
            f"loss: {loss.kind} needs one vector of at least two class scores per example, but the "
            f"output{name} has shape {list(shape)}; {hint if is_large else ''}use --loss bce, or "
            "mse with --label-norm"
        )


def _check_axis(
    loss: Loss, given: Mapping[str, object], graph: Graph, output: str, shape: Shape
) -> None:
    """UsageError where a loss per token does not say where the classes are, nor the network does.

    It does where they are computed along the last axis, and nothing but their values changes then.
    """
    is_open = isinstance(loss, ClassLoss) and loss.per_token and given.get("class_axis") is None
    if not is_open or sum(size != 1 for size in shape) < 2:
        return
    makers = {node.output: node for node in graph.nodes}
    node = makers.get(output)
    while node is not None:
        op, before, after = node.op, node.given[0], node.step.shape
        if isinstance(op, Dense | Embedding):
            return
        is_same = keeps_order(op, before) if isinstance(op, Move) else not isinstance(op, Conv)
        if len(node.inputs) > 1 or before[-1:] != after[-1:] or not is_same:
            break
        node = makers.get(node.inputs[0])
    raise UsageError(
        f"per-token: the output {output!r} has the shape {list(shape)}, and the network does not "
        "show along which axis the classes lie; give --class-axis last, or first for [classes, …]"
    )


def _class_count(output_shape: Shape, loss: Loss = _SINGLE) -> int:
    scores = scores_of(loss, output_shape)
    return 0 if scores is None else scores.classes


def _last_node(graph: Graph) -> Node | None:
    """The node that computes the output, before whatever only rearranges it."""
    makers = {node.output: node for node in graph.nodes}
    node = makers.get(graph.output_name)
    while node is not None and node.kind == _RESHAPING:
        node = makers.get(node.inputs[0])
    return node
