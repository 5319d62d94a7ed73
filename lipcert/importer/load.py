"""Load: `load_model` turns an untrusted ONNX file into a verified graph.

    path → stored_model → assemble → agreement → ImportedModel

A file is imported twice: first in a child process of limited memory and time, which also compares
what the core read, and the graph, with onnxruntime; then, if that succeeds, in this process, from
the very same bytes. So code that hangs, crashes or exhausts memory does so in the child, and
onnxruntime never sees the file in this process.

Invariant: the content of a file makes this function raise only ModelFileError or
UnsupportedModelError, and UsageError only if the file lacks the requested output. For every file
that it returns, the program of the core has been compared with onnxruntime, and the graph with the
program.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from lipcert.errors import ModelFileError, Refusal, UnsupportedModelError, UsageError
from lipcert.importer.assemble import Verify, assemble
from lipcert.importer.child import Budget, run_in_child
from lipcert.importer.model import ImportedModel, Verification, external_digests, stored_model
from lipcert.process.threads import one_thread
from lipcert.settings.settings import Settings

_DOUBTFUL: Final = frozenset({"LC007", "LC008", "LC025", "LC028"})
"""Codes of files that may be invalid ONNX: onnxruntime is then asked whether it rejects them."""
_AGAIN: Final = "export the model again, with opset 18 or later; its nodes are not valid ONNX"


@one_thread()
def load_model(
    path: str | Path,
    *,
    output: str | Sequence[str] | None = None,
    as_exported: bool = False,
    freeze: Sequence[str] = (),
    trusted: bool = False,
    input_norm: float | Mapping[str, float | None] | None = None,
    input_box: tuple[float, float] | Mapping[str, tuple[float, float] | None] | None = None,
) -> ImportedModel:
    """Import an ONNX file.

    Args:
        path: the file.
        output: name of the output to follow, if there are several, or of a value inside the
            network; or the names of all outputs that a sum of losses reads (`Settings.outputs`).
        as_exported: take the tensors of the file for the trained parameters, even if the exporter
            folded others into them.
        freeze: patterns of tensors that training does not change: no trained parameter is then in
            those that a tool seems to have computed.
        trusted: import the file in this process alone, without limits of memory and time.
        input_norm: the largest norm of one example, as in `Settings`.
        input_box: the range of its entries, as in `Settings`. If a norm or a box is declared, the
            comparisons run on inputs within it.

    Raises:
        ModelFileError: if the file cannot be read, or changes meanwhile.
        UnsupportedModelError: with every reason why the network is refused.
        UsageError: if the file lacks the requested output.
    """
    outputs = () if output is None else (output,) if isinstance(output, str) else tuple(output)
    norms = dict(input_norm) if isinstance(input_norm, Mapping) else {"": input_norm}
    boxes = dict(input_box) if isinstance(input_box, Mapping) else {"": input_box}
    asked = {"output": outputs, "as_exported": as_exported, "freeze": [*freeze]}
    domain = {"input_norm": norms, "input_box": boxes}
    found = None if trusted else _rehearsed(str(path), asked | domain)
    model, proto = stored_model(Path(path))
    if found is None:
        from lipcert.importer.agreement import check_agreement  # noqa: PLC0415  see above

        names = {"": None, **norms, **boxes}
        domains = {name: (norms.get(name), boxes.get(name)) for name in names}
        folder = Path(path).parent
        verify: Verify = partial(check_agreement, proto=proto, folder=folder, domains=domains)
    elif (model.sha256, external_digests(model)) == found[0]:
        verify = lambda *_: found[1]  # noqa: E731
    else:
        raise ModelFileError(f"{str(path)!r} changed while it was read")
    del proto  # which the comparison alone needs
    try:
        return assemble(model, str(path), outputs, verify, freeze, as_exported=as_exported)
    except UnsupportedModelError as error:
        why = _rejected(path, error) if trusted else None
        if why is None:
            raise
        raise why from None


def load_under(
    path: str | os.PathLike[str], settings: Settings, *, trusted: bool = False
) -> ImportedModel:
    """Import an ONNX file as `load_model` does, with the options in these settings."""
    return load_model(
        Path(path),
        output=settings.outputs,
        as_exported=settings.as_exported,
        freeze=settings.freeze,
        trusted=trusted,
        input_norm={"": settings.input_norm, **dict(settings.input_norms)},
        input_box={"": settings.input_box, **dict(settings.input_boxes)},
    )


def _rejected(path: str | Path, error: UnsupportedModelError) -> ModelFileError | None:
    """Return the error for a refused file that onnxruntime rejects too; None if it does not."""
    from lipcert.importer.runtime import rejection  # noqa: PLC0415  see above

    doubtful = [item for item in error.refusals if item.code in _DOUBTFUL]
    why = rejection(Path(path)) if doubtful else ""
    if not why:
        return None
    node = f": node {doubtful[0].node!r} ({doubtful[0].op})" if doubtful[0].node else ""
    return ModelFileError(f"{str(path)!r} is not a valid model{node}: {why}", "LC016", _AGAIN)


def _rehearsed(
    path: str, asked: Mapping[str, Any]
) -> tuple[tuple[str, Mapping[str, str]], Verification]:
    """Do the whole import in a child process; raise its refusals here.

    Returns: the digests of what the child read, and its comparison with onnxruntime.
    """
    np.random.default_rng(0)  # loads what this process needs after its child, too
    request = json.dumps({"path": path, **asked})
    answer = run_in_child(rehearse, request, Budget.of_path(Path(path)), path)
    found = json.loads(answer)
    if "file" in found:
        refusal = found["file"]
        raise ModelFileError(refusal["reason"], refusal["code"], refusal["remedy"])
    if "refusals" in found:
        raise UnsupportedModelError(tuple(Refusal(**item) for item in found["refusals"]))
    if "usage" in found:
        raise UsageError(found["usage"])
    return (found["sha256"], found["external"]), Verification(**found["verification"])


@one_thread()
def rehearse(text: str) -> str:
    """Import in the child: take a request and return the result, both as JSON."""
    try:
        found = load_model(**json.loads(text), trusted=True)
    except ModelFileError as error:
        return json.dumps({"file": asdict(error.refusals[0])})
    except UnsupportedModelError as error:
        return json.dumps({"refusals": [asdict(refusal) for refusal in error.refusals]})
    except UsageError as error:
        return json.dumps({"usage": str(error)})
    read = {"sha256": found.sha256, "external": found.external}
    return json.dumps(read | {"verification": asdict(found.verification)})
