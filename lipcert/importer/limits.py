"""Limits that keep a hostile file from exhausting the machine; each is far above honest use."""

from __future__ import annotations

from typing import Final

__all__ = [
    "MAX_CONSTANT_ELEMENTS",
    "MAX_FILE_BYTES",
    "MAX_NODES",
    "MAX_RANK",
    "MAX_VALUE_ELEMENTS",
]

MAX_FILE_BYTES: Final = 1 << 30
"""bytes of a model file, after decompression"""
MAX_NODES: Final = 50_000
"""nodes of a graph, after the expansion of model-local functions"""
MAX_RANK: Final = 16
"""dimensions of a tensor"""
MAX_VALUE_ELEMENTS: Final = 1 << 28
"""elements of a tensor that depends on the data"""
MAX_CONSTANT_ELEMENTS: Final = 1 << 27
"""elements of a constant that is computed while importing"""
