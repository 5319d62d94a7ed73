"""Terms: the words for assumptions that certificates and analyses share.

What enters: values as either kind of document has them. What leaves: assumptions that are equal
where they mean the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeAlias, cast

from lipcert.report.comparison import Assumed

Members: TypeAlias = Mapping[str, object]

_SAMPLING: Final = ("sampling", "dataset_size", "batch_size", "steps", "participations")
_CLIP: Final = (
    "clip_norm",
    "clip_scope",
    "decay",
    "input_clip",
    "cotangent_clip",
    "conv_clip",
)


def shared_terms(
    *,
    norm: float | None,
    box: tuple[float, float] | None,
    loss: Members,
    mechanism: Members,
    relation: object,
    divisor: object,
    scope: object,
    eval_layers: object,
    run: Members | None,
) -> dict[str, Assumed]:
    """The words that certificates and analyses share.

    Both bound the input in Euclidean norm by what was stated or follows from the box, rounded each
    in its own way: nine digits are compared. Weights that are clipped lie within constraints.
    Layers in eval mode have the names of modules or of nodes: their kinds are compared.
    """
    kind = str(mechanism["kind"]).replace("weight-clipping", "clipless")
    clip = {name: mechanism[name] for name in _CLIP if name in mechanism}
    layers = cast("list[dict[str, str]]", eval_layers)
    low, high = box or (-math.inf, math.inf)
    size = math.inf if norm is None else float(f"{norm:.9g}")
    found = {
        "input norm": Assumed(f"{size:.9g}", slack=(size,)),
        "input box": Assumed(words(None if box is None else list(box)), slack=(-low, high)),
        "loss": Assumed(words(loss)),
        "mechanism": Assumed(words({"kind": kind, **clip})),
        "neighbours": Assumed(words(relation)),
        "divisor": Assumed(words(divisor)),
        "scope": Assumed(words(scope)),
        "eval mode": Assumed(words(sorted({layer["kind"] for layer in layers}))),
    }
    if run is not None:
        found["run"] = Assumed(run_words(run))
    return found


def words(value: object) -> str:
    """A value of JSON on one line."""
    match value:
        case dict():
            return ", ".join(f"{name} = {words(value[name])}" for name in sorted(value))
        case list():
            return ", ".join(words(item) for item in value) or "none"
        case None:
            return "none"
    return str(value)


def run_words(run: Members) -> str:
    """How the batches of a run are drawn, and how many."""
    return words({name: run[name] for name in _SAMPLING})
