"""The function of every kind of step: for the examples of a batch together.

Input: a node, tensors [examples, *shape], its operands by role. Output: one tensor [examples,
*shape]. A step that does not reserve axis 0 of its values for the examples is applied to each
example alone (`torch.vmap`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lipcert.core import program as p
from lipcert.graph.ir import Node
from lipcert.measure.lowering.functions import (
    FUNCTIONS,
    Elementwise,
    Function,
    Tensors,
    activation,
    attention,
    batch_norm,
    clip,
    dense,
    elementwise,
    embedding,
    local_response,
    masking,
    matmul,
    normalize,
    reduction,
)
from lipcert.measure.lowering.move import concat, move, sort
from lipcert.measure.lowering.windows import RANKS, convolution, pool


def lowered(node: Node, inputs: Sequence[Tensor], operands: Tensors) -> Tensor:
    """The node on tensors [examples, *shape]; operands by role, as the node has them."""
    return function_of(node, inputs[0])(inputs, operands)


def function_of(node: Node, like: Tensor) -> Function:
    """The node as a function; like: has the dtype and device of its constants."""
    function = _function(node, like)
    if node.in_place:
        return function

    def one_by_one(inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
        pairs = zip(inputs, node.given, strict=True)
        whole = [x.reshape(x.shape[0], *shape) for x, shape in pairs]
        found: Tensor = torch.vmap(lambda *parts: function(parts, tensors))(*whole)
        return found.reshape(inputs[0].shape[0], *node.shape)

    return one_by_one


def obstacle(node: Node) -> str | None:
    """Why this very node cannot be lowered although its kind can; None: it can."""
    match node.op:
        case p.Activation(name) if name not in FUNCTIONS:
            return f"{name} has no implementation in torch"
        case p.Conv(window=window) | p.MaxPool(window) | p.AveragePool(window) | p.LpPool(window):
            if len(window.taps) not in RANKS:
                return f"torch has no windows over {len(window.taps)} spatial dimensions"
    return None


def _function(node: Node, like: Tensor) -> Function:
    match node.op:
        case p.Dense():
            return dense
        case p.Embedding():
            return embedding
        case p.Compare() | p.MaskedMean() as op:
            return masking(op, like)
        case p.Conv() as op:
            return convolution(op, node.geometry)
        case p.MatMul():
            return matmul
        case p.Attention() as op:
            return attention(op, like)
        case p.Activation() as op:
            return activation(op)
        case p.Move() as op:
            return move(op, node, like)
        case p.Concat(axis):
            return concat(axis)
        case p.Sort(axis):
            return sort(axis)
        case p.BatchNorm() as op:
            return batch_norm(op, like)
        case p.Normalize() as op:
            return normalize(op)
        case p.LocalResponse() as op:
            return local_response(op)
        case p.MaxPool() | p.AveragePool() | p.LpPool() as op:
            return pool(op, node.geometry, like)
        case p.InputClip() | p.CotangentClip() as op:
            return clip(op)
        case op if isinstance(op, Elementwise):
            return elementwise(op)
        case op:
            return reduction(op)
