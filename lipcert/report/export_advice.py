"""Export advice: what a file lost on its way out of a module, and the line that exports it again.

From the findings of an inspection whose remedy is to export again: what was done at the export, why
that matters, and one line of Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, final

from lipcert.core.reader.records import Input
from lipcert.diagnostics import CODES, EXPORT, Diagnostic
from lipcert.errors import Refusal
from lipcert.report.document import Commands, Findings, Line

_TORCH: Final = "pytorch"
_WHY: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "LC009": (
            "tensors were computed from parameters: batch normalization or constants were folded, "
            "or weights are parametrized",
            "gradients are bounded with respect to these tensors, not to what you train",
        ),
        "LC011": (
            "the module was exported in training mode",
            "in that mode batch normalization mixes the examples and dropout is random",
        ),
        "LC015": (
            "the weights are in other files, which are not beside the model as they should be",
            "no bound exists without them; lipcert.export writes one file",
        ),
        "LC020": (
            "parameters are inputs of the file too (keep_initializers_as_inputs)",
            "a caller can replace them; bounds hold for the numbers in the file",
        ),
        "LC021": (
            "the number of examples is fixed (no dynamic batch axis)",
            "it is assumed, not proved, that examples do not influence each other",
        ),
        "LC022": (
            "the number of examples is fixed (no dynamic batch axis)",
            "the file itself runs with that many examples only",
        ),
        "LC023": (
            "parameters lost their names",
            "bounds cannot be matched with the names in your state_dict, and what was folded into "
            "these tensors is unknown",
        ),
        "LC024": (
            "parameters of equal numbers are stored once",
            "whether training ties them is not known, and it is assumed that it does not",
        ),
        "LC027": (
            "single numbers are stored like parameters",
            "which of them are trained is guessed",
        ),
    }
)
"""code → what was done, and why it matters"""
_TORCHSCRIPT: Final = (
    "TorchScript's exporter wrote the file (dynamo=False)",
    "it does not say which tensors are parameters, so their names decide",
)


@final
@dataclass(frozen=True, slots=True)
class ExportMistake:
    """code: of the finding; "" where there is none. done: at the export; why: it matters."""

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

    def told(self) -> tuple[Findings, Commands]:
        """The advice as parts of a text report."""
        lines = tuple(
            Line(
                (item.code or "note",),
                "",
                f"{item.done}; {item.why}",
                "" if item.remedy == EXPORT else item.remedy.replace(EXPORT, "the line below"),
            )
            for item in self.mistakes
        )
        return Findings(lines), Commands((("again, from the module in Python", self.again),))


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
            said = item.message if isinstance(item, Diagnostic) else item.reason
            done, why = _WHY.get(item.code, (CODES[item.code].rstrip("."), said))
            yield ExportMistake(item.code, done, why, item.remedy)


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
