"""The mechanism of a certificate: what training does to gradients besides backpropagation.

What enters: the data of A-MECHANISM, A-LAYERS and A-STEPWISE. What leaves: the clips that they
describe, and the same entries again, texts included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypeAlias, final

from lipcert.core.certificate import Assumption, CertificateFormatError, read, written
from lipcert.core.codec import Bound, Limit, member
from lipcert.core.ledger.entries import declared

MECHANISM: Final = "A-MECHANISM"
LAYERS: Final = "A-LAYERS"
STEPWISE: Final = "A-STEPWISE"
MECHANISMS: Final = (
    "none",
    "clipless",
    "fixed-weight-norm",
    "weight-clipping",
    "gradient-clipping",
    "backprop-clipping",
)
_BY_CHANNEL: Final = "l1.5"
_NORMS: Final = {
    _BY_CHANNEL: "in the norm that adds magnitudes within a channel and squares over the channels "
    "where the layer holds a convolution, elsewhere in the Euclidean one",
    "l2": "in the Euclidean norm",
}
_BACKPROPAGATION: Final = "Gradients are what backpropagation finds."
_RESCALED: Final = (
    "Gradients are what backpropagation finds; after every step, training scales tensors that "
    "exceed their constraint down to it."
)

GradientClip: TypeAlias = tuple[float, str, str]
"""a clip of the whole gradient: its norm, "flat" or "group", "decoupled" or "inside" """
LayerEnds: TypeAlias = tuple[str, str]
"""the value that a layer reads, and the value that it computes"""


@final
@dataclass(frozen=True, slots=True)
class _GradientClip:
    clip_norm: Bound
    clip_scope: Annotated[str, Limit("flat or group", {"flat", "group"}.__contains__)]
    decay: Annotated[str, Limit("decoupled or inside", {"decoupled", "inside"}.__contains__)]
    kind: Literal["gradient-clipping"] = "gradient-clipping"


@final
@dataclass(frozen=True, slots=True)
class _Ends:
    input: str
    output: str


@final
@dataclass(frozen=True, slots=True)
class _Layers:
    layers: tuple[_Ends, ...]


@final
@dataclass(frozen=True, slots=True)
class _Stepwise:
    noise_multiplier: Bound


@final
@dataclass(frozen=True, slots=True)
class BackpropagationClip:
    """Clips round layers, example by example.

    A layer, the steps from the first of its ends to the second, reads x·min(1, input_clip/‖x‖) in
    place of x; at its output the gradient g becomes g·min(1, cotangent_clip/|g|) before it goes on
    into the layer. conv_clip: |g| is √Σ_c (Σ_i |g_ci|)² for layers with a convolution ("l1.5"),
    or the Euclidean norm everywhere ("l2").
    """

    input_clip: Bound
    cotangent_clip: Bound
    conv_clip: Literal["l1.5", "l2"]
    layers: tuple[LayerEnds, ...] = field(metadata=member(apart=True))
    kind: Literal["backprop-clipping"] = "backprop-clipping"

    @classmethod
    def read(
        cls, mechanism: Mapping[str, object], layers: Mapping[str, object]
    ) -> BackpropagationClip:
        """From the data of A-MECHANISM and A-LAYERS."""
        ends = tuple((item.input, item.output) for item in read(_Layers, layers, LAYERS).layers)
        return read(cls, mechanism, MECHANISM, layers=ends)

    @property
    def is_by_channel(self) -> bool:
        """Whether gradients at convolutions are clipped in the norm over channels."""
        return self.conv_clip == _BY_CHANNEL

    def written(self) -> tuple[Assumption, Assumption]:
        """As entries of the ledger."""
        text = (
            f"Every layer of {LAYERS} clips, example by example, what it reads to the Euclidean "
            f"norm {self.input_clip!r}, and the gradient at its output, before that enters the "
            f"layer, to {self.cotangent_clip!r} {_NORMS[self.conv_clip]}."
        )
        ends = tuple(_Ends(*ends) for ends in self.layers)
        places = f"The layers that clip are the {len(ends)} listed, from input to output."
        return (
            declared(MECHANISM, text, written(self)),
            declared(LAYERS, places, written(_Layers(ends))),
        )


def mechanism_entry(kind: str, clip: GradientClip | None) -> Assumption:
    """A-MECHANISM of all other mechanisms."""
    if clip is None:
        text = _RESCALED if kind == "weight-clipping" else _BACKPROPAGATION
        return declared(MECHANISM, text, {"kind": kind})
    norm, scope, decay = clip
    text = f"The gradient of every example is clipped to {norm!r} ({scope}), decay {decay}."
    return declared(MECHANISM, text, written(_GradientClip(norm, scope, decay)))


def read_kind(data: Mapping[str, object]) -> str:
    """Which mechanism it is."""
    kind = data.get("kind")
    if kind not in MECHANISMS:
        raise CertificateFormatError(f"{MECHANISM}.kind is not one of {', '.join(MECHANISMS)}")
    return str(kind)


def read_gradient_clip(data: Mapping[str, object]) -> GradientClip | None:
    """The clip of the whole gradient, where the mechanism is that."""
    if data.get("kind") != "gradient-clipping":
        return None
    clip = read(_GradientClip, data, MECHANISM)
    return clip.clip_norm, clip.clip_scope, clip.decay


def stepwise(multiplier: float) -> Assumption:
    """What stands in for weights that stay: every step is noised by bounds of its own."""
    text = (
        "Before every step the bounds are proved anew for the weights that it starts from, which "
        f"earlier steps alone determine, and its noise has a multiplier of at least {multiplier!r} "
        "for them."
    )
    return declared(STEPWISE, text, written(_Stepwise(multiplier)))


def read_stepwise(data: Mapping[str, object]) -> float:
    """The multiplier of the noise of every step."""
    return read(_Stepwise, data, STEPWISE).noise_multiplier
