"""docs/first_hour.md: its code runs as it stands, its transcript is what the script prints."""

import re
import shlex
from pathlib import Path

import pytest
import torch

import lipcert as package
from tests.commands import lipcert, printed_by, script
from tests.test_docs import _shown, example

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "first_hour.md").read_text(encoding="utf-8")
SCRIPT = ROOT / "examples" / "first_hour.py"
MODULE = """
from torch import nn
from first_hour import digits
module, x, y = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), digits().x[:1437], digits().y[:1437]
"""


@pytest.mark.nightly
def test_the_five_steps_run_as_they_stand(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    example("first_hour")  # from where the block below imports
    run, audit = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    short = run.replace("epochs=40", "epochs=2").replace("settings)  ", "settings, budget=1.0)  ")
    verdict = f"report = {audit}\nprint(report.verdict.value, report.examples > 0)"
    *_, summary, audited = printed_by(f"{MODULE}{short}{verdict}", tmp_path).splitlines()
    assert summary.endswith("target 8); 0 left")
    assert audited == "pass True"
    (command,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    done = lipcert(shlex.split(command, comments=True)[1:], tmp_path)
    assert done.exit_code == 3  # conditional
    assert done.stdout.startswith("Conditional: all claims are proved")


@pytest.mark.nightly
def test_the_perceptron_is_trained_and_audited(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    printed = script(SCRIPT, "table", str(tmp_path / "run"), cwd=tmp_path)
    right = re.search(r"right about ([\d.]+)%", printed)
    assert float(right.group(1)) > 90.0
    assert "\npass: " in printed


def test_the_first_answer_is_as_shown() -> None:
    pytest.importorskip("sklearn")
    problem = example("first_hour").digits()
    ((_, shown),) = _shown("first_hour.md", "digits")
    torch.manual_seed(0)
    torch.randperm(len(problem.x))
    kept = len(problem.x) * 4 // 5
    settings = package.Settings(
        **problem.domain, loss="cross-entropy", batch_size=128, dataset_size=kept,
        epochs=problem.epochs, sampling="poisson", target_epsilon=8.0, delta=1e-5,
    )  # fmt: skip
    found = package.analyze(problem.module(), problem.x[:1], settings).usefulness
    assert " ".join(shown.split()).startswith(found.sentence)


def test_the_table_of_waits_adds_up() -> None:
    rows = re.findall(r"^\| \w[^|]*\| ([\d.]+ \|.*) \|$", PAGE, flags=re.MULTILINE)
    waits = [[float(wait) for wait in row.split(" | ")] for row in rows]
    assert len(waits) == 3
    for *steps, whole in waits:
        assert whole == pytest.approx(sum(steps), abs=0.05)
    ((_, shown),) = _shown("first_hour.md", "digits")
    told = [float(wait) for wait in re.findall(r"\[\w+: ([\d.]+) s of processor", shown)]
    assert waits[0][:-1] == told
