"""load_model: from an untrusted ONNX file to a verified graph.

    path → container → gate → assemble → verify → ImportedModel

A file is imported twice: first in a child process of limited memory and time, which also compares
the graph with onnxruntime; then, if that went well, here, from the very same bytes. So code that
hangs, crashes or devours memory does so in the child, and onnxruntime never sees the file here.

Invariant: nothing but ModelFileError and UnsupportedModelError leaves this function because of
what a file holds, UsageError only where it lacks the output asked for, and a graph that leaves it
has been compared with onnxruntime.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from onnx import ModelProto

from lipcert.errors import ModelFileError, Refusal, UnsupportedModelError, UsageError
from lipcert.importer.assemble import Assembled, assemble
from lipcert.importer.child import run_in_child
from lipcert.importer.container import read_bytes
from lipcert.importer.draws import Domain
from lipcert.importer.gate import Source, open_model
from lipcert.importer.limits import Budget
from lipcert.importer.model import ImportedModel, Verification
from lipcert.threads import one_thread


@final
@dataclass(frozen=True, slots=True)
class _Request:
    path: str
    output: str | None
    as_exported: bool
    input_norm: float | None
    input_box: tuple[float, float] | None


@final
@dataclass(frozen=True, slots=True)
class _Rehearsal:
    """What the child found: the digests of what it read, and the comparison with onnxruntime."""

    sha256: str
    external: Mapping[str, str]
    verification: Verification


@one_thread()
def load_model(
    path: str | Path,
    *,
    output: str | None = None,
    as_exported: bool = False,
    trusted: bool = False,
    input_norm: float | None = None,
    input_box: tuple[float, float] | None = None,
) -> ImportedModel:
    """Import an ONNX file.

    output: name of the output to follow, where there are several. as_exported: take the tensors
    of the file for the trained parameters even where the exporter folded others into them.
    trusted: import the file in this process alone, without limits of memory and time.
    input_norm, input_box: the inputs that one example may have, as in `Settings`; where they are
    declared, the graph is compared with onnxruntime on some of them, too.
    """
    request = _Request(str(path), output, as_exported, input_norm, input_box)
    if trusted:
        source, assembled = _imported(request, None)
        return _result(request, source, assembled, _verification(request, source.proto, assembled))
    rehearsal = _rehearsed(request)
    source, assembled = _imported(request, rehearsal)
    return _result(request, source, assembled, rehearsal.verification)


def _imported(request: _Request, rehearsal: _Rehearsal | None) -> tuple[Source, Assembled]:
    """Import in this process; after a rehearsal, from the same bytes only."""
    source = _opened(request, rehearsal)
    if rehearsal is not None and source.model.external != rehearsal.external:
        raise _changed(request)
    return source, assemble(source.model, request.output, as_exported=request.as_exported)


def _opened(request: _Request, rehearsal: _Rehearsal | None) -> Source:
    """The file, whose bytes are let go as soon as they are parsed."""
    path = Path(request.path)
    raw = read_bytes(path)
    if rehearsal is not None and raw.sha256 != rehearsal.sha256:
        raise _changed(request)
    return open_model(path, raw)


def _changed(request: _Request) -> ModelFileError:
    return ModelFileError(f"{request.path!r} changed while it was read")


def _verification(request: _Request, proto: ModelProto, assembled: Assembled) -> Verification:
    from lipcert.importer.verify import verify  # noqa: PLC0415  onnxruntime stays in the child

    box = None if request.input_box is None else (request.input_box[0], request.input_box[1])
    domain = Domain(request.input_norm, box)
    return verify(proto, assembled.examples, assembled.graph, domain)


def _result(
    request: _Request, source: Source, assembled: Assembled, verification: Verification
) -> ImportedModel:
    model = source.model
    return ImportedModel(
        graph=assembled.graph,
        path=request.path,
        sha256=model.sha256,
        opset=model.opset,
        producer=model.producer,
        batch=assembled.examples.proof,
        verification=verification,
        diagnostics=assembled.diagnostics,
        macros=assembled.macros,
        external=model.external,
        scattered=assembled.scattered,
    )


def _rehearsed(request: _Request) -> _Rehearsal:
    """The whole import in a child process; its refusals are raised here."""
    budget = Budget.of_path(Path(request.path))
    answer = run_in_child(rehearse, json.dumps(asdict(request)), budget, request.path)
    found = json.loads(answer)
    if "file" in found:
        raise ModelFileError(found["file"]["reason"], found["file"]["code"])
    if "refusals" in found:
        raise UnsupportedModelError(tuple(Refusal(**item) for item in found["refusals"]))
    if "usage" in found:
        raise UsageError(found["usage"])
    verification = Verification(**found["verification"])
    return _Rehearsal(found["sha256"], found["external"], verification)


@one_thread()
def rehearse(text: str) -> str:
    """The work of the child: a request in, what became of it out, both as JSON."""
    request = _Request(**json.loads(text))
    try:
        source, assembled = _imported(request, None)
        sha256, external = source.model.sha256, source.model.external
        proto = source.proto
        del source  # large models leave little room for onnxruntime
        verification = _verification(request, proto, assembled)
    except ModelFileError as error:
        return json.dumps({"file": asdict(error.refusals[0])})
    except UnsupportedModelError as error:
        return json.dumps({"refusals": [asdict(refusal) for refusal in error.refusals]})
    except UsageError as error:
        return json.dumps({"usage": str(error)})
    found = _Rehearsal(sha256, external, verification)
    return json.dumps(asdict(found))
