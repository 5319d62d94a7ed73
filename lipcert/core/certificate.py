"""Certificate: claims about a model, their assumptions, and evidence that helps to check them.

This module reads the records from the bytes of a file; `text.certificate` writes them, and the two
are inverse to each other. Numbers are exact: bounds are float64, probabilities rational.

    certificate = schema tool model scope assumptions lines outputs [privacy]

An absent claim is not made. The checker believes only the assumptions: it evaluates each line from
the lines before it, and the claims from the lines.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

from lipcert.core.canonical import MAX_BYTES, READERS, CanonicalFormError, read_canonical
from lipcert.core.codec import Bound, Codec, CodecError, Sha256, member
from lipcert.core.line import RULES, Line

SCHEMA: Final = "lipcert.certificate/3"
"""The number is the version of the grammar."""
_EARLIER: Final = ("lipcert.certificate/1", "lipcert.certificate/2")
SEMANTICS: Final = "lipcert-ir/1"

_T = TypeVar("_T")


class CertificateFormatError(ValueError):
    """The content is not a certificate; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Tool:
    """The program that wrote the certificate. For documentation only: never trusted."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class ExternalFile:
    """A file beside the model that holds some of its tensors."""

    location: str
    sha256: Sha256
    size: int


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which model: its file, and what it computes.

    structure: a digest that stays the same when the model is saved again, and changes when its
    computation changes. output: the output that the loss reads. outputs: those of a sum of losses,
    in its order.
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


@dataclass(frozen=True, slots=True)
class Constraint:
    """‖tensor‖ ≤ radius throughout training; kind: "spectral" (of the op) or "frobenius"."""

    tensor: str
    kind: str
    radius: Bound


@dataclass(frozen=True, slots=True)
class ScopeClaim:
    """The weights that claims apply to: kind "point" (those of the file) or "constraint-set".

    trained: the tensors that training may change; all others keep the values of the file.
    """

    kind: str
    trained: tuple[str, ...]
    constraints: tuple[Constraint, ...]


@dataclass(frozen=True, slots=True)
class Assumption:
    """One statement that the claims depend on.

    status: "checked" (the checker has established it), or "declared" (it is only asserted).
    """

    id: str
    status: str
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ParameterClaim:
    """‖∂loss/∂parameter‖₂ ≤ grad_norm for one example. tensor: its initializer in the file."""

    name: str
    tensor: str
    grad_norm: Bound


@dataclass(frozen=True, slots=True)
class GroupClaim:
    """Parameters noised together: their joint gradient bound, its sensitivity, and the noise."""

    name: str
    parameters: tuple[str, ...]
    dimension: int
    grad_norm: Bound
    sensitivity: Bound
    noise_std: Bound


@dataclass(frozen=True, slots=True)
class NetworkClaim:
    """Claims about the whole network; None: not claimed. noise_multiplier: of the whole release."""

    lipschitz: Bound | None
    grad_norm: Bound | None
    sensitivity: Bound | None
    noise_multiplier: Bound | None


@dataclass(frozen=True, slots=True)
class PrivacyClaim:
    """The run of the assumptions is (epsilon, delta)-differentially private.

    status: "recomputed" (the checker derives an ε that is no larger) or "declared".
    """

    accountant: str
    epsilon: Bound
    delta: Fraction
    status: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """A whole certificate. lines: in the order of a proof; each follows from those before it."""

    tool: Tool
    model: ModelIdentity
    scope: ScopeClaim
    assumptions: tuple[Assumption, ...]
    lines: tuple[Line[Any], ...]
    parameters: tuple[ParameterClaim, ...] = field(metadata=member("outputs.parameters"))
    groups: tuple[GroupClaim, ...] = field(metadata=member("outputs.groups"))
    network: NetworkClaim = field(metadata=member("outputs.network"))
    privacy: PrivacyClaim | None = None
    schema: Literal["lipcert.certificate/3"] = SCHEMA


def _read_line(value: Any) -> Line[Any]:
    """Read a line as the record of its rule."""
    rule = value.get("rule") if type(value) is dict else None
    if type(rule) is not str or rule not in RULES:
        raise CodecError("is not a line of a known rule")
    own = {name: item for name, item in value.items() if name != "rule"}
    return cast("Line[Any]", _CODEC.reader(RULES[rule])(own))


_CODEC: Final[Codec] = Codec(CertificateFormatError, {**READERS, Line[Any]: _read_line})


def read_certificate(data: bytes) -> Certificate:
    """Return the certificate in these bytes; raise `CertificateFormatError` if there is none."""
    try:
        value = read_canonical(data)
    except CanonicalFormError as error:
        raise CertificateFormatError(str(error)) from None
    if type(value) is dict and value.get("schema") in _EARLIER:
        raise CertificateFormatError(
            f"it has the schema {value['schema']} of earlier releases: issue it again with "
            "`lipcert certify`"
        )
    return _CODEC.read(Certificate, value, "certificate")


def read(kind: type[_T], value: object, where: str, **apart: object) -> _T:
    """Read a record of this type from a value in a certificate."""
    return _CODEC.read(kind, value, where, **apart)


class CertificateFileError(ValueError):
    """The file of a certificate cannot be read."""


def read_certificate_file(path: Path) -> bytes:
    """Return the bytes of a regular file, at most one more than a certificate may have."""
    return read_regular(path, MAX_BYTES + 1, CertificateFileError)


def read_regular(path: Path, most: int, error: type[ValueError]) -> bytes:
    """Return at most this many bytes of a regular file; raise an error at once for any other."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            content = file.read(most) if is_regular else b""
    except (OSError, ValueError):
        raise error(f"{str(path)!a} cannot be read") from None
    if not is_regular:
        raise error(f"{str(path)!a} is not a regular file")
    return content
