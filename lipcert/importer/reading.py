"""Reading: the program that the core reads in the file of a model, of which all bounds are.

Raised is `UnsupportedModelError` (LC028) where the core does not understand it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from lipcert.core.program import Program
from lipcert.core.reader.model import read_model
from lipcert.core.reader.records import Model, ModelReadError, Tensor
from lipcert.errors import NoVerdictError, Refusal, UnsupportedModelError

if TYPE_CHECKING:
    from lipcert.importer.model import ImportedModel


@final
@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What the core makes of a file. outputs: those of the file that the loss reads, by name."""

    model: Model
    program: Program
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, path: Path, *outputs: str) -> Reading:
        """The program behind outputs of a file."""
        model = stored_model(path)
        names = outputs if set(outputs) <= set(model.outputs) else model.outputs[-1:]
        return cls(model, _lowered(model, *names), names)

    def is_of(self, imported: ImportedModel) -> bool:
        """Whether what was read here are bytes, in the file and beside it, that the other read."""
        return is_same(self.model, imported.sha256, imported.external)

    def at(self, tensors: Mapping[str, Tensor]) -> Reading:
        """The same file with other numbers in some of its initializers."""
        model = replace(self.model, initializers={**self.model.initializers, **tensors})
        return replace(self, model=model, program=_lowered(model, *self.outputs))


def read_program(imported: ImportedModel, outputs: tuple[str, ...] = ()) -> Reading:
    """The program behind outputs (none: what the importer followed)."""
    known = imported.reading
    if known is not None and outputs in {(), known.outputs}:
        return known
    found = Reading.of(Path(imported.path), *(outputs or (imported.graph.output_name,)))
    if not found.is_of(imported):
        raise NoVerdictError(f"{imported.path} changed after it was imported")
    return found


def is_same(model: Model, sha256: str, external: Mapping[str, str]) -> bool:
    """Whether a model was read from these bytes, in the file and beside it."""
    beside = {item.location: item.sha256 for item in model.external}
    return model.sha256 == sha256 and beside.items() <= external.items()


def stored_model(path: Path) -> Model:
    """The model in a file, as the core reads it."""
    try:
        return read_model(path)
    except ModelReadError as error:
        raise _refused(str(error)) from error


def _lowered(model: Model, *outputs: str) -> Program:
    try:
        return lower(model, *outputs)
    except Unsupported as error:
        raise _refused(str(error)) from error


def _refused(reason: str) -> UnsupportedModelError:
    remedy = "write the layer in plain operators, or report the file"
    return UnsupportedModelError((Refusal("LC028", "", "", reason, remedy),))
