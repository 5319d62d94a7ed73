"""Certificate: what is claimed of a model, under which assumptions, and what helps to check it.

Writes records as the bytes of a file and reads them back; the two are inverse to each other.
Numbers are exact: bounds are float64, probabilities rational.

    certificate = schema tool model scope assumptions nodes witnesses outputs [privacy]

A claim that is absent is not made. Nothing here is believed by the checker except what it says is
assumed: claims are derived again, and witnesses only show how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Final, Literal, TypeVar, final

from lipcert.core.canonical import (
    FORMS,
    MAX_INTEGER,
    CanonicalFormError,
    Json,
    read_canonical,
    write_canonical,
)
from lipcert.core.codec import Bound, Codec, Inside, Sha256, member

SCHEMA: Final = "lipcert.certificate/1"
"""the number is that of the grammar; another one is another grammar"""
SEMANTICS: Final = "lipcert-ir/1"

_T = TypeVar("_T")


@final
class CertificateFormatError(ValueError):
    """A certificate that does not say what certificates say: where, and why."""


@final
@dataclass(frozen=True, slots=True)
class Tool:
    """What wrote the certificate. Documentary: never trusted."""

    name: str
    version: str


@final
@dataclass(frozen=True, slots=True)
class ExternalFile:
    """A file beside the model that holds some of its tensors."""

    location: str
    sha256: Sha256
    size: int


@final
@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which model: its file, and what it computes.

    structure: a digest that survives saving the model again, but no change of what it computes.
    output: the output that the loss reads; outputs: those of a sum of losses, in its order.
    """

    sha256: Sha256
    size: int
    external: tuple[ExternalFile, ...]
    structure: Sha256
    semantics: str
    opset: Mapping[str, int]
    output: str | None
    outputs: tuple[str, ...] = field(default=(), metadata=member(optional=True))

    @property
    def read_outputs(self) -> tuple[str, ...]:
        """Every output that the loss reads."""
        return self.outputs if self.output is None else (self.output, *self.outputs)


@final
@dataclass(frozen=True, slots=True)
class Constraint:
    """‖tensor‖ ≤ radius throughout training; kind: "spectral" (of the op) or "frobenius"."""

    tensor: str
    kind: str
    radius: Bound


@final
@dataclass(frozen=True, slots=True)
class ScopeClaim:
    """For which weights: kind "point" (those of the file) or "constraint-set".

    trained: the tensors that training may change; all others keep the values of the file.
    """

    kind: str
    trained: tuple[str, ...]
    constraints: tuple[Constraint, ...]


@final
@dataclass(frozen=True, slots=True)
class Assumption:
    """One thing that the claims depend on.

    status: "checked" (the checker has established it), or "declared" (somebody says so). text:
    what `data` means in words, which the checker writes itself and compares.
    """

    id: str
    status: str
    text: str
    data: Mapping[str, object]


@final
@dataclass(frozen=True, slots=True)
class NormClaim:
    """‖linear part of the step‖₂ ≤ bound, and which route proves it.

    method: "dense", "windows", "absolute", "explicit" or "torus"; twists, counts: of a torus.
    """

    bound: Bound
    method: str
    twists: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class ValueClaim:
    """Bounds of a value of one example, and of its cotangent ∂loss/∂value; None: not claimed.

    operator_norm: of the linear map of the step that computes the value.
    """

    value: str
    rule: str
    output_norm: Bound | None
    cotangent_norm: Bound | None
    operator_norm: NormClaim | None = None


@final
@dataclass(frozen=True, slots=True)
class NodeClaim:
    """A node of the model: what it is, what became of it, and claims about what it computes.

    role: "step", "part" (of what a later node ends), "constant" or "unused". inputs, parameters:
    what it reads, apart from and among the initializers.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    outputs: tuple[str, ...]
    role: str
    claims: tuple[ValueClaim, ...]


@final
@dataclass(frozen=True, slots=True)
class ChainWitness:
    """Numbers that prove something of the steps from one value up to another.

    use: "values" (how far the upper value is from that of one input) or "cotangents" (what the
    lower one receives): a quadratic form is proved. multipliers: one list per step that acts entry
    by entry, and per round of a step that picks or orders entries, from below; one number per
    entry. Or use is "raised" (how long a ReLU is), with p, q and τ of `forms.raised`.
    """

    use: str
    start: str
    stop: str
    multipliers: tuple[Annotated[tuple[Bound, ...], Inside("entries")], ...]


@final
@dataclass(frozen=True, slots=True)
class RunWitness:
    """The norm of steps in a row as one linear map. values: what they compute, in order."""

    values: tuple[str, ...]
    norm: NormClaim


@final
@dataclass(frozen=True, slots=True)
class ParameterClaim:
    """‖∂loss/∂parameter‖₂ ≤ grad_norm for one example. tensor: its initializer in the file."""

    name: str
    tensor: str
    grad_norm: Bound


@final
@dataclass(frozen=True, slots=True)
class GroupClaim:
    """Parameters noised together: their joint gradient bound, its sensitivity, and the noise."""

    name: str
    parameters: tuple[str, ...]
    dimension: int
    grad_norm: Bound
    sensitivity: Bound
    noise_std: Bound


@final
@dataclass(frozen=True, slots=True)
class NetworkClaim:
    """Bounds of the whole network; None: not claimed. noise_multiplier: of the whole release."""

    lipschitz: Bound | None
    grad_norm: Bound | None
    sensitivity: Bound | None
    noise_multiplier: Bound | None


@final
@dataclass(frozen=True, slots=True)
class PrivacyClaim:
    """The run of the assumptions is (epsilon, delta)-differentially private.

    status: "recomputed" (the checker derives an ε that is no larger) or "declared".
    """

    accountant: str
    epsilon: Bound
    delta: Fraction
    status: str


@final
@dataclass(frozen=True, slots=True)
class Certificate:
    """All of it. nodes: every node of the model exactly once, in an order of computation."""

    tool: Tool
    model: ModelIdentity
    scope: ScopeClaim
    assumptions: tuple[Assumption, ...]
    input: ValueClaim
    nodes: tuple[NodeClaim, ...]
    chains: tuple[ChainWitness, ...] = field(metadata=member("witnesses.chains"))
    runs: tuple[RunWitness, ...] = field(metadata=member("witnesses.runs"))
    parameters: tuple[ParameterClaim, ...] = field(metadata=member("outputs.parameters"))
    groups: tuple[GroupClaim, ...] = field(metadata=member("outputs.groups"))
    network: NetworkClaim = field(metadata=member("outputs.network"))
    privacy: PrivacyClaim | None = None
    schema: Literal["lipcert.certificate/1"] = SCHEMA


_CODEC: Final = Codec(CertificateFormatError, FORMS, largest=MAX_INTEGER)


def read_certificate(data: bytes) -> Certificate:
    """The certificate in these bytes; `CertificateFormatError` where there is none."""
    try:
        value = read_canonical(data)
    except CanonicalFormError as error:
        raise CertificateFormatError(str(error)) from None
    return _CODEC.read(Certificate, value, "certificate")


def write_certificate(certificate: Certificate) -> bytes:
    """The bytes that `read_certificate` reads back; `CanonicalFormError` where it is too large."""
    return write_canonical(_CODEC.write(certificate))


def written(record: object) -> dict[str, Json]:
    """A record as it stands in a certificate."""
    members: dict[str, Json] = _CODEC.write(record)
    return members


def chosen(choices: Mapping[str, _T], value: object, where: str) -> _T:
    """What a word of a certificate names."""
    return _CODEC.chosen(choices, value, where)


def read(kind: type[_T], value: object, where: str, **apart: object) -> _T:
    """The record of this type that stands in a certificate."""
    return _CODEC.read(kind, value, where, **apart)
