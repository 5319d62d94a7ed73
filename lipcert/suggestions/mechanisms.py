"""Mechanisms as changes: settings under which a run would bound its gradients in another way.

Radii of clips follow from the gradients that were met, and from what layers read and receive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import numpy as np

from lipcert.analysis.bounded import Bounded
from lipcert.core import program as p
from lipcert.core.clips import layer_steps
from lipcert.core.coverage import tensors_read
from lipcert.core.ledger.layer_clipping import BackpropClipping
from lipcert.core.ledger.mechanism import MECHANISMS
from lipcert.core.program import FloatArray
from lipcert.errors import LipCertError
from lipcert.gradient_stats.labels import checked_labels
from lipcert.gradient_stats.network import passed
from lipcert.losses import loss_gradients
from lipcert.settings.settings import ConstraintSpec, Settings
from lipcert.settings.values import literal
from lipcert.suggestions import written
from lipcert.suggestions.analyst import Analyst
from lipcert.suggestions.module_edits import module_of
from lipcert.suggestions.records import TOPIC, Change

CLIP_NORM: Final = 1.0
_SPECTRAL: Final = 1.0
_BIAS_NORM: Final = 1.0
_RADII: Final = ("input_clip", "cotangent_clip", "conv_clip", "clip_norm", "clip_scope", "decay")
_BOUNDED: Final = 1.25
"""times the median norm of what a layer reads: a bound up to which no clip is needed"""
_EXAMPLES: Final = 16
"""at which layers are looked at"""
_TABLES: Final = ("input_clips", "cotangent_clips")
HELD: Final = tuple(kind for kind, found in MECHANISMS.items() if found.holds_weights())
"""mechanisms that hold the weights within constraints"""
RIVAL: Final = 1
"""the place among `families` of gradient clipping at C = 1"""


@final
@dataclass(frozen=True, slots=True)
class LayerRadii:
    """What one layer reads and what reaches its output: medians of norms that were met.

    name: of one of its parameters. bound: of what it reads, whatever the weights before it are;
    inf where none is known. cotangent: in the norm of its clip.
    """

    name: str
    input: float
    cotangent: float
    bound: float


def gradient_clipping(norm: float, scope: str = "flat", what: str = "") -> Change:
    """Clip the gradient of every example, all at once or in each group."""
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
    """With its options, and as training takes it."""
    own = written.options(settings), written.mechanism_code(settings)
    return Change(TOPIC, what, "\n".join(own), settings=settings)


def clips_gradients(family: Change) -> bool:
    """Whether a change of mechanism is one to clipping the gradients of examples."""
    return MECHANISMS[str(family.settings["mechanism"])].clips_gradients


def held(kind: str, settings: Settings, biased: bool) -> Change:
    """Weights held within their constraints: those that are declared, otherwise norm 1."""
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
    """Layers that clip what they read and receive: all alike, or each to what it was seen to."""
    if not radii or not all(item.input > 0.0 and item.cotangent > 0.0 for item in radii):
        return
    reads = _up(max(item.input for item in radii))
    receives = _up(sorted(item.cotangent for item in radii)[len(radii) // 2])
    yield clips_of_all(reads, receives)
    yield clips_of_each(radii)


def clips_of_all(reads: float, receives: float) -> Change:
    """Every layer clips what it reads, and the gradient at its output, to the same radii."""
    settings = _freed() | {"input_clip": reads, "cotangent_clip": receives}
    return _change(f"backprop clipping, β = {reads:g}, C = {receives:g}", settings)


def clips_of_each(radii: tuple[LayerRadii, ...]) -> Change:
    """Every layer clips to the median of what it was seen to read and receive; what is bounded is
    not clipped."""
    clipped = tuple((literal(x.name), _up(x.input)) for x in radii if x.bound > _BOUNDED * x.input)
    receives = tuple((literal(item.name), _up(item.cotangent)) for item in radii)
    return _change(
        f"backprop clipping, C of each of {len(radii)} layers, β of {len(clipped)}",
        _freed() | {"input_clips": clipped, "cotangent_clips": receives},
    )


def _freed() -> dict[str, object]:
    """Backpropagation clipping, which needs no constraint."""
    free = {"constraint": None, "bias_norm": None, "constraints": ()}
    return {**_cleared(), **free, "mechanism": "backprop-clipping"}


def _cleared() -> dict[str, object]:
    """Without the radii of any mechanism."""
    found: dict[str, object] = dict.fromkeys(_RADII)
    return found | dict.fromkeys(_TABLES, ()) | {"scope": "auto"}


def _up(number: float) -> float:
    """In two digits."""
    return float(f"{number:.2g}")


def families(settings: Settings, biased: bool) -> tuple[Change, ...]:
    """Every mechanism that needs no measured radius; those that take long to analyse stand last."""
    clipless, *others = (held(kind, settings, biased) for kind in HELD)
    clipped = (gradient_clipping(CLIP_NORM, scope) for scope in ("flat", "group"))
    return clipless, *clipped, *others


def layer_radii(analyst: Analyst) -> tuple[LayerRadii, ...]:
    """Every layer that would clip, in their order; none where that is refused or not known."""
    examples = analyst.examples
    try:
        found = analyst.analysed((clips_of_all(1.0, 1.0),)).found
        mechanism = found.premises.mechanism
        if examples is None or not isinstance(mechanism, BackpropClipping):
            return ()
        x = np.asarray(examples.x[:_EXAMPLES], np.float64)
        labels = checked_labels(found.loss, examples.y[:_EXAMPLES], found.graph.output_shape)
        program = analyst.base.file_program
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
        by_channel = mechanism.is_by_channel and any(isinstance(s.op, p.Conv) for s in steps)
        norms = _lengths(values[start]), _lengths(gradients[end], by_channel=by_channel)
        if all(np.isfinite(norm).all() for norm in norms):
            reads, receives = (float(np.median(norm)) for norm in norms)
            bound = found.derived.facts[start].norm
            radii.append(LayerRadii(_layer(min(names)), reads, receives, bound))
    return tuple(radii)


def _owners(found: Bounded) -> Mapping[str, str]:
    """Trained parameters by the tensors that hold them."""
    return {
        tensor: name
        for name, held in found.tensors.items()
        if found.graph.parameters[name].trainable
        for tensor in held
    }


def _layer(parameter: str) -> str:
    """As tables of clips name it."""
    return module_of(parameter) or parameter


def _lengths(array: FloatArray, *, by_channel: bool = False) -> FloatArray:
    """Of each example, as its clip measures it; channels stand along axis 2 of the stack."""
    if by_channel and array.ndim > 2:
        sums = np.abs(np.moveaxis(array, 2, 1)).reshape(len(array), array.shape[2], -1).sum(axis=2)
        return np.asarray(np.linalg.norm(sums, axis=1))
    return np.asarray(np.linalg.norm(array.reshape(len(array), -1), axis=1))
