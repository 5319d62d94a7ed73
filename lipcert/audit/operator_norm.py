"""Two ends of the operator norm of a layer's weight T: what the core proves, and one vector.

What enters: a node with a weight. What leaves: a number ≥ ‖T‖₂, or one ≤ ‖T‖₂.

Proof of the lower end: ‖T‖ ≥ ‖Tv‖/‖v‖ for every v ≠ 0. Each entry of the computed Tv is a sum of
at most n products, n the number of entries of v, so it is off by at most γ_n·(|T||v|), in any order
of summation; the norm of the error is at most γ_n·‖|T||v|‖, and |T||v| itself is computed within a
factor 1 + γ_n.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from lipcert.core.norms.steps import Kernel
from lipcert.core.program import Conv, Dense, Operand, Shape, Step
from lipcert.graph.evaluate import batch_output
from lipcert.graph.ir import Node
from lipcert.measure.lowering import lowered
from lipcert.search.norms import proved_bound
from lipcert.settings.choices import TierName
from lipcert.upper import ONE, FloatArray, Lower, Upper, gamma, norm, norm_lower

_ITERATIONS: Final = 60


def operator_norm_upper(node: Node, tier: TierName) -> Upper:
    """An upper bound that the core proves, about the least that it can; inf where it proves none.

    Proving takes a share of 4e-8 of the norm, or a little more.
    """
    op, given, shape = linear_map(node, node.operands["weight"].array)
    return Upper(proved_bound(Kernel.of(op, given, shape), tier))


def linear_map(node: Node, weight: FloatArray) -> tuple[Dense | Conv, Shape, Shape]:
    """A layer with this weight and no bias; a matrix acts on one position.

    Its norm is that of the layer. TypeError for a node that is none.
    """
    exact = Operand(weight, weight)
    match node.op:
        case Dense() as dense:
            matrix = replace(dense, weight=exact, bias=None)
            return matrix, (1, weight.shape[1]), (1, weight.shape[0])
        case Conv() as conv:
            kernel = replace(conv, weight=exact, bias=None)
            return kernel, node.given[0], node.step.shape
    raise TypeError(f"node {node.name!r} is no layer")


def image_of(node: Node, weight: FloatArray, x: FloatArray) -> FloatArray:
    """What the layer makes of vectors [examples, ...], entry by entry as its map reads them."""
    op, given, shape = linear_map(node, weight)
    step = Step(op, ("x",), "y", shape, 0)
    found: FloatArray = batch_output(step, [x.reshape(len(x), *given)])
    return found


def operator_norm_lower(node: Node) -> Lower:
    """A lower bound by the best vector that a power iteration finds."""
    weight = node.operands["weight"].array
    vector = _long_vector(node, weight)
    image = image_of(node, weight, vector[None])
    spread = norm(image_of(node, np.abs(weight), np.abs(vector)[None]))
    terms = vector.size + 2
    error = gamma(terms) * spread * (ONE + gamma(terms))
    length = norm_lower(image).value - error.value
    if length <= 0.0:
        return Lower(0.0)
    return Lower(length * (1.0 - 2.0**-50)).over(norm(vector))


def _long_vector(node: Node, weight: FloatArray) -> FloatArray:
    """What (TᵀT)^k makes of a fixed vector."""
    op, given, shape = linear_map(node, weight)
    single = Node(node.name, Step(op, ("x",), "y", shape, 0), (given,))
    tensors = {"weight": torch.from_numpy(weight.copy())}
    vector = torch.from_numpy(np.random.default_rng(0).standard_normal(given))
    for _ in range(_ITERATIONS):
        vector = vector.detach().requires_grad_()
        with torch.enable_grad():
            image = lowered(single, (vector,), tensors)
            (back,) = torch.autograd.grad(image, vector, image.detach())
        length = float(back.norm())
        if not (math.isfinite(length) and length > 0.0):
            break
        vector = back / length
    return np.array(vector.detach().numpy(), dtype=np.float64)
