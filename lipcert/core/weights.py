"""Weights of a step: which numbers of a file are those of which tensor of a model.

Input: a model, the parameters of a certificate, and a file of weights: another ONNX file of the
same network, or safetensors. Output: the model with these weights, and under which name each
trained tensor was found.

Invariant: a certificate cannot choose which numbers are compared. The model's own names come first;
another name that the certificate gives a tensor is accepted only where nothing else in the file
could be meant.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from lipcert.core.certificate import Certificate
from lipcert.core.reader.files import read_model_bytes
from lipcert.core.reader.model import read_model
from lipcert.core.reader.records import Model, ModelReadError, Tensor, shown
from lipcert.core.verdict import StoredWeight

_TYPES: Final[Mapping[str, str]] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
}
_MAX_HEADER: Final = 1 << 24
_MOST_UNUSED: Final = 4
"""names of tensors that a note lists"""


@final
@dataclass(frozen=True, slots=True)
class Weights:
    """A model with the weights of a file, where they were found, and what was not looked at.

    other: tensors of the model that are not trained, and for which the file holds other numbers.
    """

    model: Model
    found: tuple[StoredWeight, ...]
    unused: tuple[str, ...] = ()
    other: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What a report says of them besides."""
        if not self.unused:
            return []
        names = ", ".join(shown(name) for name in self.unused[:_MOST_UNUSED])
        more = " and others" if len(self.unused) > _MOST_UNUSED else ""
        return [f"tensors of the weights file that were compared with nothing: {names}{more}"]


def read_weights(path: Path, model: Model, certificate: Certificate) -> Weights:
    """The model with the weights of a file; ModelReadError where safetensors lack a tensor."""
    trained = certificate.scope.trained
    if path.suffix != ".safetensors":
        weights = read_model(path)
        known = [name for name in trained if name in weights.initializers]
        return Weights(weights, tuple(StoredWeight(name, name) for name in known))
    stored = _Safetensors(read_model_bytes(path))
    found = {tensor: _stored_name(tensor, stored, model, certificate) for tensor in trained}
    own = [name for name in stored.names if name in model.initializers and name not in found]
    return Weights(
        exchanged(model, {name: stored.like(found[name], model, name) for name in trained}),
        tuple(StoredWeight(tensor, name) for tensor, name in found.items()),
        tuple(sorted(set(stored.names) - set(found.values()) - set(own))),
        tuple(name for name in own if not _is_same(stored.tensor(name), model.initializers[name])),
    )


def exchanged(model: Model, found: Mapping[str, Tensor]) -> Model:
    """The model with other numbers in some of its initializers."""
    return replace(model, initializers={**model.initializers, **found})


def _stored_name(tensor: str, stored: _Safetensors, model: Model, certificate: Certificate) -> str:
    """The name under which a file holds a trained tensor.

    That is the tensor's own name in the model, or one of those that the certificate gives it. A
    name of another tensor of the model means that one, whatever a certificate says. Of several
    names for one tensor all have to hold the same numbers, and where the tensor's own name is not
    in the file, nothing else there may have its shape and no meaning of its own: then no other
    choice of names leads to other numbers.
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
    """Whether a tensor has the shape of another; a matrix may be stored the other way round."""
    return dims == like or (len(dims) == 2 and dims == like[::-1])


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers, of whatever type."""
    return one.dims == other.dims and np.array_equal(one.values(), other.values(), equal_nan=True)


@final
class _Safetensors:
    """The tensors of a safetensors file: a JSON header behind its length, then plain numbers.

    Only what is looked at has to be of a known type.
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
        """The shape of a tensor."""
        return self._entry(name)[1]

    def tensor(self, name: str) -> Tensor:
        """A tensor as it is stored."""
        dtype, dims, content = self._entry(name)
        if dtype not in _TYPES or len(content) != math.prod(dims) * Tensor.item_size(_TYPES[dtype]):
            raise _not_understood(name)
        return Tensor(_TYPES[dtype], dims, content)

    def like(self, name: str, model: Model, tensor: str) -> Tensor:
        """A tensor in the shape of the model's; under its own name it has that shape."""
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
        """The type, the shape and the bytes of an entry."""
        match self._header[name]:
            case {"dtype": str(dtype), "shape": [*dims], "data_offsets": [int(start), int(stop)]}:
                whole = all(type(dim) is int and dim >= 0 for dim in dims)
                if whole and 0 <= start <= stop <= len(self._body):
                    return dtype, tuple(dims), self._body[start:stop]
        raise _not_understood(name)


def _not_understood(name: str) -> ModelReadError:
    return ModelReadError(f"the entry {shown(name)} of the safetensors file is not understood")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without a key given twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found
