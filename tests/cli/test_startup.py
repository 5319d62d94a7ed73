"""Start-up and process-level behaviour, in real processes."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lipcert
from tests.audit.trace.made import made

HEAVY = {"numpy", "scipy", "onnx", "onnxruntime", "torch", "rich", "google.protobuf"}
HEAVY |= {"safetensors", "dp_accounting"}
ROOT = Path(__file__).parents[2]
MODEL = ROOT / "tests" / "conformance" / "models" / "perceptron.onnx"


def commands(*lines: str) -> tuple[str, ...]:
    """Statements that run `lipcert` with the words of each line."""
    run = "from lipcert.__main__ import main; sys.argv = {!r}.split(); main()"
    return tuple(run.format(f"lipcert {line}") for line in lines)


LIGHT = (
    "import lipcert; lipcert.Settings()",
    "from lipcert.settings.settings import Settings",
    "import lipcert.pytest_plugin",
    *commands("--help", "--version", "analyze --help", "privacy --help", "explain LC004"),
    *commands("explain dense/1", "config show"),
)
ENGINE = (
    "import lipcert.analysis.pipeline, lipcert.privacy.accounting, lipcert.privacy.account",
    *commands("analyze {model} --format json --no-progress"),
)
TRACES = (
    "from lipcert.audit.trace import writing, reading, redaction",
    "import lipcert.cli.documents, lipcert.report.trace",
    *commands("trace verify {trace}"),
)
VERBS = (
    "settings = lipcert.Settings(input_norm=1.0); lipcert.analyze({model!r}, settings)",
    "lipcert.suggest({model!r}, settings, budget=0.0)",
    "lipcert.certify({model!r}, settings, out={out!r})",
)
PROCESSES = {
    "more and more": (
        (HEAVY, LIGHT),
        ({"torch", "rich", "scipy", "safetensors", "dp_accounting"}, ENGINE),
        ({"torch", "safetensors"}, TRACES),
        ({"torch"}, VERBS),
    ),
    "a report": (
        ({"torch", "onnx", "onnxruntime", "rich"}, commands("report {certificate} --format json")),
    ),
}
"""what is not loaded, neither by these statements nor by those before them"""


@pytest.mark.parametrize("name", PROCESSES)
def test_nothing_is_loaded_before_it_is_needed(file: Path, name: str, tmp_path: Path) -> None:
    paths = {
        "certificate": str(file),
        "trace": str(made(tmp_path / "trace", 1)),
        "model": str(MODEL),
        "out": str(tmp_path / "out.json"),
    }
    code = """if True:
        import sys
        for unwanted, statements in STAGES:
            for statement in statements:
                left = 0
                try:
                    exec(statement)
                except SystemExit as end:
                    left = end.code or 0
                loaded = unwanted & set(sys.modules)
                assert (left, loaded) == (0, set()), (statement, left, loaded)
        """
    stages = [(unwanted, [x.format(**paths) for x in lines]) for unwanted, lines in PROCESSES[name]]
    words = [sys.executable, "-c", code.replace("STAGES", repr(stages))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_closed_pipe_is_quiet() -> None:
    writer = subprocess.Popen(
        [sys.executable, "-m", "lipcert", "explain"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    writer.stdout.close()
    assert writer.stderr.read() == ""
    assert writer.wait() == 3


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert lipcert.__version__ == project["project"]["version"]
