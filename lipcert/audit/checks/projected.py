"""Projected: whether one tensor is another one that a projection drew into a constraint.

What enters: a tensor before and after. What leaves: whether they are equal, whether the change is
of a form that projections have, or something else. Forms: multiples of the whole tensor, or of its
rows (the radius of a norm, rows of fixed length); entries cut off at one magnitude; other singular
values with the same singular vectors, T = U f(Σ) Vᵀ for S = UΣVᵀ, as clipping them or
orthogonalising leaves: then S Tᵀ and Sᵀ T are symmetric. Rounding of a projection: 16 roundings of
every entry, by the Euclidean norm; of singular vectors √n times as much, n the longer side.
"""

from __future__ import annotations

import math

import numpy as np

from lipcert.upper import FloatArray

_ROUNDINGS = 16.0


def is_projection(source: FloatArray, target: FloatArray, unit: float, slack: float = 0.0) -> bool:
    """Whether the target has one of the forms. unit: of the type that it is stored in; slack: a
    distance by which the source may be off."""
    if not (np.isfinite(source).all() and np.isfinite(target).all()):
        return False
    allowed = _ROUNDINGS * unit * _norm(target) + slack
    rows = source.reshape(len(source), -1) if source.ndim > 1 else source.reshape(1, -1)
    ends = target.reshape(rows.shape)
    return (
        _norm(ends - _factors(rows.reshape(1, -1), ends.reshape(1, -1)).reshape(rows.shape))
        <= allowed
        or _norm(ends - _factors(rows, ends)) <= allowed
        or _norm(ends - np.clip(rows, -_largest(ends), _largest(ends))) <= allowed
        or (source.ndim > 1 and _shares_vectors(rows, ends, allowed))
    )


def _factors(source: FloatArray, target: FloatArray) -> FloatArray:
    """The multiple of each row that is nearest to the target's."""
    squares = np.sum(source * source, axis=1, keepdims=True)
    products = np.sum(source * target, axis=1, keepdims=True)
    found: FloatArray = source * np.divide(
        products, squares, out=np.zeros_like(products), where=squares > 0.0
    )
    return found


def _shares_vectors(source: FloatArray, target: FloatArray, allowed: float) -> bool:
    """Moving T by E moves S Tᵀ − T Sᵀ by at most 2‖S‖_F ‖E‖_F."""
    reach = 2.0 * math.sqrt(max(source.shape)) * allowed * float(np.linalg.norm(source, 2))
    return all(
        _norm(product - product.T) <= reach for product in (source @ target.T, source.T @ target)
    )


def _largest(array: FloatArray) -> float:
    return float(np.max(np.abs(array), initial=0.0))


def _norm(array: FloatArray) -> float:
    return float(np.linalg.norm(array))
