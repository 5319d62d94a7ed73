"""Changes: settings that might help a run, derived from its network and its own settings.

Mechanisms are changes, too: settings under which a run would bound its gradients differently. Their
radii follow from measured gradients, and from the norms that layers read and receive. This module
does not decide whether a change helps: all are analysed.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from lipcert.analysis.bounded import Bounded
from lipcert.analysis.release import known_plan, layer_of
from lipcert.core import program as p
from lipcert.core import token_kinds, window_kinds
from lipcert.core.clips import layer_steps
from lipcert.core.coverage import tensors_read
from lipcert.core.ledger.layer_clipping import BackpropClipping
from lipcert.core.ledger.mechanism import MECHANISMS
from lipcert.core.losses.base import Loss
from lipcert.core.program import FloatArray
from lipcert.errors import LipCertError
from lipcert.gradient_stats.labels import checked_labels
from lipcert.gradient_stats.measure import passed
from lipcert.graph.ir import Graph
from lipcert.losses import loss_gradients, parameters
from lipcert.privacy.accounting import epsilon, noise_for_epsilon
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling
from lipcert.settings.settings import ConstraintSpec, Settings
from lipcert.settings.values import globs, literal
from lipcert.settings.written import mechanism_code, options
from lipcert.suggestions.advice import affine_of, module_of, norms_of
from lipcert.suggestions.analyst import Analyst
from lipcert.suggestions.records import TOPIC, Change

LOSS_CLIP: Final = 0.1
_SHARP: Final = 0.125
"""A temperature at which logits within constraints are large enough for confident predictions."""
_LARGER: Final = 2
_FEW: Final = 2

CLIP_NORM: Final = 1.0
_SPECTRAL: Final = 1.0
_BIAS_NORM: Final = 1.0
_RADII: Final = ("input_clip", "cotangent_clip", "conv_clip", "clip_norm", "clip_scope", "decay")
_BOUNDED: Final = 1.25
"""Factor of the median norm that a layer reads: with a bound up to it, no clip is needed."""
_EXAMPLES: Final = 16
"""Number of examples at which layers are measured."""
_TABLES: Final = ("input_clips", "cotangent_clips")
HELD: Final = tuple(kind for kind, found in MECHANISMS.items() if found.holds_weights())
"""Mechanisms that keep the weights within constraints."""
RIVAL: Final = 1
"""Index in `families` of gradient clipping at C = 1."""


def changes_of(graph: Graph, settings: Settings, loss: Loss) -> Iterator[Change]:
    """Yield everything that might help, apart from the mechanism."""
    yield from _biases(graph)
    yield from _affine(graph)
    yield from _loss(settings, loss)
    yield from _noise(settings)
    yield from _head(graph, settings)
    yield from _sampling(settings)
    yield from _run(settings)


def _patterns(graph: Graph, names: Collection[str]) -> tuple[str, ...]:
    """Return patterns that match these parameters and no other trained one."""
    return globs(names, [name for name, item in graph.parameters.items() if item.trainable])


def _biases(graph: Graph) -> Iterator[Change]:
    """Suggest small biases where many positions share one: its gradient is the sum over them."""
    makers = {node.output: node for node in graph.nodes}
    by_radius: dict[float, list[str]] = {}
    for use in graph.trained_uses():
        node = use.node
        if isinstance(node.op, token_kinds.Shift):
            node = makers.get(node.inputs[0], node)
        if use.slot != "bias" or not isinstance(node.op, window_kinds.Conv | p.Dense):
            continue
        positions = math.prod(use.node.step.shape) // max(1, use.operand.array.size)
        if positions > 1:
            by_radius.setdefault(_upwards(positions**-0.5), []).append(use.parameter)
    radii = tuple(
        (pattern, ConstraintSpec("frobenius", radius))
        for radius, names in by_radius.items()
        for pattern in _patterns(graph, names)
    )
    if radii:
        names = [name for found in by_radius.values() for name in found]
        yield Change(
            "biases",
            f"biases of norm 1/√positions in {_layers([module_of(n) or n for n in names])}",
            options({"constraints": radii}),
            {"constraints": radii},
        )


def _affine(graph: Graph) -> Iterator[Change]:
    """Suggest freezing scales and shifts of normalisations; a later linear map can replace them."""
    norms = norms_of(graph)
    names = [name for node in norms for name in affine_of(graph, node)]
    if names:
        frozen = {"freeze": _patterns(graph, names)}
        layers = _layers([module_of(name) or name for name in names])
        yield Change("affine", f"scales and shifts of {layers} frozen", options(frozen), frozen)


def _loss(settings: Settings, loss: Loss) -> Iterator[Change]:
    """Suggest a clip of the loss gradient, with a temperature at which learned examples escape it.

    Bounds depend on the clip alone. At temperature 1 the logits of a network within constraints
    stay small, p − y stays long, and every example has the same weight however well it is known.
    """
    if settings.loss_clip is None:
        clip: dict[str, object] = {"loss_clip": LOSS_CLIP}
        what = "the loss gradient at the output"
        if "temperature" in parameters(loss) and settings.temperature is None:
            clip["temperature"] = _SHARP
            what = f"temperature {_SHARP:g}, and {what}"
        yield Change("loss clip", f"{what} clipped to {LOSS_CLIP:g}", options(clip), clip)


def _noise(settings: Settings) -> Iterator[Change]:
    if settings.allocation not in {"optimal", "custom"}:
        yield Change(
            "allocation",
            "the noise split so that it is least",
            "--allocation optimal",
            {"allocation": "optimal"},
        )


def _head(graph: Graph, settings: Settings) -> Iterator[Change]:
    """Suggest training the last layer alone, for networks that were trained elsewhere."""
    names = list(dict.fromkeys(use.parameter for use in graph.trained_uses()))
    last = module_of(names[-1]) if names else ""
    head = [name for name in names if module_of(name) == last]
    if last and head != names and not settings.trainable:
        trained = {"trainable": _patterns(graph, head)}
        what = f"only {last} trained, behind weights from public data"
        yield Change("head", what, options(trained), trained, in_recipe=False)


def _sampling(settings: Settings) -> Iterator[Change]:
    """Suggest balls in bins instead of a shuffle; a recipe never changes the relation."""
    plan = known_plan(settings) if settings.sampling == Sampling.SHUFFLE.value else None
    if plan is None:
        return
    same = plan.neighbours is not Neighbouring.REPLACE_ONE
    relation = {} if same else {"neighbours": Neighbouring.ADD_OR_REMOVE_ONE.value}
    changed = {"sampling": Sampling.BALLS_IN_BINS.value} | relation
    what = "balls in bins in place of a shuffle" + ("" if same else ", under add-remove")
    sigma, target = settings.noise_multiplier, settings.target_epsilon
    binned = known_plan(replace(settings, **changed))  # type: ignore[arg-type]
    if binned is not None and sigma is not None:
        less, more = epsilon(binned, sigma), epsilon(plan, sigma)
        what += f": ε {less:.3g}, not {more:.3g}, at noise multiplier {sigma:g}"
    elif binned is not None and target is not None:
        less, more = (noise_for_epsilon(run, target).noise_multiplier for run in (binned, plan))
        what += f": noise multiplier {less:.3g}, not {more:.3g}, at the same ε"
    options = " ".join(f"--{name} {value}" for name, value in changed.items())
    yield Change("sampling", what, options, changed, in_recipe=same)


def _run(settings: Settings) -> Iterator[Change]:
    """Suggest larger batches in as many steps, at the same ε."""
    if settings.target_epsilon is None or settings.dataset_size is None:
        return
    batch, total = settings.batch_size, settings.dataset_size
    larger = 0 if batch is None else min(_LARGER * batch, total)
    if batch is not None and larger > batch and settings.sampling != "full-batch":
        epochs = settings.epochs and settings.epochs * larger / batch
        longer: dict[str, object] = {} if epochs is None else {"epochs": epochs}
        yield Change(
            "run",
            f"batches of {larger} in as many steps, at the same ε",
            f"--batch-size {larger}" + ("" if epochs is None else f" --epochs {epochs:g}"),
            {"batch_size": larger} | longer,
        )


def _layers(names: list[str]) -> str:
    """List a few names, or say how many there are."""
    unique = [f"layer {name}" if name.isdigit() else name for name in dict.fromkeys(names)]
    return " and ".join(unique) if len(unique) <= _FEW else f"{len(unique)} layers"


@dataclass(frozen=True, slots=True)
class LayerRadii:
    """What one layer reads and what reaches its output: medians of measured norms.

    name: of one of its parameters. bound: of what it reads, for any weights of earlier layers; inf
    if none is known. cotangent: in the norm of its clip.
    """

    name: str
    input: float
    cotangent: float
    bound: float


def gradient_clipping(norm: float, scope: str = "flat", what: str = "") -> Change:
    """Return the change to clipping every per-example gradient, as a whole or in each group."""
    by_group = scope == "group"
    settings = _cleared() | {
        "mechanism": "gradient-clipping",
        "clip_norm": norm,
        "clip_scope": scope if by_group else None,
        "constraint": None,
        "bias_norm": None,
        "constraints": (),
    }
    what = f"gradient clipping at C = {norm:g}{' in groups' if by_group else ''}{what}"
    return _change(what, settings)


def _change(what: str, settings: Mapping[str, object]) -> Change:
    """Return a change of mechanism with its options and its code for training."""
    own = options(settings), mechanism_code(settings)
    return Change(TOPIC, what, "\n".join(own), settings=settings)


def clips_gradients(family: Change) -> bool:
    """Whether a change of mechanism leads to per-example gradient clipping."""
    return MECHANISMS[str(family.settings["mechanism"])].clips_gradients


def held(kind: str, settings: Settings, biased: bool) -> Change:
    """Return the change to weights within constraints: the declared ones, or else norm 1."""
    constraint = settings.constraint or ConstraintSpec("spectral", _SPECTRAL)
    bias_norm = settings.bias_norm
    if bias_norm is None and biased:
        bias_norm = _BIAS_NORM
    if settings.constraints and settings.constraint is None:
        constraint = ConstraintSpec("spectral", _SPECTRAL)
    found = _cleared() | {"mechanism": kind, "constraint": constraint, "bias_norm": bias_norm}
    bias = "" if bias_norm is None else f", biases of {bias_norm:g}"
    return _change(f"{kind}: {constraint.kind} norms of {constraint.radius:g}{bias}", found)


def backprop_clippings(radii: tuple[LayerRadii, ...]) -> Iterator[Change]:
    """Yield changes to clipping layers: all at the same radii, or each at its measured medians."""
    if not radii or not all(item.input > 0.0 and item.cotangent > 0.0 for item in radii):
        return
    reads = _up(max(item.input for item in radii))
    receives = _up(sorted(item.cotangent for item in radii)[len(radii) // 2])
    yield clips_of_all(reads, receives)
    yield clips_of_each(radii)


def clips_of_all(reads: float, receives: float) -> Change:
    """Return the change to layers that all clip input and output gradient to the same radii."""
    settings = _freed() | {"input_clip": reads, "cotangent_clip": receives}
    return _change(f"backprop clipping, β = {reads:g}, C = {receives:g}", settings)


def clips_of_each(radii: tuple[LayerRadii, ...]) -> Change:
    """Return the change to layers that each clip to the median of what they read and receive.

    An input with a bound is not clipped.
    """
    clipped = tuple((literal(x.name), _up(x.input)) for x in radii if x.bound > _BOUNDED * x.input)
    receives = tuple((literal(item.name), _up(item.cotangent)) for item in radii)
    return _change(
        f"backprop clipping, C of each of {len(radii)} layers, β of {len(clipped)}",
        _freed() | {"input_clips": clipped, "cotangent_clips": receives},
    )


def _freed() -> dict[str, object]:
    """Return settings of backpropagation clipping, which needs no constraint."""
    free = {"constraint": None, "bias_norm": None, "constraints": ()}
    return {**_cleared(), **free, "mechanism": "backprop-clipping"}


def _cleared() -> dict[str, object]:
    """Return settings without the radii of any mechanism."""
    found: dict[str, object] = dict.fromkeys(_RADII)
    return found | dict.fromkeys(_TABLES, ()) | {"scope": "auto"}


def _up(number: float) -> float:
    """Round to two digits."""
    return float(f"{number:.2g}")


def families(settings: Settings, biased: bool) -> tuple[Change, ...]:
    """Return every mechanism without measured radii; those that take long to analyse come last."""
    clipless, *others = (held(kind, settings, biased) for kind in HELD)
    clipped = (gradient_clipping(CLIP_NORM, scope) for scope in ("flat", "group"))
    return clipless, *clipped, *others


def layer_radii(analyst: Analyst) -> tuple[LayerRadii, ...]:
    """Return every layer that would clip, in order; none if that is refused or unknown."""
    examples = analyst.examples
    try:
        found = analyst.analysed((clips_of_all(1.0, 1.0),)).found
        mechanism = found.premises.mechanism
        if examples is None or not isinstance(mechanism, BackpropClipping):
            return ()
        x = np.asarray(examples.x[:_EXAMPLES], np.float64)
        labels = checked_labels(found.loss, examples.y[:_EXAMPLES], found.graph.output_shape)
        program = analyst.base.reading.program
        seeds = partial(loss_gradients, found.loss, labels=labels)
        with np.errstate(all="ignore"):
            values, gradients = passed(program, x, found.graph.output_shape, seeds)
    except (LipCertError, TypeError):
        return ()
    owners = _owners(found)
    radii = []
    for layer in mechanism.layers:
        start, end = layer.ends
        steps = layer_steps(program, (start, end))
        names = {owners[name] for name in tensors_read(steps) if name in owners}
        if not steps or not names or end not in gradients:
            continue
        by_channel = mechanism.is_by_channel and any(
            isinstance(s.op, window_kinds.Conv) for s in steps
        )
        norms = _lengths(values[start]), _lengths(gradients[end], by_channel=by_channel)
        if all(np.isfinite(norm).all() for norm in norms):
            reads, receives = (float(np.median(norm)) for norm in norms)
            bound = found.derived.facts[start].norm
            radii.append(LayerRadii(layer_of(min(names), ""), reads, receives, bound))
    return tuple(radii)


def _owners(found: Bounded) -> Mapping[str, str]:
    """Map the tensors that hold trained parameters to their names."""
    return {
        tensor: name
        for name, held in found.tensors.items()
        if found.graph.parameters[name].trainable
        for tensor in held
    }


def _lengths(array: FloatArray, *, by_channel: bool = False) -> FloatArray:
    """Return lengths as the clip measures them; channels are on axis 2 of the stack."""
    if by_channel and array.ndim > 2:
        sums = np.abs(np.moveaxis(array, 2, 1)).reshape(len(array), array.shape[2], -1).sum(axis=2)
        return np.asarray(np.linalg.norm(sums, axis=1))
    return np.asarray(np.linalg.norm(array.reshape(len(array), -1), axis=1))


def _upwards(value: float) -> float:
    """Round up to four digits."""
    if not 0.0 < value < math.inf:
        return value
    step = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / step) * step:.4g}")
