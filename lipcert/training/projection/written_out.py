"""Written out: small convolutions as the matrices that they are.

What enters: an op, and labels in place of the entries of its kernel. What leaves: matrices of
labels, 0 where the map is 0. Invariant: up to the order of rows and columns, the map consists of
these blocks, each perhaps several times, and of zeros.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np
from scipy.sparse import bmat, coo_array
from scipy.sparse.csgraph import connected_components

from lipcert.geometry import IndexArray
from lipcert.operand import Operand
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.upper import FloatArray

_ENTRIES: Final = 2**19


def written_out(op: Conv | ConvTranspose, labels: FloatArray) -> IndexArray | None:
    """The blocks of the map: [blocks, rows, columns]; None where the whole map is large.

    Groups, dilated windows, and axes along which a kernel has one tap give many equal blocks.
    """
    is_forward = isinstance(op, Conv)
    above = labels.shape[0] * math.prod(window.outputs for window in op.geometry)
    below = labels.shape[1] * op.groups * math.prod(window.size for window in op.geometry)
    if max(above, below) ** 2 > 16 * _ENTRIES or above * below > _ENTRIES:
        return None
    sizes = tuple(window.size if is_forward else window.outputs for window in op.geometry)
    inputs = below if is_forward else above
    linear = replace(op, weight=Operand(labels), bias=None)
    units = np.eye(inputs).reshape(inputs, -1, *sizes)
    return _blocks(linear.evaluate(units).reshape(inputs, -1).astype(np.int64))


def _blocks(matrix: IndexArray) -> IndexArray:
    """The different connected blocks of a matrix, padded by zeros to one shape.

    Two taps of one window read different positions, so that no entry is a sum of two labels.
    """
    sparse = coo_array(matrix)
    _, parts = connected_components(bmat([[None, sparse], [sparse.T, None]]), directed=False)
    rows, columns = parts[: len(matrix)], parts[len(matrix) :]
    found: dict[bytes, IndexArray] = {}
    for part in np.unique(rows[np.any(matrix, axis=1)]):
        block = matrix[np.ix_(rows == part, columns == part)]
        found.setdefault(bytes(str(block.shape), "ascii") + block.tobytes(), block)
    height = max(len(block) for block in found.values())
    width = max(block.shape[1] for block in found.values())
    result = np.zeros((len(found), height, width), dtype=np.int64)
    for place, block in zip(result, found.values(), strict=True):
        place[: block.shape[0], : block.shape[1]] = block
    return result
