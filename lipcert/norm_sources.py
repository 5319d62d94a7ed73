"""The sources of everything that certifies a norm, and their digest.

What enters: nothing. What leaves: file names and a digest, which loads no engine: taken before the
engine is imported and again after it has answered, equal digests say which code answered, even
where the installation changes under a running process.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parent
_GROUND: Final = ("facts", "interval", "operand", "upper")


def rule_sources() -> tuple[Path, ...]:
    """The modules of norms and those they stand on."""
    return (
        *sorted((_PACKAGE / "norms").rglob("*.py")),
        *(_PACKAGE / f"{name}.py" for name in _GROUND),
    )


def rules_digest() -> str:
    """SHA-256 of the names and texts of the sources; "" where they cannot be read."""
    digest = hashlib.sha256()
    try:
        for source in rule_sources():
            text = source.read_bytes()
            digest.update(f"{source.relative_to(_PACKAGE).as_posix()} {len(text)}\n".encode())
            digest.update(text)
    except OSError:
        return ""
    return digest.hexdigest()
