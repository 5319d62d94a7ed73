"""Entries of the ledger: those that no number stands in, A-EVAL and A-SAMPLING.

A-EVAL names the layers that compute something else in train mode: those that the checker sees in
the file, and those that a certificate names besides, because an exporter left traces of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from lipcert.core.certificate import Assumption, CertificateFormatError, read, written

CHECKED: Final = "checked"
DECLARED: Final = "declared"


def declared(name: str, text: str, data: Mapping[str, object] | None = None) -> Assumption:
    """What the checker cannot establish."""
    return Assumption(name, DECLARED, text, data or {})


def examples(*, proved: bool, in_eval_mode: bool) -> Assumption:
    """Whether the model itself keeps the examples of a batch apart."""
    if proved:
        mode = "In eval mode, examples" if in_eval_mode else "Examples"
        text = f"{mode} of a batch do not influence each other, for batches of every size."
        return Assumption("A-PERSAMPLE", CHECKED, text, {})
    text = "The file computes one example at a time, and training applies it to each separately."
    return declared("A-PERSAMPLE", text)


def frozen(tensors: tuple[str, ...]) -> Assumption:
    """What takes part and is not trained."""
    text = f"{len(tensors)} tensors of the file are constants that training does not change."
    return declared("A-FROZEN", text, {"tensors": list(tensors)})


PROJECTION: Final = declared(
    "A-PROJ", "Training holds every trained tensor within its constraint at every step."
)
FIXED: Final = declared("A-POINT", "At every step of the run the weights are those of the file.")
ACCOUNTING: Final = declared(
    "A-EPSILON",
    "The accountant that found epsilon is right: the checker did not find as small a one.",
)
RANDOMNESS: Final = declared(
    "A-RNG", "The noise is Gaussian, fresh and independent at every step, and kept secret."
)
ARITHMETIC: Final = declared(
    "A-NUMERIC", "Real arithmetic: the rounding of the training run is not included."
)

EVALUATION: Final = "A-EVAL"
DROPOUT: Final = "Dropout"
MODAL_OPERATORS: Final = frozenset({"BatchNormalization", DROPOUT})
"""operators of ONNX that stand for something else in train mode"""
_MOST_NAMES: Final = 4

EvalLayer: TypeAlias = tuple[str, str]
"""its operator, and its name"""


@final
@dataclass(frozen=True, slots=True)
class _Layer:
    kind: str
    name: str


@final
@dataclass(frozen=True, slots=True)
class _Layers:
    layers: tuple[_Layer, ...]


def evaluation(layers: Iterable[EvalLayer]) -> Assumption:
    """What is assumed of the layers that training keeps in eval mode."""
    ordered = sorted(set(layers))
    named = ", ".join(f"{name} ({kind})" for kind, name in ordered[:_MOST_NAMES])
    more = f" and {len(ordered) - _MOST_NAMES} more" if len(ordered) > _MOST_NAMES else ""
    text = (
        "Training keeps these layers in eval mode, their statistics frozen and nothing dropped: "
        f"{named}{more}."
    )
    return declared(EVALUATION, text, written(_Layers(tuple(_Layer(*layer) for layer in ordered))))


def read_eval_layers(data: Mapping[str, object]) -> tuple[EvalLayer, ...]:
    """The layers that a certificate names."""
    found = tuple((layer.kind, layer.name) for layer in read(_Layers, data, EVALUATION).layers)
    if not found or not MODAL_OPERATORS.issuperset(kind for kind, _ in found):
        raise CertificateFormatError(f"{EVALUATION} names no layers")
    return found


SAMPLING: Final = "A-SAMPLING"
_SCHEMES: Final = {
    "poisson": "every example is in every batch with probability B/N, independently",
    "without-replacement": "every batch is a uniformly random set of B of the N examples",
    "shuffle": "the batches of an epoch are disjoint and do not depend on the examples",
    "full-batch": "every batch holds all examples",
}


_SIZES: Final = {
    "declared": " N, B and the number of steps are public constants, the same for neighbouring data"
    " sets.",
    "data": " N was counted in the data set, so that neighbours of other sizes have other rates.",
}


@final
@dataclass(frozen=True, slots=True)
class Run:
    """The training run that ε is stated for.

    participations: the largest number of steps whose batches hold one example (of a shuffle).
    size: where N comes from; None where an earlier certificate does not say.
    """

    scheme: str
    dataset_size: int
    batch_size: int
    steps: int
    participations: int
    size: str | None = None

    @classmethod
    def read(cls, data: Mapping[str, object]) -> Run:
        """From the data of A-SAMPLING."""
        run = read(cls, data, SAMPLING)
        fits = 1 <= run.batch_size <= run.dataset_size and 1 <= run.participations <= run.steps
        whole = run.scheme in {"shuffle"} or run.participations == run.steps
        full = run.scheme != "full-batch" or run.batch_size == run.dataset_size
        said = run.size is None or run.size in _SIZES
        if run.scheme not in _SCHEMES or not (
            said and fits and whole and full and run.is_possible()
        ):
            raise CertificateFormatError(f"{SAMPLING} describes no run")
        return run

    def is_possible(self) -> bool:
        """Whether some example may indeed be in no more batches than is said.

        Proof: an epoch of disjoint batches has at most ⌈N/B⌉ of them, so that T steps begin at
        least T/⌈N/B⌉ epochs, and an example is in one batch of each that is complete.
        """
        return self.steps <= self.participations * -(-self.dataset_size // self.batch_size)

    def written(self) -> Assumption:
        """As an entry of the ledger."""
        text = (
            f"{self.steps} steps; N = {self.dataset_size}, B = {self.batch_size}: "
            f"{_SCHEMES[self.scheme]}; an example is in at most {self.participations} batches."
            f"{_SIZES.get(self.size or '', '')}"
        )
        return declared(SAMPLING, text, written(self))
