"""What an interruption leaves is continued, and everything verifies; see the tests of ledgers."""

from contextlib import closing

import pytest

from lipcert.audit.trace.files import FaultKind, TraceError
from lipcert.audit.trace.reading import read_trace, verify
from lipcert.audit.trace.records import Resume, Start
from lipcert.errors import UsageError
from tests.audit.trace.made import made, opened, step


@pytest.mark.parametrize("kept", ["none", "one", "half", "all but the end"])
def test_every_torn_tail_is_cut(tmp_path, kept: str) -> None:
    folder = made(tmp_path / "t")
    path = folder / "steps-0.jsonl"
    *lines, last, _ = path.read_bytes().splitlines(keepends=True)
    size = {"none": 0, "one": 1, "half": len(last) // 2, "all but the end": len(last) - 1}[kept]
    path.write_bytes(b"".join(lines) + last[:size])
    assert [fault.kind for fault in verify(folder).faults] == [FaultKind.TORN] * (size > 0)
    trace = read_trace(folder)
    assert trace.bytes_behind(trace.end(0)) == size
    with closing(opened(folder)) as writer:
        assert writer.steps == 2
        writer.append(step(writer, 2))
    events = list(read_trace(folder).events(0))
    assert [event.cut for event in events if isinstance(event, Resume)] == [size]
    assert verify(folder).faults == ()
    assert verify(folder).steps == 3


def test_whole_lines_that_are_broken_are_not_cut(tmp_path) -> None:
    folder = made(tmp_path / "t")
    path = folder / "steps-0.jsonl"
    content = path.read_bytes().replace(b'"divisor":5.0', b'"divisor":6.0', 1)
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"steps-0.jsonl, line 2: the chain is broken"):
        opened(folder)
    assert path.read_bytes() == content


def test_killed_before_the_first_line(tmp_path) -> None:
    folder = made(tmp_path / "t", 0)
    (folder / "steps-0.jsonl").write_bytes(b"")
    opened(folder).close()
    assert isinstance(next(read_trace(folder).events(0)), Start)
    (folder / "steps-0.jsonl").unlink()
    opened(folder).close()
    assert verify(folder).faults == ()


def test_an_unfinished_tensor_is_written_again(tmp_path) -> None:
    folder = made(tmp_path / "t", 1)
    for path in (folder / "blobs").iterdir():
        path.write_bytes(path.read_bytes()[:10])
    assert verify(folder).faults
    with closing(opened(folder)) as writer:
        step(writer, 0)
    assert verify(folder).faults == ()


def test_a_closed_writer_takes_no_more(tmp_path) -> None:
    writer = opened(tmp_path / "t")
    writer.close()
    writer.close()
    with pytest.raises(UsageError, match="was closed"):
        writer.append(step(writer, 0))
