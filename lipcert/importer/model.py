"""ImportedModel: what the importer hands to the rest of LipCert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lipcert.diagnostics import Diagnostic
from lipcert.errors import NoVerdictError
from lipcert.graph.ir import BatchProof, Graph
from lipcert.importer.reading import Reading, external_digests


@dataclass(frozen=True, slots=True)
class Verification:
    """Comparison of the program of the core with onnxruntime on examples of the domain."""

    examples: int
    max_difference: float
    """largest |difference| / (1 + largest |value|) over all outputs compared"""


@dataclass(frozen=True, slots=True)
class MacroLayer:
    """One op that several nodes of the file spell out; `nodes`: their names, the last one last."""

    kind: str
    node: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ImportedModel:
    """A graph that was compared with the program of the core, and facts about its file."""

    graph: Graph
    path: str
    sha256: str
    opset: Mapping[str, int]
    producer: str
    batch: BatchProof
    verification: Verification
    diagnostics: tuple[Diagnostic, ...]
    external: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each file with external data, by its path relative to the model's folder"""
    macros: tuple[MacroLayer, ...] = ()
    """the sub-graphs of the file that were understood as one op"""
    scattered: frozenset[str] = frozenset()
    """parameters of the graph that several tensors of the file hold, or none"""
    reading: Reading | None = None
    """what the core reads in the file"""
    signed: bool = True
    """whether the exporter says which tensors are parameters"""

    def has(self, reading: Reading) -> bool:
        """Whether a reading found the bytes, in the file and beside it, that were imported."""
        beside = external_digests(reading.model)
        return reading.model.sha256 == self.sha256 and beside.items() <= self.external.items()


def read_program(imported: ImportedModel, outputs: tuple[str, ...] = ()) -> Reading:
    """The program behind outputs (none: what the importer followed)."""
    known = imported.reading
    if known is not None and outputs in {(), known.outputs}:
        return known
    found = Reading.of(Path(imported.path), *(outputs or (imported.graph.output_name,)))
    if not imported.has(found):
        raise NoVerdictError(f"{imported.path} changed after it was imported")
    return found
