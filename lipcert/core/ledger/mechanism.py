"""Mechanisms: how training limits the influence of one example.

One class per mechanism declares everything that the ledger, the derivation, settings, reports,
training and audits need; its fields are what training enforces, named as in the settings.
Invariant: a record holds everything that bounds depend on besides the network, the weights and
their constraints.

Some mechanisms constrain the *weights* (`updates`); backpropagation clipping (Stevens et al.,
2022) clips each layer's input and cotangent (`layer_clipping`); gradient clipping clips the
gradient itself.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Final, Literal, Self

from lipcert.core.certificate import CertificateFormatError, read
from lipcert.core.registry import Registry

MECHANISM: Final = "A-MECHANISM"


@dataclass(frozen=True, slots=True)
class Mechanism:
    """What training does in addition to backpropagation and the steps of an optimizer."""

    kind: ClassVar[str]
    """The name of the mechanism in settings and certificates."""
    said: ClassVar[str]
    """A text for reports on what it enforces, with fields in braces."""
    weights: ClassVar[Literal["given", "held", "stepwise", "free"]]
    """For which weights bounds hold.

    given: those of the file, or all within the constraints. held: all within the constraints, where
    the weights are after every step. stepwise: as for held, but bounds are computed at the weights
    that a step starts from, which are public. free: gradients are bounded whatever the weights and
    inputs are."""
    gradient: ClassVar[str] = "the gradient of its loss"
    """The quantity of an example that is bounded."""
    output: ClassVar[str] = "the output"
    """The quantity that has the Lipschitz constant."""
    tables: ClassVar[tuple[str, ...]] = ()
    """Settings with one value for each layer, which become part of what training enforces."""
    acts: ClassVar[bool] = True
    """Whether training does anything besides backpropagation and the steps of an optimizer."""
    clips_layers: ClassVar[bool] = False
    """Whether layers clip inputs and cotangents; training then runs a different program."""
    clips_gradients: ClassVar[bool] = False
    """Whether the gradient of every example is clipped, however the network computes it."""
    scales_up: ClassVar[bool] = False
    """Whether weights below their radius are scaled up to it, besides scaling others down."""
    fills_scope: ClassVar[bool] = False
    """Whether training may reach all weights of the scope and uses plain backpropagation there, so
    that one example with a larger gradient refutes a bound."""

    @classmethod
    def holds_weights(cls) -> bool:
        """Whether the weights lie within their constraints after every step."""
        return cls.weights in {"held", "stepwise"}

    def record(self) -> dict[str, Any]:
        """Return kind and fields, without those that are None."""
        return given({"kind": self.kind} | {n: getattr(self, n) for n in names_of(type(self))})

    @classmethod
    def words(cls, record: Mapping[str, Any]) -> str:
        """Return a record in words; KeyError, TypeError or ValueError if it is not a record."""
        return cls.said.format_map(record)

    @classmethod
    def read(cls, known: Mapping[str, Mapping[str, object]]) -> Self:
        """Read the mechanism from the data of a certificate's assumptions."""
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
    "updates": "clipless weight-clipping fixed-weight-norm",
    "layer_clipping": "backprop-clipping",
    "updates.GradientClipping": "gradient-clipping",
}, lambda kind: kind.title().replace("-", ""))  # fmt: skip
"""The class of each kind."""


def names_of(mechanism: type[Mechanism]) -> dict[str, bool]:
    """Return the names of the settings that training enforces; True if one has a default."""
    own = {item.name: item for item in fields(mechanism) if not item.metadata}
    return {name: item.default is not MISSING for name, item in own.items()}


def read_mechanism(known: Mapping[str, Mapping[str, object]]) -> Mechanism:
    """Read the mechanism, of any kind, from the data of a certificate's assumptions."""
    kind = known[MECHANISM].get("kind")
    if not isinstance(kind, str) or kind not in MECHANISMS:
        raise CertificateFormatError(
            f"{MECHANISM}.kind is not {' or '.join(map(repr, MECHANISMS))}"
        )
    return MECHANISMS[kind].read(known)


def own_data(known: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """Return what A-MECHANISM states besides the kind."""
    return {name: value for name, value in known[MECHANISM].items() if name != "kind"}


def given(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that are not None."""
    return {name: value for name, value in members.items() if value is not None}
