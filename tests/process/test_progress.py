"""Progress is patient, keeps to standard error, and draws on terminals only."""

import io
import sys
import threading

import pytest

from lipcert.process import progress
from lipcert.process.progress import ProgressReport


class Clock:
    """A clock that tests turn by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(name="clock")
def _clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def observed(clock: Clock, wanted: bool | None, seconds: list[float]) -> None:
    with ProgressReport(wanted) as report:
        for done, moment in enumerate(seconds, 1):
            clock.now = moment
            report.observe("[/]\x1b[31m\n::error::x", done, len(seconds))


def test_a_pipe_hears_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    observed(clock, None, [1.0, 100.0])
    observed(clock, False, [1.0, 100.0])
    assert capsys.readouterr() == ("", "")


def test_a_pipe_hears_a_line_every_ten_seconds(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    observed(clock, True, [1.0, 9.9, 10.5, 15.0, 20.0, 21.0])
    out, error = capsys.readouterr()
    assert out == ""
    lines = error.splitlines()
    assert [line.partition(": [/]")[0] for line in lines] == [
        "lipcert: 3 of 6 steps",
        "lipcert: 6 of 6 steps",
    ]
    assert "\x1b" not in error


def test_a_terminal_sees_a_bar_after_a_while(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for wanted, seconds, is_seen in (
        (None, [0.1, 1.4], False),
        (None, [0.1, 1.6, 1.7], True),
        (True, [0.1, 1.6, 1.7], True),
        (False, [0.1, 1.6, 1.7], False),
    ):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        clock.now = 0.0
        observed(clock, wanted, seconds)
        assert bool(terminal.getvalue()) is is_seen
        assert "\x1b[31m" not in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_a_bar_can_be_taken_away_and_come_back(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    threads = threading.active_count()
    with ProgressReport(None) as report:
        clock.now = 2.0
        report.observe("bounds", 1, 2)
        assert threading.active_count() == threads
    first = len(terminal.getvalue())
    report.close()
    assert len(terminal.getvalue()) == first
    clock.now = 3.0
    report.observe("releases", 1, 2)
    assert "releases" in terminal.getvalue()[first:]
    report.close()
