"""Limits that keep a hostile file from exhausting the machine; each is far above honest use.

A file is first imported in a child process whose memory and time are limited by the system. A
small file may take 2 GiB and a minute; larger ones may take more, in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

__all__ = [
    "MAX_CONSTANT_ELEMENTS",
    "MAX_FILE_BYTES",
    "MAX_NODES",
    "MAX_RANK",
    "MAX_VALUE_ELEMENTS",
    "Budget",
]

MAX_FILE_BYTES: Final = 1 << 30
"""bytes of a model file, after decompression and with its external data"""
MAX_NODES: Final = 50_000
"""nodes of a graph, after the expansion of model-local functions"""
MAX_RANK: Final = 16
"""dimensions of a tensor"""
MAX_VALUE_ELEMENTS: Final = 1 << 28
"""elements of a tensor that depends on the data"""
MAX_CONSTANT_ELEMENTS: Final = 1 << 27
"""elements of a constant that is computed while importing"""

_MIB: Final = 1 << 20


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
        return cls(2048 * _MIB + 16 * size, 60 + size // _MIB)

    @property
    def patience(self) -> float:
        """Seconds of wall-clock time, enough for a busy machine."""
        return 60.0 + 4.0 * self.seconds
