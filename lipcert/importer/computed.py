"""Constants computed from constants, and the trained parameters that they still show.

What enters: a node all of whose inputs are constant. What leaves: its outputs; a rearranged or
scaled parameter stays a view of it, anything else computed from one is marked as folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import final

import numpy as np
from onnx import helper

from lipcert.importer.arithmetic import evaluate_constant
from lipcert.importer.constant import Constant, Origin, View
from lipcert.importer.raw import RawNode
from lipcert.importer.rearrange import REARRANGERS, rearranger

Inputs = Sequence[Constant | None]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """Outputs of a node; absorbed: the tensors whose uses are no longer visible in them."""

    outputs: tuple[Constant, ...]
    absorbed: frozenset[str] = frozenset()


def computed(node: RawNode, inputs: Inputs) -> Computed:
    """The outputs of a node; an error of numpy where it is not sound."""
    if node.op_type == "Constant":
        return Computed((_literal(node),))
    first = inputs[0] if inputs else None
    if first is not None and first.view is not None:
        if node.op_type in REARRANGERS:
            arrays = [None if item is None else item.array for item in inputs[1:]]
            return Computed((first.rearranged(rearranger(node, arrays)),))
        if node.op_type == "Split":
            return Computed(_parts(node, first.view, inputs))
    view = _scaled(node, inputs) or _times_zero(node, inputs)
    return _mixed(node, inputs) if view is None else Computed((view,))


def _literal(node: RawNode) -> Constant:
    (array,) = evaluate_constant(node, [])
    if array.dtype.kind != "f":
        return Constant(array)
    return Constant(array, View.whole(Origin(node.outputs[0], array.shape, literal=True)))


def _parts(node: RawNode, view: View, inputs: Inputs) -> tuple[Constant, ...]:
    """A Split of a tensor: numbers and indices alike."""
    arrays = [None if item is None else item.array for item in inputs]
    numbers = evaluate_constant(node, arrays)
    indices = evaluate_constant(node, [view.index, *arrays[1:]])
    return tuple(
        Constant(array, replace(view, index=index))
        for array, index in zip(numbers, indices, strict=True)
    )


def _mixed(node: RawNode, inputs: Inputs) -> Computed:
    """New numbers; what is computed from a parameter is itself no parameter."""
    results = evaluate_constant(node, [None if item is None else item.array for item in inputs])
    given = [item for item in inputs if item is not None]
    absorbed = frozenset(item.view.origin.name for item in given if item.view is not None)
    is_folded = any(item.is_parameter for item in given)
    return Computed(
        tuple(
            Constant(array, View.whole(Origin(name, array.shape, folded=True)))
            if is_folded and array.dtype.kind == "f"
            else Constant(array)
            for name, array in zip(node.outputs, results, strict=False)
        ),
        absorbed,
    )


def _scaled(node: RawNode, inputs: Sequence[Constant | None]) -> Constant | None:
    """A parameter times one number, perhaps repeated, as a view; None for anything else."""
    operands = [item for item in inputs if item is not None]
    if not any(item.is_parameter for item in operands):
        return None
    if node.op_type in {"Neg", "Cast"}:
        return _recast(node, operands[0])
    if node.op_type not in {"Add", "Mul", "Div"} or len(operands) != 2:
        return None
    first, second = operands
    if second.is_parameter and node.op_type != "Div":
        first, second = second, first
    factor = second.uniform()
    if second.is_parameter or not first.is_parameter or factor is None:
        return None
    shape = np.broadcast_shapes(first.shape, second.shape)
    repeated = first.rearranged(lambda array: np.broadcast_to(array, shape))
    if node.op_type == "Add":
        return repeated if factor == 0.0 else None
    if factor == 0.0:
        return None
    exact = Fraction(factor)
    return _in_type(first, repeated.scaled(exact if node.op_type == "Mul" else 1 / exact))


def _times_zero(node: RawNode, inputs: Inputs) -> Constant | None:
    """0·W, or the bias of 0·W + b: a recurrent network starts like this. W has no part in it."""
    if node.op_type not in {"MatMul", "Gemm"}:
        return None
    factors = [item for item in inputs[:2] if item is not None]
    if not any(not item.is_parameter and item.uniform() == 0.0 for item in factors):
        return None
    (array,) = evaluate_constant(node, [None if item is None else item.array for item in inputs])
    bias = inputs[2] if len(inputs) > 2 else None
    if bias is None or node.real("beta", 1.0) != 1.0:
        return Constant(array) if bias is None else None
    return bias.rearranged(lambda values: np.broadcast_to(values, array.shape))


def _in_type(source: Constant, result: Constant) -> Constant:
    """The result in the data type of the file, rounded as at run time."""
    return Constant(result.array.astype(source.array.dtype), result.view)


def _recast(node: RawNode, constant: Constant) -> Constant | None:
    if node.op_type == "Neg":
        return _in_type(constant, constant.scaled(Fraction(-1)))
    target = np.dtype(helper.tensor_dtype_to_np_dtype(node.integer("to", 1)))
    is_exact = target.kind == "f" and target.itemsize >= constant.array.dtype.itemsize
    return Constant(constant.array.astype(target), constant.view) if is_exact else None
