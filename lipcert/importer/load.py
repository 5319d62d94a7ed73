"""load_model: from an untrusted ONNX file to a verified graph.

    path → stored_model → assemble → agreement → ImportedModel

A file is imported twice: first in a child process of limited memory and time, which also compares
what the core read with onnxruntime, and the graph with that; then, if this went well, here, from
the very same bytes. So code that hangs, crashes or devours memory does so in the child, and
onnxruntime never sees the file here.

Invariant: the content of a file makes this function raise only ModelFileError or
UnsupportedModelError, and UsageError only where the file lacks the requested output. For every file
that it returns, the program of the core has been compared with onnxruntime, and the graph with the
program.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx.onnx_ml_pb2 import ModelProto

from lipcert.errors import ModelFileError, Refusal, UnsupportedModelError, UsageError
from lipcert.importer.assemble import Verify, assemble
from lipcert.importer.child import Budget, run_in_child
from lipcert.importer.model import ImportedModel, Verification, external_digests, stored_model
from lipcert.process.threads import one_thread
from lipcert.settings.settings import Settings

_DOUBTFUL: Final = frozenset({"LC007", "LC008", "LC025", "LC028"})
"""codes of files whose nodes do not fit each other, or that are read otherwise than they are run"""
_AGAIN: Final = "export the model again; its nodes are not valid ONNX"


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

    output: name of the output to follow, where there are several, or of a value inside the network;
    or names of all those that a sum of losses reads (`Settings.outputs`). as_exported: take the
    tensors of the file for the trained parameters even where the exporter folded others into them.
    trusted: import the file in this process alone, without limits of memory and time.
    input_norm, input_box: the inputs that one example may have, as in `Settings`; where they are
    declared, the readings of the file are compared on some of them.
    """
    outputs = () if output is None else (output,) if isinstance(output, str) else tuple(output)
    norms = dict(input_norm) if isinstance(input_norm, Mapping) else {"": input_norm}
    boxes = dict(input_box) if isinstance(input_box, Mapping) else {"": input_box}
    asked = {"output": outputs, "as_exported": as_exported, "input_norm": norms}
    found = None if trusted else _rehearsed(str(path), asked | {"input_box": boxes})
    model, proto = stored_model(Path(path))
    if found is None:
        verify = _comparison(proto, Path(path).parent, norms, boxes)
    elif (model.sha256, external_digests(model)) == (found.sha256, found.external):
        verify = lambda *_: found.verification  # noqa: E731
    else:
        raise ModelFileError(f"{str(path)!r} changed while it was read")
    del proto  # which the comparison alone needs
    try:
        return assemble(model, str(path), outputs, verify, as_exported=as_exported)
    except UnsupportedModelError as error:
        why = _rejected(path, error) if trusted else None
        if why is None:
            raise
        raise why from None


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


def _rejected(path: str | Path, error: UnsupportedModelError) -> ModelFileError | None:
    """What to say of a file that is refused for what it may mean, if onnxruntime rejects it too."""
    from lipcert.importer.runtime import rejection  # noqa: PLC0415  see above

    doubtful = [item for item in error.refusals if item.code in _DOUBTFUL]
    why = rejection(Path(path)) if doubtful else ""
    if not why:
        return None
    node = f": node {doubtful[0].node!r} ({doubtful[0].op})" if doubtful[0].node else ""
    return ModelFileError(f"{str(path)!r} is not a valid model{node}: {why}", "LC016", _AGAIN)


def _comparison(
    proto: ModelProto,
    folder: Path,
    norms: Mapping[str, float | None],
    boxes: Mapping[str, tuple[float, float] | None],
) -> Verify:
    """The comparison with onnxruntime, on inputs of these norms and boxes."""
    from lipcert.importer.agreement import Domain, check_agreement  # noqa: PLC0415  see above

    parts = {
        name: Domain(norms.get(name), None if box is None else (box[0], box[1]))
        for name in {"": None, **norms, **boxes}
        for box in [boxes.get(name)]
    }
    domain = replace(parts.pop(""), parts=parts)
    return lambda reading, program: check_agreement(reading, proto, folder, domain, program)


def _rehearsed(path: str, asked: Mapping[str, Any]) -> _Rehearsal:
    """The whole import in a child process; its refusals are raised here."""
    np.random.default_rng(0)  # loads what this process needs after its child, too
    request = json.dumps({"path": path, **asked})
    answer = run_in_child(rehearse, request, Budget.of_path(Path(path)), path)
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


@one_thread()
def rehearse(text: str) -> str:
    """The work of the child: a request in, what became of it out, both as JSON."""
    try:
        found = load_model(**json.loads(text), trusted=True)
    except ModelFileError as error:
        return json.dumps({"file": asdict(error.refusals[0])})
    except UnsupportedModelError as error:
        return json.dumps({"refusals": [asdict(refusal) for refusal in error.refusals]})
    except UsageError as error:
        return json.dumps({"usage": str(error)})
    return json.dumps(asdict(_Rehearsal(found.sha256, found.external, found.verification)))
