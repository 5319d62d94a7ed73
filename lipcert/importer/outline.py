"""Outline: facts about a refused file that need no understanding of its operators.

Like every import this happens in a child process; only plain text comes back.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from lipcert.errors import NoVerdictError
from lipcert.importer.child import Budget, run_in_child
from lipcert.importer.metadata import read_provenance
from lipcert.importer.reading import stored_model


@final
@dataclass(frozen=True, slots=True)
class Outline:
    """Producer, operator sets, inputs, outputs, operators with their numbers, stored tensors.

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
    """The outline of a file that can be parsed."""
    try:
        found = json.loads(run_in_child(outline, str(path), Budget.of_path(path), str(path)))
    except NoVerdictError:
        return None
    if found is None:
        return None
    inputs, outputs = tuple(found.pop("inputs")), tuple(found.pop("outputs"))
    return Outline(inputs=inputs, outputs=outputs, **found)


def outline(text: str) -> str:
    """The work of the child."""
    try:
        model, _ = stored_model(Path(text))
    except NoVerdictError:
        return "null"
    found = Outline(
        sha256=model.sha256,
        producer=model.producer,
        opset={name or "ai.onnx": version for name, version in model.opset.items()},
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
