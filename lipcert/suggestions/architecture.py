"""Architecture: changes of a network that somebody makes in its code.

What enters: a subject. What leaves: one `Change` for each idea that applies; settings freeze the
parameters that the changed network has no more, so that the file can be analysed in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from lipcert.core import program as p
from lipcert.graph.viewed import parameters_of
from lipcert.settings.settings import ConstraintSpec
from lipcert.suggestions import edits, written
from lipcert.suggestions.edits import StepEdit, chained
from lipcert.suggestions.records import Change
from lipcert.suggestions.structure import BatchNorm, Bias, Norm, module_of
from lipcert.suggestions.subject import Subject, told
from lipcert.upper import FloatArray

_FLOOR: Final = 1.0
_GROUP_EPSILON: Final = float(np.float32(1e-5))
"""of nn.GroupNorm, as files have it"""
_COOLER: Final = 4.0
_SMOOTH: Final = frozenset({"gelu", "gelu_tanh", "silu", "quick_gelu", "mish", "hard_swish"})


def architecture_of(subject: Subject) -> Iterator[Change]:
    """All of them."""
    yield from _biases(subject)
    yield from _norms(subject)
    yield from _affine(subject)
    yield from _sums(subject)
    yield from _attention(subject)
    yield from _pools(subject)
    yield from _activations(subject)
    yield from _weights(subject)


def _biases(subject: Subject) -> Iterator[Change]:
    """Those that many positions add up first."""
    found = subject.parts.biases
    many = [bias for bias in found if bias.positions > 1]
    if many:
        yield _without(subject, many)
        by_radius: dict[float, list[str]] = {}
        for bias in many:
            by_radius.setdefault(written.upwards(bias.positions**-0.5), []).append(bias.name)
        radii = tuple(
            (pattern, ConstraintSpec("frobenius", radius))
            for radius, names in by_radius.items()
            for pattern in subject.patterns(names)
        )
        yield Change(
            "biases",
            f"biases of norm 1/√positions in {told(_layers(many))}",
            written.options({"constraints": radii}),
            settings={"constraints": radii},
        )
    if found and len(many) < len(found):
        yield _without(subject, list(found))


def _without(subject: Subject, biases: list[Bias]) -> Change:
    names = [bias.name for bias in biases]
    zeros = subject.numbers(names, 0.0)
    frozen = {"freeze": subject.patterns(names)}
    code = written.alike((written.unbiased(bias.op), _layer(bias)) for bias in biases)
    return Change(
        "biases",
        f"no biases in {told(_layers(biases))}",
        code if zeros else written.options(frozen),
        keeps_function=not zeros,
        settings=frozen,
        weights=zeros,
    )


def _norms(subject: Subject) -> Iterator[Change]:
    """Normalisations with a bounded slope, with blocks of norm 1, or none."""
    norms, batch = subject.parts.norms, subject.parts.batch_norms
    if not (norms or batch):
        return
    every: tuple[Norm | BatchNorm, ...] = (*norms, *batch)
    names = [norm.name for norm in every]
    if batch:
        yield _in_groups(subject, batch)
    bounded = chained(
        [StepEdit({n.output: edits.with_floor(n.op, n.shape, _FLOOR)}) for n in norms]
        + [
            StepEdit({n.output: edits.group_normalisation(n.shape, n.groups, floor=_FLOOR)})
            for n in batch
        ]
    )
    yield _instead(
        subject,
        f"normalisation with a floor in {told(names)}",
        written.alike((_bounded_layer(norm), norm.name) for norm in every),
        bounded,
        every,
    )
    if norms:
        yield _instead(
            subject,
            f"normalisation to norm 1 in {told([norm.name for norm in norms])}",
            written.alike((_unit_layer(norm), norm.name) for norm in norms),
            chained([StepEdit({n.output: edits.of_unit_norm(n.op, n.shape)}) for n in norms]),
            norms,
        )
    yield _instead(
        subject,
        f"no normalisation in {told(names)}",
        written.alike(("nn.Identity()", name) for name in names),
        StepEdit({norm.output: () for norm in every}),
        every,
    )


def _in_groups(subject: Subject, batch: tuple[BatchNorm, ...]) -> Change:
    """What any mechanism needs: no example moves another."""
    layers = ((f"nn.GroupNorm({n.groups}, {n.shape[1]}, affine=False)", n.name) for n in batch)
    normal = [
        StepEdit({n.output: edits.group_normalisation(n.shape, n.groups, epsilon=_GROUP_EPSILON)})
        for n in batch
    ]
    what = f"GroupNorm in place of BatchNorm in {told([norm.name for norm in batch])}"
    return _instead(subject, what, written.alike(layers), chained(normal), batch)


def _instead(
    subject: Subject, what: str, how: str, edit: StepEdit, norms: tuple[Norm | BatchNorm, ...]
) -> Change:
    """Other layers in place of normalisations, without the scales and shifts of these."""
    affine = [name for norm in norms for name in norm.affine]
    is_whole = not {norm.output for norm in subject.parts.batch_norms} - edit.instead.keys()
    return Change(
        "norm",
        what,
        how,
        keeps_function=False,
        settings={"freeze": subject.patterns(affine)},
        weights=_plain_affine(subject, norms),
        edits=(edit,),
        separates=bool(subject.parts.batch_norms) and is_whole,
    )


def _plain_affine(subject: Subject, norms: tuple[Norm | BatchNorm, ...]) -> dict[str, FloatArray]:
    """Scales of 1 and shifts of 0."""
    slots = {use.parameter: use.slot for use in subject.parts.graph.uses()}
    names = [name for norm in norms for name in norm.affine]
    shifts = [name for name in names if slots.get(name) == "bias"]
    scales = [name for name in names if slots.get(name) != "bias"]
    return {**subject.numbers(shifts, 0.0), **subject.numbers(scales, 1.0)}


def _bounded_layer(norm: Norm | BatchNorm) -> str:
    if isinstance(norm, BatchNorm):
        return f"BoundedGroupNorm({norm.groups}, {norm.shape[1]}, {_FLOOR})"
    if norm.by_group:
        return f"BoundedGroupNorm({norm.groups}, {norm.channels}, {_FLOOR})"
    return f"BoundedLayerNorm({norm.widths}, {_FLOOR})"


def _unit_layer(norm: Norm) -> str:
    if norm.by_group:
        return f"UnitGroupNorm({norm.groups}, {norm.channels})"
    return f"UnitLayerNorm({norm.widths})"


def _affine(subject: Subject) -> Iterator[Change]:
    """Scales and shifts of normalisations, which a linear map behind them can take over."""
    norms: tuple[Norm | BatchNorm, ...] = (*subject.parts.norms, *subject.parts.batch_norms)
    names = [name for norm in norms for name in norm.affine]
    if names:
        frozen = {"freeze": subject.patterns(names)}
        yield Change(
            "affine",
            f"scales and shifts of {told([norm.name for norm in norms])} frozen",
            written.options(frozen),
            settings=frozen,
        )


def _sums(subject: Subject) -> Iterator[Change]:
    """Shorter branches of residual sums."""
    found = subject.parts.sums
    if not found:
        return
    depth = max(1.0, len(found) / 2)
    share = 0.5 / depth
    shorter = StepEdit(
        before={(s.output, s.branch): (edits.scaling(share, s.shape),) for s in found}
    )
    count = f"{len(found)} residual sum{'s' * (len(found) > 1)}"
    yield Change(
        "residual",
        f"the branch of {count} times {share:.4g}",
        f"ScaledResidual(branch, depth={depth:g})  # x + {share:.4g} * branch(x)",
        keeps_function=False,
        edits=(shorter,),
    )
    half = {(s.output, index): (edits.scaling(0.5, s.shape),) for s in found for index in range(2)}
    yield Change(
        "residual",
        f"{count} halved",
        "HalfResidual(branch)  # 0.5 * (x + branch(x))",
        keeps_function=False,
        edits=(StepEdit(before=half),),
    )


def _attention(subject: Subject) -> Iterator[Change]:
    """Flatter scores, or bounded ones."""
    found = subject.parts.attentions
    if not found:
        return
    cooler = {node.output: edits.attention_times(node.op, 1.0 / _COOLER) for node in found}
    count = f"{len(found)} attention layer{'s' * (len(found) > 1)}"
    yield Change(
        "attention",
        f"scores of {count} divided by {_COOLER:g}",
        f"q = q / {_COOLER:g}  # before the scores",
        keeps_function=False,
        edits=(StepEdit(cooler),),
    )
    makers = {node.output: node for node in subject.parts.graph.nodes}
    yield Change(
        "attention",
        f"queries and keys of norm at most 1 in {count}",
        "q, k = (t / t.norm(dim=-1, keepdim=True).clamp(min=1) for t in (q, k))",
        keeps_function=False,
        edits=(chained([StepEdit(before=edits.cosine(node, makers)) for node in found]),),
    )


def _pools(subject: Subject) -> Iterator[Change]:
    found = [
        (node, node.op, layer)
        for node in subject.parts.pools
        if isinstance(node.op, p.MaxPool) and (layer := written.average_pool(node.op))
    ]
    if found:
        yield Change(
            "pool",
            f"means in place of maxima in {len(found)} pooling layer{'s' * (len(found) > 1)}",
            written.alike((layer, node.name) for node, _, layer in found),
            keeps_function=False,
            edits=(StepEdit({node.output: edits.averaging(op) for node, op, _ in found}),),
        )


def _activations(subject: Subject) -> Iterator[Change]:
    """An activation that keeps norms, and one of slope at most 1."""
    found = subject.parts.activations
    if found:
        sort = {node.output: edits.max_min(node.step.shape, axis) for node, axis in found}
        layers = ("MaxMin()" if axis == 1 else "MaxMin(-1)" for _, axis in found)
        yield Change(
            "activation",
            f"MaxMin in place of {len(found)} activation{'s' * (len(found) > 1)}",
            written.alike((line, node.name) for line, (node, _) in zip(layers, found, strict=True)),
            keeps_function=False,
            edits=(StepEdit(sort),),
        )
    smooth = [
        node
        for node in subject.parts.graph.nodes
        if isinstance(node.op, p.Activation) and node.op.name in _SMOOTH
    ]
    if smooth:
        relu: edits.Ops = (p.Activation("relu"),)
        yield Change(
            "activation",
            f"ReLU in place of {len(smooth)} activation{'s' * (len(smooth) > 1)}",
            written.alike(("nn.ReLU()", node.name) for node in smooth),
            keeps_function=False,
            edits=(StepEdit({node.output: relu for node in smooth}),),
        )


def _weights(subject: Subject) -> Iterator[Change]:
    """Weights all of whose singular values are equal stretch as much as their norm allows."""
    graph = subject.parts.graph
    own = parameters_of(graph)
    found: dict[str, FloatArray] = {}
    for use in graph.trained_uses():
        array = own[use.parameter]
        if use.is_linear_map and array.ndim >= 2 and use.operand.scale == 1.0:
            found[use.parameter] = orthogonal(array)
    if found:
        names = ", ".join(f'"{name}"' for name in found)
        yield Change(
            "weights",
            f"orthogonal weights in {told([module_of(name) or name for name in found])}, kept so",
            f"for name in ({names},): nn.init.orthogonal_(model.get_parameter(name))\n"
            "Clipless(orthogonalize=1)",
            keeps_function=False,
            weights=found,
        )


def orthogonal(array: FloatArray) -> FloatArray:
    """The orthogonal matrix next to a matrix, or to a kernel as outputs × all it reads."""
    left, _, right = np.linalg.svd(array.reshape(len(array), -1), full_matrices=False)
    found: FloatArray = (left @ right).reshape(array.shape)
    return found


def _layer(bias: Bias) -> str:
    return module_of(bias.name) or bias.name


def _layers(biases: list[Bias]) -> list[str]:
    return [_layer(bias) for bias in biases]
