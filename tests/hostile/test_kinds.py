"""Hostile files through the command line: code 3, a line for each reason, nothing else read."""

import subprocess
import sys

import pytest

from lipcert.importer.load import load_model
from tests.cli.issued import call
from tests.hostile.kinds import KINDS, matmul


def check_line(text, code):
    lines = text.splitlines()
    assert lines[0].startswith(f"lipcert: error: [{code}")
    assert all(line.isprintable() for line in lines)
    assert all("[LC" in line for line in lines)
    assert "to import" not in text
    assert "Traceback" not in text


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", KINDS)
def test_kind(name, tmp_path):
    kind = KINDS[name]
    result = call("analyze", kind.write(tmp_path), "--no-progress")
    assert result.exit_code == 3
    assert result.stdout == ""
    check_line(result.stderr, kind.code)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["external-parent", "function-bomb-2^31", "name-newline"])
def test_kind_in_a_process_of_its_own(name, tmp_path):
    words = [sys.executable, "-m", "lipcert", "analyze", str(KINDS[name].write(tmp_path))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    check_line(done.stderr, KINDS[name].code)


_OBSERVER = """
import sys
from lipcert.errors import LipCertError
from lipcert.importer.load import load_model

load_model(sys.argv[1], trusted=True)  # everything is loaded now
opened = []
sys.addaudithook(lambda event, words: opened.append(words[0]) if event == "open" else None)
for path in sys.argv[2:]:
    try:
        load_model(path, trusted=True)
    except LipCertError:
        pass
sys.stdout.write("\\n".join(name for name in map(str, opened) if not name.isdigit()))
"""


def test_nothing_outside_the_folder_is_opened(tmp_path):
    """An audit hook sees every file that is opened, by the full path or below an open folder."""
    sound = tmp_path / "sound.onnx"
    sound.write_bytes(matmul().SerializeToString())
    names = [name for name in KINDS if name.startswith("external")]
    paths = [KINDS[name].write(tmp_path / name) for name in names]
    words = [sys.executable, "-c", _OBSERVER, str(sound), *map(str, paths)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    opened = {  # modules are loaded when they are needed
        name for name in done.stdout.splitlines() if not name.endswith((".py", ".pyc"))
    }
    allowed = {str(path) for path in paths} | {str(path.parent) for path in paths}
    libraries = "/proc/self/maps"  # where the limits of threads look for loaded libraries
    assert opened - allowed <= {"weights.bin", "sub", "absent.bin", "link", libraries}
    assert {"weights.bin", "absent.bin"} <= opened


def test_the_kinds_start_from_a_sound_model(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(matmul().SerializeToString())
    assert load_model(path).graph.output_shape == (4,)
