"""Limits that keep a hostile file from exhausting the machine; each is far above honest use.

A file is first imported in a child process whose memory and time are limited by the system. A
small file may take 2 GiB and eight seconds of one processor; larger ones may take more, by size.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lipcert.core.reader.files import MAX_BYTES

_MIB: Final = 1 << 20
_BASE_SECONDS: Final = 8
"""of one processor, whatever the size of the file"""
_DENSE_SECONDS: Final = 32
"""per MiB of nodes, which are small and take long, unlike weights"""
_DENSE_BYTES: Final = 2 * _MIB
"""bytes of a file that may all be nodes"""
_MODEL_WITH_DATA_ELSEWHERE: Final = 64 * _MIB
"""bytes of a file that may keep most of its weights in others"""


@final
@dataclass(frozen=True, slots=True)
class Budget:
    """What the import of one file may take in a child process."""

    bytes: int
    """address space beyond that of an idle interpreter"""
    seconds: int
    """of one processor"""

    @classmethod
    def of_file(cls, size: int) -> Budget:
        """The budget of a file of this many bytes, as it lies on the disk."""
        dense = min(size, _DENSE_BYTES)
        seconds = _BASE_SECONDS + _DENSE_SECONDS * dense // _MIB + size // (5 * _MIB)
        return cls(2048 * _MIB + 16 * size, seconds)

    @classmethod
    def of_path(cls, path: Path) -> Budget:
        """By the size of the model with its external data: large files beside it that it names."""
        try:
            size = path.stat().st_size
            if path.is_file() and 0 < size <= _MODEL_WITH_DATA_ELSEWHERE:
                size += sum(_sizes_of_named(path.parent, path.read_bytes()))
        except (OSError, ValueError):
            size = 0
        return cls.of_file(min(size, MAX_BYTES))

    @property
    def patience(self) -> float:
        """Seconds of wall-clock time, enough for a busy machine."""
        return 20.0 + 4.0 * self.seconds


def _sizes_of_named(folder: Path, model: bytes) -> Iterator[int]:
    """Sizes of the files whose name stands in the model, as the places of external data do."""
    for item in folder.iterdir():
        found = item.lstat()
        is_large = stat.S_ISREG(found.st_mode) and found.st_size >= _MIB
        if is_large and os.fsencode(item.name) in model:
            yield found.st_size
