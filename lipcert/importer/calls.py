"""Calls: what torch.export noted about the call that a node was made from.

A `Call` holds the name of the call and its arguments as they were written, such as `%x`, `[1, -1]`
or `1e-05`; a name behind `%` is that of a placeholder or of another call. Invariant: nothing is
guessed; a note of another form is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

from lipcert.core.reader.records import Node

FX_NODE: Final = "pkg.torch.onnx.fx_node"
_CALL: Final = re.compile(
    r"(?:^%(?P<result>\w+) :.*)?"
    r"target=(?:torch\.ops\.aten\.(?P<name>\w+)|(?P<other>[\w.]+))[^\]]*\]"
    r"\(args = \((?P<args>.*)\), kwargs = \{(?P<kwargs>.*)\}\)$",
    re.DOTALL,
)
_NAME: Final = re.compile(r"%(\w+)")
_SHAPED: Final = frozenset(
    ["expand", "new_zeros", "permute", "repeat", "reshape", "slice", "unflatten", "view"]
)
"""calls of which the first argument alone is a tensor"""


@final
@dataclass(frozen=True, slots=True)
class Call:
    """A call of a torch operator, or of another function, whose name then has a dot in it.

    result: its own name in the exported program.
    """

    name: str
    result: str
    arguments: tuple[str, ...]
    keywords: str

    @property
    def tensors(self) -> list[str]:
        """Names of the tensors that the call may read."""
        if self.name in _SHAPED:
            return names_in(", ".join(self.arguments[:1]))
        return names_in(", ".join((*self.arguments, self.keywords)))


def call_of(node: Node) -> Call | None:
    """The call that a node was made from, if the exporter noted it."""
    found = _CALL.search(node.metadata.get(FX_NODE, ""))
    if found is None:
        return None
    arguments = tuple(_arguments(found["args"]))
    name = found["name"] or found["other"]
    return Call(name, found["result"] or "", arguments, found["kwargs"])


def names_in(text: str) -> list[str]:
    """The names behind % in their order."""
    return _NAME.findall(text)


def _arguments(text: str) -> Iterator[str]:
    """The arguments, cut at the commas outside of brackets."""
    depth, start = 0, 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    if text[start:].strip():
        yield text[start:].strip()
