"""Files are written whole, or stay as they were."""

import os

import pytest

from lipcert.process.files import write_whole


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path) -> None:
    file = tmp_path / "result.json"
    file.write_bytes(b"old")
    file.chmod(0o640)
    write_whole(file, b"new")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"new", 0o640)
    assert os.listdir(tmp_path) == ["result.json"]


@pytest.mark.parametrize("private", [True, False])
def test_only_private_files_are_hidden_from_others(tmp_path, private: bool) -> None:
    mask = os.umask(0o022)
    try:
        write_whole(tmp_path / "new", lambda stream: stream.write(b"x"), private=private)
    finally:
        os.umask(mask)
    assert (tmp_path / "new").stat().st_mode & 0o777 == (0o600 if private else 0o644)


def test_a_writer_that_fails_leaves_the_old_file(tmp_path) -> None:
    def failing(stream: object) -> None:
        stream.write(b"half")  # type: ignore[attr-defined]
        raise RuntimeError("the disk is full, say")

    file = tmp_path / "checkpoint.pt"
    file.write_bytes(b"old")
    with pytest.raises(RuntimeError):
        write_whole(file, failing)
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["checkpoint.pt"]
