"""load_model: from an untrusted ONNX file to a verified graph.

    path → stored_model → assemble → agreement → ImportedModel

A file is imported twice: first in a child process of limited memory and time, which also compares
what the core read with onnxruntime, and the graph with that; then, if this went well, here, from
the very same bytes. So code that hangs, crashes or devours memory does so in the child, and
onnxruntime never sees the file here.

Invariant: nothing but ModelFileError and UnsupportedModelError leaves this function because of
what a file holds, UsageError only where it lacks the output asked for, and of a file that leaves it
the program of the core has been compared with onnxruntime, and the graph with the program.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from onnx import defs

from lipcert.core.reader.records import Model
from lipcert.errors import ModelFileError, Refusal, UnsupportedModelError, UsageError
from lipcert.importer.assemble import Assembled, assemble
from lipcert.importer.child import run_in_child
from lipcert.importer.limits import Budget
from lipcert.importer.model import ImportedModel, Verification
from lipcert.importer.reading import external_digests, stored_model
from lipcert.process.threads import one_thread
from lipcert.settings.settings import Settings

_DOUBTFUL: Final = frozenset({"LC007", "LC008", "LC025", "LC028"})
"""codes of files whose nodes do not fit each other, or that are read otherwise than they are run"""
_AGAIN: Final = "export the model again; what its nodes state has no meaning in ONNX"


@final
@dataclass(frozen=True, slots=True)
class _Request:
    path: str
    outputs: Sequence[str]
    as_exported: bool
    input_norm: float | None
    input_box: tuple[float, float] | None
    input_norms: Mapping[str, float]
    input_boxes: Mapping[str, tuple[float, float]]


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
    output: str | Sequence[str] | None = None,
    as_exported: bool = False,
    trusted: bool = False,
    input_norm: float | Mapping[str, float | None] | None = None,
    input_box: tuple[float, float] | Mapping[str, tuple[float, float] | None] | None = None,
) -> ImportedModel:
    """Import an ONNX file.

    output: name of the output to follow, where there are several, or names of all those that a sum
    of losses reads (`Settings.outputs`). as_exported: take the tensors
    of the file for the trained parameters even where the exporter folded others into them.
    trusted: import the file in this process alone, without limits of memory and time.
    input_norm, input_box: the inputs that one example may have, as in `Settings`; where they are
    declared, the readings of the file are compared on some of them.
    """
    outputs = () if output is None else (output,) if isinstance(output, str) else tuple(output)
    norms: dict[str, Any] = (
        dict(input_norm) if isinstance(input_norm, Mapping) else {"": input_norm}
    )
    boxes: dict[str, Any] = dict(input_box) if isinstance(input_box, Mapping) else {"": input_box}
    norm, box = norms.pop("", None), boxes.pop("", None)
    request = _Request(str(path), outputs, as_exported, norm, box, norms, boxes)
    if trusted:
        return _compared(request)
    rehearsal = _rehearsed(request)
    model, _ = stored_model(Path(request.path))
    if (model.sha256, external_digests(model)) != (rehearsal.sha256, rehearsal.external):
        raise ModelFileError(f"{request.path!r} changed while it was read")
    return _result(request, _assembled(request, model), rehearsal.verification)


def load_under(
    path: str | os.PathLike[str], settings: Settings, *, trusted: bool = False
) -> ImportedModel:
    """Import an ONNX file for a run of these settings, as `load_model` does."""
    return load_model(
        Path(path),
        output=settings.outputs,
        as_exported=settings.as_exported,
        trusted=trusted,
        input_norm={"": settings.input_norm, **dict(settings.input_norms)},
        input_box={"": settings.input_box, **dict(settings.input_boxes)},
    )


def _compared(request: _Request) -> ImportedModel:
    """Import a file, and compare its readings with each other and with onnxruntime.

    A file that is refused for what it may mean, and that onnxruntime rejects as well, is none.
    """
    try:
        return _read_and_compared(request)
    except UnsupportedModelError as error:
        from lipcert.importer.runtime import rejection  # noqa: PLC0415  see above

        doubtful = [item for item in error.refusals if item.code in _DOUBTFUL]
        why = rejection(Path(request.path)) if doubtful else ""
        if not why:
            raise
        node = f": node {doubtful[0].node!r} ({doubtful[0].op})" if doubtful[0].node else ""
        reason = f"{request.path!r} is not a valid model{node}: {why}"
        raise ModelFileError(reason, "LC016", _AGAIN) from None


def _read_and_compared(request: _Request) -> ImportedModel:
    from lipcert.importer.agreement import Domain, check_agreement  # noqa: PLC0415  see above

    norms = {"": request.input_norm, **request.input_norms}
    boxes = {"": request.input_box, **request.input_boxes}
    parts = {
        name: Domain(norms.get(name), None if box is None else (box[0], box[1]))
        for name in {**norms, **boxes}
        for box in [boxes.get(name)]
    }
    domain = replace(parts.pop(""), parts=parts)
    path = Path(request.path)
    model, proto = stored_model(path)
    found = _assembled(request, model)
    verification = check_agreement(found.reading, proto, path.parent, domain, found.program)
    return _result(request, found, verification)


def _assembled(request: _Request, model: Model) -> Assembled:
    return assemble(model, request.outputs, as_exported=request.as_exported)


def _result(request: _Request, assembled: Assembled, verification: Verification) -> ImportedModel:
    model = assembled.reading.model
    return ImportedModel(
        graph=assembled.graph,
        path=request.path,
        sha256=model.sha256,
        opset={name or "ai.onnx": version for name, version in model.opset.items()},
        producer=model.producer,
        batch=assembled.batch,
        verification=verification,
        diagnostics=assembled.diagnostics,
        macros=assembled.macros,
        external=external_digests(model),
        scattered=assembled.scattered,
        reading=assembled.reading,
        signed=assembled.signed,
    )


def _rehearsed(request: _Request) -> _Rehearsal:
    """The whole import in a child process; its refusals are raised here."""
    _load_what_both_need()
    budget = Budget.of_path(Path(request.path))
    answer = run_in_child(rehearse, json.dumps(asdict(request)), budget, request.path)
    found = json.loads(answer)
    if "file" in found:
        told = found["file"]
        raise ModelFileError(told["reason"], told["code"], told["remedy"])
    if "refusals" in found:
        raise UnsupportedModelError(tuple(Refusal(**item) for item in found["refusals"]))
    if "usage" in found:
        raise UsageError(found["usage"])
    verification = Verification(**found["verification"])
    return _Rehearsal(found["sha256"], found["external"], verification)


def _load_what_both_need() -> None:
    """What numpy and onnx load at first use, and this process needs after its child."""
    np.random.default_rng(0)
    defs.onnx_opset_version()
    defs.get_schema("Identity")


@one_thread()
def rehearse(text: str) -> str:
    """The work of the child: a request in, what became of it out, both as JSON."""
    request = _Request(**json.loads(text))
    try:
        found = _compared(request)
    except ModelFileError as error:
        return json.dumps({"file": asdict(error.refusals[0])})
    except UnsupportedModelError as error:
        return json.dumps({"refusals": [asdict(refusal) for refusal in error.refusals]})
    except UsageError as error:
        return json.dumps({"usage": str(error)})
    return json.dumps(asdict(_Rehearsal(found.sha256, found.external, found.verification)))
