"""Write certificates: the bytes that the core reads, and the data of the assumptions."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from lipcert.core.canonical import MAX_DIGITS, READERS, Json, Parameters, write_canonical
from lipcert.core.certificate import Assumption, Certificate, CertificateFormatError
from lipcert.core.codec import CodecError, same
from lipcert.core.ledger import LAYERS, SAMPLING
from lipcert.core.ledger.mechanism import MECHANISM
from lipcert.core.ledger.premises import Circumstances, Premises, Stated
from lipcert.core.line import Line
from lipcert.text.codec import Codec, Form


def write_certificate(certificate: Certificate) -> bytes:
    """Return the bytes that `read_certificate` reads back; `CanonicalFormError` if too large."""
    return write_canonical(written(certificate))


def written(record: object) -> dict[str, Json]:
    """Return a record as it is written in a certificate."""
    members: dict[str, Json] = _CODEC.write(record)
    return members


def assumptions_of(
    premises: Premises, certificate: Certificate, known: Circumstances
) -> tuple[Assumption, ...]:
    """Return the ledger of a certificate with these premises, and the data that state them."""
    return premises.assumptions(certificate, known, stated_data(premises))


def stated_data(premises: Premises) -> dict[str, Mapping[str, object]]:
    """Return the data that state the premises, by the names of their assumptions."""
    mechanism, divisor = premises.mechanism, premises.divisor
    found: dict[str, Mapping[str, object]] = {
        **_CODEC.write(premises, Stated),
        MECHANISM: {"kind": mechanism.kind, **written(mechanism)},
        "A-GRAD-AGG": {"reduction": "sum"},
    }
    if divisor is not None:
        found["A-GRAD-AGG"] = {"reduction": "mean", "divisor": divisor}
    if premises.layer_clip is not None:
        found[LAYERS] = {"layers": [written(layer) for layer in premises.layer_clip.layers]}
    if premises.run is not None:
        found[SAMPLING] = written(premises.run)
    return found


def write_float(number: float) -> str:
    """Return the spelling of a finite float64 that the core reads."""
    if not math.isfinite(number):
        raise CodecError(f"{number!r} has no spelling in a certificate")
    return (number + 0.0).hex()  # -0.0 + 0.0 is 0.0


def write_rational(number: Fraction) -> list[str]:
    """Return the two strings that the core reads."""
    if number < 0 or max(number.numerator, number.denominator) >= 10**MAX_DIGITS:
        raise CodecError("a rational number is negative or has too many digits")
    return [str(number.numerator), str(number.denominator)]


def _write_parameters(given: Parameters) -> dict[str, str]:
    return {name: x if isinstance(x, str) else write_float(x) for name, x in given}


FORMS: Final[Mapping[object, Form]] = {
    float: Form(write_float, READERS[float]),
    Parameters: Form(_write_parameters, READERS[Parameters]),
    bool: Form({True: "true"}.__getitem__, READERS[bool]),
    Fraction: Form(write_rational, READERS[Fraction]),
}
"""Numbers and words of a certificate; a false flag is left out."""
_LINE: Final = Form(lambda line: {"rule": line.rule, **written(line)}, same)
_CODEC: Final = Codec(CertificateFormatError, {**FORMS, Line[Any]: _LINE})
"""Writes and reads records of a certificate; the class of a line is written as its rule."""
