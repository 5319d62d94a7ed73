"""pull/signs: differences of classes, pulled down to a value as vectors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lipcert.core.arithmetic import multiply_up
from lipcert.core.coverage import tensors_read
from lipcert.core.forms.links import finite
from lipcert.core.forms.signs import Differences, pulled
from lipcert.core.kinds import PRelu
from lipcert.core.line import NotProved
from lipcert.core.lines.chains import ShareLine, slopes_between
from lipcert.core.lines.proof import LOSS, Proof
from lipcert.core.program import Activation, Step
from lipcert.core.rules.base import rule_at

MAX_VECTORS: Final = 1 << 24
"""entries of the vectors of all classes, at one value"""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SignPull(ShareLine):
    """Through all steps from a value up to another, in the hull of whose cotangent the differences
    of classes lie, by `forms.signs`.

    Hypotheses (checked): from the value to the stop each step reads what the one before computes
    and nothing else, and is fixed; nothing else reads it; the cotangent is one of the loss.
    Proof: what arrives is linear in the cotangent at the stop, and so longest at a vertex of the
    hull; these are convex combinations of differences e_i − e_j.
    """

    value: str
    stop: str

    def evaluate(self, proof: Proof) -> float:
        """The longest of all pairs of classes."""
        if self.of != LOSS or self.value == self.stop:
            raise NotProved("it is not of a cotangent of the loss below the stop")
        longest = float(np.max(differences_at(proof, self.value, self.stop).sizes))
        hull = proof.passes[LOSS].cotangents[self.stop].hull
        return math.inf if hull is None else multiply_up(hull.scale, longest)

    def entry(self, proof: Proof) -> tuple[str, str | None]:
        """The value, and the only step that reads it."""
        return self.value, proof.passes[LOSS].readers[self.value][0].output


def path_between(proof: Proof, value: str, stop: str) -> Sequence[Step]:
    """The steps from a value up to another, each the only reader of the one before."""
    found: list[Step] = []
    own = proof.passes[LOSS]
    while value != stop:
        readers = own.readers.get(value, ())
        if proof.reads[value] != 1 or not readers or len(readers[0].inputs) != 1:
            raise NotProved(f"no single way leads from {value} to {stop}")
        found.append(readers[0])
        value = readers[0].output
    if tensors_read(found) & proof.free:
        raise NotProved("the steps in between are not fixed")
    return found


def differences_at(proof: Proof, value: str, stop: str) -> Differences:
    """Of the classes of the hull at `stop`, pulled back to a value; each is found once."""
    hull = proof.passes[LOSS].cotangents[stop].hull
    if hull is None or hull.classes != math.prod(proof.program.shapes[stop]):
        raise NotProved("the cotangent at the stop has no hull with a class for each entry")
    path = path_between(proof, value, stop)
    if (stop, stop) not in proof.differences:
        proof.differences[stop, stop] = Differences.of_classes(hull.classes)
    for number in range(len(path) - 1, -1, -1):
        name = path[number].inputs[0]
        if (stop, name) not in proof.differences:
            proof.differences[stop, name] = _below(proof, path[number:], stop)
    return proof.differences[stop, value]


def _below(proof: Proof, path: Sequence[Step], stop: str) -> Differences:
    """Through the first of these steps, and through runs that begin with it."""
    step, shapes = path[0], proof.program.shapes
    above = proof.differences[stop, step.output]
    shape = shapes[step.inputs[0]]
    if len(above.vectors.lo) * math.prod(shape) > MAX_VECTORS:
        raise NotProved("there are too many classes for a value of this size")
    if isinstance(step.op, Activation | PRelu):
        return above.through_slopes(finite(slopes_between((step,), proof.facts)[step.output]))
    vectors = pulled(above.vectors, step, shape)
    norm = rule_at(proof.program.shapes, step, proof.facts, proof.weights).lipschitz(0)
    if not math.isfinite(norm):
        raise NotProved(f"no norm of {step.output} is known")
    found = above.through_matrix(vectors, norm)
    names = tuple(each.output for each in path)
    for values in tuple(proof.runs):
        if values == names[: len(values)]:
            end = proof.differences[stop, values[-1]]
            found = found.meet(end.through_matrix(vectors, proof.runs[values]))
    return found
