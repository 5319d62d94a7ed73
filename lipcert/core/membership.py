"""Membership: whether other weights of a model lie within the constraints of a certificate.

Input: a certificate for a set of weights, the model it describes, and the same model with other
weights. Output: a sentence for each tensor that is not within its constraint, and for each
untrained tensor that differs from the file's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from lipcert.core.certificate import Certificate, Constraint
from lipcert.core.coverage import tensors
from lipcert.core.digest import structural_digest
from lipcert.core.engines import Engine
from lipcert.core.interval import Array, norm_up
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from lipcert.core.norms.claim import NormWitness, step_norm_at_most
from lipcert.core.program import Conv, Dense, Embedding, Op, Operand, Program, Step, operands
from lipcert.core.reader.records import Model, shown
from lipcert.core.rules.facts import lengths_up
from lipcert.core.weights import Weights, exchanged

_METHODS: Final = ("windows", "explicit")
_CLEARLY: Final = 2.0**-20


def membership_faults(
    certificate: Certificate, model: Model, weights: Weights, engine: Engine
) -> Iterator[str]:
    """What is wrong with the weights in a file, by exact norms.

    Raises Unsupported where a tensor is neither proved to be within nor seen to be outside: a norm
    that equals the radius, say, cannot be proved in finite precision.
    Proof: with the trained tensors exchanged the model is that of the file again, so that nothing
    but these tensors differs; each of them is compared with its own constraint.
    """
    for name in weights.other:
        yield f"the tensor {shown(name)} is not trained, and the weights hold other numbers for it"
    trained = certificate.scope.trained
    missing = [name for name in trained if name not in weights.model.initializers]
    if missing:
        yield f"the weights lack the trained tensor {shown(missing[0])}"
        return
    originals = {name: model.initializers[name] for name in trained if name in model.initializers}
    if structural_digest(exchanged(weights.model, originals)) != structural_digest(model):
        yield "more than trained tensors differ from the model of the certificate"
        return
    program = lower(weights.model, *certificate.model.read_outputs)
    yield from constraint_faults(certificate.scope.constraints, weights.model, program, {}, engine)


def constraint_faults(
    constraints: Sequence[Constraint],
    weights: Model,
    program: Program,
    norms: Mapping[str, float],
    engine: Engine,
) -> Iterator[str]:
    """The tensors that are outside their constraints. norms: proved ones of steps, by output.

    Raises Unsupported where it is not proved that the others are within.
    """
    unproved = []
    for constraint in constraints:
        limit = f"{constraint.kind} {constraint.radius!r}"
        if _is_outside(constraint, weights, program):
            yield f"the tensor {shown(constraint.tensor)} is not within {limit}"
        elif not _is_within(constraint, weights, program, norms, engine):
            unproved.append(f"{shown(constraint.tensor)} within {limit}")
    if unproved:
        raise Unsupported(f"it could not be proved that the weights hold {'; '.join(unproved)}")


def _is_within(
    constraint: Constraint,
    weights: Model,
    program: Program,
    norms: Mapping[str, float],
    engine: Engine,
) -> bool:
    """Frobenius: of the tensor. Spectral: of every step that uses it, as `_has_norm` says."""
    values = tensors(weights)[constraint.tensor].values()
    if not np.isfinite(values).all():
        return False
    if constraint.kind == "frobenius":
        return frobenius_at_most(np.asarray(values, dtype=np.float64), constraint.radius)
    users = [
        step
        for step in program.steps
        if any(constraint.tensor in operand.sources for operand in operands(step.op))
    ]
    return all(_has_norm(step, constraint, program, norms, engine) for step in users)


def _is_outside(constraint: Constraint, weights: Model, program: Program) -> bool:
    """Whether the Euclidean norm, what a matrix does to one vector, or an entry is too large.

    Proof: ‖W‖ ≥ ‖Wv‖/‖v‖ for every v; the rounding of Wv is at most γ_n·‖|W||v|‖, which is far
    below the margin unless Wv cancels, and then the norm of |W||v| stands in its way. A number in
    [lo, hi] is at least lo, and its negative at least −hi. Of steps that use another function of
    the tensor than a linear one, neither says anything.
    """
    values = np.asarray(tensors(weights)[constraint.tensor].values(), dtype=np.float64)
    if not np.isfinite(values).all():
        return True
    if constraint.kind == "frobenius":
        return norm_up(values) * (1.0 - _CLEARLY) > constraint.radius
    tensor = constraint.tensor
    ops = [step.op for step in program.steps if _is_linear_in(step.op, tensor)]
    dense = [op.weight for op in ops if isinstance(op, Dense)]
    matrices = [weight.lo for weight in dense if tensor in weight.sources]
    entries = [_smallest(item) for op in ops for item in _entrywise(op, tensor)]
    read = [op.table for op in ops if isinstance(op, Embedding)]
    tables = [_smallest(table) for table in read if tensor in table.sources]
    reached = [float(np.max(item, initial=0.0)) for item in entries]
    reached += [float(np.max(lengths_up(item), initial=0.0)) * (1.0 - _CLEARLY) for item in tables]
    reached += map(_reached, matrices)
    return any(length > constraint.radius for length in reached)


def _smallest(operand: Operand) -> Array:
    """Magnitudes that no entry is below."""
    return np.maximum(np.maximum(operand.lo, -operand.hi), 0.0)


def _reached(matrix: Array) -> float:
    """‖Wv‖/‖v‖ for a good v, rounded down; 0 where none is found.

    v: about the first singular vector, of WᵀW or WWᵀ, whichever is smaller.
    """
    largest = float(np.max(np.abs(matrix), initial=0.0))
    if not 0.0 < largest < np.inf:
        return 0.0
    scaled = matrix / largest
    is_wide = matrix.shape[0] < matrix.shape[1]
    try:
        v = np.linalg.eigh(scaled @ scaled.T if is_wide else scaled.T @ scaled)[1][:, -1]
    except np.linalg.LinAlgError:
        return 0.0
    v = v @ scaled if is_wide else v
    rounding = norm_up(np.abs(matrix) @ np.abs(v)) * len(v) * 2.0**-50
    length = norm_up(matrix @ v) * (1.0 - _CLEARLY) - rounding
    return max(length, 0.0) / (norm_up(v) * (1.0 + _CLEARLY))


def _has_norm(
    step: Step,
    constraint: Constraint,
    program: Program,
    norms: Mapping[str, float],
    engine: Engine,
) -> bool:
    """Whether the linear map of a step is within the radius, and every entry of other operands.

    Proof: from a spectral constraint on a factor, a slope or an offset it is derived that no entry
    is larger than the radius r (so that n of them have a norm of at most √n·r), and nothing else:
    x ↦ s·x has the norm max|s|; of a table that no row is longer. Entries are compared as they are,
    which rounds nothing. A constraint says nothing about a quantity that is not linear in the
    tensor, such as a reciprocal.
    """
    op, radius = step.op, constraint.radius
    if not _is_linear_in(op, constraint.tensor):
        return False
    if isinstance(op, Dense | Conv) and constraint.tensor in op.weight.sources:
        before = program.shapes[step.inputs[0]]
        if norms.get(step.output, math.inf) > radius and not any(
            step_norm_at_most(op, before, step.shape, radius, NormWitness(way), engine.norms)
            for way in _METHODS
        ):
            return False
    if isinstance(op, Embedding) and not _has_rows(op.table, radius):
        return False
    return all(
        np.max(np.maximum(-item.lo, item.hi), initial=0.0) <= radius
        for item in _entrywise(op, constraint.tensor)
    )


def frobenius_at_most(array: Array, radius: float) -> bool:
    """Whether ‖array‖_F ≤ radius could be proved: membership in a ball."""
    return norm_up(array) <= radius


def _has_rows(table: Operand, radius: float) -> bool:
    """Whether it could be proved that no row of the table is longer than the radius."""
    return bool((lengths_up(np.maximum(-table.lo, table.hi)) <= radius).all())


def _is_linear_in(op: Op, tensor: str) -> bool:
    """Whether all operands of a step are linear functions of a tensor, or do not show it."""
    return all(item.sources.get(tensor, 0.0) < math.inf for item in operands(op))


def _entrywise(op: Op, tensor: str) -> list[Operand]:
    """The operands of a step that show a tensor and are neither a linear map nor a table."""
    weight = op.weight if isinstance(op, Dense | Conv) else None
    weight = op.table if isinstance(op, Embedding) else weight
    return [item for item in operands(op) if tensor in item.sources and item is not weight]
