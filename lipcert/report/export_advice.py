"""Export advice: what a file lost on its way out of a module, and the line that exports it again.

From the findings of an inspection whose remedy is to export again: what each means, and one line of
Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lipcert.core.reader.records import Input
from lipcert.diagnostics import CODES, EXPORT, Diagnostic
from lipcert.errors import Refusal
from lipcert.report.document import Commands, Listing

_TORCH: Final = "pytorch"
_TORCHSCRIPT: Final = (
    "TorchScript's exporter wrote the file (dynamo=False)",
    "it does not say which tensors are parameters, so their names decide",
)


@final
@dataclass(frozen=True, slots=True)
class ExportMistake:
    """code: of the finding; "" where there is none. done: what that means; why: what was found."""

    code: str
    done: str
    why: str
    remedy: str


@final
@dataclass(frozen=True, slots=True)
class ExportAdvice:
    """What to do otherwise, and the line of Python that does all of it (`EXPORT`, filled in)."""

    mistakes: tuple[ExportMistake, ...]
    again: str

    def told(self) -> tuple[Listing, Commands]:
        """The line, and what no finding says besides."""
        more = tuple(f"{item.done}; {item.why}" for item in self.mistakes if not item.code)
        return Listing(more), Commands((("again, from the module in Python", self.again),))


def export_advice(
    path: str,
    findings: Iterable[Diagnostic | Refusal],
    producer: str = "",
    *,
    inputs: Sequence[Input] = (),
    signed: bool = True,
) -> ExportAdvice | None:
    """Of a file that torch wrote, or that may be; None where it could not be better.

    inputs: of the file; empty where they are not known. signed: whether the exporter says which
    tensors are parameters.
    """
    if not _TORCH.startswith(producer.partition(" ")[0]):
        return None
    mistakes = {item.code: item for item in _mistakes(findings)}
    if not signed:
        mistakes[""] = ExportMistake("", *_TORCHSCRIPT, EXPORT)
    if not mistakes:
        return None
    name = json.dumps(Path(path).name)
    return ExportAdvice(
        tuple(mistakes.values()), f"lipcert.export(module, {_example(inputs)}, {name})"
    )


def _mistakes(findings: Iterable[Diagnostic | Refusal]) -> Iterator[ExportMistake]:
    for item in findings:
        if EXPORT in item.remedy:
            why = item.message if isinstance(item, Diagnostic) else item.reason
            yield ExportMistake(item.code, CODES[item.code].rstrip("."), why, item.remedy)


def _example(inputs: Sequence[Input]) -> str:
    """Python of one example of each input, whose first axis is that of the batch."""
    zeros = []
    for item in inputs:
        sizes = (item.dims or ())[1:]
        if item.dims is None or not all(isinstance(size, int) for size in sizes):
            return "x[:1]"
        kind = "" if item.dtype == "float32" else f", dtype=torch.{item.dtype}"
        zeros.append(f"torch.zeros({', '.join(map(str, (1, *sizes)))}{kind})")
    if not zeros:
        return "x[:1]"
    return zeros[0] if len(zeros) == 1 else f"({', '.join(zeros)})"
