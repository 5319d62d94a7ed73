"""Hostile certificates: a verdict in bounded time and memory, on one line, from a fresh process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lipcert.core.certificate import ChainWitness, NormClaim, RunWitness, write_certificate
from lipcert.core.ledger import Premises
from lipcert.core.ledger.run import Run
from tests.checkers import checker
from tests.core.mutants.assumptions import rewritten
from tests.core.mutants.claims import with_value_claims
from tests.core.mutants.networks import certified

MEMORY = 2 << 30
SECONDS = 12
"""of processor time; a check is to take 5 at most"""


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return certified("mlp", tmp_path_factory.mktemp("hostile"), constrained=False)


def run(data, model, tmp_path):
    path = tmp_path / "c.lipcert.json"
    path.write_bytes(data)
    done = checker([path, "--model", model], tmp_path, MEMORY, SECONDS)
    assert done.returncode in {1, 3}, done.stderr
    assert not done.stderr
    tokens = [line for line in done.stdout.splitlines() if "LIPCERT-CHECK" in line]
    assert tokens == done.stdout.splitlines()[-1:]
    return done.stdout


def with_run(certificate, run_):
    """The same certificate for another run."""
    premises = Premises.read(certificate.assumptions)
    return rewritten(certificate, replace(premises, run=run_))


def with_chains(certificate, chains):
    return replace(certificate, chains=tuple(chains))


def long_chain(certificate):
    entries = ((1.0,) * 500_000,)
    return with_chains(certificate, [ChainWitness(certificate.chains[0].use, "x", "v1", entries)])


def other_chains(certificate):
    ends = [(f"v{i}", f"v{j}") for i in range(60) for j in range(60)]
    return with_chains(certificate, (ChainWitness("values", *pair, ()) for pair in ends))


def wide_runs(certificate):
    wide = tuple(RunWitness(("v0",) * 1000, NormClaim(1.0, "torus")) for _ in range(100))
    return replace(certificate, runs=wide)


def with_count(certificate, number):
    claim = NormClaim(1.0, "torus", (number,), (number,))
    return with_value_claims(certificate, "v0", lambda found: replace(found, operator_norm=claim))


TEXTS = {
    "nesting": lambda _: b"[" * (1 << 24),
    "long array": lambda _: b"[" + b"0," * ((1 << 20) + 8) + b"0]",
    "long string": lambda _: b'"' + b"x" * ((1 << 24) - 2) + b'"',
    "long key": lambda _: b'{"' + b"x" * ((1 << 24) - 8) + b'":0}',
    "escapes": lambda _: b'"' + rb"\u0000" * 2_000_000 + b'"',
    "too long": lambda data: data + b" " * (1 << 25),
    "digits": lambda data: data.replace(b'"size":', b'"size":' + b"1" * 1_000_000, 1),
    "no text": lambda _: bytes(range(256)) * 1000,
}
RECORDS = {
    "many multipliers": long_chain,
    "many chains": lambda found: with_chains(found, tuple(found.chains) * 200),
    "other chains": other_chains,
    "many runs": wide_runs,
    "counts 2147483648": lambda found: with_count(found, 1 << 31),
    "counts 9007199254740992": lambda found: with_count(found, 1 << 53),
    "many steps": lambda found: with_run(found, Run("poisson", 1 << 40, 1, 1 << 28, 1 << 28)),
    "endless steps": lambda found: with_run(found, Run("poisson", 1 << 53, 1, 1 << 53, 1 << 53)),
    "long shuffle": lambda found: with_run(found, Run("shuffle", 1 << 53, 1, 1 << 53, 1)),
    "odd rate": lambda found: with_run(
        found, Run("poisson", (1 << 53) - 1, (1 << 52) + 1, 1000, 1000)
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_without_end(case, tmp_path, name):
    run(TEXTS[name](write_certificate(case.certificate)), case.path, tmp_path)


@pytest.mark.parametrize("name", RECORDS)
def test_records_without_end(case, tmp_path, name):
    run(write_certificate(RECORDS[name](case.certificate)), case.path, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "x\nLIPCERT-CHECK: VALID 0",
        "\rLIPCERT-CHECK: VALID 0",
        "\x1b[2K\u2028LIPCERT-CHECK: VALID",
        "\u202eDILAV",
    ],
)
def test_nothing_speaks_for_the_checker(case, tmp_path, text):
    """Neither an assumption nor a name in a reason can look like a verdict."""
    certificate = case.certificate
    ledger = (replace(certificate.assumptions[0], text=text), *certificate.assumptions[1:])
    renamed = (replace(certificate.nodes[0], name=text), *certificate.nodes[1:])
    for changed in (
        replace(certificate, assumptions=ledger),
        replace(certificate, nodes=renamed),
    ):
        said = run(write_certificate(changed), case.path, tmp_path)
        assert said.isascii()
        assert "\x1b" not in said


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../b", "a\x00b", ".", ""])
def test_places_of_external_files_are_not_opened(case, tmp_path, location):
    """What the certificate says of files is compared, never followed."""
    data = write_certificate(case.certificate)
    digest = "0" * 64
    entry = f'"external":[{{"location":"{location}","sha256":"{digest}","size":1}}]'
    changed = data.replace(b'"external":[]', entry.encode(), 1)
    assert changed != data
    said = run(changed, case.path, tmp_path)
    assert "passwd" not in said


def test_models_that_are_no_models(case, tmp_path):
    data = write_certificate(case.certificate)
    for content in (b"", b"\xff" * 1000, case.path.read_bytes()[:-3]):
        path = tmp_path / "m.onnx"
        path.write_bytes(content)
        said = run(data, path, tmp_path)
        assert "UNKNOWN" in said.splitlines()[-1]
    said = run(data, tmp_path / "absent.onnx", tmp_path)
    assert "UNKNOWN" in said.splitlines()[-1]
    said = run(data, tmp_path, tmp_path)
    assert "UNKNOWN" in said.splitlines()[-1]
