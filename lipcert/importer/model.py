"""What the importer returns: readings, imported models, and outlines of refused files.

A `Reading` is the model in a file and the program that the core reads in it; bounds are of that
program. An `ImportedModel` is the result of an import. An `Outline` lists facts about a refused
file that need no understanding of its operators; it is made in a child process, which returns only
plain text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from onnx.onnx_ml_pb2 import ModelProto

from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from lipcert.core.program import Program
from lipcert.core.reader.model import read_parsed
from lipcert.core.reader.records import Branch, Model, ModelReadError, Tensor, shown
from lipcert.diagnostics import EXPORT, Diagnostic
from lipcert.errors import ModelFileError, NoVerdictError, Refusal, UnsupportedModelError
from lipcert.graph.ir import BatchProof, Graph
from lipcert.importer.child import Budget, run_in_child
from lipcert.importer.metadata import read_provenance

_PLAIN: Final = "write the layer in plain operators, or report the file"
_NO_MODEL: Final = frozenset({"LC001", "LC002"})
"""Codes of files that hold no model, or one that is too large."""
_REMEDIES: Final = {
    "LC001": f"write it again: {EXPORT}",
    "LC003": "export it again with a current exporter",
    "LC011": "export for inference",
    "LC016": "export it again with a current exporter: the node or tensor is not valid ONNX",
    "LC015": f"save the model in one file: {EXPORT}",
}


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What the core reads in a file. outputs: names of the file's outputs that the loss reads.

    taken: the branches of Ifs that one example takes, by the first output of the If.
    """

    model: Model
    program: Program
    outputs: tuple[str, ...]
    taken: Mapping[str, Branch] = field(default_factory=dict)

    def at(self, tensors: Mapping[str, Tensor]) -> Reading:
        """Return the reading of the same file with other numbers in some initializers."""
        model = replace(self.model, initializers={**self.model.initializers, **tensors})
        try:
            return replace(self, model=model, program=lower(model, *self.outputs))
        except Unsupported as error:
            refusal = Refusal("LC028", "", "", str(error), _PLAIN)
            raise UnsupportedModelError((refusal,)) from error


def external_digests(model: Model) -> dict[str, str]:
    """Map files with external data, by their paths from the model's folder, to their SHA-256."""
    return {item.location: item.sha256 for item in model.external}


def stored_model(path: Path) -> tuple[Model, ModelProto]:
    """Return the model in a file, as the core reads it, and the message it was read from."""
    try:
        model, proto = read_parsed(path)
    except ModelReadError as error:
        code, reason = error.code or "LC001", str(error)
        remedy = _REMEDIES.get(code, "")
        if code not in _NO_MODEL:
            raise UnsupportedModelError((Refusal(code, "", "", reason, remedy),)) from error
        where = "" if shown(str(path)) in reason else f"{str(path)!r}: "
        raise ModelFileError(where + reason, code, remedy) from error
    if not model.outputs:
        raise ModelFileError(f"{str(path)!r} has no output")
    return model, proto


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of the core's program with onnxruntime on examples of the domain."""

    examples: int
    max_difference: float
    """The largest |difference| / (1 + largest |value|) over all outputs compared."""


@dataclass(frozen=True, slots=True)
class MacroLayer:
    """One layer that several nodes of the file spell out; nodes: their names, in order."""

    kind: str
    node: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ImportedModel:
    """A graph that was compared with the core's program, and facts about its file.

    file: the model as it is stored. reading: what the core reads in it, with one initializer for
    each tensor that the file holds in a node, or as a part of another. macros: the sub-graphs of
    the file that were understood as one op. scattered: parameters of the graph that the file holds
    in several tensors, or in none. signed: whether the exporter says which tensors are parameters.
    """

    graph: Graph
    path: str
    file: Model
    reading: Reading
    batch: BatchProof
    verification: Verification
    diagnostics: tuple[Diagnostic, ...]
    macros: tuple[MacroLayer, ...] = ()
    scattered: frozenset[str] = frozenset()
    signed: bool = True

    @property
    def sha256(self) -> str:
        """The digest of the file."""
        return self.reading.model.sha256

    @property
    def opset(self) -> Mapping[str, int]:
        """The versions of operators by domain."""
        return named_opset(self.reading.model)

    @property
    def producer(self) -> str:
        """What wrote the file, as the file says."""
        return self.reading.model.producer

    @property
    def external(self) -> dict[str, str]:
        """The digests of files with external data, by their paths from the model's folder."""
        return external_digests(self.reading.model)


def named_opset(model: Model) -> dict[str, int]:
    """Return the versions of operators by domain, the standard one by its name."""
    return {name or "ai.onnx": version for name, version in model.opset.items()}


@dataclass(frozen=True, slots=True)
class Outline:
    """Facts about a file: producer, operator sets, inputs, outputs, operator counts, tensors.

    signed: whether the exporter says which tensors are parameters.
    """

    sha256: str
    producer: str
    opset: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ops: Mapping[str, int]
    tensors: int
    numbers: int
    signed: bool = True


def outline_of(path: Path) -> Outline | None:
    """Return the outline of a file; None if it cannot be parsed."""
    try:
        found = json.loads(run_in_child(outline, str(path), Budget.of_path(path), str(path)))
    except NoVerdictError:
        return None
    if found is None:
        return None
    inputs, outputs = tuple(found.pop("inputs")), tuple(found.pop("outputs"))
    return Outline(inputs=inputs, outputs=outputs, **found)


def outline(text: str) -> str:
    """Return the outline as JSON; runs in the child."""
    try:
        model, _ = stored_model(Path(text))
    except NoVerdictError:
        return "null"
    found = Outline(
        sha256=model.sha256,
        producer=model.producer,
        opset=named_opset(model),
        inputs=tuple(
            f"{item.name} {'unknown shape' if item.dims is None else _listed(item.dims)}"
            for item in model.inputs
        ),
        outputs=model.outputs,
        ops=dict(Counter(node.op_type for node in model.nodes).most_common()),
        tensors=len(model.initializers),
        numbers=sum(tensor.size for tensor in model.initializers.values()),
        signed=read_provenance(model).signed,
    )
    return json.dumps(asdict(found))


def _listed(dims: tuple[int | str, ...]) -> str:
    return "[" + ", ".join(str(dim) or "?" for dim in dims) + "]"
