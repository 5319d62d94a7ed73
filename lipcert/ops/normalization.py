"""Normalisation layers: by stored statistics (BatchNorm), or of an example by its own blocks.

What enters: facts about x, and a scope that bounds scale and bias. What leaves: norms and boxes,
and the Jacobian norms in x, scale and bias. Invariant: LayerNorm, GroupNorm and RmsNorm all cut
the value into blocks of equal size, normalise each one, then scale and shift; `Blocks` bounds the
normalised value x̂, whatever the blocks are.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.facts import (
    Bound,
    Runs,
    Shape,
    ValueFacts,
    bound_of,
    no_bound,
    product_of,
    sum_of,
    tightest,
)
from lipcert.interval import Interval
from lipcert.links import Link, Slopes
from lipcert.operand import Operand
from lipcert.ops.base import Op
from lipcert.ops.blocks import Blocks
from lipcert.ops.broadcasting import aligned, repetition_root, root_of, slice_norm
from lipcert.ops.scalar import constant
from lipcert.scope import Scope
from lipcert.upper import ONE, FloatArray, Upper


def _require_epsilon(epsilon: float) -> None:
    if not (math.isfinite(epsilon) and epsilon >= 0.0):
        raise ValueError(f"epsilon must be a finite number >= 0, not {epsilon}")


@final
@dataclass(frozen=True, slots=True, eq=False)
class BatchNorm(Op):
    """y_c = scale_c·(x_c − mean_c)/√(variance_c + epsilon) + bias_c on [channels, ...].

    Mean and variance are statistics stored in the file, not parameters.
    """

    mean: Operand
    variance: Operand
    epsilon: float
    scale: Operand
    bias: Operand

    def __post_init__(self) -> None:
        _require_epsilon(self.epsilon)
        shapes = {op.shape for op in (self.mean, self.variance, self.scale, self.bias)}
        if len(shapes) != 1 or len(self.scale.shape) != 1:
            raise ValueError(f"statistics, scale and bias need one [channels] shape, not {shapes}")
        if np.any(self.variance.array < 0.0) or np.any(self.variance.array + self.epsilon <= 0.0):
            raise ValueError("a variance is negative, or zero without epsilon")
        if not self._inverse_deviation().max_abs().is_finite:
            raise ValueError("a variance plus epsilon is too small to divide by")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "BatchNormalization"

    @property
    def family(self) -> str:
        """Rule family."""
        return "batch_norm"

    def operands(self) -> Mapping[str, Operand]:
        """Scale and bias."""
        return {"scale": self.scale, "bias": self.bias}

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the input, whose first axis holds the channels."""
        (shape,) = inputs
        if shape[:1] != self.scale.shape:
            raise ValueError(f"input {shape} does not have {self.scale.shape[0]} channels")
        return shape

    def operator_norm(self, scope: Scope) -> Bound:
        """Returns max |scale|/√(variance + epsilon), the norm of the diagonal map."""
        rule = "batch_norm.input_lipschitz"
        largest = self._factor(scope).max_abs()
        if largest.is_finite:
            return Bound(largest, rule)
        inverse = Bound(self._inverse_deviation().max_abs(), rule)
        return product_of(rule, scope.max_abs(self.scale), inverse)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns the norm of the diagonal map. Attained: on the channel of the largest factor."""
        del index, inputs
        return self.operator_norm(scope)

    def link(self, inputs: Sequence[ValueFacts], scope: Scope) -> Link | None:
        """The factor of each channel."""
        (x,) = inputs
        ends = (-1, *[1] * (len(x.shape) - 1))
        return Slopes(self._factor(scope).map(lambda end: end.reshape(ends)))

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖f·x + t‖, f = scale/√(variance + ε), t = bias − f·mean per channel.

        Proof: ‖f·x‖ ≤ max|f|·X, and t is added at P positions: √P·‖t‖, where ‖t‖ is that of
        its box or ‖bias‖ + ‖f·mean‖. The box is mapped entry by entry.
        Attained: at X = 0; without shift by one channel.
        """
        (x,) = inputs
        rule = "batch_norm.output_norm"
        factor = self._factor(scope)
        centre = factor * Interval.exact(self.mean.array)
        shift = scope.entries(self.bias) - centre
        positions = root_of(x.size // x.shape[0])
        added = scope.norm(self.bias)
        if added.is_finite:
            added = bound_of(min(added.value + centre.norm(), shift.norm()), rule)
        linear = product_of(rule, x.norm, self.operator_norm(scope))
        norm = sum_of(rule, linear, added.scaled(positions))
        rank = len(x.shape)
        image = x.box * factor.map(lambda ends: _per_channel(ends, rank))
        return ValueFacts.of(x.shape, norm, image + shift.map(lambda e: _per_channel(e, rank)))

    def param_lipschitz(self, inputs: Sequence[ValueFacts], scope: Scope) -> Mapping[str, Bound]:
        """Returns for the scale B ≥ max_c ‖x̂_c‖, for the bias √P.

        Proof: each parameter reaches the P positions of its channel only, so the columns of both
        Jacobians are orthogonal. x̂_c = (x_c − mean_c)/√(variance_c + ε) is bounded by the box,
        and by ‖x_c − mean_c‖ ≤ X + √P·|mean_c|.
        Attained: the bias always; the scale by a single channel along its mean.
        """
        del scope
        (x,) = inputs
        rule = "batch_norm.param_lipschitz"
        positions = root_of(x.size // x.shape[0])
        channels, rank = self.scale.shape[0], len(x.shape)
        inverse = self._inverse_deviation()
        offset = Interval.exact(np.abs(self.mean.array)) * constant(positions.value)
        length = Interval.symmetric(x.norm.value, (channels,)) + offset
        by_norm = x.norm
        if by_norm.is_finite:
            longest = Upper(float(np.max((length * inverse).hi)))
            by_norm = product_of(rule, Bound(longest, rule, "the input may be too large"))
        mean = Interval.exact(_per_channel(self.mean.array, rank))
        normalised = (x.box - mean) * inverse.map(lambda ends: _per_channel(ends, rank))
        per_channel = (channels, *[1] * (rank - 1))
        by_box = slice_norm(ValueFacts.of(x.shape, _SILENT, normalised), per_channel, x.shape)
        return {
            "scale": tightest(by_norm, by_box),
            "bias": Bound(positions, rule),
        }

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Normalise, scale, shift."""
        (x,) = inputs
        rank = x.ndim - 1
        mean, variance, scale, bias = (
            _per_channel(operand.array, rank)
            for operand in (self.mean, self.variance, self.scale, self.bias)
        )
        return scale * (x - mean) / np.sqrt(variance + self.epsilon) + bias

    def _inverse_deviation(self) -> Interval:
        variance = Interval.exact(self.variance.array) + constant(self.epsilon)
        return variance.monotone(np.sqrt, ulps=1).reciprocal()

    def _factor(self, scope: Scope) -> Interval:
        return scope.entries(self.scale) * self._inverse_deviation()


_SILENT = no_bound("batch_norm.normalised", "nothing is known of the input's entries")


def _per_channel(array: FloatArray, rank: int) -> FloatArray:
    return array.reshape(-1, *[1] * (rank - 1))


class _BlockNorm(Op):
    """y = scale·x̂ + bias, x̂ normalised block by block."""

    __slots__ = ()
    epsilon: float
    scale: Operand | None

    @property
    def _shift(self) -> Operand | None:
        return None

    @property
    def _centred(self) -> bool:
        return True

    @abstractmethod
    def _block_size(self, shape: Shape) -> int:
        """Entries that are normalised together."""

    @abstractmethod
    def _placed(self, operand: Shape, shape: Shape) -> Shape:
        """The operand's shape with unit axes, so that it broadcasts to the value."""

    @abstractmethod
    def _meets(self, operand: Shape, shape: Shape) -> tuple[int, int]:
        """How many blocks one entry of the operand reaches, and how many entries in each."""

    def operands(self) -> Mapping[str, Operand]:
        """Scale and bias, where there are any."""
        slots = {"scale": self.scale, "bias": self._shift}
        return {slot: operand for slot, operand in slots.items() if operand is not None}

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the input, to which scale and bias must broadcast."""
        (shape,) = inputs
        self._block_size(shape)
        for slot, operand in self.operands().items():
            if np.broadcast_shapes(self._placed(operand.shape, shape), shape) != shape:
                raise ValueError(f"{slot} {operand.shape} does not fit input {shape}")
        return shape

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖scale·x̂ + bias‖ ≤ max|scale|·‖x̂‖ + √m·‖bias‖, and a box.

        Proof: `Blocks.norm` bounds ‖x̂‖ and each entry; the bias is added at m places each.
        Attained: without bias, with a constant scale: ‖x̂‖ = X/√(X²/N + ε) for N entries.
        """
        (x,) = inputs
        rule = f"{self.family}.output_norm"
        blocks = self._blocks(x)
        entry = blocks.norm(1, 1)
        norm = Bound(blocks.norm(blocks.count, blocks.size), rule)
        box = Interval.symmetric(entry, x.shape)
        if self.scale is not None:
            norm = product_of(rule, norm, scope.max_abs(self.scale))
            box = box * self._entries(self.scale, x.shape, scope)
        if self._shift is not None:
            root = repetition_root(self._placed(self._shift.shape, x.shape), x.shape)
            norm = sum_of(rule, norm, scope.norm(self._shift).scaled(root))
            box = box + self._entries(self._shift, x.shape, scope)
        return ValueFacts.of(x.shape, norm, box, self._tokens(x, scope))

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns max|scale|/√ε ≥ sup of the Jacobian norm; no bound for ε = 0.

        Proof: `Blocks.slope`, blocks being independent. Attained: where a block has no spread.
        """
        rule = f"{self.family}.input_lipschitz"
        slope = self._blocks(inputs[index]).slope
        if not slope.is_finite:
            return no_bound(
                rule,
                "epsilon is 0, so the slope grows without limit as the input's spread vanishes",
                "export the layer with a positive epsilon",
            )
        gain = Bound(ONE, rule) if self.scale is None else scope.max_abs(self.scale)
        return product_of(rule, Bound(slope, rule), gain)

    def param_lipschitz(self, inputs: Sequence[ValueFacts], scope: Scope) -> Mapping[str, Bound]:
        """Returns for the scale B ≥ the norm of x̂ on the places one entry reaches; bias √m.

        Proof: every place uses one entry of the scale and one of the bias, so the columns of
        both Jacobians are orthogonal, and the norm is that of the longest column.
        Attained: both (see `Blocks.norm`).
        """
        del scope
        (x,) = inputs
        rule = f"{self.family}.param_lipschitz"
        answers: dict[str, Bound] = {}
        if self.scale is not None:
            touched, picked = self._meets(self.scale.shape, x.shape)
            answers["scale"] = Bound(self._blocks(x).norm(touched, picked), rule)
        if self._shift is not None:
            answers["bias"] = Bound(
                root_of(math.prod(self._meets(self._shift.shape, x.shape))), rule
            )
        return answers

    def _tokens(self, x: ValueFacts, scope: Scope) -> Runs | None:
        """Runs that are whole blocks, where there are such runs."""
        del x, scope
        return None

    def _blocks(self, x: ValueFacts) -> Blocks:
        size = self._block_size(x.shape)
        return Blocks(x.size // size, size, self._centred, self.epsilon, x.norm.value)

    def _entries(self, operand: Operand, shape: Shape, scope: Scope) -> Interval:
        placed = self._placed(operand.shape, shape)
        return scope.entries(operand).broadcast(operand.shape).map(lambda e: e.reshape(placed))

    def _scaled(self, normalised: FloatArray) -> FloatArray:
        """Scale and shift an array [examples, *shape]."""
        shape = normalised.shape[1:]
        for operand, apply in ((self.scale, np.multiply), (self._shift, np.add)):
            if operand is not None:
                array = operand.array.reshape(self._placed(operand.shape, shape))
                normalised = apply(normalised, aligned(array[np.newaxis], len(shape)))
        return normalised


class _TrailingNorm(_BlockNorm):
    """Blocks along the trailing axes; scale and bias broadcast from the right."""

    __slots__ = ()
    axes: int

    def _block_size(self, shape: Shape) -> int:
        if not 1 <= self.axes <= len(shape) or 0 in shape:
            raise ValueError(f"cannot normalise {self.axes} trailing axes of shape {shape}")
        return math.prod(shape[-self.axes :])

    def _placed(self, operand: Shape, shape: Shape) -> Shape:
        return (*[1] * (len(shape) - len(operand)), *operand)

    def _meets(self, operand: Shape, shape: Shape) -> tuple[int, int]:
        placed = self._placed(operand, shape)
        repeats = [full // own for full, own in zip(shape, placed, strict=True)]
        return math.prod(repeats[: -self.axes]), math.prod(repeats[-self.axes :])

    def _tokens(self, x: ValueFacts, scope: Scope) -> Runs | None:
        """One block per run of the last axis: max|scale|·‖x̂‖ + ‖bias‖, one bias entry each."""
        last = x.shape[-1:]
        if self.axes != 1 or any(op.shape[-1:] != last for op in self.operands().values()):
            return None
        blocks = self._blocks(x)
        norm = blocks.norm(1, blocks.size)
        if self.scale is not None:
            norm = norm * scope.max_abs(self.scale).value
        if self._shift is not None:
            norm = norm + scope.norm(self._shift).value
        return Runs(len(x.shape) - 1, norm)

    def _trailing(self, x: FloatArray) -> tuple[int, ...]:
        return tuple(range(x.ndim - self.axes, x.ndim))


@final
@dataclass(frozen=True, slots=True, eq=False)
class LayerNorm(_TrailingNorm):
    """Mean removed and variance normalised over the `axes` trailing axes, per position."""

    axes: int
    epsilon: float
    scale: Operand | None = None
    bias: Operand | None = None

    def __post_init__(self) -> None:
        _require_epsilon(self.epsilon)

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "LayerNormalization"

    @property
    def family(self) -> str:
        """Rule family."""
        return "layer_norm"

    @property
    def _shift(self) -> Operand | None:
        return self.bias

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Normalise, scale, shift."""
        (x,) = inputs
        axes = self._trailing(x)
        centred = x - np.mean(x, axis=axes, keepdims=True)
        variance = np.mean(centred**2, axis=axes, keepdims=True)
        return self._scaled(centred / np.sqrt(variance + self.epsilon))


@final
@dataclass(frozen=True, slots=True, eq=False)
class RmsNorm(_TrailingNorm):
    """Mean square normalised over the `axes` trailing axes, per position."""

    axes: int
    epsilon: float
    scale: Operand | None = None

    def __post_init__(self) -> None:
        _require_epsilon(self.epsilon)

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "RMSNormalization"

    @property
    def family(self) -> str:
        """Rule family."""
        return "rms_norm"

    @property
    def _centred(self) -> bool:
        return False

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Normalise and scale."""
        (x,) = inputs
        square = np.mean(x**2, axis=self._trailing(x), keepdims=True)
        return self._scaled(x / np.sqrt(square + self.epsilon))


@final
@dataclass(frozen=True, slots=True, eq=False)
class GroupNorm(_BlockNorm):
    """[channels, ...] normalised in `groups` groups of channels; scale and bias per channel.

    As many groups as channels make an InstanceNormalization.
    """

    groups: int
    epsilon: float
    scale: Operand | None = None
    bias: Operand | None = None

    def __post_init__(self) -> None:
        _require_epsilon(self.epsilon)
        if self.groups < 1:
            raise ValueError(f"the number of groups must be positive, not {self.groups}")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "GroupNormalization"

    @property
    def family(self) -> str:
        """Rule family."""
        return "group_norm"

    @property
    def _shift(self) -> Operand | None:
        return self.bias

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Normalise, scale, shift."""
        (x,) = inputs
        grouped = x.reshape(len(x), self.groups, -1)
        centred = grouped - np.mean(grouped, axis=-1, keepdims=True)
        variance = np.mean(centred**2, axis=-1, keepdims=True)
        return self._scaled((centred / np.sqrt(variance + self.epsilon)).reshape(x.shape))

    def _block_size(self, shape: Shape) -> int:
        if not shape or 0 in shape or shape[0] % self.groups:
            raise ValueError(f"{self.groups} groups do not divide the channels of {shape}")
        return math.prod(shape) // self.groups

    def _placed(self, operand: Shape, shape: Shape) -> Shape:
        if operand != shape[:1]:
            raise ValueError(f"scale and bias need shape {shape[:1]}, not {operand}")
        return (*operand, *[1] * (len(shape) - 1))

    def _meets(self, operand: Shape, shape: Shape) -> tuple[int, int]:
        del operand
        return 1, math.prod(shape[1:])
