"""Everything the README shows is run: its commands, its output, its Python."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RUN = shlex.split(
    "--dataset-size 1000 --batch-size 10 --sampling poisson --steps 9 --delta 1e-5 "
    "--noise-multiplier 1"
)
LOOSENESS = re.compile(r"at most ([\d.]+) times\s+the truth")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def lipcert_commands() -> list[str]:
    lines = "".join(blocks("sh")).replace("\\\n", " ").splitlines()
    commands = [line.split("#")[0].strip().removeprefix(".venv/bin/") for line in lines]
    return [command for command in commands if command.startswith("lipcert ")]


def run(command: str) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)[1:]
    words = ["models/digits_mlp.onnx" if word == "MODEL" else word for word in words]
    words = ["LC007" if word == "KEY" else word for word in words]
    words = [part for word in words for part in (RUN if word == "RUN" else [word])]
    return subprocess.run(
        [sys.executable, "-m", "lipcert", *words],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


@pytest.mark.parametrize("command", lipcert_commands())
def test_commands_succeed(command: str) -> None:
    done = run(command)
    assert done.returncode == 0, done.stderr
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


def test_python_example_runs() -> None:
    (source,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    grad_norm, sensitivity = map(float, done.stdout.split())
    assert grad_norm / 256 == pytest.approx(sensitivity)


def test_every_verb_of_the_help_is_in_the_readme() -> None:
    listed = re.findall(
        r"^  (\w+) ", run("lipcert --help").stdout.split("Commands:")[1], re.MULTILINE
    )
    assert listed
    for verb in listed:
        assert f"lipcert {verb}" in README
