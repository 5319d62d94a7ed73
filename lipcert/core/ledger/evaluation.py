"""The mode of training: A-EVAL, for layers that compute something else in train mode.

What enters: the layers that the checker sees in the file, and those that a certificate names
besides, because an exporter left traces of them. What leaves: the entry of the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from lipcert.core.certificate.canonical import Json
from lipcert.core.certificate.fields import CertificateFormatError, Fields
from lipcert.core.certificate.records import Assumption
from lipcert.core.ledger.entries import declared

EVALUATION: Final = "A-EVAL"
DROPOUT: Final = "Dropout"
MODAL_OPERATORS: Final = frozenset({"BatchNormalization", DROPOUT})
"""operators of ONNX that stand for something else in train mode"""
_MOST_NAMES: Final = 4

EvalLayer: TypeAlias = tuple[str, str]
"""its operator, and its name"""


def evaluation(layers: Iterable[EvalLayer]) -> Assumption:
    """What is assumed of the layers that training keeps in eval mode."""
    ordered = sorted(set(layers))
    named = ", ".join(f"{name} ({kind})" for kind, name in ordered[:_MOST_NAMES])
    more = f" and {len(ordered) - _MOST_NAMES} more" if len(ordered) > _MOST_NAMES else ""
    text = (
        "Training keeps these layers in eval mode, their statistics frozen and nothing dropped: "
        f"{named}{more}."
    )
    data: list[Json] = [{"kind": kind, "name": name} for kind, name in ordered]
    return declared(EVALUATION, text, {"layers": data})


def read_eval_layers(fields: Fields) -> tuple[EvalLayer, ...]:
    """The layers that a certificate names."""
    found: list[EvalLayer] = []
    for layer in fields.objects("layers"):
        found.append((layer.text("kind"), layer.text("name")))
        layer.finish()
    fields.finish()
    if not found or not MODAL_OPERATORS.issuperset(kind for kind, _ in found):
        raise CertificateFormatError(f"{fields.where} names no layers")
    return tuple(found)
