"""A-EVAL: the layers that compute something else in train mode, and stay in eval mode.

They are those that the checker sees in the file, and those that a certificate names besides,
because an exporter left traces of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lipcert.core.certificate import Assumption, CertificateFormatError, read
from lipcert.core.ledger import EVALUATION, MODAL_OPERATORS, EvalLayer, declared


@dataclass(frozen=True, slots=True)
class _Layer:
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class _Layers:
    layers: tuple[_Layer, ...]


def evaluation(layers: Iterable[EvalLayer]) -> Assumption:
    """What is assumed of the layers that training keeps in eval mode."""
    ordered = sorted(set(layers))
    data = {"layers": [{"kind": kind, "name": name} for kind, name in ordered]}
    return declared(EVALUATION, data)


def read_eval_layers(data: Mapping[str, object]) -> tuple[EvalLayer, ...]:
    """The layers that a certificate names."""
    found = tuple((layer.kind, layer.name) for layer in read(_Layers, data, EVALUATION).layers)
    if not found or not MODAL_OPERATORS.issuperset(kind for kind, _ in found):
        raise CertificateFormatError(f"{EVALUATION} names no layers")
    return found
