"""kill -9 at any moment: what was released stays spent, and nothing is drawn twice."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from lipcert.audit.job import Job
from lipcert.audit.records import Verdict
from lipcert.audit.run import audit
from lipcert.audit.trace.reading import read_trace, verify
from lipcert.audit.trace.records import Resume
from lipcert.cli.sources import effective_settings
from tests.training.kill_worker import begun, live

KILLS, STEPS = 3, 20
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("uncertified")]


def lived(folder: Path, model_file: Path, told_before: int, moment: float) -> list[str]:
    """What a process told that trains until it is killed: after so many words, and a moment; not
    at all where it has not so many to tell."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            private = begun(folder, STEPS, model_file=model_file)
            live(private, lambda line: os.write(tell, line.encode()))
        finally:
            os._exit(0)
    os.close(tell)
    with os.fdopen(told) as pipe:
        lines = [pipe.readline() for _ in range(told_before)]
        if lines[-1]:
            time.sleep(moment)
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.set_blocking(pipe.fileno(), False)  # a loading process may hold the other end
        while line := pipe.readline():
            lines.append(line)
    return [line for line in lines if line.endswith("\n")]


@pytest.mark.nightly
def test_kills(tmp_path: Path, model_file: Path) -> None:
    rng = random.Random(4)
    folder = tmp_path / "run"
    lives = [
        lived(folder, model_file, rng.randrange(1, 6), rng.random() * 0.03) for _ in range(KILLS)
    ]
    lives.append(lived(folder, model_file, STEPS + 2, 0.0))
    check(folder, lives, STEPS)


def check(folder: Path, lives: list[list[str]], steps: int) -> None:
    """Of a run that was killed as often as there are lives but the last."""
    released, spent = 0, 0.0
    for first, *others in lives:
        count, epsilon = first.split()
        assert int(count) >= released
        assert float(epsilon) >= spent
        released, spent = max([int(count), *map(int, others)]), float(epsilon)
    assert released == steps
    trace = read_trace(folder / "trace")
    assert verify(folder / "trace").faults == ()
    events = list(trace.events(0))
    assert sum(isinstance(event, Resume) for event in events) >= 1
    done = list(trace.steps(0))
    told = sum(len(others) for _, *others in lives)
    assert told <= len(done) <= steps
    states = [step.noise.generator for step in done]
    assert len(set(states)) == len(states)
    drawn = [tuple(batch.index) for step in done for batch in step.batches]
    assert len(set(drawn)) == len(drawn)
    settings = effective_settings({}, {}, folder / "lipcert.toml").settings
    report = audit(Job(str(folder / "model.onnx"), settings, trace=str(folder / "trace")))
    assert report is not None
    assert {item.verdict for item in report.checks} == {Verdict.PASS}
