"""Backpropagation clipping, layer by layer (Stevens et al., 2022)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias

from lipcert.core.certificate import CertificateFormatError, read
from lipcert.core.codec import Bound, member
from lipcert.core.ledger import LAYERS
from lipcert.core.ledger.mechanism import MECHANISM, Mechanism, given, own_data

ConvClipName = Literal["l1.5", "l2"]
"""l1.5: cotangents of convolutions have the norm √Σ_c (Σ_i |g_ci|)², c the channel; l2: ‖g‖₂."""
LayerEnds: TypeAlias = tuple[str, str]
"""The value that a layer reads, and the value that it computes."""


@dataclass(frozen=True, slots=True)
class ClippedLayer:
    """A layer that clips: the value that it reads, the value that it computes, and its own radii.

    A radius None stands for the radius of all layers; if there is no such radius for inputs, the
    layer does not clip its input.
    """

    input: str
    output: str
    input_clip: Bound | None = None
    cotangent_clip: Bound | None = None

    @property
    def ends(self) -> LayerEnds:
        """The value that the layer reads, and the value that it computes."""
        return self.input, self.output


@dataclass(frozen=True, slots=True)
class _Layers:
    layers: tuple[ClippedLayer, ...]


@dataclass(frozen=True, slots=True)
class BackpropClipping(Mechanism):
    """Layers clip their inputs and cotangents, example by example. Weights are free.

    A layer consists of the steps from the first of its ends to the second. It reads
    x·min(1, β/‖x‖) in place of x; at its output the gradient g is replaced by g·min(1, C/|g|)
    before it enters the layer.

    input_clip: β of every layer. If it is None, each layer has its own, and a layer without one
        does not clip its input.
    cotangent_clip: C of every layer. If it is None, each layer has its own.
    conv_clip: "l1.5": |g| is √Σ_c (Σ_i |g_ci|)² for layers with a convolution, else Euclidean;
        "l2": |g| is Euclidean everywhere.
    layers: empty until the network is known.

    Raise ValueError if a layer has no C, or has a radius although all layers have one.
    """

    kind = "backprop-clipping"
    weights = "free"
    gradient = "what clipped backpropagation finds as the gradient of its loss"
    output = "the output of the network whose layers clip what they read"
    clips_layers = True
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
        """Return this mechanism for layers that state their radii; a common one is stated once."""
        if not layers:
            return self
        radii: dict[str, Any] = {"input_clip": None, "cotangent_clip": None}
        alike = [n for n in radii if len({getattr(layer, n) for layer in layers}) == 1]
        none: dict[str, Any] = dict.fromkeys(alike)
        own = tuple(replace(layer, **none) for layer in layers)
        radii |= {name: getattr(layers[0], name) for name in alike}
        return replace(self, layers=own, **radii)

    @property
    def is_by_channel(self) -> bool:
        """Whether gradients at convolutions are clipped in the norm over channels."""
        return self.conv_clip == "l1.5"

    def input_radius(self, layer: ClippedLayer) -> float | None:
        """Return the radius to which the layer clips its input; None if it does not clip it."""
        return layer.input_clip if self.input_clip is None else self.input_clip

    def cotangent_radius(self, layer: ClippedLayer) -> float:
        """Return the radius to which the layer clips the gradient at its output."""
        return min(c for c in (self.cotangent_clip, layer.cotangent_clip) if c is not None)

    def record(self) -> dict[str, Any]:
        """Return kind and fields, and the layers if they have their own radii."""
        found = Mechanism.record(self)
        reads = {self.input_radius(layer) for layer in self.layers} - {None}
        if self.cotangent_clip is None or (self.input_clip is None and reads):
            found["layers"] = [given(asdict(layer)) for layer in self.layers]
        return found

    @classmethod
    def words(cls, record: Mapping[str, Any]) -> str:
        """Return the text for reports; it counts layers by radius if they differ."""
        layers = [dict(layer) for layer in record.get("layers", ())]

        def radii(name: str) -> str:
            if name in record:
                return f"to {record[name]!r}"
            counts = Counter(layer.get(name) for layer in layers).items()
            said = {r: "not at all" if r is None else f"to {r!r}" for r, _ in counts}
            many = (f"{said[r]} at {count} layer{'s' * (count > 1)}" for r, count in counts)
            return ", ".join(many) or "not at all"

        return (
            f"{cls.kind}: each trained layer's cotangent is clipped {radii('cotangent_clip')} "
            f"(convolutions: {record['conv_clip']}), its input {radii('input_clip')}"
        )

    @classmethod
    def read(cls, known: Mapping[str, Mapping[str, object]]) -> Self:
        """Read the mechanism, and its layers from the data of A-LAYERS."""
        if LAYERS not in known:
            raise CertificateFormatError(f"the assumption {LAYERS} is missing")
        listed = read(_Layers, known[LAYERS], LAYERS).layers
        return read(cls, own_data(known), MECHANISM, layers=listed)
