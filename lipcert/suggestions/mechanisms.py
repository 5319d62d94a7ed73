"""Mechanisms as changes: settings under which a run would bound its gradients in another way.

What enters: the settings of a run, and what was met of gradients and of what layers read. What
leaves: one `Change` for each mechanism, whose radii follow from these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

from lipcert.core.ledger.mechanism import MECHANISMS
from lipcert.settings.patterns import literal
from lipcert.settings.settings import ConstraintSpec, Settings
from lipcert.suggestions import written
from lipcert.suggestions.records import Change

TOPIC: Final = "mechanism"
CLIP_NORM: Final = 1.0
_SPECTRAL: Final = 1.0
_BIAS_NORM: Final = 1.0
_RADII: Final = ("input_clip", "cotangent_clip", "conv_clip", "clip_norm", "clip_scope", "decay")
_BOUNDED: Final = 1.25
"""times the median norm of what a layer reads: a bound up to which no clip is needed"""
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
