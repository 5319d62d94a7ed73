"""JSON files: documents that LipCert wrote, read with limits.

What enters: a path. What leaves: the bytes of a file and the object in them; NoVerdictError where
the file cannot be read, is too large, or holds anything but one object.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from lipcert.cli.paths import require_file
from lipcert.errors import NoVerdictError

_LARGEST: Final = 256 * 1024 * 1024


def read_json(path: Path) -> tuple[bytes, dict[str, object]]:
    """What the file holds, as bytes and as an object."""
    require_file(path)
    try:
        if path.stat().st_size > _LARGEST:
            raise NoVerdictError(f"{path}: a document of more than 256 MiB is not read")
        data = path.read_bytes()
        document = json.loads(data.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise NoVerdictError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise NoVerdictError(f"{path}: not an object of JSON")
    return data, document
