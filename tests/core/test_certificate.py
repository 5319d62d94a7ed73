"""Certificates as records: what is written is read back, and nothing in a file is ignored."""

import json
from dataclasses import asdict, fields
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.canonical import Json, write_canonical
from lipcert.core.certificate import (
    Assumption,
    Certificate,
    CertificateFormatError,
    Constraint,
    ExternalFile,
    GroupClaim,
    ModelIdentity,
    NetworkClaim,
    ParameterClaim,
    PrivacyClaim,
    ScopeClaim,
    Tool,
    read_certificate,
)
from lipcert.core.line import RULES, Line
from lipcert.core.lines.attention import AttentionPull
from lipcert.core.lines.balls import BallFact, InputBall, NearFact
from lipcert.core.lines.chains import ChainForm, FormPull
from lipcert.core.lines.gains import GainFact
from lipcert.core.lines.kernels import KernelGradient
from lipcert.core.lines.moved_balls import MovedBall, ZeroFact
from lipcert.core.lines.norms import StepNorm
from lipcert.core.lines.products import ProductFact
from lipcert.core.lines.runs import AffineFact, RunNorm, RunPull
from lipcert.core.lines.signs import SignPull
from lipcert.core.lines.stacks import SliceFact, StackNorm, StackPull
from lipcert.core.lines.steps import InputFact, LossPull, StepFact, TensorGradient, ValuePull
from lipcert.core.lines.windows import WindowFact
from lipcert.text.certificate import write_certificate
from tests.core.generated import SCALARS, values_of
from tests.core.test_canonical import VALUES

LINES: tuple[Line[Any], ...] = (
    StepNorm(value="y", bound=1.5, method="torus", twists=(0, 1), counts=(16, 16)),
    RunNorm(values=("y", "z"), bound=1.5, method="dense"),
    StackNorm(values=("y", "z"), bound=1.5),
    InputFact(value="x", bound=1.0),
    InputBall(shares=(0.0, 0.5), bound=1.0),
    StepFact(value="y", step="conv/1", bound=2.0),
    AffineFact(value="z", values=("y", "z"), bound=2.0),
    GainFact(
        value="z",
        values=("y",),
        numbers=((0.5,), (1.0, 2.0), (3.0,)),
        gain=1.5,
        method="dense",
        bound=2.0,
    ),
    WindowFact(
        value="z",
        values=("y",),
        ties=((0.5,),),
        added=((0.0, 2.0),),
        levels=(1.0,),
        scales=(1.0, 2.0),
        shift=3.0,
        gain=4.0,
        method="torus",
        twists=(0, 1),
        counts=(16, 16),
        bound=2.0,
    ),
    ProductFact(
        value="z",
        start="x",
        level=2.0,
        norms=(0.5, 1.0),
        ties=((1.0,),),
        places=(3, 4),
        cuts=(0.25, 0.0),
        raised=(0.0, 2.0),
        bound=2.0,
    ),
    SliceFact(value="z", norms=(0.5, 1.0), bound=2.0),
    ChainForm(use="values", start="x", stop="y", multipliers=((0.5, 1.0), (2.0,)), bound=2.0),
    MovedBall(ball=3, form=7, bound=1.0),
    BallFact(value="y", ball=3, form=7, level=4.5, bound=1.0),
    ZeroFact(value="y", form=7, bound=1.0),
    LossPull(of="loss", value="z", bound=0.25),
    RunPull(of="output", values=("y", "z"), bound=0.5),
    StackPull(of="loss", values=("y", "z"), bound=0.5),
    AttentionPull(of="output", value="y", bound=0.5),
    FormPull(of="loss", form=7, by="hull", others=(8, 9), bound=0.5),
    ValuePull(of="output", value="x", bound=0.125),
    SignPull(value="y", stop="z", bound=0.5),
    KernelGradient(
        value="y", stop="z", ratio=1.0, claim=0.5, weights=((1.0,), (0.5, 2.0)), bound=1.0
    ),
    TensorGradient(tensor="w", bound=1.0),
)
SAMPLE = Certificate(
    tool=Tool("lipcert", "0.1.0"),
    model=ModelIdentity(
        "a" * 64, 10, (ExternalFile("w", "b" * 64, 3),), "c" * 64, "lipcert-ir/1", {"": 20}, "y"
    ),
    scope=ScopeClaim("constraint-set", ("w",), (Constraint("w", "spectral", 1.0),)),
    assumptions=(Assumption("A-INPUT", "declared", {"norm": "0x1.0000000000000p+0"}),),
    lines=LINES,
    parameters=(ParameterClaim("w", "w", 1.0),),
    groups=(GroupClaim("g", ("w",), 9, 1.0, 0.5, 0.25),),
    network=NetworkClaim(1.0, 2.0, 3.0, 4.0),
    privacy=PrivacyClaim("pld", 3.0, Fraction(1, 100000), "recomputed"),
)
OPTIONAL = {
    "privacy", "lipschitz", "grad_norm", "sensitivity", "noise_multiplier", "bound", "weights",
    "others",
    "raised",
}  # fmt: skip
REQUIRED = (("outputs", "parameters"), ("outputs", "groups"))
"""where a bound is a claim, it may be left out; a parameter or group is listed for its bounds"""
DATA = {"data", "opset"}
"""objects whose members are data"""


def document() -> dict[str, Json]:
    return json.loads(write_certificate(SAMPLE))


def objects(value: Json, path=()):
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


def at(root: Json, path) -> dict[str, Json]:
    for step in path:
        root = root[step]  # type: ignore[index,call-overload]
    return root


def is_optional(path, name: str) -> bool:
    if name == "level":
        return isinstance(LINES[int(path[1])], NearFact)
    return name in OPTIONAL and path[:2] not in REQUIRED


def test_the_sample_is_read_back() -> None:
    data = write_certificate(SAMPLE)
    assert asdict(read_certificate(data)) == asdict(SAMPLE)
    assert write_certificate(read_certificate(data)) == data
    assert {line.rule for line in LINES} == set(RULES)


def test_an_unknown_member_is_refused_wherever_it_stands() -> None:
    for path in PLACES:
        root = document()
        at(root, path)["unheard-of"] = "x"
        with pytest.raises(CertificateFormatError, match="unheard-of"):
            read_certificate(write_canonical(root))


@pytest.mark.parametrize(("path", "name"), MEMBERS, ids=str)
def test_a_member_is_needed_unless_it_is_a_claim(path, name: str) -> None:
    root = document()
    del at(root, path)[name]
    if is_optional(path, name) or (path, name) == (("model",), "output"):
        assert write_certificate(read_certificate(write_canonical(root))) == write_canonical(root)
        return
    with pytest.raises(CertificateFormatError, match=name):
        read_certificate(write_canonical(root))


@pytest.mark.parametrize(
    "text",
    ["1.0", "0x1p+0", "0x1.0000000000000p+1024", "-0x1.0000000000000p+0", "inf", "nan", "1e3", ""],
)
def test_a_bound_has_one_spelling(text: str) -> None:
    for path, name in MEMBERS:
        if name in {"grad_norm", "bound", "radius", "epsilon"}:
            root = document()
            at(root, path)[name] = text
            with pytest.raises(CertificateFormatError, match=name):
                read_certificate(write_canonical(root))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'"x"', b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_certificate_is_refused(data: bytes) -> None:
    with pytest.raises(CertificateFormatError):
        read_certificate(data)


@pytest.mark.parametrize("schema", ["lipcert.certificate/1", "lipcert.certificate/2", "other", ""])
def test_another_grammar_is_refused(schema: str) -> None:
    root = document()
    root["schema"] = schema
    with pytest.raises(CertificateFormatError, match="schema"):
        read_certificate(write_canonical(root))


CERTIFICATES = values_of(
    Certificate, {**SCALARS, Line[Any]: st.one_of([values_of(RULES[rule]) for rule in RULES])}
)


@pytest.mark.parametrize("rule", ["", "fact/2", "FACT/step", "norm", "fact/step/1", 1, True, []])
def test_a_rule_that_is_not_known_is_refused(rule: Json) -> None:
    root = document()
    at(root, ("lines", 4))["rule"] = rule
    with pytest.raises(CertificateFormatError, match=r"lines\[4\]"):
        read_certificate(write_canonical(root))


def test_a_line_has_the_members_of_its_rule() -> None:
    """Under the name of a rule with other members a line is refused."""
    for place, line in enumerate(LINES):
        own, root = {item.name for item in fields(line)}, document()
        for rule in RULES:
            at(root, ("lines", place))["rule"] = rule
            if own != {item.name for item in fields(RULES[rule])}:
                with pytest.raises(CertificateFormatError, match=rf"lines\[{place}\]"):
                    read_certificate(write_canonical(root))


@given(CERTIFICATES)
def test_every_certificate_is_read_back(certificate: Certificate) -> None:
    data = write_certificate(certificate)
    assert asdict(read_certificate(data)) == asdict(certificate)
    assert write_certificate(read_certificate(data)) == data


def values(value: Json, path=()):
    """The places of all values."""
    yield path
    for name, member in value.items() if isinstance(value, dict) else ():
        yield from values(member, (*path, name))
    for index, member in enumerate(value if isinstance(value, list) else ()):
        yield from values(member, (*path, index))


@given(CERTIFICATES, st.data())
def test_what_was_changed_is_refused_or_another_certificate(
    certificate: Certificate, data: st.DataObject
) -> None:
    """No two texts say the same: any value in the place of any other."""
    root = json.loads(write_certificate(certificate))
    *above, last = data.draw(st.sampled_from([path for path in values(root) if path]))
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
    same = write_canonical([before]) == write_canonical([place[last]])
    assert (asdict(found) == asdict(certificate)) == same
