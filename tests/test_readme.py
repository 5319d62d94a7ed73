"""Everything the README shows is run: its commands, its output, its Python."""

from __future__ import annotations

import atexit
import re
import shlex
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from click.testing import Result

import lipcert
from models.data import digit_images
from tests.commands import lipcert as lipcert_command
from tests.commands import printed_by, script

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RUN = shlex.split(
    "--dataset-size 1000 --batch-size 10 --sampling poisson --steps 9 --delta 1e-5 "
    "--noise-multiplier 1"
)
LOOSENESS = re.compile(r"the true value is at least\s+1/([\d.]+)\s+of\s+this")
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def lipcert_commands() -> list[str]:
    lines = "".join(blocks("sh")).replace("\\\n", " ").splitlines()
    commands = [line.split("#")[0].strip().removeprefix(".venv/bin/") for line in lines]
    return [command for command in commands if command.startswith("lipcert ")]


@cache
def certificate() -> Path:
    """A certificate of the network that stands for MODEL."""
    file = Path(mkdtemp()) / "certificate.json"
    atexit.register(rmtree, file.parent)
    assert run(f"lipcert certify MODEL -o {file}").exit_code == 0
    return file


@cache
def batches() -> Path:
    """A few digits for the network that stands for MODEL."""
    split = digit_images((64,))
    file = certificate().with_name("batches.npz")
    np.savez(file, x=split.images[:64].numpy(), y=split.labels[:64].numpy())
    return file


@cache
def trace() -> Path:
    """A recorded step of a small network."""
    folder = certificate().with_name("trace")
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = lipcert.Recorder(folder, model, optimizer, every=1)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    recorder.close()
    return folder


@cache
def run(command: str, cwd: Path = ROOT) -> Result:
    words = shlex.split(command)[1:]
    words = [str(batches()) if word == "BATCHES" else word for word in words]
    words = [str(trace()) if word == "TRACE" else word for word in words]
    files = {"CERTIFICATE", "OLD", "NEW"}
    words = [str(certificate()) if word in files else word for word in words]
    words = ["models/digits_mlp.onnx" if word == "MODEL" else word for word in words]
    words = ["LC007" if word == "KEY" else word for word in words]
    words = [part for word in words for part in (RUN if word == "RUN" else [word])]
    return lipcert_command(words, cwd)


@pytest.mark.parametrize("command", lipcert_commands())
def test_commands_succeed(command: str) -> None:
    done = run(command)
    nobody_accepted = command.startswith("lipcert check ")
    assert done.exit_code == (3 if nobody_accepted else 0), done.stderr
    assert done.stdout


def test_shown_output_is_what_the_first_command_prints() -> None:
    """Word for word; numbers within 1e-3, because BLAS libraries differ in the last digits."""
    (shown,) = blocks("text")
    printed = run(lipcert_commands()[0]).stdout
    for ours, theirs in zip(LOOSENESS.findall(shown), LOOSENESS.findall(printed), strict=True):
        assert float(ours) == pytest.approx(float(theirs), rel=0.05)  # an ascent found it
    shown, printed = LOOSENESS.sub("loose", shown), LOOSENESS.sub("loose", printed)
    assert NUMBER.sub("#", shown).split() == NUMBER.sub("#", printed).split()
    for ours, theirs in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True):
        assert float(ours.replace(",", "")) == pytest.approx(
            float(theirs.replace(",", "")), rel=1e-3
        )


def test_certificates_are_issued_and_checked_as_shown(tmp_path: Path) -> None:
    """Line by line, but for what … leaves out; numbers within 1e-3."""
    for folder in ("models", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    session = "".join(blocks("console"))
    sessions = session.replace("\\\n", " ").split("$ ")[1:]
    assert [text.split()[1] for text in sessions] == [
        "certify",
        "check",
        "examples/digit_batches.py",
        "audit",
    ]
    for text in sessions:
        command, _, shown = text.partition("\n")
        if command.startswith("python "):
            _, path, *words = shlex.split(command)
            printed = script(tmp_path / path, *words, cwd=tmp_path)
        else:
            done = run(command, tmp_path)
            assert done.exit_code == 0, done.stderr
            printed = DIGEST.sub("<sha256 of the certificate>", done.stdout)
        place = 0
        for part in shown.split("…\n"):
            places = range(place, len(printed.splitlines()))
            place = next(i for i in places if alike(part, printed, i)) + len(part.splitlines())


def alike(shown: str, printed: str, start: int) -> bool:
    """Whether these lines are printed from this line on; what an ascent found, within 5 %."""
    lines = shown.splitlines()
    ours = "\n".join(lines)
    theirs = "\n".join(printed.splitlines()[start : start + len(lines)])
    close = 0.05 if "would have been noticed" in ours else 1e-3
    pairs = list(zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=False))
    return NUMBER.sub("#", ours) == NUMBER.sub("#", theirs) and all(
        number(one) == pytest.approx(number(other), rel=close) for one, other in pairs
    )


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_python_example_runs() -> None:
    source = next(block for block in blocks("python") if "lipcert.analyze" in block)
    grad_norm, sensitivity = map(float, printed_by(source).split())
    assert grad_norm / 256 == pytest.approx(sensitivity)


def test_every_verb_of_the_help_is_in_the_readme() -> None:
    listed = re.findall(
        r"^  (\w+) ", run("lipcert --help").stdout.split("Commands:")[1], re.MULTILINE
    )
    assert listed
    for verb in listed:
        assert f"lipcert {verb}" in README
