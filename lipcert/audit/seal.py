"""Seal: JSON that carries a digest of itself, so that damage is told before anything is read.

    {"schema": …, "sha256": "digest of the text up to here, closed"}

What enters: members, or a text that anybody may have written. What leaves: the text, or the very
members that were sealed. Invariant: a text that differs in one byte from what was written is
refused unless its digest was made anew: a seal shows accidents, and no ill will.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lipcert.audit.trace.files import open_regular

_MOST_BYTES: Final = 1 << 28


def sealed(members: Mapping[str, Any]) -> str:
    """As JSON with a digest."""
    return _closed(json.dumps(members))


def unsealed(text: str) -> dict[str, Any]:
    """The members that were sealed; ValueError for any other text."""
    body = f"{text[: -len(_closed('{}')) + 1]}}}"
    if text != _closed(body):
        raise ValueError(
            "its digest is not that of what it holds; it was changed, or written by another version"
        )
    try:
        members: dict[str, Any] = json.loads(body)  # what ends with a brace is an object
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return members


def read_text(path: Path) -> str:
    """Of a regular file of reasonable size; OSError or ValueError for anything else."""
    if path.is_symlink():
        raise ValueError("it is a link; put the file itself there")
    with open_regular(path) as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it is longer than {_MOST_BYTES} bytes")
    return data.decode("utf-8", errors="strict")


def _closed(body: str) -> str:
    digest = hashlib.sha256(body.encode("utf-8", errors="surrogatepass")).hexdigest()
    return f'{body[:-1]}, "sha256": "{digest}"}}'
