"""docs/ci.md: its tables are those of the code, its workflow, hook, tests and commands are run."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
import yaml

from lipcert.cli import hook
from lipcert.settings.gates import GATES, OF_ANALYSES, OF_AUDITS, OF_CERTIFICATES
from tests.commands import lipcert
from tests.github_job import ACTION, ROOT, Job, make_checkout
from tests.models.shipped import path_of

PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def rows(name: str) -> list[list[str]]:
    """The cells of a table, below its head."""
    text = PAGE.split(f"<!-- {name} -->\n")[1].split("<!-- end -->")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture(name="folder")
def _folder(tmp_path):
    """A network, its certificate, the last one that was accepted, and examples."""
    shutil.copy(path_of("digits_mlp"), tmp_path / "net.onnx")
    done = lipcert(
        ["certify", "net.onnx", "--input-norm", "8", "--loss", "cross-entropy"], tmp_path
    )
    assert done.exit_code == 0
    shutil.copy(tmp_path / "net.lipcert.json", tmp_path / "baseline.lipcert.json")
    x = np.random.default_rng(0).uniform(0.1, 0.9, (8, 64)).astype(np.float32)
    np.savez(tmp_path / "examples.npz", x=x, y=np.arange(8) % 10)
    return tmp_path


def test_the_table_of_gates() -> None:
    verbs = {"analyze": OF_ANALYSES, "check": OF_CERTIFICATES, "audit": OF_AUDITS}
    found = {
        code(option)[0].removeprefix("--"): code(places) for option, _, places in rows("gates")
    }
    assert found == {gate: [v for v, gates in verbs.items() if gate in gates] for gate in GATES}
    for verb, gates in verbs.items():
        shown = lipcert([verb, "--help"]).stdout
        assert {gate for gate in GATES if f"--{gate} X" in shown} == set(gates)


def test_the_table_of_inputs() -> None:
    told = rows("inputs")
    assert [name for names, *_ in told for name in code(names)] == list(ACTION["inputs"])
    for names, default, *_ in told:
        stated = [ACTION["inputs"][name].get("default", "") for name in code(names)]
        if "base" not in code(names):
            assert [text for text in stated if text] == code(default)


def action_step():
    (job,) = yaml.safe_load(blocks("yaml")[0])["jobs"].values()
    return next(step for step in job["steps"] if step.get("uses") == "./lipcert")


@pytest.mark.nightly
def test_the_workflow_is_green(tmp_path) -> None:
    """On a network of which what it states is true."""
    make_checkout(tmp_path)
    inputs = {name: str(text) for name, text in action_step()["with"].items()}
    assert set(inputs) <= set(ACTION["inputs"])
    done = Job(tmp_path, inputs).run()
    assert done.code == 0, done.log
    assert done.report("nets/mlp", "audit.sarif").exists()
    for name in re.findall(r"steps\.lipcert\.outputs\.([\w-]+)", PAGE):
        assert done.outputs[name]


def test_the_workflow_may_do_what_it_does() -> None:
    """Code scanning needs a permission, and nothing needs more."""
    flow = yaml.safe_load(blocks("yaml")[0])
    assert flow["permissions"] == {"contents": "read", "security-events": "write"}
    assert action_step()["with"]["upload-sarif"] is True


@pytest.mark.nightly
def test_the_hook_is_defined_and_green(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    (repo,) = yaml.safe_load(blocks("yaml")[1])["repos"]
    (used,) = repo["hooks"]
    (defined,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert used["id"] == defined["id"]
    monkeypatch.chdir(folder)
    assert hook.main([*used["args"], "net.lipcert.json"]) == 0


@pytest.mark.nightly
def test_the_tests_are_green(folder) -> None:
    (text,) = blocks("python")
    (folder / "test_page.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "lipcert.pytest_plugin"],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{text.count('def test_')} passed" in done.stdout, done.stdout


@pytest.mark.nightly
def test_the_commands_leave_with_what_is_said(folder) -> None:
    """One line after the other; a check whose assumptions nobody accepted is no verdict."""
    (block,) = blocks("sh")
    for line in block.splitlines():
        _, verb, *words = shlex.split(line)
        done = lipcert([verb, *words], folder)
        assert done.exit_code == (3 if verb == "check" else 0), (line, done.stdout, done.stderr)
        for written in re.findall(r"--report \w+=(\S+)", line):
            assert (folder / written).stat().st_size > 100
