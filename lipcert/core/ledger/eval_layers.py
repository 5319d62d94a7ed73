"""A-EVAL: the layers that would compute something else in train mode, and stay in eval mode.

They are the layers that the checker sees in the file, and further ones that a certificate names
because an exporter left traces of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lipcert.core.certificate import CertificateFormatError, read
from lipcert.core.ledger import EVALUATION, MODAL_OPERATORS, EvalLayer


@dataclass(frozen=True, slots=True)
class _Layer:
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class _Layers:
    layers: tuple[_Layer, ...]


def read_eval_layers(data: Mapping[str, object]) -> tuple[EvalLayer, ...]:
    """Return the layers that a certificate names; refuse an empty list and other operators."""
    found = tuple((layer.kind, layer.name) for layer in read(_Layers, data, EVALUATION).layers)
    if not found or not MODAL_OPERATORS.issuperset(kind for kind, _ in found):
        raise CertificateFormatError(f"{EVALUATION} names no layers")
    return found
