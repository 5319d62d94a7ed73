"""Mechanisms: by which device training bounds what one example can move.

One class declares what the ledger, the derivation, settings, reports, training and audits must
know of a mechanism; its fields are what training enforces, under the names of the settings.
Invariant: a record holds everything that bounds depend on besides the network, the weights and
their constraints.

Some hold the *weights* (`held_weights`), backpropagation clipping (Stevens et al., 2022) holds each
layer's input and cotangent (`layer_clipping`), and gradient clipping the gradient itself.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Final, Literal, Self

from lipcert.core.certificate import CertificateFormatError, read
from lipcert.core.registry import Registry

MECHANISM: Final = "A-MECHANISM"


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
    clips_layers: ClassVar[bool] = False
    """whether layers clip what they read and receive, which makes another program of the network"""
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
        return given({"kind": self.kind} | {n: getattr(self, n) for n in names_of(type(self))})

    @classmethod
    def words(cls, record: Mapping[str, Any]) -> str:
        """A record as reports say it; KeyError, TypeError or ValueError where it is none."""
        return cls.said.format_map(record)

    @classmethod
    def read(cls, known: Mapping[str, Mapping[str, object]]) -> Self:
        """From the data of the assumptions of a certificate."""
        return read(cls, own_data(known), MECHANISM)


@dataclass(frozen=True, slots=True)
class Unchanged(Mechanism):
    """Gradients are bounded by the network itself."""

    kind = "none"
    said = "none: gradients are bounded by the network itself"
    weights = "given"
    acts = False
    fills_scope = True


MECHANISMS: Final[Mapping[str, type[Mechanism]]] = Registry("ledger", {
    "mechanism.Unchanged": "none",
    "held_weights.Clipless": "clipless",
    "held_weights.WeightClipping": "weight-clipping",
    "held_weights.FixedWeightNorm": "fixed-weight-norm",
    "layer_clipping.BackpropClipping": "backprop-clipping",
    "gradient_clipping.GradientClipping": "gradient-clipping",
})  # fmt: skip
"""the class of each kind"""


def names_of(mechanism: type[Mechanism]) -> dict[str, bool]:
    """What training enforces, by the names of the settings, and whether it has a default."""
    own = {item.name: item for item in fields(mechanism) if not item.metadata}
    return {name: item.default is not MISSING for name, item in own.items()}


def read_mechanism(known: Mapping[str, Mapping[str, object]]) -> Mechanism:
    """From the data of the assumptions of a certificate."""
    kind = known[MECHANISM].get("kind")
    if not isinstance(kind, str) or kind not in MECHANISMS:
        raise CertificateFormatError(
            f"{MECHANISM}.kind is not {' or '.join(map(repr, MECHANISMS))}"
        )
    return MECHANISMS[kind].read(known)


def own_data(known: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """What A-MECHANISM states besides the kind."""
    return {name: value for name, value in known[MECHANISM].items() if name != "kind"}


def given(members: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is not given."""
    return {name: value for name, value in members.items() if value is not None}
