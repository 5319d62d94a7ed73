"""A job on GitHub: the steps of action.yml, run as GitHub runs them, in folders of a test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.models.shipped import path_of

ROOT = Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
EXPRESSION = re.compile(r"\$\{\{ (.*?) \}\}")


@dataclass
class Job:
    """A job on GitHub: a checkout, the folder of the runner, and what a step leaves there."""

    folder: Path
    inputs: Mapping[str, str]
    base_ref: str = ""
    log: str = ""
    code: int = 0

    def value(self, expression: str) -> str:
        """Of an expression in ${{ }}, in the few forms that the action has."""
        text = re.sub(r"(inputs|github)\.([\w-]+)", r"context['\1']['\2']", expression)
        text = text.replace("||", " or ").replace("&&", " and ").replace("!cancelled()", "True")
        github = {"action_path": str(ROOT), "base_ref": self.base_ref}
        found = eval(text, {"context": {"inputs": self.given(), "github": github}})
        return str(found).lower() if isinstance(found, bool) else str(found)

    def given(self) -> dict[str, str]:
        stated = {name: item.get("default", "") for name, item in ACTION["inputs"].items()}
        stated["base"] = self.base_ref
        return stated | dict(self.inputs)

    def filled(self, text: str) -> str:
        return EXPRESSION.sub(lambda match: self.value(match.group(1)), text)

    def run(self) -> Job:
        """Every step with a script, as `shell: bash` runs it; a failed one skips what follows."""
        for step in STEPS.values():
            condition = self.filled(step.get("if", "${{ True }}"))
            always = "!cancelled()" in step.get("if", "")
            if "run" not in step or condition != "true" or (self.code and not always):
                continue
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.folder / "checkout",
                env=self.environment()
                | {name: self.filled(text) for name, text in step.get("env", {}).items()},
                capture_output=True,
                text=True,
                encoding="utf-8",
                check=False,
            )
            self.log += done.stdout + done.stderr
            self.code = self.code or done.returncode
        return self

    def environment(self) -> dict[str, str]:
        files = {"GITHUB_STEP_SUMMARY": "summary.md", "GITHUB_OUTPUT": "output"}
        return {
            **{name: str(self.folder / file) for name, file in files.items()},
            "RUNNER_TEMP": str(self.folder / "temp"),
            "PATH": f"{self.folder / 'programs'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "OMP_NUM_THREADS": "1",
        }

    @property
    def summary(self) -> str:
        return (self.folder / "summary.md").read_text(encoding="utf-8")

    @property
    def outputs(self) -> dict[str, str]:
        lines = (self.folder / "output").read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def report(self, model: str, name: str) -> Path:
        return self.folder / "checkout" / self.given()["reports"] / model / name


def make_checkout(tmp_path: Path) -> None:
    """A checkout of a repository with one network, and a Python that installs what is here.

    The program `python` makes the environment that the action asks for: it has this Python and
    this LipCert, and its pip writes down what it is asked for.
    """
    checkout, programs = tmp_path / "checkout", tmp_path / "programs"
    (checkout / "nets").mkdir(parents=True)
    shutil.copy(path_of("digits_mlp"), checkout / "nets" / "mlp.onnx")
    (checkout / ".gitignore").write_text("lipcert-reports/\n")
    programs.mkdir()
    (tmp_path / "temp").mkdir()
    call = f'exec "{sys.executable}" -P'
    python = f"""#!/bin/bash
[ "$*" = "-P -m venv $RUNNER_TEMP/lipcert" ] || exit 9
bin="$RUNNER_TEMP/lipcert/bin"
mkdir -p "$bin"
printf '#!/bin/bash\\n%s "$@"\\n' '{call}' > "$bin/python"
printf '#!/bin/bash\\n%s -m lipcert "$@"\\n' '{call}' > "$bin/lipcert"
printf '#!/bin/bash\\necho "$@" > "{tmp_path}/installed"\\n' > "$bin/pip"
chmod +x "$bin"/*
"""
    (programs / "python").write_text(python)
    (programs / "python").chmod(0o755)
