"""Written out: small convolutions as the matrices that they are.

What enters: a node, and labels in place of the entries of its kernel. What leaves: matrices of
labels, 0 where the map is 0. Invariant: up to the order of rows and columns, the map consists of
these blocks, each perhaps several times, and of zeros.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from scipy.sparse import bmat, coo_array
from scipy.sparse.csgraph import connected_components

from lipcert.audit.weight_norms import image_of, linear_map
from lipcert.core.program import IndexArray
from lipcert.graph.ir import Node
from lipcert.upper import FloatArray

_ENTRIES: Final = 2**19


def written_out(node: Node, labels: FloatArray) -> IndexArray | None:
    """The blocks of the map: [blocks, rows, columns]; None where the whole map is large.

    Groups, dilated windows, and axes along which a kernel has one tap give many equal blocks.
    """
    _, given, shape = linear_map(node, labels)
    inputs, outputs = math.prod(given), math.prod(shape)
    if max(inputs, outputs) ** 2 > 16 * _ENTRIES or inputs * outputs > _ENTRIES:
        return None
    found = image_of(node, labels, np.eye(inputs))
    return _blocks(found.reshape(inputs, -1).astype(np.int64))


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
