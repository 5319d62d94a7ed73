"""Mechanisms: by which device training bounds what one example can move.

One class declares what the ledger, the derivation, settings, reports, training and audits must
know of a mechanism; its fields are what training enforces, under the names of the settings.
Invariant: a record holds everything that bounds depend on besides the network, the weights and
their constraints.

Clipless (Béthune et al., 2024), weight clipping and fixed weight norms (Barczewski and Ramon, 2024)
hold the *weights*; backpropagation clipping (Stevens et al., 2022) holds each layer's input and
cotangent; gradient clipping (Abadi et al., 2016) holds the gradient itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, final

from lipcert.core.certificate import (
    Assumption,
    CertificateFormatError,
    chosen,
    read,
    written,
)
from lipcert.core.codec import Bound, member
from lipcert.core.ledger.entries import declared

MECHANISM: Final = "A-MECHANISM"
LAYERS: Final = "A-LAYERS"
STEPWISE: Final = "A-STEPWISE"

ClipScopeName = Literal["flat", "group"]
"""one clip of the gradient of all parameters together, or of each of K noised groups, to C/√K"""
DecayName = Literal["decoupled", "inside"]
"""weight decay λθ enters after the noise, being public, or ∇ℓ + λθ is what is clipped"""
ConvClipName = Literal["l1.5", "l2"]
"""cotangents of convolutions are measured by √Σ_c (Σ_i |g_ci|)², c the channel, or as all others"""
LayerEnds: TypeAlias = tuple[str, str]
"""the value that a layer reads, and the value that it computes"""

_NORMS: Final[Mapping[ConvClipName, str]] = {
    "l1.5": "in the norm that adds magnitudes within a channel and squares over the channels "
    "where the layer holds a convolution, elsewhere in the Euclidean one",
    "l2": "in the Euclidean norm",
}


@final
@dataclass(frozen=True, slots=True)
class ClippedLayer:
    """A layer that clips: the value that it reads, the value that it computes, and its own radii.

    None: the radius of all layers or, of the input where all have none, no clip of it.
    """

    input: str
    output: str
    input_clip: Bound | None = None
    cotangent_clip: Bound | None = None

    @property
    def ends(self) -> LayerEnds:
        """The value that it reads, and the one that it computes."""
        return self.input, self.output


@final
@dataclass(frozen=True, slots=True)
class _Layers:
    layers: tuple[ClippedLayer, ...]


@final
@dataclass(frozen=True, slots=True)
class _Stepwise:
    noise_multiplier: Bound


@dataclass(frozen=True, slots=True)
class Mechanism:
    """What training does besides backpropagation and the steps of an optimizer."""

    kind: ClassVar[str]
    """the name that users and certificates give it"""
    said: ClassVar[str]
    """what it enforces, for reports; fields in braces"""
    weights: ClassVar[Literal["given", "held", "stepwise", "free"]]
    """given: bounds are of the weights of the file, or of all within the constraints. held: of all
    within the constraints, where they lie after every step. stepwise: likewise, and bounds are
    taken at the weights that a step starts from, which are public. free: gradients are bounded
    whatever weights and inputs are."""
    gradient: ClassVar[str] = "the gradient of its loss"
    """what of an example is bounded"""
    output: ClassVar[str] = "the output"
    """what the Lipschitz constant is of"""
    tables: ClassVar[tuple[str, ...]] = ()
    """settings, one value for each layer, that become part of what training enforces"""
    acts: ClassVar[bool] = True
    """whether training does anything besides backpropagation and the steps of an optimizer"""
    clips_gradients: ClassVar[bool] = False
    """whether the gradient of every example is clipped, however the network computes it"""
    scales_up: ClassVar[bool] = False
    """whether weights below their radius are scaled up to it, as those above it are scaled down"""
    fills_scope: ClassVar[bool] = False
    """whether training may meet every weight of the scope and finds there what backpropagation
    finds, so that one example of a large gradient refutes a smaller bound"""

    @classmethod
    def holds_weights(cls) -> bool:
        """Whether the weights lie within their constraints after every step."""
        return cls.weights in {"held", "stepwise"}

    @property
    def text(self) -> str:
        """The text of the assumption A-MECHANISM."""
        return "Gradients are what backpropagation finds."

    def record(self) -> dict[str, Any]:
        """Kind and fields, without those that are None."""
        return _given({"kind": self.kind} | {n: getattr(self, n) for n in names_of(type(self))})

    @classmethod
    def words(cls, record: Mapping[str, Any]) -> str:
        """A record as reports say it; KeyError, TypeError or ValueError where it is none."""
        return cls.said.format_map(record)

    def entries(self) -> tuple[Assumption, ...]:
        """As entries of the ledger."""
        return (declared(MECHANISM, self.text, {"kind": self.kind, **written(self)}),)


@final
@dataclass(frozen=True, slots=True)
class Unchanged(Mechanism):
    """Gradients are bounded by the network itself."""

    kind = "none"
    said = "none: gradients are bounded by the network itself"
    weights = "given"
    acts = False
    fills_scope = True


@final
@dataclass(frozen=True, slots=True)
class Clipless(Mechanism):
    """After each step the weights are projected onto their constraints; nothing else is clipped,
    unless a clip of the loss gradient is declared. Bounds hold for the whole run."""

    kind = "clipless"
    said = "clipless: after each step the weights are projected onto their constraints"
    weights = "held"
    fills_scope = True


@final
@dataclass(frozen=True, slots=True)
class WeightClipping(Mechanism):
    """After each step a weight above its radius is scaled down to it; bounds are taken at the
    current weights, which are public, and change from step to step."""

    kind = "weight-clipping"
    said = "weight-clipping: after each step weights above their radius are scaled to it"
    weights = "stepwise"

    @property
    def text(self) -> str:
        """With what becomes of the weights, which bounds at those of the file depend on."""
        return (
            "Gradients are what backpropagation finds; after every step, training scales tensors "
            "that exceed their constraint down to it."
        )


@final
@dataclass(frozen=True, slots=True)
class FixedWeightNorm(Mechanism):
    """After each step every weight is scaled to its radius, up or down. Bounds hold for the whole
    run: the sphere is part of the ball."""

    kind = "fixed-weight-norm"
    said = "fixed-weight-norm: after each step weights are scaled to their radius"
    weights = "held"
    scales_up = True


@final
@dataclass(frozen=True, slots=True)
class BackpropClipping(Mechanism):
    """Clips round layers, example by example. Weights are free.

    A layer, the steps from the first of its ends to the second, reads x·min(1, β/‖x‖) in place of
    x; at its output the gradient g becomes g·min(1, C/|g|) before it goes on into the layer.
    input_clip: β of every layer; None: those of the layers, of which one without clips nothing that
    it reads. cotangent_clip: C of every layer; None: those of the layers. conv_clip: |g| is
    √Σ_c (Σ_i |g_ci|)² for layers with a convolution ("l1.5"), or the Euclidean norm everywhere
    ("l2"). layers: empty until the network is known. ValueError where a layer has no C, or a radius
    besides that of all.
    """

    kind = "backprop-clipping"
    said = (
        "backprop-clipping: each trained layer's input is clipped to {input_clip:.12g}, its "
        "cotangent to {cotangent_clip:.12g} (convolutions: {conv_clip})"
    )
    weights = "free"
    gradient = "what clipped backpropagation finds as the gradient of its loss"
    output = "the output of the network whose layers clip what they read"
    tables = ("input_clips", "cotangent_clips")
    input_clip: Bound | None = None
    cotangent_clip: Bound | None = None
    conv_clip: ConvClipName = "l1.5"
    layers: tuple[ClippedLayer, ...] = field(default=(), metadata=member(apart=True))

    def __post_init__(self) -> None:
        for layer in self.layers:
            if self.input_clip is not None and layer.input_clip is not None:
                raise ValueError("a layer clips its input to a radius besides that of all")
            if (self.cotangent_clip is None) is (layer.cotangent_clip is None):
                raise ValueError("a layer clips its cotangent to no radius, or to two")

    def around(self, layers: Sequence[ClippedLayer]) -> Self:
        """These clips round layers, each of which states its radii; one of all is said once."""
        if not layers:
            return self
        reads, receives = (
            found.pop() if len(found) == 1 else None
            for found in (
                {layer.input_clip for layer in layers},
                {layer.cotangent_clip for layer in layers},
            )
        )
        own = (
            ClippedLayer(
                *layer.ends,
                input_clip=layer.input_clip if reads is None else None,
                cotangent_clip=layer.cotangent_clip if receives is None else None,
            )
            for layer in layers
        )
        return replace(self, input_clip=reads, cotangent_clip=receives, layers=tuple(own))

    @property
    def is_by_channel(self) -> bool:
        """Whether gradients at convolutions are clipped in the norm over channels."""
        return self.conv_clip == "l1.5"

    def input_radius(self, layer: ClippedLayer) -> float | None:
        """To which the layer clips what it reads; None: not at all."""
        return layer.input_clip if self.input_clip is None else self.input_clip

    def cotangent_radius(self, layer: ClippedLayer) -> float:
        """To which the layer clips the gradient at its output."""
        return min(c for c in (self.cotangent_clip, layer.cotangent_clip) if c is not None)

    @property
    def _clips_inputs(self) -> bool:
        return any(self.input_radius(layer) is not None for layer in self.layers)

    @property
    def text(self) -> str:
        """With both radii, or with where they stand."""
        reads, clip = "", "the radius stated there"
        if self.input_clip is not None:
            reads = f"what it reads to the Euclidean norm {self.input_clip!r}, and "
        elif self._clips_inputs:
            reads = (
                "what it reads to the Euclidean norm stated there, or not at all where none is "
                "stated, and "
            )
        if self.cotangent_clip is not None:
            clip = repr(self.cotangent_clip)
        return (
            f"Every layer of {LAYERS} clips, example by example, {reads}the gradient at its "
            f"output, before that enters the layer, to {clip} {_NORMS[self.conv_clip]}."
            f"{'' if reads else ' What it reads is not clipped.'}"
        )

    def record(self) -> dict[str, Any]:
        """With the layers, where they have radii of their own."""
        found = Mechanism.record(self)
        if self.cotangent_clip is None or (self.input_clip is None and self._clips_inputs):
            found["layers"] = [_given(asdict(layer)) for layer in self.layers]
        return found

    @classmethod
    def words(cls, record: Mapping[str, Any]) -> str:
        """With how many layers have which radius, where that is not one for all."""
        if "input_clip" in record and "cotangent_clip" in record:
            return cls.said.format_map(record)
        layers = [dict(layer) for layer in record.get("layers", ())]

        def radii(name: str) -> str:
            if name in record:
                return f"to {record[name]:.12g}"
            counts = Counter(layer.get(name) for layer in layers).items()
            said = {r: "not at all" if r is None else f"to {r:.12g}" for r, _ in counts}
            many = (f"{said[r]} at {count} layer{'s' * (count > 1)}" for r, count in counts)
            return ", ".join(many) or "not at all"

        return (
            f"{cls.kind}: each trained layer's cotangent is clipped {radii('cotangent_clip')} "
            f"(convolutions: {record['conv_clip']}), its input {radii('input_clip')}"
        )

    def entries(self) -> tuple[Assumption, ...]:
        """With the layers, in an entry of their own."""
        places = f"The layers that clip are the {len(self.layers)} listed, from input to output."
        listed = declared(LAYERS, places, written(_Layers(self.layers)))
        return (*Mechanism.entries(self), listed)


@final
@dataclass(frozen=True, slots=True)
class GradientClipping(Mechanism):
    """The gradient of every example is scaled down to norm `clip_norm`. Weights are free."""

    kind = "gradient-clipping"
    said = "gradient-clipping to {clip_norm:.12g} ({clip_scope}, weight decay {decay})"
    weights = "free"
    gradient = "the clipped gradient of its loss"
    clips_gradients = True
    clip_norm: Bound
    clip_scope: ClipScopeName = "flat"
    decay: DecayName = "decoupled"

    @property
    def text(self) -> str:
        """The text of A-MECHANISM, with the radius."""
        return (
            f"The gradient of every example is clipped to {self.clip_norm!r} ({self.clip_scope}), "
            f"decay {self.decay}."
        )


MECHANISMS: Final[Mapping[str, type[Mechanism]]] = MappingProxyType({
    found.kind: found
    for found in (Unchanged, Clipless, WeightClipping, FixedWeightNorm, BackpropClipping,
                  GradientClipping)
})  # fmt: skip


def is_stepwise(record: Mapping[str, object]) -> bool:
    """Whether the mechanism of a record takes bounds at the weights that a step starts from."""
    found = MECHANISMS.get(str(record.get("kind")))
    return found is not None and found.weights == "stepwise"


def names_of(mechanism: type[Mechanism]) -> dict[str, bool]:
    """What training enforces, by the names of the settings, and whether it has a default."""
    own = {item.name: item for item in fields(mechanism) if not item.metadata}
    return {name: item.default is not MISSING for name, item in own.items()}


def read_mechanism(known: Mapping[str, Mapping[str, object]]) -> Mechanism:
    """From the data of A-MECHANISM and, where layers clip, A-LAYERS."""
    data = dict(known[MECHANISM])
    found = chosen(MECHANISMS, data.pop("kind", None), f"{MECHANISM}.kind")
    if found is not BackpropClipping:
        return read(found, data, MECHANISM)
    if LAYERS not in known:
        raise CertificateFormatError(f"the assumption {LAYERS} is missing")
    listed = read(_Layers, known[LAYERS], LAYERS).layers
    return read(found, data, MECHANISM, layers=listed)


def _given(members: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is not given."""
    return {name: value for name, value in members.items() if value is not None}


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
