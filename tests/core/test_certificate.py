"""Certificates as records: what is written is read back, and nothing in a file is ignored."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.canonical import Json, write_canonical
from lipcert.core.certificate import (
    Assumption,
    Certificate,
    CertificateFormatError,
    ChainWitness,
    Constraint,
    ExternalFile,
    GroupClaim,
    ModelIdentity,
    NetworkClaim,
    NodeClaim,
    NormClaim,
    ParameterClaim,
    PrivacyClaim,
    RunWitness,
    ScopeClaim,
    Tool,
    ValueClaim,
    read_certificate,
    write_certificate,
)
from tests.core.generated import values_of
from tests.core.test_canonical import VALUES

NORM = NormClaim(1.5, "torus", (0, 1), (16, 16))
VALUE = ValueClaim("y", "conv/1", 2.0, 0.1, NORM)
SAMPLE = Certificate(
    tool=Tool("lipcert", "0.1.0"),
    model=ModelIdentity(
        "a" * 64, 10, (ExternalFile("w", "b" * 64, 3),), "c" * 64, "lipcert-ir/1", {"": 20}, "y"
    ),
    scope=ScopeClaim("constraint-set", ("w",), (Constraint("w", "spectral", 1.0),)),
    assumptions=(Assumption("A-INPUT", "declared", "words", {"norm": "0x1.0000000000000p+0"}),),
    input=ValueClaim("x", "input/1", 1.0, None),
    nodes=(NodeClaim("n", "Conv", ("x",), ("w",), ("y",), "step", (VALUE,)),),
    chains=(ChainWitness("values", "x", "y", ((0.5, 1.0), (2.0,))),),
    runs=(RunWitness(("y", "z"), NORM),),
    parameters=(ParameterClaim("w", "w", 1.0),),
    groups=(GroupClaim("g", ("w",), 9, 1.0, 0.5, 0.25),),
    network=NetworkClaim(1.0, 2.0, 3.0, 4.0),
    privacy=PrivacyClaim("pld", 3.0, Fraction(1, 100000), "recomputed"),
)
OPTIONAL = {"privacy", "lipschitz", "grad_norm", "sensitivity", "noise_multiplier"}
OPTIONAL |= {"output_norm", "cotangent_norm", "operator_norm"}
REQUIRED = (("outputs", "parameters"), ("outputs", "groups"))
"""where a bound is a claim, it may be left out; a parameter or group is listed for its bounds"""
DATA = {"data", "opset"}
"""objects whose members are data"""

Path = tuple[str | int, ...]


def document() -> dict[str, Json]:
    found = json.loads(write_certificate(SAMPLE))
    assert isinstance(found, dict)
    return found


def objects(value: Json, path: Path = ()) -> Iterator[tuple[Path, dict[str, Json]]]:
    items: list[tuple[str | int, Json]] = []
    if isinstance(value, dict):
        yield path, value
        items = [(name, member) for name, member in value.items() if name not in DATA]
    elif isinstance(value, list):
        items = list(enumerate(value))
    for name, member in items:
        yield from objects(member, (*path, name))


PLACES = [path for path, _ in objects(document())]
MEMBERS = [(path, name) for path, found in objects(document()) for name in found]


def at(root: Json, path: Path) -> dict[str, Json]:
    for step in path:
        root = root[step]  # type: ignore[index,call-overload]
    assert isinstance(root, dict)
    return root


def is_optional(path: Path, name: str) -> bool:
    return name in OPTIONAL and path[:2] not in REQUIRED


def test_the_sample_is_read_back() -> None:
    data = write_certificate(SAMPLE)
    assert read_certificate(data) == SAMPLE
    assert write_certificate(read_certificate(data)) == data


def test_an_unknown_member_is_refused_wherever_it_stands() -> None:
    for path in PLACES:
        root = document()
        at(root, path)["unheard-of"] = "x"
        with pytest.raises(CertificateFormatError, match="unheard-of"):
            read_certificate(write_canonical(root))


@pytest.mark.parametrize(("path", "name"), MEMBERS, ids=str)
def test_a_member_is_needed_unless_it_is_a_claim(path: Path, name: str) -> None:
    root = document()
    del at(root, path)[name]
    if is_optional(path, name) or (path, name) == (("model",), "output"):
        assert write_certificate(read_certificate(write_canonical(root))) == write_canonical(root)
        return
    with pytest.raises(CertificateFormatError, match=name):
        read_certificate(write_canonical(root))


@pytest.mark.parametrize("value", [True, -1, 1 << 53, "NaN\n", [[]], {"x": "y"}], ids=repr)
def test_a_member_of_another_type_is_refused_or_kept(value: Json) -> None:
    for path, name in MEMBERS:
        root = document()
        at(root, path)[name] = copy.deepcopy(value)
        data = write_canonical(root)
        try:
            found = read_certificate(data)
        except CertificateFormatError:
            continue
        assert write_certificate(found) == data, (path, name)


@pytest.mark.parametrize(
    "text",
    ["1.0", "0x1p+0", "0x1.0000000000000p+1024", "-0x1.0000000000000p+0", "inf", "nan", "1e3", ""],
)
def test_a_bound_has_one_spelling(text: str) -> None:
    for path, name in MEMBERS:
        if name in {"grad_norm", "bound", "radius", "epsilon", "output_norm"}:
            root = document()
            at(root, path)[name] = text
            with pytest.raises(CertificateFormatError, match=name):
                read_certificate(write_canonical(root))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'"x"', b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_certificate_is_refused(data: bytes) -> None:
    with pytest.raises(CertificateFormatError):
        read_certificate(data)


@pytest.mark.parametrize("schema", ["lipcert.certificate/2", "lipcert.certificate/1 ", ""])
def test_another_grammar_is_refused(schema: str) -> None:
    root = document()
    root["schema"] = schema
    with pytest.raises(CertificateFormatError, match="schema"):
        read_certificate(write_canonical(root))


@given(values_of(Certificate))
def test_every_certificate_is_read_back(certificate: Certificate) -> None:
    data = write_certificate(certificate)
    assert read_certificate(data) == certificate
    assert write_certificate(read_certificate(data)) == data


def lines(value: Json, path: Path = ()) -> Iterator[Path]:
    """The places of all values."""
    yield path
    for name, member in value.items() if isinstance(value, dict) else ():
        yield from lines(member, (*path, name))
    for index, member in enumerate(value if isinstance(value, list) else ()):
        yield from lines(member, (*path, index))


@given(values_of(Certificate), st.data())
def test_what_was_changed_is_refused_or_another_certificate(
    certificate: Certificate, data: st.DataObject
) -> None:
    """No two texts say the same: any value in the place of any other."""
    root = json.loads(write_certificate(certificate))
    *above, last = data.draw(st.sampled_from([path for path in lines(root) if path]))
    place = root
    for step in above:
        place = place[step]
    before = place[last]
    place[last] = data.draw(VALUES)
    try:
        found = read_certificate(write_canonical(root))
    except CertificateFormatError:
        return
    assert write_certificate(found) == write_canonical(root)
    assert (found == certificate) == (write_canonical([before]) == write_canonical([place[last]]))
