"""Hostile certificates: a verdict in bounded time and memory, on one line, from a fresh process."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from lipcert.certificate.records import ChainWitness, NormClaim, RunWitness, write_certificate
from lipcert.checker.ledger import Premises, Run
from tests.checker.mutants.assumptions import rewritten
from tests.checker.mutants.claims import with_value_claims
from tests.checker.mutants.networks import certified

MEMORY = 2 << 30
SECONDS = 12
"""of processor time, with the start of the interpreter; a check itself is to take 5 at most"""


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return certified("mlp", tmp_path_factory.mktemp("hostile"), constrained=False)


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def run(data, model, tmp_path):
    path = tmp_path / "c.lipcert.json"
    path.write_bytes(data)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "lipcert.checker.main", str(path), "--model", str(model)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited,
        timeout=4 * SECONDS,
    )
    assert done.returncode in {1, 3}, done.stderr
    assert not done.stderr
    tokens = [line for line in done.stdout.splitlines() if "LIPCERT-CHECK" in line]
    assert tokens == done.stdout.splitlines()[-1:]
    return done.stdout, time.perf_counter() - start


def bombs(case):
    data, certificate = write_certificate(case.certificate), case.certificate
    yield "nesting", b"[" * (1 << 24)
    yield "long array", b"[" + b"0," * ((1 << 20) + 8) + b"0]"
    yield "long string", b'"' + b"x" * ((1 << 24) - 2) + b'"'
    yield "long key", b'{"' + b"x" * ((1 << 24) - 8) + b'":0}'
    yield "escapes", b'"' + rb"\u0000" * 2_000_000 + b'"'
    yield "too long", data + b" " * (1 << 25)
    yield "digits", data.replace(b'"size":', b'"size":' + b"1" * 1_000_000, 1)
    yield "no text", bytes(range(256)) * 1000
    entries = ((1.0,) * 500_000,)
    chains = (ChainWitness(certificate.chains[0].use, "x", "v1", entries),)
    yield "many multipliers", write_certificate(replace(certificate, chains=chains))
    many = tuple(certificate.chains) * 200
    yield "many chains", write_certificate(replace(certificate, chains=many))
    ends = [(f"v{i}", f"v{j}") for i in range(60) for j in range(60)]
    other = tuple(ChainWitness("values", *pair, ()) for pair in ends)
    yield "other chains", write_certificate(replace(certificate, chains=other))
    wide = tuple(RunWitness(("v0",) * 1000, NormClaim(1.0, "torus")) for _ in range(100))
    yield "many runs", write_certificate(replace(certificate, runs=wide))
    for number in (1 << 31, 1 << 53):
        claim = NormClaim(1.0, "torus", (number,), (number,))
        changed = with_value_claims(
            certificate, "v0", lambda found, claim=claim: replace(found, operator_norm=claim)
        )
        yield f"counts {number}", write_certificate(changed)
    yield from runs(certificate)


def runs(certificate):
    premises = Premises.read(certificate.assumptions)
    for name, run_ in (
        ("many steps", Run("poisson", 1 << 40, 1, 1 << 28, 1 << 28)),
        ("endless steps", Run("poisson", 1 << 53, 1, 1 << 53, 1 << 53)),
        ("long shuffle", Run("shuffle", 1 << 53, 1, 1 << 53, 1)),
        ("odd rate", Run("poisson", (1 << 53) - 1, (1 << 52) + 1, 1000, 1000)),
    ):
        yield name, write_certificate(rewritten(certificate, replace(premises, run=run_)))


NAMES = [
    "nesting", "long array", "long string", "long key", "escapes", "too long", "digits", "no text",
    "many multipliers", "many chains", "other chains", "many runs", "counts 2147483648",
    "counts 9007199254740992", "many steps", "endless steps", "long shuffle", "odd rate",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_bombs(case, tmp_path, name):
    found = dict(bombs(case))
    assert set(found) == set(NAMES)
    run(found[name], case.path, tmp_path)


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
        said, _ = run(write_certificate(changed), case.path, tmp_path)
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
    said, _ = run(changed, case.path, tmp_path)
    assert "passwd" not in said


def test_models_that_are_no_models(case, tmp_path):
    data = write_certificate(case.certificate)
    for content in (b"", b"\xff" * 1000, case.path.read_bytes()[:-3]):
        path = tmp_path / "m.onnx"
        path.write_bytes(content)
        said, _ = run(data, path, tmp_path)
        assert "UNKNOWN" in said.splitlines()[-1]
    said, _ = run(data, tmp_path / "absent.onnx", tmp_path)
    assert "UNKNOWN" in said.splitlines()[-1]
    said, _ = run(data, tmp_path, tmp_path)
    assert "UNKNOWN" in said.splitlines()[-1]
