"""Results replace regular files as a whole, and go into pipes and devices as they are."""

import json
import os

import pytest

from lipcert.cli.output import write
from tests.cli.issued import MODEL, call


def test_a_regular_file_is_replaced_as_a_whole(tmp_path) -> None:
    file = tmp_path / "result"
    file.write_text("old", encoding="utf-8")
    before = file.stat().st_ino
    write("new\n", file)
    assert file.read_text(encoding="utf-8") == "new\n"
    assert file.stat().st_ino != before
    assert list(tmp_path.iterdir()) == [file]


def test_a_pipe_stays_a_pipe(tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write("result\n", pipe)
    assert pipe.is_fifo()
    assert os.read(reader, 100) == b"result\n"
    os.close(reader)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "more", "start"),
    [
        ("a.json", (), "{"),
        ("a.JSON", (), "{"),
        ("a.txt", (), str(MODEL)),
        ("a", (), str(MODEL)),
        ("a.json", ("--format", "text"), str(MODEL)),
    ],
)
def test_a_file_has_the_format_of_its_ending_where_none_is_given(
    name: str, more: tuple[str, ...], start: str, tmp_path
) -> None:
    done = call("inspect", MODEL, *more, "-o", tmp_path / name)
    assert (done.exit_code, done.stdout) == (0, "")
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)


def test_an_ending_that_a_verb_does_not_write_is_refused(tmp_path) -> None:
    done = call("inspect", MODEL, "-o", tmp_path / "a.html")
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "ends as html" in done.stderr
    assert "one of text, json" in done.stderr


def test_the_ending_of_a_certificate_is_not_the_format_of_what_is_said(tmp_path) -> None:
    done = call("certify", MODEL, "-o", tmp_path / "c.json")
    assert "accepted by the checker" in done.stdout
    assert json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
