"""Changes: what might be done to a network or its run, as its structure and settings suggest it.

What enters: a graph, settings, what is known of an example, and examples if any. What leaves: one
`Change` for each idea that applies. Whether it helps is not said here: all are analysed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from lipcert.core import program as p
from lipcert.core.losses.base import Loss
from lipcert.core.rules.facts import Fact
from lipcert.patterns import literal
from lipcert.settings import ConstraintSpec, Settings
from lipcert.signal.examples import Examples
from lipcert.suggestions import edits
from lipcert.suggestions.edits import StepEdit, chained
from lipcert.suggestions.records import Change
from lipcert.suggestions.structure import BatchNorm, Bias, Norm, Structure, module_of, named
from lipcert.upper import FloatArray
from lipcert.viewed import parameters_of

LOSS_CLIP: Final = 0.1
_FLOOR: Final = 1.0
_GROUPS: Final = 8
_SHARPER: Final = 4.0
_LARGER: Final = 4
_FEW: Final = 2
_SHORTER: Final = 0.95
"""of the bound of inputs: what their median has to be shorter than to be worth a clip"""


@final
@dataclass(frozen=True, eq=False)
class Subject:
    """The network and the run that changes are sought for. at_input: of an example."""

    parts: Structure
    settings: Settings
    loss: Loss
    at_input: Fact
    examples: Examples | None

    def numbers(self, names: list[str], value: float) -> dict[str, FloatArray]:
        """Parameters filled with a number, those of them that are not already."""
        own = parameters_of(self.parts.graph)
        return {
            name: np.full(own[name].shape, value) for name in names if np.any(own[name] != value)
        }


def changes_of(subject: Subject) -> Iterator[Change]:
    """Everything that might help, but for the mechanism."""
    yield from _biases(subject)
    yield from _norms(subject)
    yield from _affine(subject)
    yield from _sums(subject)
    yield from _attention(subject)
    yield from _pools(subject)
    yield from _activations(subject)
    yield from _loss(subject)
    yield from _inputs(subject)
    yield from _weights(subject)
    yield from _noise(subject)
    yield from _head(subject)
    yield from _run(subject)


def _biases(subject: Subject) -> Iterator[Change]:
    """Those that many positions add up first."""
    found = subject.parts.biases
    many = [bias for bias in found if bias.positions > 1]
    if many:
        yield _without(subject, many)
        radii = tuple(
            (literal(bias.name), ConstraintSpec("frobenius", _rounded(bias.positions**-0.5)))
            for bias in many
        )
        yield Change(
            "biases",
            f"biases of norm 1/√positions in {told(_layers(many))}",
            "[constraints] " + _shown(f'"{name}" = "{spec}"' for name, spec in radii),
            settings={"constraints": radii},
        )
    if found and len(many) < len(found):
        yield _without(subject, list(found))


def _without(subject: Subject, biases: list[Bias]) -> Change:
    names = [bias.name for bias in biases]
    kinds = {"nn.Conv2d" if bias.is_of_convolution else "nn.Linear" for bias in biases}
    zeros = subject.numbers(names, 0.0)
    return Change(
        "biases",
        f"no biases in {told(_layers(biases))}",
        ", ".join(f"{kind}(..., bias=False)" for kind in sorted(kinds))
        + f" in {named(_layers(biases))}",
        keeps_function=not zeros,
        settings={"freeze": tuple(map(literal, names))},
        weights=zeros,
    )


def _norms(subject: Subject) -> Iterator[Change]:
    """Normalisations with a bounded slope, with blocks of norm 1, or none."""
    norms, batch = subject.parts.norms, subject.parts.batch_norms
    if not (norms or batch):
        return
    every: tuple[Norm | BatchNorm, ...] = (*norms, *batch)
    names = [norm.name for norm in every]
    affine = [name for norm in every for name in norm.affine]
    plain = _plain_affine(subject, every)
    frozen = {"freeze": tuple(literal(name) for name in affine)}
    bounded = chained(
        [StepEdit({n.output: edits.with_floor(n.op, n.shape, _FLOOR)}) for n in norms]
        + [
            StepEdit({n.output: edits.group_normalisation(n.shape, _groups(n), _FLOOR)})
            for n in batch
        ]
    )
    layers = sorted({_bounded_layer(norm) for norm in every})
    yield Change(
        "norm",
        f"normalisation with a floor in {told(names)}",
        f"{' or '.join(layers)} from lipcert.training.layers in place of {named(names)}",
        keeps_function=False,
        settings=frozen,
        weights=plain,
        edits=(bounded,),
    )
    if norms:
        unit = chained([StepEdit({n.output: edits.of_unit_norm(n.op, n.shape)}) for n in norms])
        yield Change(
            "norm",
            f"normalisation to norm 1 in {told([norm.name for norm in norms])}",
            f"{' or '.join(sorted({_unit_layer(norm) for norm in norms}))} from "
            f"lipcert.training.layers in place of {named([norm.name for norm in norms])}",
            keeps_function=False,
            settings={"freeze": tuple(literal(x) for norm in norms for x in norm.affine)},
            weights=_plain_affine(subject, norms),
            edits=(unit,),
        )
    gone = StepEdit({norm.output: () for norm in every})
    yield Change(
        "norm",
        f"no normalisation in {told(names)}",
        f"nn.Identity() in place of {named(names)}",
        keeps_function=False,
        settings=frozen,
        weights=plain,
        edits=(gone,),
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
        return f"BoundedGroupNorm({_groups(norm)}, channels, norm_floor=1.0)"
    if norm.by_group:
        return "BoundedGroupNorm(groups, channels, norm_floor=1.0)"
    return "BoundedLayerNorm(n, norm_floor=1.0)"


def _unit_layer(norm: Norm) -> str:
    return "UnitGroupNorm(groups, channels)" if norm.by_group else "UnitLayerNorm(n)"


def _groups(norm: BatchNorm) -> int:
    """Groups of channels, as many as divide them, but few."""
    return math.gcd(norm.shape[1], _GROUPS)


def _affine(subject: Subject) -> Iterator[Change]:
    """Scales and shifts of normalisations, which a linear map behind them can take over."""
    norms: tuple[Norm | BatchNorm, ...] = (*subject.parts.norms, *subject.parts.batch_norms)
    names = [name for norm in norms for name in norm.affine]
    if names:
        yield Change(
            "affine",
            f"scales and shifts of {told([norm.name for norm in norms])} frozen",
            _shown(f"--freeze {name}" for name in names),
            settings={"freeze": tuple(map(literal, names))},
        )


def _sums(subject: Subject) -> Iterator[Change]:
    """Shorter branches of residual sums."""
    found = subject.parts.sums
    if not found:
        return
    share = 1.0 / max(2, len(found))
    shorter = StepEdit(
        before={(s.output, s.branch): (edits.scaling(share, s.shape),) for s in found}
    )
    depth = max(1, len(found) // 2)
    yield Change(
        "residual",
        f"the branches of {len(found)} residual sums times {share:.4g}",
        f"ScaledResidual(branch, depth={depth}) from lipcert.training.layers: "
        f"x + {share:.4g} * branch(x)",
        keeps_function=False,
        edits=(shorter,),
    )
    half = {(s.output, index): (edits.scaling(0.5, s.shape),) for s in found for index in range(2)}
    yield Change(
        "residual",
        f"{len(found)} residual sums halved",
        "HalfResidual(branch) from lipcert.training.layers: 0.5 * (x + branch(x))",
        keeps_function=False,
        edits=(StepEdit(before=half),),
    )


def _attention(subject: Subject) -> Iterator[Change]:
    """Flatter scores, or bounded ones."""
    found = subject.parts.attentions
    if not found:
        return
    cooler = {node.output: edits.attention_times(node.op, 1.0 / _SHARPER) for node in found}
    yield Change(
        "attention",
        f"scores of {len(found)} attention layers divided by {_SHARPER:g}",
        f"F.scaled_dot_product_attention(q, k, v, scale=d**-0.5 / {_SHARPER:g})",
        keeps_function=False,
        edits=(StepEdit(cooler),),
    )
    makers = {node.output: node for node in subject.parts.graph.nodes}
    bounded = chained([StepEdit(before=edits.cosine(node, makers)) for node in found])
    yield Change(
        "attention",
        f"queries and keys of norm at most 1 in {len(found)} attention layers",
        "q / q.norm(dim=-1, keepdim=True).clamp(min=1), the same for k",
        keeps_function=False,
        edits=(bounded,),
    )


def _pools(subject: Subject) -> Iterator[Change]:
    found = subject.parts.pools
    if found:
        yield Change(
            "pool",
            f"means in place of maxima in {len(found)} pooling layers",
            "nn.AvgPool2d in place of nn.MaxPool2d (padding not counted)",
            keeps_function=False,
            edits=(StepEdit({node.output: edits.averaging(node.op) for node in found}),),
        )


def _activations(subject: Subject) -> Iterator[Change]:
    """An activation that keeps norms, and one of slope at most 1."""
    found = subject.parts.activations
    if found:
        sort = {node.output: edits.max_min(node.step.shape, axis) for node, axis in found}
        yield Change(
            "activation",
            f"MaxMin in place of {len(found)} activations",
            "MaxMin() from lipcert.training.layers",
            keeps_function=False,
            edits=(StepEdit(sort),),
        )
    smooth = [
        node
        for node in subject.parts.graph.nodes
        if isinstance(node.op, p.Activation)
        and node.op.name in {"gelu", "gelu_tanh", "silu", "quick_gelu", "mish", "hard_swish"}
    ]
    if smooth:
        relu: edits.Ops = (p.Activation("relu"),)
        yield Change(
            "activation",
            f"ReLU in place of {len(smooth)} activations",
            "nn.ReLU()",
            keeps_function=False,
            edits=(StepEdit({node.output: relu for node in smooth}),),
        )


def _loss(subject: Subject) -> Iterator[Change]:
    settings = subject.settings
    if settings.loss_clip is None:
        yield Change(
            "loss clip",
            f"the loss gradient at the output clipped to {LOSS_CLIP:g}",
            f"--loss-clip {LOSS_CLIP:g}, Clipless(loss_clip={LOSS_CLIP:g})",
            settings={"loss_clip": LOSS_CLIP},
        )
    if "temperature" in subject.loss.parameters() and settings.temperature is None:
        yield Change(
            "temperature",
            f"the loss at logits divided by {_SHARPER:g}",
            f"--temperature {_SHARPER:g}",
            settings={"temperature": _SHARPER},
        )


def _inputs(subject: Subject) -> Iterator[Change]:
    """Inputs about 0, or no longer than they are in the median."""
    box = subject.settings.effective_input_box
    if box is not None and box[0] + box[1] != 0.0:
        middle, half = 0.5 * (box[0] + box[1]), 0.5 * (box[1] - box[0])
        yield Change(
            "input",
            f"{middle:g} subtracted from every input entry",
            f"x - {middle:g} before the network, --input-box {-half:g} {half:g}",
            keeps_function=False,
            settings={"input_box": (-half, half), "input_norm": None},
            prepared=lambda x: x - middle,
        )
    if subject.examples is None or not len(subject.examples):
        return
    flat = np.asarray(subject.examples.x, np.float64).reshape(len(subject.examples), -1)
    radius = _rounded(float(np.median(np.linalg.norm(flat, axis=1))))
    if 0.0 < radius < _SHORTER * subject.at_input.norm:
        yield Change(
            "input",
            f"inputs clipped to norm {radius:g}, their median",
            f"x * min(1, {radius:g} / ‖x‖) before the network, --input-norm {radius:g}",
            keeps_function=False,
            settings={"input_norm": radius},
            prepared=lambda x: clipped_inputs(x, radius),
        )


def clipped_inputs(x: FloatArray, radius: float) -> FloatArray:
    """Every example scaled down to the radius where it is longer."""
    norms = np.sqrt(np.sum(x * x, axis=tuple(range(1, x.ndim)), keepdims=True))
    found: FloatArray = x * (radius / np.maximum(norms, radius))
    return found


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
        yield Change(
            "weights",
            f"orthogonal weights in {told([module_of(name) or name for name in found])}",
            "nn.init.orthogonal_(weight), and Clipless(orthogonalize=2) to keep them so",
            keeps_function=False,
            weights=found,
        )


def orthogonal(array: FloatArray) -> FloatArray:
    """The orthogonal matrix next to a matrix, or to a kernel as outputs × all it reads."""
    left, _, right = np.linalg.svd(array.reshape(len(array), -1), full_matrices=False)
    found: FloatArray = (left @ right).reshape(array.shape)
    return found


def _noise(subject: Subject) -> Iterator[Change]:
    if subject.settings.allocation not in {"optimal", "custom"}:
        yield Change(
            "allocation",
            "the noise split so that it is least",
            "--allocation optimal",
            settings={"allocation": "optimal"},
        )


def _head(subject: Subject) -> Iterator[Change]:
    """The last layer alone, for networks that learned elsewhere."""
    head = subject.parts.head
    if head and not subject.settings.trainable:
        yield Change(
            "head",
            f"only {module_of(head[0]) or head[0]} trained, behind weights from public data",
            _shown(f"--trainable {name}" for name in head),
            settings={"trainable": tuple(map(literal, head))},
            in_recipe=False,
        )


def _run(subject: Subject) -> Iterator[Change]:
    """Other batches and other numbers of steps, at the same ε."""
    settings = subject.settings
    if settings.target_epsilon is None or settings.dataset_size is None:
        return
    batch, total = settings.batch_size, settings.dataset_size
    larger = 0 if batch is None else min(_LARGER * batch, total)
    if batch is not None and larger > batch and settings.sampling != "full-batch":
        steps = settings.steps and max(1, round(settings.steps * batch / larger))
        yield Change(
            "run",
            f"batches of {larger} in as many epochs, at the same ε",
            f"--batch-size {larger}" + (f" --steps {steps}" if steps else ""),
            settings={"batch_size": larger} | ({"steps": steps} if steps else {}),
            in_recipe=False,
        )
    for factor, word in ((2.0, "twice"), (0.5, "half")):
        key = "epochs" if settings.epochs is not None else "steps"
        number = getattr(settings, key)
        if number is None:
            continue
        other = number * factor if key == "epochs" else max(1, round(number * factor))
        yield Change(
            "run",
            f"{word} as many {key}, at the same ε",
            f"--{key} {other:g}",
            settings={key: other},
            in_recipe=False,
        )


def applied(settings: Settings, changes: tuple[Change, ...]) -> Settings:
    """Settings with changes. UsageError where they contradict each other or the settings."""
    fields: dict[str, object] = {}
    freeze, constraints = settings.freeze, settings.constraints
    for change in changes:
        if change.topic == "mechanism" and "constraints" in change.settings:
            constraints = ()
        for name, value in change.settings.items():
            if name == "freeze":
                freeze = tuple(dict.fromkeys((*freeze, *value)))  # type: ignore[misc]
            elif name == "constraints":
                constraints = (*value, *constraints)  # type: ignore[misc]
            else:
                fields[name] = value
    moves = {"mechanism", "constraint", "bias_norm"} & fields.keys() or constraints
    if moves:
        fields.setdefault("scope", "auto")
    if "batch_size" in fields:
        fields.setdefault("reduction", "auto")
    return replace(settings, **fields, freeze=freeze, constraints=constraints)  # type: ignore[arg-type]


def _layers(biases: list[Bias]) -> list[str]:
    return [module_of(bias.name) or bias.name for bias in biases]


def told(names: list[str]) -> str:
    """Few names, or how many there are."""
    unique = list(dict.fromkeys(names))
    return " and ".join(unique) if len(unique) <= _FEW else f"{len(unique)} layers"


def _shown(parts: Iterator[str], most: int = 3) -> str:
    """In a row; of many the first ones."""
    found = list(parts)
    more = [f"… ({len(found)} in all)"] if len(found) > most else []
    return " ".join([*found[:most], *more])


def _rounded(number: float) -> float:
    """In four digits, upwards."""
    if not 0.0 < number < math.inf:
        return number
    digits = 3 - math.floor(math.log10(number))
    step = 10.0**-digits
    return float(f"{math.ceil(number / step) * step:.4g}")
