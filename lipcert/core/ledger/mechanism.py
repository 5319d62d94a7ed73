"""The mechanism of a certificate: what training does to gradients besides backpropagation.

What enters: the data of A-MECHANISM, A-LAYERS and A-STEPWISE. What leaves: the clips that they
describe, and the same entries again, texts included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias, final

from lipcert.core.certificate.canonical import Json
from lipcert.core.certificate.fields import CertificateFormatError, Fields
from lipcert.core.certificate.numbers import write_float
from lipcert.core.certificate.records import Assumption
from lipcert.core.ledger.entries import Members, declared

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
class BackpropagationClip:
    """Clips round layers, example by example.

    A layer, the steps from the first of its ends to the second, reads x·min(1, input_clip/‖x‖) in
    place of x; at its output the gradient g becomes g·min(1, cotangent_clip/|g|) before it goes on
    into the layer. conv_clip: |g| is √Σ_c (Σ_i |g_ci|)² for layers with a convolution ("l1.5"),
    or the Euclidean norm everywhere ("l2").
    """

    input_clip: float
    cotangent_clip: float
    conv_clip: str
    layers: tuple[LayerEnds, ...]

    @classmethod
    def read(cls, mechanism: Fields, layers: Fields) -> BackpropagationClip:
        """From the data of A-MECHANISM and A-LAYERS."""
        ends: list[LayerEnds] = []
        for layer in layers.objects("layers"):
            ends.append((layer.text("input"), layer.text("output")))
            layer.finish()
        found = cls(
            input_clip=mechanism.bound("input_clip"),
            cotangent_clip=mechanism.bound("cotangent_clip"),
            conv_clip=mechanism.text("conv_clip"),
            layers=tuple(ends),
        )
        if found.conv_clip not in _NORMS:
            raise CertificateFormatError(f"{mechanism.where} clips in an unknown norm")
        return found

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
        data: Members = {
            "kind": "backprop-clipping",
            "input_clip": write_float(self.input_clip),
            "cotangent_clip": write_float(self.cotangent_clip),
            "conv_clip": self.conv_clip,
        }
        ends: list[Json] = [{"input": first, "output": last} for first, last in self.layers]
        places = f"The layers that clip are the {len(ends)} listed, from input to output."
        return declared(MECHANISM, text, data), declared(LAYERS, places, {"layers": ends})


def mechanism_entry(kind: str, clip: GradientClip | None) -> Assumption:
    """A-MECHANISM of all other mechanisms."""
    data: Members = {"kind": kind}
    if clip is None:
        text = _RESCALED if kind == "weight-clipping" else _BACKPROPAGATION
        return declared(MECHANISM, text, data)
    norm, scope, decay = clip
    data |= {"clip_norm": write_float(norm), "clip_scope": scope, "decay": decay}
    text = f"The gradient of every example is clipped to {norm!r} ({scope}), decay {decay}."
    return declared(MECHANISM, text, data)


def read_gradient_clip(fields: Fields) -> GradientClip | None:
    """The clip of the whole gradient, where the mechanism is that."""
    if fields.text("kind") != "gradient-clipping":
        return None
    scope, decay = fields.text("clip_scope"), fields.text("decay")
    if scope not in {"flat", "group"} or decay not in {"decoupled", "inside"}:
        raise CertificateFormatError(f"{fields.where} describes no clip")
    return fields.bound("clip_norm"), scope, decay


def stepwise(multiplier: float) -> Assumption:
    """What stands in for weights that stay: every step is noised by bounds of its own."""
    text = (
        "Before every step the bounds are proved anew for the weights that it starts from, which "
        f"earlier steps alone determine, and its noise has a multiplier of at least {multiplier!r} "
        "for them."
    )
    return declared(STEPWISE, text, {"noise_multiplier": write_float(multiplier)})
