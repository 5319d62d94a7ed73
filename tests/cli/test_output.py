"""Results replace regular files as a whole, and go into pipes and devices as they are."""

import os
import threading
from pathlib import Path

from lipcert.cli.output import write


def test_a_regular_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "result"
    file.write_text("old", encoding="utf-8")
    before = file.stat().st_ino
    write("new\n", file)
    assert file.read_text(encoding="utf-8") == "new\n"
    assert file.stat().st_ino != before
    assert list(tmp_path.iterdir()) == [file]


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(
        target=lambda: read.append(pipe.read_text(encoding="utf-8")), daemon=True
    )
    reader.start()
    write("result\n", pipe)
    assert pipe.is_fifo()
    reader.join(60)
    assert read == ["result\n"]
