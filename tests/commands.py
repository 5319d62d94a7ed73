"""Commands and programs of the documentation, run in this process.

A process of its own would spend most of its time on imports; that one starts, and what it loads,
is the matter of `tests/cli/test_startup.py`.
"""

import multiprocessing
import runpy
import signal
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from click.testing import CliRunner, Result

from lipcert.cli.main import cli
from lipcert.errors import LipCertError

ROOT = Path(__file__).resolve().parents[1]


def lipcert(words, cwd: Path = ROOT) -> Result:
    """`lipcert WORDS`."""
    with chdir(cwd):
        return CliRunner(env={"COLUMNS": "100"}).invoke(cli, list(words), prog_name="lipcert")


def printed_by(source: str, cwd: Path = ROOT, names=None) -> str:
    """What a block of Python prints, which finds and leaves these names."""
    known = {} if names is None else names
    known["__name__"] = "__main__"
    with chdir(cwd), redirect_stdout(StringIO()) as out:
        exec(compile(source, "documentation", "exec"), known)
    return out.getvalue()


def script(path: Path, *words: str, cwd: Path) -> str:
    """What a script prints that leaves with 0; it finds the modules beside it, as Python has it,
    and the commands of lipcert that it starts run in this process, too."""
    with (
        chdir(cwd),
        redirect_stdout(StringIO()) as out,
        patch.object(sys, "argv", [str(path), *words]),
        patch.object(sys, "path", [str(path.parent), *sys.path]),
        patch.object(subprocess, "run", _run),
    ):
        code: object = 0
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as left:
            code = left.code
    assert code in (None, 0), (code, out.getvalue()[-2000:])
    return out.getvalue()


FORK = multiprocessing.get_context("fork")
PATIENCE = 30.0
"""seconds after which a process that says nothing has failed"""


def in_child(work, meanwhile=lambda: None) -> str:
    """What it ends with in a forked process: why it stopped, or what it returned.

    meanwhile: what is done here while that process lives on.
    """
    here, there = FORK.Pipe()

    def told() -> None:
        try:
            there.send(repr(work()))
        except LipCertError as error:
            there.send(str(error))
        signal.pause()

    child = FORK.Process(target=told, daemon=True)
    child.start()
    there.close()
    try:
        assert here.poll(PATIENCE), "it waits for something"
        found: str = here.recv()
        meanwhile()
    finally:
        child.kill()
        child.join()
    return found


_START = subprocess.run


def _run(words, **options):
    if list(words[:3]) != [sys.executable, "-m", "lipcert"]:
        return _START(words, **options)
    done = lipcert(words[3:], Path.cwd())
    if not options.get("capture_output"):
        sys.stdout.write(done.output)
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)
