"""JSON reports, version 1: other tools read these names; they are extended, never renamed.

A record is one JSON object with exact names and floats in full precision; "no bound" is null, and
NaN or infinity cannot occur. The text is ASCII, without character sequences that a CI log would
read as a command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lipcert.core.codec import member
from lipcert.text.codec import DECIMAL, Codec, Form

if TYPE_CHECKING:
    from lipcert.diagnostics import Diagnostic
    from lipcert.errors import Refusal
    from lipcert.report.document import Finding

JsonObject = Mapping[str, object]


class FieldError(ValueError):
    """A member of a document is missing or of another type; the message says what was expected."""


def _word_or_number(value: Any) -> str | float:
    """Read a word or a number; true and false are numbers in Python."""
    found: str | float = value if type(value) in {str, bool} else DECIMAL.read(value)
    return found


MEMBERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "Analysis.privacy": member(optional=True),
    "Analysis.usefulness": member(optional=True),
    "Analysis.gates": member(optional=True),
    "Outline.sha256": member(apart=True),
    "Outline.producer": member(apart=True),
    "Outline.opset": member(apart=True),
    "Outline.signed": member(apart=True),
    "Observed.of_norms": member(optional=True),
    "Assumptions.eval_layers": member("eval_mode", optional=True),
    "Assumptions.input_ids": member(optional=True),
    "Assumptions.input_parts": member("inputs", optional=True),
    "Assumptions.frozen": member(optional=True),
    "Assumptions.fixed": member(optional=True),
    "RankEnd.end": member(apart=True),
    "Verification.trace": member(apart=True),
    "Finding.place": member("node"),
    "Finding.quantity": member(apart=True),
}
"""Members that are not named like their fields, or that older versions did not write."""


def documents(number: Form, members: Mapping[str, Mapping[str, Any]] = MEMBERS) -> Codec:
    """Return documents for other tools: no bound is null, and unknown members are ignored."""
    return Codec(
        FieldError,
        {float: number, str | float: Form(lambda value: value, _word_or_number)},
        members=members,
        nulls=True,
        extra=True,
        largest=1 << 63,
        longest=1 << 24,
    )


DOCUMENT: Final = documents(DECIMAL)
_CODE: Final = re.compile(r"\[(LC\d{3})\]")


def dump(document: JsonObject) -> str:
    """Return the canonical text of a document, ending in a newline."""
    text = json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False)
    return text.replace("##", "#\\u0023").replace("\x7f", "\\u007f") + "\n"


def error_json(exit_code: int, message: str, refusals: Sequence[Refusal] = ()) -> str:
    """Return `lipcert.error/1`, printed instead of a result; `code` is "" without a page."""
    return dump(
        {
            "schema": "lipcert.error/1",
            "exit": exit_code,
            "code": _code(message),
            "message": message,
            "refusals": written(refusals),
        }
    )


def _code(message: str) -> str:
    """Return the diagnostic code in front of a message."""
    found = _CODE.match(message)
    return found.group(1) if found else ""


def written(records: Sequence[Diagnostic | Refusal | Finding]) -> list[JsonObject]:
    """Return every finding with its remedy."""
    return [DOCUMENT.write(record) for record in records]
