"""Resize and Upsample: a selection or a fixed matrix along each axis."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lipcert.importer.build.builder import Builder, Handler, RefusedNodeError
from lipcert.importer.build.interpolation import Interpolation
from lipcert.importer.build.linear import along_axis
from lipcert.importer.build.shape import pick
from lipcert.importer.raw import RawNode

_MIXED: Final = "examples of a batch influence each other: it resizes the batch axis"


def _resize(builder: Builder, node: RawNode) -> str:
    """Resizing is separable: one axis after the other."""
    mode = node.text("mode", "nearest")
    if mode not in {"nearest", "linear", "cubic", "bilinear"}:
        raise RefusedNodeError(f"interpolation mode {mode!r} is not supported")
    source, target = builder.layout(node.inputs[0]), builder.layout(node.outputs[0])
    value = builder.value(node.inputs[0])
    for axis in range(source.rank):
        grid = _grid(builder, node, source.shape[axis], target.shape[axis], axis)
        if grid.changes_nothing:
            continue
        if axis == source.axis and not source.is_one:
            raise RefusedNodeError(_MIXED, "LC007", "give the batch axis the scale 1")
        place = source.example_axis(axis)
        if mode == "nearest":
            value = pick(builder, value, place, grid.nearest_indices())
        else:
            matrix = grid.weights("cubic" if mode == "cubic" else "linear")
            value = along_axis(builder, value, place, matrix)
    return value


def _grid(builder: Builder, node: RawNode, size: int, target: int, axis: int) -> Interpolation:
    is_old = node.since_version < 11
    return Interpolation(
        size=size,
        target=target,
        scale=_scale(builder, node, size, target, axis),
        coordinates=node.text(
            "coordinate_transformation_mode", "asymmetric" if is_old else "half_pixel"
        ),
        nearest=node.text("nearest_mode", "floor" if is_old else "round_prefer_floor"),
        cubic_factor=node.real("cubic_coeff_a", -0.75),
        exclude_outside=bool(node.integer("exclude_outside", 0)),
        antialias=bool(node.integer("antialias", 0)),
    )


def _scale(builder: Builder, node: RawNode, size: int, target: int, axis: int) -> float:
    """The scale along an axis: as given, or the ratio of the sizes."""
    scales = node.attributes.get("scales")
    position = 1 if node.since_version <= 10 else 2
    if scales is None and node.input(position):
        scales = builder.constant(node.inputs[position], "scales").array.reshape(-1)
    if scales is None or len(scales) == 0:
        return target / size
    axes = node.integers("axes")
    if axes is None:
        return float(scales[axis])
    rank = builder.layout(node.inputs[0]).rank
    named = [item % rank for item in axes]
    return float(scales[named.index(axis)]) if axis in named else 1.0


HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType({"Resize": _resize, "Upsample": _resize})
