"""Membership: check whether other weights of a model lie within a certificate's constraints.

Input: a certificate for a set of weights, the model it describes, and the same model with other
weights. Output: a sentence for each tensor that is not within its constraint, and for each
untrained tensor that differs from the file's.

Weights are read from a file: another ONNX file of the same network, or safetensors. Invariant: a
certificate cannot choose which numbers are compared. The model's own names come first; another name
that the certificate gives a tensor is accepted only where nothing else in the file could be meant.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from lipcert.core.certificate import Certificate, Constraint
from lipcert.core.coverage import tensors, tensors_read
from lipcert.core.digest import structural_digest
from lipcert.core.interval import Array, norm_up
from lipcert.core.kinds import Embedding
from lipcert.core.lines.norms import norm_holds
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from lipcert.core.norms import Engine
from lipcert.core.norms.claim import NormWitness
from lipcert.core.program import PLUS, Dense, Op, Operand, Program, Step, operands
from lipcert.core.reader import read_model_bytes
from lipcert.core.reader.model import read_model
from lipcert.core.reader.records import Model, ModelReadError, Tensor, shown
from lipcert.core.rules.facts import lengths_up
from lipcert.core.window_kinds import Conv

_TYPES: Final[Mapping[str, str]] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
}
_MAX_HEADER: Final = 1 << 24
_MOST_UNUSED: Final = 4
"""Largest number of tensor names that a note lists."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A model with the weights of a file, their names there, and the tensors that were not used.

    other: tensors of the model that are not trained, but have other numbers in the file.
    """

    model: Model
    found: Mapping[str, str]
    unused: tuple[str, ...] = ()
    other: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """The notes for a report: which tensors of the file were not compared."""
        if not self.unused:
            return []
        names = ", ".join(shown(name) for name in self.unused[:_MOST_UNUSED])
        more = " and others" if len(self.unused) > _MOST_UNUSED else ""
        return [f"tensors of the weights file that were compared with nothing: {names}{more}"]


def read_weights(path: Path, model: Model, certificate: Certificate) -> Weights:
    """Return the model with a file's weights; raise ModelReadError if safetensors lack one."""
    trained = certificate.scope.trained
    if path.suffix != ".safetensors":
        weights = read_model(path)
        return Weights(weights, {name: name for name in trained if name in weights.initializers})
    stored = _Safetensors(read_model_bytes(path))
    found = {tensor: _stored_name(tensor, stored, model, certificate) for tensor in trained}
    own = [name for name in stored.names if name in model.initializers and name not in found]
    return Weights(
        exchanged(model, {name: stored.like(found[name], model, name) for name in trained}),
        found,
        tuple(sorted(set(stored.names) - set(found.values()) - set(own))),
        tuple(name for name in own if not _is_same(stored.tensor(name), model.initializers[name])),
    )


def exchanged(model: Model, found: Mapping[str, Tensor]) -> Model:
    """Return the model with other numbers in some of its initializers."""
    return replace(model, initializers={**model.initializers, **found})


def _stored_name(tensor: str, stored: _Safetensors, model: Model, certificate: Certificate) -> str:
    """Return the name under which a file stores a trained tensor.

    This is the tensor's own name in the model, or one that the certificate gives it. A name of
    another tensor of the model always means that one, whatever a certificate says. If several names
    in the file mean the tensor, all must have the same numbers; if the tensor's own name is not in
    the file, no entry of its shape may have an unknown name: then no other choice of names leads to
    other numbers.
    """
    if tensor not in model.initializers:
        raise ModelReadError(f"the trained tensor {shown(tensor)} cannot be replaced by weights")
    given = {claim.name for claim in certificate.parameters if claim.tensor == tensor}
    names = sorted(
        name
        for name in given | {tensor}
        if name in stored.names and (name == tensor or name not in model.initializers)
    )
    if not names:
        raise ModelReadError(f"the weights lack the trained tensor {shown(tensor)}")
    dims = model.initializers[tensor].dims
    rivals = (
        []
        if tensor in names
        else [
            name
            for name in stored.names
            if name not in names
            and name not in model.initializers
            and _fits(stored.dims(name), dims)
        ]
    )
    first = tensor if tensor in names else names[0]
    value = stored.like(first, model, tensor)
    differing = [n for n in names if not _is_same(stored.like(n, model, tensor), value)]
    if rivals or differing:
        either = ", ".join(shown(name) for name in (first, *differing, *rivals)[:4])
        raise ModelReadError(
            f"it is ambiguous which tensor of the weights is {shown(tensor)}: it may be any of "
            f"{either}; store it under its name in the model"
        )
    return first


def _fits(dims: tuple[int, ...], like: tuple[int, ...]) -> bool:
    """Whether a tensor has the shape of another; a matrix may be stored transposed."""
    return dims == like or (len(dims) == 2 and dims == like[::-1])


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers, of whatever type."""
    return one.dims == other.dims and np.array_equal(one.values(), other.values(), equal_nan=True)


class _Safetensors:
    """The tensors of a safetensors file: a JSON header after its length, then plain numbers.

    Only tensors that are read need a known type.
    """

    def __init__(self, content: bytes) -> None:
        if len(content) < 8:
            raise ModelReadError("this is not a safetensors file")
        (length,) = struct.unpack("<Q", content[:8])
        if length > min(_MAX_HEADER, len(content) - 8):
            raise ModelReadError("the header of the safetensors file is too long")
        try:
            header = json.loads(content[8 : 8 + length], object_pairs_hook=_once)
        except (ValueError, RecursionError):
            raise ModelReadError("the header of the safetensors file is not JSON") from None
        if not isinstance(header, dict):
            raise ModelReadError("the header of the safetensors file is not a JSON object")
        header.pop("__metadata__", None)
        self._header: dict[str, object] = header
        self._body = memoryview(content)[8 + length :]
        self.names = tuple(header)

    def dims(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self._entry(name)[1]

    def tensor(self, name: str) -> Tensor:
        """Return a tensor as it is stored."""
        dtype, dims, content = self._entry(name)
        if dtype not in _TYPES or len(content) != math.prod(dims) * Tensor.item_size(_TYPES[dtype]):
            raise _not_understood(name)
        return Tensor(_TYPES[dtype], dims, content)

    def like(self, name: str, model: Model, tensor: str) -> Tensor:
        """Return a tensor in the model's shape; under its own name it must have that shape."""
        value, dims = self.tensor(name), model.initializers[tensor].dims
        if value.dims == dims:
            return value
        if name == tensor or not _fits(value.dims, dims):
            raise ModelReadError(
                f"the weights hold {shown(tensor)} in the shape {list(value.dims)}, "
                f"the model in {list(dims)}"
            )
        turned = np.ascontiguousarray(value.values().T.astype("<f8"))
        return Tensor("float64", dims, turned.tobytes())

    def _entry(self, name: str) -> tuple[str, tuple[int, ...], memoryview]:
        """Return the type, the shape and the bytes of an entry."""
        match self._header[name]:
            case {"dtype": str(dtype), "shape": [*dims], "data_offsets": [int(start), int(stop)]}:
                whole = all(type(dim) is int and dim >= 0 for dim in dims)
                if whole and 0 <= start <= stop <= len(self._body):
                    return dtype, tuple(dims), self._body[start:stop]
        raise _not_understood(name)


def _not_understood(name: str) -> ModelReadError:
    return ModelReadError(f"the entry {shown(name)} of the safetensors file is not understood")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object; refuse a key that is given twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


_METHODS: Final = ("windows", "explicit")
_CLEARLY: Final = 2.0**-20


def membership_faults(
    certificate: Certificate, model: Model, weights: Weights, engine: Engine
) -> Iterator[str]:
    """Yield what is wrong with the weights in a file, by proved norms.

    Raise Unsupported if a tensor is neither proved to be within nor shown to be outside: a norm
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
    """Yield the tensors outside their constraints. norms: proved norms of steps, by output.

    Raise Unsupported if it is not proved that the others are within.
    """
    unproved = []
    for constraint in constraints:
        values = np.asarray(tensors(weights)[constraint.tensor].values(), dtype=np.float64)
        users = [step for step in program.steps if constraint.tensor in tensors_read([step])]
        limit = f"{constraint.kind} {constraint.radius!r}"
        if _is_outside(constraint, values, program):
            yield f"the tensor {shown(constraint.tensor)} is not within {limit}"
        elif not (
            frobenius_at_most(values, constraint.radius)
            if constraint.kind == "frobenius"
            else all(_has_norm(step, constraint, program, norms, engine) for step in users)
        ):
            unproved.append(f"{shown(constraint.tensor)} within {limit}")
    if unproved:
        raise Unsupported(f"it could not be proved that the weights hold {'; '.join(unproved)}")


def _is_outside(constraint: Constraint, values: Array, program: Program) -> bool:
    """Whether the Euclidean norm, what a matrix does to one vector, or an entry is too large.

    Proof: ‖W‖ ≥ ‖Wv‖/‖v‖ for every v; the rounding of Wv is at most γ_n·‖|W||v|‖, which is far
    below the margin unless Wv cancels, and then the norm of |W||v| stands in its way. A number in
    [lo, hi] is at least lo, and its negative at least −hi. Of steps that use another function of
    the tensor than a linear one, neither says anything.
    """
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
    """Return lower bounds of the magnitudes of the entries."""
    return np.maximum(np.maximum(operand.lo, -operand.hi), 0.0)


def _reached(matrix: Array) -> float:
    """Return ‖Wv‖/‖v‖ for a good v, rounded down; 0 if none is found.

    v: about the first singular vector, from WᵀW or WWᵀ, whichever is smaller.
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
    step: Step, constraint: Constraint, program: Program, norms: Mapping[str, float], engine: Engine
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
    is_weight = isinstance(op, Dense | Conv) and constraint.tensor in op.weight.sources
    if is_weight and norms.get(step.output, math.inf) > radius:
        ways = map(NormWitness, _METHODS)
        if not any(norm_holds((step,), program.shapes, radius, w, engine.norms) for w in ways):
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
    """Whether all operands of a step are linear in a tensor, or do not depend on it."""
    shown = [item.sources for item in operands(op) if tensor in item.sources]
    return all(sources[tensor] < math.inf and PLUS not in sources for sources in shown)


def _entrywise(op: Op, tensor: str) -> list[Operand]:
    """Return the operands that depend on a tensor and are neither a linear map nor a table."""
    weight = op.weight if isinstance(op, Dense | Conv) else None
    weight = op.table if isinstance(op, Embedding) else weight
    return [item for item in operands(op) if tensor in item.sources and item is not weight]
