"""Installs the least version of every dependency that pyproject.toml admits, and uses it.

    python .ci/lower_bounds.py

The command line, reports, private training, export and an audit on a cluster
run in an environment of their own, which is deleted again. PyTorch, which is large, is taken from
wherever pip finds it. Leaves with 0 where everything does what the newest versions do.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
EXTRAS: Final = ("audit", "cluster", "models", "training")
"""what users may ask for; developers have the versions of constraints.txt"""
RUN: Final = ("--input-norm", "8", "--loss", "cross-entropy", "--batch-size", "256")
EXAMPLES: Final = """
import numpy
x = numpy.random.default_rng(0).random((20, 64))
numpy.savez("digits.npz", x=x, y=[0, 1] * 10)
"""


def least(project: dict[str, Any]) -> Iterator[str]:
    """`name==version` for every requirement; ValueError for one without a least version."""
    wanted = [*project["dependencies"]]
    for extra in EXTRAS:
        wanted += project["optional-dependencies"][extra]
    for requirement in wanted:
        if requirement.startswith("lipcert["):
            continue
        found = re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)(?:,<[\d.]+)?", requirement)
        if found is None:
            raise ValueError(f"{requirement}: no least version")
        yield f"{found[1]}=={found[2]}"


def main() -> int:
    """Install, use, and say what failed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = str(folder / "venv" / "bin" / "python")
        lipcert = [python, "-m", "lipcert"]
        network = str(ROOT / "models" / "digits_mlp.onnx")
        (folder / "least.txt").write_text("\n".join(least(project)), encoding="utf-8")
        (folder / "examples.py").write_text(EXAMPLES, encoding="utf-8")
        install = [python, "-m", "pip", "install", "-q", "-c", "least.txt"]
        commands = [
            [sys.executable, "-m", "venv", "venv"],
            [*install, f"{ROOT}[{','.join(EXTRAS)}]"],
            [*lipcert, "analyze", network, *RUN, "-o", "analysis.html"],
            [*lipcert, "suggest", network, *RUN, "-o", "suggestions.md"],
            [python, "examples.py"],
            [*lipcert, "analyze", network, *RUN, "--data", "digits.npz"],
            [*lipcert, "audit", network, *RUN, "--data", "digits.npz", "--cluster", "local:1"],
            [python, str(ROOT / "examples" / "clipless_training.py"), "run"],
        ]
        for words in commands:
            sys.stdout.write(f"$ {' '.join(words)}\n")
            sys.stdout.flush()
            # what is installed is used, and not the checkout
            clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
            done = subprocess.run(words, cwd=folder, env=clean, check=False)
            if done.returncode != 0:
                sys.stdout.write(f"left with {done.returncode}\n")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
