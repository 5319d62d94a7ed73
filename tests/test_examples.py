"""The scripts of private training run to their end: trained, checked, audited, reported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import script

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPTS = {
    "clipless_training": "ε = 2.998",
    "weight_clipping_training": "ε = 2.998",
    "backprop_clipping_training": "ε = 2.998",
    "decay_inside_the_clip": "ridge 2.53, decay outside the clip 2.00",
}


def started(path: Path, *words: str, cwd: Path) -> str:
    """What the script prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(path), *words], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_private_run_is_trained_and_reviewed(name: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60
    begin = started if name == "clipless_training" else script  # as shown, once
    printed = begin(path, str(tmp_path / "run"), cwd=tmp_path)
    assert SCRIPTS[name] in printed
    assert "LIPCERT-CHECK: CONDITIONAL" in printed
    assert re.search(r"^Pass: [\d,]+ examples replayed", printed, flags=re.MULTILINE)
    assert (tmp_path / "run" / "audit.html").stat().st_size > 10_000
    if name == "decay_inside_the_clip":
        weight = re.search(r"^weight ([\d.]+);", printed, flags=re.MULTILINE)
        assert weight is not None
        # the noise of all steps adds up to a standard deviation of 0.0008, and two digits are shown
        assert abs(float(weight.group(1)) - 3.8 / 1.5) < 10 * 0.0008 + 0.005
    if name == "clipless_training":
        shown = re.search(r"\$ python examples/clipless_training.py run/\n(.*)\n", README)
        assert shown is not None
        assert shown.group(1).strip() in printed
