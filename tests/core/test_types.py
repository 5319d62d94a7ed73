"""Values of every type where another one belongs: a certificate is refused, with a reason."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from lipcert.core.canonical import CanonicalFormError, write_canonical
from lipcert.core.certificate import CertificateFormatError, read_certificate
from lipcert.core.check import Choices, check
from lipcert.core.ledger.premises import Premises
from lipcert.core.verdict import Verdict

FOLDER = Path(__file__).parents[1] / "conformance"
NAMES = (
    "perceptron",
    "constraint-set",
    "attention",
    "backprop-clipping",
    "gradient-clipping",
    "layer-clips",
    "residual",
)
OTHERS = (
    None, True, False, 0, 7, -1, 1 << 60, "", "x", "0x1.8000000000000p+0", [], ["x"], [0], [[]],
    [{}], {}, {"a": 0}, {"a": {}}, {"kind": []},
)  # fmt: skip
_MOST = 2
"""members of lists that are alike"""


def places(value, at=()):
    """Of everything in a value of JSON."""
    yield at
    if isinstance(value, dict | list):
        for name in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[name], (*at, name))


def exchanged(value, at, other):
    """A value of JSON with another one at a place."""
    if not at:
        return other
    found = value.copy()
    found[at[0]] = exchanged(found[at[0]], at[1:], other)
    return found


def changed(name: str):
    """Certificates with a value of another type at every place, as bytes."""
    whole = json.loads((FOLDER / "certificates" / f"{name}.json").read_bytes())
    alike = Counter()
    for at in places(whole):
        kind = tuple("*" if isinstance(step, int) else step for step in at)
        alike[kind] += 1
        if alike[kind] > _MOST:
            continue
        for other in OTHERS:
            found = exchanged(whole, at, other)
            try:
                yield at, other, write_canonical(found)
            except CanonicalFormError:
                plain = json.dumps(found, sort_keys=True, separators=(",", ":"))
                yield at, other, plain.encode()


@pytest.mark.parametrize("name", NAMES[:1])
def test_no_type_ends_in_an_exception(name: str) -> None:
    """It is read, or refused as a certificate that is none; every 24th change."""
    reasons = []
    for _, _, data in islice(changed(name), 0, None, 24):
        try:
            Premises.read(read_certificate(data).assumptions)
        except CertificateFormatError as error:
            reasons.append(str(error))
    assert len(reasons) > 37
    assert all(reasons)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_a_check_ends_with_a_verdict_and_a_reason(name: str) -> None:
    model = next(
        case["model"]
        for case in json.loads((FOLDER / "expected.json").read_bytes())
        if case["certificate"] == f"certificates/{name}.json"
    )
    for at, other, data in changed(name):
        report = check(data, FOLDER / model, Choices())
        reasons = [reason for stage in report.stages for reason in stage.reasons]
        assert reasons or report.verdict in {Verdict.VALID, Verdict.CONDITIONAL}, (at, other)
