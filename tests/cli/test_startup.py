"""Start-up and process-level behaviour, in real processes."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lipcert
from lipcert.explain import explain

HEAVY = {"numpy", "scipy", "onnx", "onnxruntime", "torch", "rich"}
ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "digits_mlp.onnx"


def loaded_by(*words: str) -> set[str]:
    """Heavy modules that a command leaves in `sys.modules`."""
    code = (
        "import atexit, sys\n"
        "def tell():\n"
        f"    sys.stderr.write('loaded ' + ' '.join({HEAVY!r} & set(sys.modules)))\n"
        "atexit.register(tell)\n"
        f"sys.argv = ['lipcert', *{list(words)!r}]\n"
        "from lipcert.__main__ import main\n"
        "main()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return set(result.stderr.rpartition("loaded ")[2].split())


@pytest.mark.parametrize(
    "words",
    [
        ["--help"], ["--version"], ["analyze", "--help"], ["explain", "LC004"],
        ["explain", "dense/1"], ["config", "show"],
    ],
)  # fmt: skip
def test_light_commands_load_no_engine(words: list[str]) -> None:
    assert loaded_by(*words) == set()


def test_the_module_runs() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "lipcert", "no-such-verb"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("lipcert: error:")


def test_a_closed_pipe_is_quiet() -> None:
    writer = subprocess.Popen(
        [sys.executable, "-m", "lipcert", "explain"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    writer.stdout.close()
    assert writer.stderr.read() == ""
    assert writer.wait() == 3


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert lipcert.__version__ == project["project"]["version"]


def test_public_names_exist() -> None:
    assert set(lipcert.__all__) >= {"Settings", "analyze", "load_model"}
    with pytest.raises(AttributeError, match="no attribute"):
        _ = lipcert.no_such_name


def test_analyze_loads_no_torch() -> None:
    loaded = loaded_by("analyze", str(MODEL), "--format", "json", "--no-progress")
    assert "numpy" in loaded
    assert not {"torch", "rich", "scipy"} & loaded


def test_a_real_model_from_file_to_explanation() -> None:
    words = [sys.executable, "-m", "lipcert", "analyze", str(MODEL), "--format", "json"]
    result = subprocess.run(words, capture_output=True, text=True, check=True)
    found = json.loads(result.stdout)
    assert found["network"]["sensitivity"] > 0.0
    rules = {node["rule"] for node in found["nodes"]}
    assert rules
    assert all(explain(rule) for rule in sorted(rules))
