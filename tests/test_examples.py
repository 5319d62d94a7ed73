"""The scripts of private training run to their end: trained, checked, audited, reported."""

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


@pytest.mark.nightly
def test_a_script_finds_all_that_it_imports() -> None:
    """In a process that has loaded nothing; what it then does is run below."""
    path = str(ROOT / "examples" / "clipless_training.py")
    code = f"import runpy, sys; sys.path[0] = {str(ROOT / 'examples')!r}; runpy.run_path({path!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_private_run_is_trained_and_reviewed(name: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60
    printed = script(path, str(tmp_path / "run"), cwd=tmp_path)
    assert SCRIPTS[name] in printed
    assert "LIPCERT-CHECK: CONDITIONAL" in printed
    assert re.search(r"^Pass: [\d,]+ examples replayed", printed, flags=re.MULTILINE)
    assert (tmp_path / "run" / "audit.html").stat().st_size > 10_000
    if name == "decay_inside_the_clip":
        weight = re.search(r"^weight ([\d.]+);", printed, flags=re.MULTILINE)
        # the noise of all steps adds up to a standard deviation of 0.0008, and two digits are shown
        assert abs(float(weight.group(1)) - 3.8 / 1.5) < 10 * 0.0008 + 0.005
    if name == "clipless_training":
        shown = re.search(r"\$ python examples/clipless_training.py run/\n(.*)\n", README)
        assert shown.group(1).strip() in printed


@pytest.mark.nightly
def test_frozen_features_keep_what_they_have_learnt(tmp_path: Path) -> None:
    """BatchNorm and all: the private head is next to the one without privacy, and is audited."""
    pytest.importorskip("sklearn")
    printed = script(ROOT / "examples/frozen_features.py", str(tmp_path / "run"), cwd=tmp_path)
    found = re.search(r"test accuracy ([\d.]+), without privacy ([\d.]+)", printed)
    private, plain = map(float, found.groups())
    assert plain > 0.95
    assert private > plain - 0.05
    assert "LIPCERT-CHECK: CONDITIONAL" in printed
    assert re.search(r"^Pass: 2,800 examples replayed", printed, flags=re.MULTILINE)
