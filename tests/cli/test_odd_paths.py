"""Names that no file has, and things that are no files, wherever a command line takes a path.

The options and arguments are those that the verbs declare: a new one is covered by itself.
"""

import os
import re
import signal

import click
import numpy as np
import pytest

import lipcert
from lipcert.cli.main import _VERBS, _command_of
from lipcert.cli.paths import PathWord
from lipcert.errors import NoVerdictError
from tests.cli.issued import call
from tests.importer.models import model, onnx, saved, weights

_PATHS = re.compile(r"FILE|DIR|PATH|INPUT\.\.\.")
_NAMES = {"data", "out_file", "out", "model", "certificate", "analysis", "folder", "config"}
_NO_PATHS = {"cluster"}  # an address


def commands():
    """All verbs, and the verbs of groups, by their words."""
    pending = [((verb,), _command_of(verb)) for verb in _VERBS]
    while pending:
        words, command = pending.pop()
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                pending.append(((*words, name), command.get_command(context, name)))
        else:
            yield words, command


PLACES = {
    " ".join([*words, parameter.opts[-1]]): (words, command, parameter)
    for words, command in commands()
    for parameter in command.params
    if isinstance(parameter.type, PathWord) or parameter.metavar == "FMT=FILE"
}
NAMES = {
    "zero byte": "net\0.onnx",
    "long": "a" * 10_000,
    "long part": "folder/" + "b" * 300,
    "long path": "c/" * 5_000,
    "empty": "",
    "not UTF-8": os.fsdecode(b"net\xff.onnx"),
}
THINGS = ["/", "folder", "nothing", "link", "fifo", "/dev/null/x", "folder/../folder", "locked/a"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    saved(model([node], ("N", 2), {"w": weights(2, 2)}), tmp_path, "net.onnx")
    np.savez(tmp_path / "data.npz", x=np.zeros((1, 2), np.float32), y=np.zeros(1, int))
    (tmp_path / "net.json").write_text("{}", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "locked").mkdir(mode=0)
    (tmp_path / "link").symlink_to("not/there")
    os.mkfifo(tmp_path / "fifo")

    def hangs(*_):
        raise AssertionError("it waits for the other end of a pipe")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def words_with(place: str, name: str) -> list[str]:
    """A command line in which one path is this name, and the others are those of files."""
    words, command, chosen = PLACES[place]
    line, options = list(words), []
    for parameter in command.params:
        if parameter is chosen and isinstance(parameter, click.Option):
            options += [chosen.opts[-1], f"json={name}" if chosen.metavar == "FMT=FILE" else name]
        elif isinstance(parameter, click.Argument) and parameter is chosen:
            line.append(name)
        elif isinstance(parameter, click.Argument) and (parameter.required or "audit" in words):
            known = "net.onnx" if parameter.name in {"model", "target"} else "net.json"
            line.append("folder" if parameter.name == "folder" else known)
        elif parameter.required and isinstance(parameter, click.Option):
            options += [parameter.opts[-1], "net.onnx" if parameter.name == "model" else "copy"]
    if words == ("audit",) and chosen.name not in {"data", "trace", "merge"}:
        options += ["--data", "data.npz"]
    return [*line, *options]


def told(place: str, name: str):
    done = call(*words_with(place, name))
    assert done.exit_code in {0, 1, 2, 3}, (done.output[-500:], done.exception)
    assert "LC901" not in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 3000
    return done


@pytest.mark.parametrize("place", PLACES)
def test_a_name_that_no_file_has_is_a_wrong_request(place):
    for kind, name in NAMES.items():
        done = told(place, name)
        assert done.exit_code == 2, (kind, done.stderr)
        assert re.search(r"name|byte|UTF-8|FMT=FILE", done.stderr), (kind, done.stderr)


@pytest.mark.sample(8)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_such_file_is_said(place, monkeypatch):
    """Audits end where torch would be loaded: what they read is looked at before."""

    def ends():
        raise NoVerdictError("the paths may be those of files")

    monkeypatch.setattr("lipcert.cli.audit.require_torch", ends)
    for name in THINGS:
        told(place, name)


def test_every_option_that_takes_a_path_is_declared_as_one():
    """By its type, or by what its help calls it."""
    for words, command in commands():
        for parameter in command.params:
            if isinstance(parameter.type, PathWord) or parameter.name in _NO_PATHS:
                continue
            assert not isinstance(parameter.type, click.Path), (words, parameter.name)
            assert parameter.name not in _NAMES, (words, parameter.name)
            is_path = _PATHS.search(parameter.metavar or "")
            assert not is_path or parameter.metavar == "FMT=FILE", (words, parameter.name)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", [*NAMES.values(), *THINGS])
def test_the_same_names_in_python(name):
    for verb in (lipcert.analyze, lipcert.certify, lipcert.load_model):
        with pytest.raises(lipcert.LipCertError):
            verb(name)
