"""Premises: the assumptions of a planned run, as the core states and uses them.

From settings and network this module makes the `Premises`, the loss, the constraint of each trained
parameter, and the `ScopeClaim` of the weights that the bounds hold for. A loss that does not fit
the output is a UsageError that says which one would. If no loss was given, this module says what
makes the assumed one doubtful.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.arithmetic import divide_down
from lipcert.core.certificate import Constraint, ScopeClaim
from lipcert.core.coverage import tensors as stored_tensors
from lipcert.core.interval import largest_magnitude, norm_up
from lipcert.core.kinds import Embedding
from lipcert.core.ledger import EvalLayer as StatedLayer
from lipcert.core.ledger.mechanism import Mechanism, names_of
from lipcert.core.ledger.premises import Premises
from lipcert.core.ledger.run import Run
from lipcert.core.losses.base import ClassLoss, Loss, parameters_of
from lipcert.core.losses.joint import Joint, Part
from lipcert.core.losses.softmax import CrossEntropy
from lipcert.core.losses.tokens import scores_of
from lipcert.core.lower.errors import Unsupported
from lipcert.core.membership import constraint_faults
from lipcert.core.norms import ENGINES
from lipcert.core.program import Dense, FloatArray, Move, Program, Shape
from lipcert.core.reader.records import Model
from lipcert.core.rules.facts import lengths_up
from lipcert.core.rules.moves import keeps_order
from lipcert.core.window_kinds import Conv
from lipcert.errors import UsageError
from lipcert.graph.ir import EvalLayer, Graph, Node, Use, example
from lipcert.losses import make_loss, stated, stated_parts
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings.settings import ConstraintSpec, Settings, loss_parameters
from lipcert.settings.values import LOSSES, check_choice

_CLEARLY: Final = 1.0 + 2.0**-40
_TINY: Final = 2.0**-900


def mechanism_of(settings: Settings) -> Mechanism:
    """Return the mechanism that the settings name, with what it enforces."""
    found = settings.enforced
    given = {name: getattr(settings, name) for name in names_of(found)}
    return found(**{name: value for name, value in given.items() if value is not None})


def premises_of(
    settings: Settings,
    loss: Loss,
    *,
    mechanism: Mechanism | None = None,
    plan: TrainingPlan | None = None,
    eval_layers: tuple[EvalLayer, ...] = (),
) -> Premises:
    """Return every assumption that is a number or a name. mechanism: with the layers that clip."""
    return Premises(
        input_norm=settings.input_norm,
        input_box=settings.effective_input_box,
        input_parts=settings.input_parts,
        loss=loss.kind,
        loss_parameters=stated(loss),
        loss_clip=settings.loss_clip,
        loss_assumed=settings.loss == "auto",
        loss_parts=stated_parts(loss) if isinstance(loss, Joint) else (),
        mechanism=mechanism or mechanism_of(settings),
        relation=settings.neighbours,
        divisor=settings.batch_size if settings.reduction == "mean" else None,
        run=None if plan is None else _run(plan),
        eval_layers=tuple(StatedLayer(x.kind, x.name) for x in eval_layers if not x.node),
    )


def delta_of(delta: float) -> Fraction:
    """Return δ as the decimal number that was meant: 1/100000 for 1e-5."""
    return Fraction(repr(delta))


def _run(plan: TrainingPlan) -> Run:
    return Run(
        scheme=plan.sampling.value,
        dataset_size=plan.dataset_size,
        batch_size=plan.batch,
        steps=plan.releases,
        participations=plan.participations,
        size=plan.dataset_size_from.value,
    )


def check_domain(shape: Shape, settings: Settings) -> None:
    """Raise UsageError if no input in the box is as short as the declared norm."""
    box, least = settings.effective_input_box, 0.0
    for part in settings.input_parts:
        least = math.hypot(least, _least(part.shape, part.norm, part.box, f" {part.name!r}"))
    if box is not None:
        _least(shape, settings.input_norm, box)
    elif settings.input_norm is not None and least > settings.input_norm * _CLEARLY:
        raise UsageError(
            f"input-norm: no example has a 2-norm of at most {settings.input_norm}; the boxes of "
            f"its inputs leave at least {least:.6g}"
        )


def _least(
    shape: Shape, radius: float | None, box: tuple[float, float] | None, name: str = ""
) -> float:
    """Return the least norm of an input in the box."""
    if box is None:
        return 0.0
    low, high = box
    least = norm_down(np.full(shape, np.clip(0.0, low, high)))
    if radius is not None and least > radius:
        what = f"input{name}" if name else "example"
        raise UsageError(
            f"input-norm: no {what} of shape {list(shape)} with entries in [{low}, {high}] has a "
            f"2-norm of at most {radius}; the least is {least:.6g}"
        )
    return least


def norm_down(array: FloatArray) -> float:
    """Return a float64 ≤ √Σ x² of finite numbers; 0 if all are tiny.

    Proof: of n numbers, scaled so that the largest is at least 1/2, `norm_up` computes Σ x² with a
    relative error of γ_n at most, and adds less than (n + 4)·2^-52 of it; the root halves both, and
    is rounded up twice, in proportion if it is a normal number. So `norm_up` exceeds the norm by
    less than (n + 8)·2^-52 of it.
    """
    if largest_magnitude(array) < _TINY:
        return 0.0
    return divide_down(norm_up(array), 1.0 + (array.size + 8) * 2.0**-52)


def plain_norm(use: Use) -> tuple[float, float] | None:
    """Return the ends of the norm of a table or an entrywise op; None for a linear map."""
    if use.is_table:
        rows = use.operand.array
        longest = rows[int(np.argmax(np.linalg.norm(rows, axis=1)))]
        return norm_down(longest), float(np.max(lengths_up(rows)))
    if not use.is_linear_map:
        largest = float(np.max(np.abs(use.operand.array), initial=0.0))
        return largest, largest
    return None


def scope_claim(
    kind: str,
    tensors: Mapping[str, tuple[str, ...]],
    constraints: Mapping[str, ConstraintSpec],
) -> ScopeClaim:
    """Return the trained tensors and their constraints. tensors: of the trained parameters."""
    held = {
        tensor: constraints[name]
        for name, names in tensors.items()
        if name in constraints
        for tensor in names
    }
    return ScopeClaim(
        kind=kind,
        trained=tuple(sorted({tensor for names in tensors.values() for tensor in names})),
        constraints=tuple(
            Constraint(tensor, spec.kind, spec.radius) for tensor, spec in sorted(held.items())
        ),
    )


def scaled_down(scope: ScopeClaim, model: Model, program: Program) -> ScopeClaim:
    """Return the scope of weight clipping at the weights of the file.

    Weights within their radius stay unchanged. Of the others, only one fact is used: their norm is
    then the radius.
    """
    exceeding = [item for item in scope.constraints if not _is_within(item, model, program)]
    if not exceeding:
        return scope
    return replace(
        scope,
        kind="constraint-set",
        trained=tuple(sorted(item.tensor for item in exceeding)),
        constraints=tuple(exceeding),
    )


def _is_within(constraint: Constraint, model: Model, program: Program) -> bool:
    """Whether the numbers obey it; True for a bias of zeros that the file leaves out."""
    if constraint.tensor not in stored_tensors(model):
        return True
    try:
        return not any(constraint_faults([constraint], model, program, {}, ENGINES["float"]))
    except Unsupported:
        return False


def constraints_of(graph: Graph, settings: Settings) -> Mapping[str, ConstraintSpec]:
    """Return the constraint of each trained parameter that has one.

    A parameter's own entry wins; otherwise biases obey `bias_norm` (a Euclidean norm) and all
    others `constraint`. A tensor that is a bias at one node and a weight at another obeys the
    weight's, because the rules would otherwise apply a constraint that was not declared for it.
    """
    found: dict[str, ConstraintSpec] = {}
    slots: dict[str, set[str]] = {}
    for use in graph.trained_uses():
        slots.setdefault(use.parameter, set()).add(use.slot)
    for name, used in slots.items():
        spec = settings.own_constraint(name)
        if spec is None and used == {"bias"}:
            if settings.bias_norm is not None:
                spec = ConstraintSpec("frobenius", settings.bias_norm)
        elif spec is None:
            spec = settings.constraint
        if spec is not None:
            found[name] = spec
    return found


_REGRESSION: Final = "mse, mae or huber (with --label-norm)"
_BOUNDED: Final = {"Sigmoid": "0 and 1", "HardSigmoid": "0 and 1", "Tanh": "-1 and 1"}
_RESHAPING: Final = "Move"
_SINGLE: Final = CrossEntropy()


def assumed_loss(graph: Graph, *, per_token: bool = False) -> str:
    """Return the loss that is assumed if none is given.

    For a vector of at least two class scores, or for an output that is stated to hold one per
    token, it is cross-entropy, or nll after LogSoftmax, which is the cross-entropy of the logits.
    For anything else it is binary cross-entropy of every entry.
    """
    if not per_token and _class_count(graph.output_shape) < 2:
        return "bce"
    last = last_node(graph)
    return "nll" if last is not None and last.kind == "LogSoftmax" else "cross-entropy"


def doubt_of_loss(graph: Graph, *, per_token: bool = False) -> tuple[str, str]:
    """Return what makes the assumed loss doubtful, and which losses would fit; "" if nothing."""
    last, shape = last_node(graph), graph.output_shape
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
    if long and shape == graph.input_shape:
        return "the output has the shape of the input, as that of an autoencoder", _REGRESSION
    return "", ""


def planned_loss(settings: Settings, graph: Graph) -> Loss:
    """Return the loss that the settings name, or the one that is assumed for this network."""
    heads = settings.heads
    named = tuple(head.output for head in heads) if len(heads) > 1 else ()
    if named != tuple(head.name for head in graph.heads):
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
    """Return the sum of the losses of several outputs; shared parameters go where they fit."""
    shared = {name: x for name, x in loss_parameters(settings).items() if x is not None}
    unused, parts = set(shared), []
    for choice, head in zip(settings.heads, graph.heads, strict=True):
        check_choice(f"loss of {head.name!r}", choice.kind, LOSSES[1:])
        own = {name: shared[name] for name in shared.keys() & parameters_of(choice.kind).keys()}
        unused -= own.keys()
        own |= dict(choice.parameters)
        loss = make_loss(choice.kind, **own)
        _check_fits(loss, example(head.shape), f" {head.name!r}")
        _check_axis(loss, own, graph, head.name, example(head.shape))
        parts.append(Part(head.name, head.shape, loss, choice.weight))
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
    """Raise UsageError if a loss over classes is given an output without class scores."""
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
    """Raise UsageError if neither a loss per token nor the network says where the classes are.

    The network does if they are computed along the last axis, and only their values change after.
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


def last_node(graph: Graph) -> Node | None:
    """Return the node that computes the output, before any that only rearranges it."""
    makers = {node.output: node for node in graph.nodes}
    node = makers.get(graph.output_name)
    while node is not None and node.kind == _RESHAPING:
        node = makers.get(node.inputs[0])
    return node
