"""Advice: what a user may do to a network, in sentences and as lines of code.

Sentences say what keeps a run from being private, and what to do if bounds by weights are useless.
Edits are other networks whose bounds may be smaller. None is made or analysed here: a user who
writes one exports and analyses it. All are for bounds by weights; gradient clipping needs none of
them, except that no private run can have a layer that mixes the examples of a batch.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from lipcert.core import kinds, token_kinds, window_kinds
from lipcert.core import program as p
from lipcert.core.ledger.mechanism import MECHANISMS
from lipcert.core.program import Shape
from lipcert.graph.ir import Graph, Node, Use, is_arrangement
from lipcert.settings.settings import Settings
from lipcert.settings.written import number
from lipcert.suggestions.records import TOPIC, ModuleEdit, Recipe, Suggestion
from lipcert.text.numbers import counted, first_of, times

_BENDS: Final = frozenset(
    {"relu", "leaky_relu", "elu", "selu", "celu", "gelu", "gelu_tanh", "silu", "quick_gelu", "mish"}
    | {"hard_swish", "softplus", "tanh"}
)
"""Activations that another one may replace."""
_SMOOTH: Final = frozenset({"gelu", "gelu_tanh", "silu", "quick_gelu", "mish", "hard_swish"})
_IN_ROWS: Final = (
    p.Activation
    | kinds.BatchNorm
    | kinds.Centre
    | kinds.DivideByNorm
    | p.Move
    | token_kinds.Normalize
    | token_kinds.Scale
    | token_kinds.Shift
)
"""Steps that may stand between a layer and its activation."""
_GROUPS: Final = 8
_FLOOR: Final = 1.0
_COOLER: Final = 4.0
_NAMED: Final = 8


def edits_of(graph: Graph, settings: Settings) -> Iterator[ModuleEdit]:
    """Yield all edits that apply to a network; those that most often reduce a bound come first."""
    yield from _norms(graph)
    yield from _biases(graph)
    yield from _sums(graph)
    yield from _attention(graph)
    yield from _activations(graph)
    yield from _pools(graph)
    yield from _weights(graph)
    yield from _inputs(graph, settings)


def norms_of(graph: Graph) -> list[Node]:
    """Return normalisations, within examples or by statistics of a batch."""
    return [
        node for node in graph.nodes if isinstance(node.op, token_kinds.Normalize | kinds.BatchNorm)
    ]


def affine_of(graph: Graph, norm: Node) -> list[str]:
    """Return the trained parameters that only scale and shift the result of a normalisation."""
    trained = {use.parameter for use in graph.trained_uses()}
    found = [use.parameter for use in norm.uses() if use.parameter in trained]
    value = norm.output
    while value != graph.output_name:
        readers = [node for node in graph.nodes if value in node.inputs]
        if len(readers) != 1 or not (
            isinstance(readers[0].op, token_kinds.Scale | token_kinds.Shift)
            or is_arrangement(readers[0])
        ):
            break
        found += [use.parameter for use in readers[0].uses() if use.parameter in trained]
        value = readers[0].output
    return found


def _mixing(graph: Graph) -> list[str]:
    """Return batch normalisations that use statistics of the batch in training."""
    return list(dict.fromkeys(x.name for x in graph.eval_layers if not x.is_dropout))


def module_of(parameter: str) -> str:
    """Return the module of a parameter in a state_dict; "" if it has none."""
    return parameter.rpartition(".")[0]


def _norms(graph: Graph) -> Iterator[ModuleEdit]:
    """Suggest normalisations with a bounded slope."""
    makers = {node.output: node for node in graph.nodes}
    bounded, grouped, unit = [], [], []
    for node in norms_of(graph):
        affine = affine_of(graph, node)
        name = (affine and module_of(affine[0])) or node.name
        shape = node.step.shape
        if isinstance(node.op, kinds.BatchNorm):
            groups = math.gcd(shape[1], _GROUPS)
            if _mixing(graph):
                grouped.append((f"nn.GroupNorm({groups}, {shape[1]})", name))
                bounded.append((f"BoundedGroupNorm({groups}, {shape[1]}, {_FLOOR})", name))
            continue
        source = makers.get(node.inputs[0])
        if source is not None and _is_reshape(source):
            size = f"{shape[1]}, {source.given[0][1]}"
            bounded.append((f"BoundedGroupNorm({size}, {_FLOOR})", name))
            unit.append((f"UnitGroupNorm({size})", name))
        elif isinstance(node.op, token_kinds.Normalize):
            widths = tuple(shape[axis] for axis in node.op.axes)
            size = str(widths[0] if len(widths) == 1 else widths)
            bounded.append((f"BoundedLayerNorm({size}, {_FLOOR})", name))
            unit.append((f"UnitLayerNorm({size})", name))
    why = "group normalisation in place of batch normalisation, which mixes examples"
    yield from _edit(why, grouped)
    yield from _edit("normalisation with a floor: its slope is at most 1", bounded)
    yield from _edit("normalisation to norm 1", unit)
    yield from _edit("no normalisation", [("nn.Identity()", name) for _, name in bounded])


def _is_reshape(node: Node) -> bool:
    """Whether entries only change their axes, and keep their order."""
    if not is_arrangement(node) or not isinstance(node.op, p.Move):
        return False
    return bool((np.diff(node.op.sources.reshape(-1)) == 1).all())


def _biases(graph: Graph) -> Iterator[ModuleEdit]:
    modules = (
        module_of(use.parameter)
        for use in graph.trained_uses()
        if use.slot == "bias" and isinstance(use.node.op, window_kinds.Conv | p.Dense)
    )
    line = "model.get_submodule(name).bias = None"
    yield from _loop("layers without bias", filter(None, modules), line)


def _sums(graph: Graph) -> Iterator[ModuleEdit]:
    """Suggest smaller branches of residual sums, whose two values depend on a common one."""
    below = {graph.input_name: frozenset({graph.input_name})}
    names = []
    for node in graph.nodes:
        read = [below[name] for name in node.inputs]
        below[node.output] = frozenset[str]().union({node.output}, *read)
        is_sum = isinstance(node.op, token_kinds.Add) and node.op.signs == (1, 1)
        if is_sum and node.given[0] == node.given[1] and read[0] & read[1]:
            names.append(node.name)
    depth = max(1.0, len(names) / 2)
    shorter = f"ScaledResidual(branch, depth={depth:g})"
    yield from _edit("shorter branches of residual sums", [(shorter, name) for name in names])
    half = "HalfResidual(branch)"
    yield from _edit("means in place of residual sums", [(half, name) for name in names])


def _attention(graph: Graph) -> Iterator[ModuleEdit]:
    """Suggest flatter attention scores, or bounded ones."""
    names = [node.name for node in graph.nodes if isinstance(node.op, token_kinds.Attention)]
    cooler = f"q = q / {_COOLER:g}"
    yield from _edit("flatter attention", [(cooler, name) for name in names])
    unit = "q, k = (t / t.norm(dim=-1, keepdim=True).clamp(min=1) for t in (q, k))"
    yield from _edit("queries and keys of norm at most 1", [(unit, name) for name in names])


def _activations(graph: Graph) -> Iterator[ModuleEdit]:
    """Suggest an activation that keeps norms, or one of slope at most 1."""
    makers = {node.output: node for node in graph.nodes}
    pairs, slope = [], []
    for node in graph.nodes:
        if not isinstance(node.op, p.Activation) or node.op.name not in _BENDS:
            continue
        axis = _channel_axis(node, makers)
        if axis is not None and node.step.shape[axis] % 2 == 0:
            pairs.append(("MaxMin()" if axis == 1 else "MaxMin(-1)", node.name))
        if node.op.name in _SMOOTH:
            slope.append(("nn.ReLU()", node.name))
    yield from _edit("activations that keep norms", pairs)
    yield from _edit("activations of slope at most 1", slope)


def _channel_axis(node: Node, makers: dict[str, Node]) -> int | None:
    """Return the channel axis: 1 after a convolution, the last after a dense layer."""
    maker: Node | None = node
    while maker is not None and isinstance(maker.op, _IN_ROWS):
        maker = makers.get(maker.inputs[0])
    if maker is None or maker.step.shape != node.step.shape:
        return None
    if isinstance(maker.op, window_kinds.Conv):
        return 1
    return len(node.step.shape) - 1 if isinstance(maker.op, p.Dense) else None


def _pools(graph: Graph) -> Iterator[ModuleEdit]:
    lines = [
        (_average_pool(node.op), node.name)
        for node in graph.nodes
        if isinstance(node.op, window_kinds.MaxPool) and set(node.op.window.dilations) == {1}
    ]
    yield from _edit("means in place of maxima", lines)


def _average_pool(op: window_kinds.MaxPool) -> str:
    """Return the average pooling over the windows of a max pooling, as code."""
    window = op.window
    words = [_same(window.taps)]
    words += [f"stride={_same(window.strides)}"] if window.strides != window.taps else []
    if any(window.before):
        words += [f"padding={_same(window.before)}", "count_include_pad=False"]
    return f"nn.AvgPool{len(window.taps)}d({', '.join(words)})"


def _same(numbers: Shape) -> str:
    return str(numbers[0]) if len(set(numbers)) == 1 else str(tuple(map(int, numbers)))


def _weights(graph: Graph) -> Iterator[ModuleEdit]:
    """Suggest orthogonal weights, which stretch everything as much as their norm allows."""

    def is_free(use: Use) -> bool:
        return use.is_linear_map and use.operand.array.ndim >= 2 and use.operand.is_plain

    names = (use.parameter for use in graph.trained_uses() if is_free(use))
    line = "nn.init.orthogonal_(model.get_parameter(name))"
    yield from _loop("orthogonal weights; Clipless(orthogonalize=1) keeps them so", names, line)


def _inputs(graph: Graph, settings: Settings) -> Iterator[ModuleEdit]:
    """Suggest inputs centred at 0, whose norm is at most half as large."""
    box = settings.effective_input_box
    if box is None or box[0] + box[1] == 0.0 or graph.ids is not None or graph.parts:
        return
    middle, half = 0.5 * (box[0] + box[1]), 0.5 * (box[1] - box[0])
    line = f"x = x - {number(middle)}"
    options = f"before the network, with --input-box {number(-half)} {number(half)}"
    yield from _edit("inputs about 0", [(line, options)])


def _edit(what: str, lines: Iterable[tuple[str, str]]) -> Iterator[ModuleEdit]:
    """Yield one edit from lines of code with the places they apply to; nothing without lines."""
    places: dict[str, list[str]] = {}
    for code, place in lines:
        places.setdefault(code, []).append(place)
    if places:
        shown = (f"{code}{_named(names)}" for code, names in places.items())
        yield ModuleEdit(what, "\n".join(shown))


def _loop(what: str, names: Iterable[str], code: str) -> Iterator[ModuleEdit]:
    """Yield one edit that does the same to everything with these names."""
    listed = ", ".join(f'"{name}"' for name in dict.fromkeys(names))
    if listed:
        yield ModuleEdit(what, f"for name in [{listed}]: {code}")


def _named(places: list[str]) -> str:
    """Return names as a comment; of many only the first ones."""
    unique = [name for name in dict.fromkeys(places) if name]
    return f"  # {first_of(unique, _NAMED)}" if unique else ""


def stops_of(graph: Graph, recipe: Recipe) -> Iterator[str]:
    """Yield layers because of which training the file as it was would not be private."""
    if mixing := _mixing(graph):
        yield (
            f"BatchNorm ({first_of(mixing, _NAMED)}) mixes the examples of a batch, so that no "
            "bound per example holds in train mode. Replace it by GroupNorm, as "
            "lipcert.training.make_trainable(module) does in a copy, or freeze it in eval mode. "
            "All numbers here are those of eval mode."
        )
    dropping = dict.fromkeys(layer.name for layer in graph.eval_layers if layer.is_dropout)
    if dropping and not recipe.settings.enforced.clips_gradients:
        yield (
            f"Dropout ({first_of([*dropping], _NAMED)}): bounds of the network hold in eval mode. "
            "Remove it, or clip gradients, under which dropout may stay."
        )


def remarks_of(graph: Graph, suggestions: Sequence[Suggestion]) -> Iterator[str]:
    """Yield where attention or normalisation leaves no useful bound by weights."""
    held = [item for item in suggestions if item.change.topic == TOPIC]
    plain = next((item for item in held if MECHANISMS[item.mechanism].holds_weights()), None)
    attentions = sum(isinstance(node.op, token_kinds.Attention) for node in graph.nodes)
    epsilons = [
        node.op.epsilon for node in graph.nodes if isinstance(node.op, token_kinds.Normalize)
    ]
    if plain is None or plain.outcome.usable or not (attentions or epsilons):
        return
    parts = []
    if attentions:
        parts.append(counted(attentions, "attention layer"))
    if epsilons:
        least, count = min(epsilons), len(epsilons)
        stretch = f", which may stretch by 1/√ε = {least**-0.5:.3g}" if least else ""
        parts.append(f"{counted(count, 'normalisation')}{stretch}{' each' * (count > 1)}")
    bound = "unknown" if plain.outcome.grad_norm is None else times(plain.outcome.grad_norm)
    yield (
        f"No useful bound by weights alone exists for this network as it is: G is {bound} within "
        f"the constraints, because of {' and '.join(parts)}. The tables have ways out: clips, and "
        "the head alone."
    )
