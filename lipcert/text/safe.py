"""Safe: make names and texts from a model file inert before they are printed.

`safe` takes any string that an attacker may have chosen. It returns one line of visible characters
without control codes, direction overrides or the markers by which CI systems recognise commands.
Invariant: everything from a model that a report prints for people passes through here. (JSON needs
exact names and makes them inert by its own escapes.)
"""

import re
import unicodedata
from typing import Final

_COMMAND: Final = re.compile(r"(?<![A-Za-z0-9])::")
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe(text: str) -> str:
    r"""The text with every invisible character written as an escape (`\n`, `\x1b`, `\u202e`).

    `##`, and `::` unless it continues a word, lose their first character to an escape: with them
    begin the commands of Azure and GitHub logs.
    """
    visible = "".join(
        character if _is_visible(character) else _escape(character) for character in text
    )
    return _COMMAND.sub("\\\\x3a:", visible).replace("##", "\\x23#")


def shortened(text: str, limit: int) -> str:
    """Return a safe text of at most `limit` characters; the middle is cut, both ends stay."""
    text = safe(text)
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def _is_visible(character: str) -> bool:
    return character == " " or (
        unicodedata.category(character) not in _HIDDEN and not character.isspace()
    )


def _escape(character: str) -> str:
    return ascii(character)[1:-1]
