"""Hostile certificates: a verdict in bounded time and memory, on one line, from a fresh process."""

from dataclasses import replace

import pytest

from lipcert.core.ledger.premises import Premises
from lipcert.core.ledger.run import Run
from lipcert.core.lines.balls import BallFact, InputBall
from lipcert.core.lines.chains import ChainForm
from lipcert.core.lines.moved_balls import MovedBall
from lipcert.core.lines.norms import StepNorm
from lipcert.core.lines.runs import AffineFact, RunNorm, RunPull
from lipcert.core.lines.steps import StepFact, ValuePull
from lipcert.text.certificate import write_certificate
from tests.checkers import checker
from tests.core.mutants.assumptions import rewritten
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


def with_lines(certificate, *lines, last=False):
    """The same certificate with lines before the others of their stages, or behind them."""
    stages = [
        *((line.stage, 2 * last, line) for line in lines),
        *((line.stage, 1, line) for line in certificate.lines),
    ]
    ordered = sorted(stages, key=lambda row: row[:2])
    return replace(certificate, lines=tuple(line for _, _, line in ordered))


def forms(certificate):
    return [line for line in certificate.lines if isinstance(line, ChainForm)]


def long_form(certificate):
    entries = ((1.0,) * 500_000,)
    return with_lines(certificate, replace(forms(certificate)[0], multipliers=entries), last=True)


def many_forms(certificate):
    """As many as a model of this size can use, and the same ones always."""
    return with_lines(certificate, *(forms(certificate)[-1:] * 450), last=True)


def other_forms(certificate):
    ends = [(f"v{i}", f"v{j}") for i in range(60) for j in range(60)]
    return with_lines(
        certificate, *(ChainForm(use="values", start=a, stop=b, multipliers=()) for a, b in ends)
    )


def many_balls(certificate):
    """Each carried through the network, with a fact of each."""
    place = next(k for k, line in enumerate(certificate.lines) if isinstance(line, ChainForm))
    balls = [InputBall(shares=(k / 200,)) for k in range(150)]
    count = sum(line.stage == 4 for line in certificate.lines[: place + 1])
    start = place + 1 - count
    form = place + len(balls)
    rest = [MovedBall(ball=start + k, form=form) for k in range(len(balls))]
    stop = certificate.lines[place].stop
    rest += [BallFact(value=stop, ball=start + k, form=form) for k in range(len(balls))]
    lines = certificate.lines
    kept = (*lines[:start], *balls, *lines[start : place + 1], *rest)
    return replace(certificate, lines=kept)


def wide_runs(certificate):
    wide = [RunNorm(values=("v0",) * 1000, bound=1.0, method="torus") for _ in range(100)]
    return with_lines(certificate, *wide)


def wide_maps(certificate):
    wide = ("v0",) * 100_000
    return with_lines(
        certificate, AffineFact(value="v0", values=wide), RunPull(values=wide), RunPull(values=())
    )


def many_lines(certificate):
    return with_lines(certificate, *(StepFact(value="v0", step="dense/1") for _ in range(50_000)))


def long_names(certificate):
    return with_lines(certificate, *(ValuePull(value="\u202ev" * 30_000) for _ in range(100)))


def with_count(certificate, number):
    norm = StepNorm(value="v0", bound=1.0, method="torus", twists=(number,), counts=(number,))
    return with_lines(certificate, norm)


TEXTS = {
    "long array": lambda _: b"[" + b"0," * ((1 << 20) + 8) + b"0]",
    "long string": lambda _: b'"' + b"x" * ((1 << 24) - 2) + b'"',
    "too long": lambda data: data + b" " * (1 << 25),
    "digits": lambda data: data.replace(b'"size":', b'"size":' + b"1" * 1_000_000, 1),
}
RECORDS = {
    "many multipliers": long_form,
    "many forms": many_forms,
    "other forms": other_forms,
    "many balls": many_balls,
    "many runs": wide_runs,
    "wide maps": wide_maps,
    "many lines": many_lines,
    "long names": long_names,
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


@pytest.mark.sample(4)
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
    first, loss, *others = certificate.assumptions
    ledger = (first, replace(loss, data={**loss.data, "kind": text}), *others)
    first = next(line for line in certificate.lines if isinstance(line, StepFact))
    for changed in (
        replace(certificate, assumptions=ledger),
        with_lines(certificate, replace(first, value=text)),
        with_lines(certificate, replace(first, step=text)),
        with_lines(certificate, replace(forms(certificate)[0], start=text)),
        with_lines(certificate, RunNorm(values=(text, text), bound=1.0, method=text)),
        replace(certificate, model=replace(certificate.model, output=text)),
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
