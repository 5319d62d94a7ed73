"""Lower Resize and Upsample as a selection, or a product with weights, along each axis.

The position of an output between inputs is computed as a fraction, and its weights are enclosed. If
float32 would choose another entry than exact arithmetic, there are two readings: it is refused.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeAlias

import numpy as np

from lipcert.core.arithmetic import round_down, round_up
from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import MixingError, Unsupported
from lipcert.core.lower.layout_ops import normal_axes
from lipcert.core.lower.selection_ops import select
from lipcert.core.lower.spelling import along_axis
from lipcert.core.lower.values import FIXED, Constant, Value, check_size

_LONGEST: Final = 1 << 14
"""Largest number of entries along an axis whose weights are computed."""
_Number: TypeAlias = Any
"""A fraction or a float32 number."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis resized from `size` to `target` entries; scale is target/size or the file's."""

    size: int
    target: int
    scale: Fraction
    coordinates: str

    def position(self, place: int, kind: type[_Number] = Fraction) -> _Number:
        """Return the position of an output between the inputs, as a number of this kind."""
        scale, half, whole = kind(float(self.scale)), kind(0.5), kind(place)
        if kind is Fraction:
            scale = self.scale
        centred = (whole + half) / scale - half
        match self.coordinates:
            case "asymmetric":
                return whole / scale
            case "half_pixel":
                return centred
            case "half_pixel_symmetric":
                covered = kind(self.target) / (scale * kind(self.size))
                return kind(self.size) / kind(2) * (kind(1) - covered) + centred
            case "pytorch_half_pixel":
                return centred if self.target > 1 else kind(0)
            case "align_corners":
                last = max(self.target - 1, 1)
                return whole * kind(self.size - 1) / kind(last) if self.target > 1 else kind(0)
            case "tf_half_pixel_for_nn":
                return (whole + half) / scale
        raise Unsupported("its coordinates are not supported; export with half_pixel or asymmetric")

    @property
    def changes_nothing(self) -> bool:
        """Whether every output lies exactly at the input with the same number."""
        return self.target == self.size and all(
            self.position(place) == place for place in range(self.target)
        )

    def nearest(self, rounding: str) -> list[int]:
        """Return the input that each output selects."""
        rounded, places = _ROUNDINGS[rounding], range(self.target)
        found, single = (
            [min(max(rounded(self.position(place, kind)), 0), self.size - 1) for place in places]
            for kind in (Fraction, np.float32)
        )
        if found != single:
            raise Unsupported("rounding decides which entry is nearest; export with sizes that fit")
        return found


_ROUNDINGS: Final[Mapping[str, Callable[[_Number], int]]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round_prefer_ceil": lambda position: math.floor(position + type(position)(0.5)),
    "round_prefer_floor": lambda position: math.ceil(position - type(position)(0.5)),
}


def resize(call: Call) -> Value:
    """Lower Resize axis by axis, which gives the same as all axes at once."""
    value, old = call.value(0), call.version < 11
    mode = call.text("mode", "nearest")
    coordinates = call.text("coordinate_transformation_mode", "asymmetric" if old else "half_pixel")
    rounding = call.text("nearest_mode", "floor" if old else "round_prefer_floor")
    antialias, inner = (bool(call.integer(name, 0)) for name in ("antialias", "exclude_outside"))
    call.real("extrapolation_value", 0.0)
    slope = Fraction(call.real("cubic_coeff_a", -0.75))
    if call.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Unsupported("it keeps the aspect ratio; export with the sizes that result")
    if mode not in {"nearest", "linear", "bilinear", "cubic"}:
        raise Unsupported("its interpolation is not known")
    if coordinates == "tf_half_pixel_for_nn" and (mode, rounding) != ("nearest", "floor"):
        raise Unsupported("its coordinates are meant for the nearest neighbour, rounded down")
    grid = _grid(call, value)
    keeps_sizes = all(size == target for size, (_, target) in zip(value.shape, grid, strict=True))
    for axis, (scale, target) in enumerate(grid):
        along = _Axis(value.shape[axis], target, scale, coordinates)
        check_size((*value.shape[:axis], target, *value.shape[axis + 1 :]))
        is_batch = value.place is not None and axis == value.place.axis
        if along.changes_nothing and (scale == 1 or not is_batch):
            continue
        if is_batch:
            raise MixingError("it resizes the batch axis")
        is_kept = mode == "cubic" and antialias and target == along.size
        if keeps_sizes or is_kept:  # onnxruntime takes it for a copy, whatever the scales are
            raise Unsupported("it keeps all sizes, and moves entries; export with sizes")
        if mode == "nearest":
            places = along.nearest(rounding)
            if old and scale < 1 and places != along.nearest("ceil"):
                raise Unsupported("its rounding is not known; export with a later opset")
            value = select(call, value, axis, places)
        else:
            cubic = slope if mode == "cubic" else None
            weights = _weights(along, cubic, antialias=antialias, inner=inner)
            value = along_axis(call, value, axis, weights)
    return value


def _grid(call: Call, value: Value) -> list[tuple[Fraction, int]]:
    """Return the scale and the new size of every axis, from scales or from sizes."""
    rank = len(value.shape)
    given = call.integers("axes")
    named = list(range(rank)) if given is None else [axis % rank for axis in given]
    normal_axes(named, rank)
    grid = [(Fraction(1), size) for size in value.shape]
    scales = _scales(call)
    if scales is not None:
        if len(scales) != len(named) or not all(0.0 < item < math.inf for item in scales):
            raise Unsupported("its scales do not fit")
        for axis, scale in zip(named, scales, strict=True):
            exact = Fraction(scale) * value.shape[axis]
            target = math.floor(exact)
            if target != int(np.float32(value.shape[axis]) * np.float32(scale)) or target < 1:
                raise Unsupported("rounding decides its size; export with sizes instead of scales")
            grid[axis] = Fraction(scale), target
        return grid
    sizes, grows = call.constant(3).sizes()
    own = -1 if value.place is None else value.place.axis
    if grows != [axis == own for axis in named]:
        raise Unsupported(FIXED)
    for axis, size in zip(named, sizes, strict=True):
        if size < 1 or (axis == own and size != value.shape[axis]):
            raise Unsupported("its sizes do not fit")
        grid[axis] = Fraction(size, value.shape[axis]), size
    return grid


def _scales(call: Call) -> list[float] | None:
    """Return the scales, from an attribute or an input; None if sizes are given."""
    given, position = call.reals("scales"), 2 if call.version >= 11 else 1
    if given is not None or not call.has(position) or not call.constant(position).lo.size:
        return given
    scales = call.constant(position)
    scales.check_fixed()
    call.sink.untracked.update(scales.sources)
    if scales.lo is not scales.hi or not scales.is_float or scales.place is not None:
        raise Unsupported("its scales are not exact")
    return [float(item) for item in scales.lo.reshape(-1)]


def _weights(axis: _Axis, cubic: Fraction | None, *, antialias: bool, inner: bool) -> Constant:
    """Return the weights [inputs, outputs] of a curve; the edge replaces inputs outside.

    cubic: as `a` in `_curve`. antialias: stretch the curve where an axis shrinks. inner: inputs
    outside do not count.
    """
    check_size((axis.size, axis.target))
    if max(axis.size, axis.target) > _LONGEST:
        raise Unsupported(f"it interpolates more than {_LONGEST} entries along an axis")
    stretch = max(Fraction(1), 1 / axis.scale) if antialias else Fraction(1)
    reach = stretch if cubic is None else 2 * stretch
    low = np.zeros((axis.size, axis.target))
    high = np.zeros_like(low)
    for place in range(axis.target):
        position = axis.position(place)
        around = range(math.floor(position - reach), math.ceil(position + reach) + 1)
        curve = {source: _curve(abs(source - position) / stretch, cubic) for source in around}
        curve = {source: w for source, w in curve.items() if 0 <= source < axis.size or not inner}
        total = sum(curve.values())
        row: dict[int, Fraction] = {}
        for source, weight in curve.items():
            inside = min(max(source, 0), axis.size - 1)
            row[inside] = row.get(inside, Fraction(0)) + weight / total
        for source, weight in row.items():
            low[source, place], high[source, place] = round_down(weight), round_up(weight)
    return Constant(low, low if np.array_equal(low, high) else high)


def _curve(distance: Fraction, a: Fraction | None) -> Fraction:
    """Weigh an input at a distance, by the hat function or the cubic spline with slope a at 1."""
    d = distance
    if a is None:
        return max(1 - d, Fraction(0))
    if d <= 1:
        return ((a + 2) * d - (a + 3)) * d * d + 1
    return (((d - 5) * d + 8) * d - 4) * a if d < 2 else Fraction(0)
