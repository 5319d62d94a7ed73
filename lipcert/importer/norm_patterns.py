"""Normalizations that exporters spell out: LayerNorm, RMSNorm, GroupNorm, x less its mean, and x
over its norm.

What enters: a node that may be the last of such a spelling. What leaves: the macro node, or None.
Every match is exact in its structure; constants become scale and bias where they have the shape
for it, and stay apart where they do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from lipcert.importer.constant import Constant
from lipcert.importer.pattern_matching import Matcher
from lipcert.importer.raw import RawNode


def _layer_norm(matcher: Matcher, node: RawNode) -> RawNode | None:
    """(x − mean)/√(variance + ε), then perhaps ·γ and + β over the normalised axes."""
    shift, scale, core = "", "", node
    if core.op_type == "Add":
        value, shift = matcher.with_constant(core)
        core = matcher.producer(value, "Mul") or matcher.producer(value, "Div") or core
    if core.op_type == "Mul" and matcher.with_constant(core)[1]:
        value, scale = matcher.with_constant(core)
        core = matcher.producer(value, "Div") or matcher.producer(value, "Mul") or core
    found = _standardised(matcher, core)
    if found is None:
        return None
    x, axes, epsilon = found
    shape = matcher.graph.shape(x)
    first = len(shape) - len(axes)
    if axes != tuple(range(first, len(shape))):
        attributes = {"axes": axes, "epsilon": epsilon}
        return matcher.macro(node, "AxesNormalization", (x,), attributes) if core is node else None
    affine = [matcher.shaped(name, shape[first:]) for name in (scale, shift)]
    if "?" in affine:
        return None
    attributes = {"axis": first, "epsilon": epsilon}
    return matcher.macro(node, "LayerNormalization", (x, *affine), attributes)


def _standardised(matcher: Matcher, node: RawNode) -> tuple[str, tuple[int, ...], float] | None:
    """x, axes and ε of (x − mean)/√(variance + ε)."""
    for centred, total in matcher.over_root(node):
        found = _centred(matcher, centred)
        square = _mean_square(matcher, total, found[1]) if found else None
        if found is None or square is None:
            continue
        again = {name for name in matcher.factors(square[0]) if _centred(matcher, name) == found}
        both = {centred, *again}
        number, rest = matcher.product(square[0], frozenset(both))
        if number == 1 and len(rest) == 2 and both.issuperset(rest):
            return *found, square[1]
    return None


def _mean_square(
    matcher: Matcher, total: str, axes: tuple[int, ...] | None
) -> tuple[str, float] | None:
    """(s, ε), where the value is mean(s) + ε over the axes (None: over the last one)."""
    variance, epsilon = matcher.plus_number(total)
    average = matcher.average(variance) if variance else None
    if average is None or not epsilon > 0.0:
        return None
    last = (len(matcher.graph.shape(average.inputs[0])) - 1,)
    return (average.inputs[0], epsilon) if matcher.axes(average) == (axes or last) else None


def _rms_norm(matcher: Matcher, node: RawNode) -> RawNode | None:
    """x/√(mean(x²) + ε) over the last axis, then perhaps ·γ."""
    scale, core = "", node
    if core.op_type == "Mul" and matcher.with_constant(core)[1]:
        value, scale = matcher.with_constant(core)
        core = matcher.producer(value, "Div") or matcher.producer(value, "Mul") or core
    for x, total in matcher.over_root(core):
        square = _mean_square(matcher, total, None)
        if square is None or matcher.product(square[0], frozenset({x})) != (Fraction(1), [x, x]):
            continue
        shape = matcher.graph.shape(x)
        weight = matcher.shaped(scale, shape[-1:])
        if weight == "?" or matcher.graph.shape(node.outputs[0]) != shape:
            return None
        inputs = (x, weight or matcher.ones(shape[-1]))
        attributes = {"axis": len(shape) - 1, "epsilon": square[1]}
        return matcher.macro(node, "RMSNormalization", inputs, attributes)
    return None


def _centred(matcher: Matcher, name: str) -> tuple[str, tuple[int, ...]] | None:
    """x and the axes, where the value is x − mean(x)."""
    sub = matcher.producer(name, "Sub")
    mean = sub and matcher.producer(sub.inputs[1], "ReduceMean")
    if sub is None or mean is None or mean.inputs[0] != sub.inputs[0]:
        return None
    return (sub.inputs[0], matcher.axes(mean)) if mean.integer("keepdims", 1) else None


def _group_norm(matcher: Matcher, node: RawNode) -> RawNode | None:
    """Reshape, InstanceNormalization without parameters, Reshape back, ·γ, + β per channel."""
    if node.op_type != "Add":
        return None
    value, shift = matcher.with_constant(node)
    mul = matcher.producer(value, "Mul")
    value, scale = matcher.with_constant(mul) if mul else ("", "")
    back = matcher.producer(value, "Reshape")
    inner = back and matcher.producer(back.inputs[0], "InstanceNormalization")
    first = inner and matcher.producer(inner.inputs[0], "Reshape")
    if back is None or inner is None or first is None:
        return None
    x = first.inputs[0]
    shape, grouped = matcher.graph.shape(x), matcher.graph.shape(first.outputs[0])
    if matcher.graph.shape(back.outputs[0]) != shape or len(shape) < 2 or grouped[0] != shape[0]:
        return None
    ones, zeros = (matcher.graph.constants.get(name) for name in inner.inputs[1:3])
    if not _is_plain(ones, 1.0) or not _is_plain(zeros, 0.0):
        return None
    affine = [matcher.per_channel(name, shape) for name in (scale, shift)]
    if "?" in affine or "" in affine:
        return None
    attributes = {"num_groups": grouped[1], "epsilon": inner.real("epsilon", 1e-5)}
    return matcher.macro(node, "GroupNormalization", (x, *affine), attributes)


def _is_plain(constant: Constant | None, number: float) -> bool:
    return constant is not None and not constant.is_parameter and constant.uniform() == number


def _centre(matcher: Matcher, node: RawNode) -> RawNode | None:
    """x − mean(x)."""
    found = _centred(matcher, node.outputs[0])
    if found is None:
        return None
    x, axes = found
    return matcher.macro(node, "Centre", (x,), {"axes": axes})


def _divide_by_norm(matcher: Matcher, node: RawNode) -> RawNode | None:
    """x / max(‖x‖/radius, floor) with numbers radius (perhaps 1) and floor."""
    if node.op_type != "Div":
        return None
    x, divisor = node.inputs
    value, floor = _at_least(matcher, matcher.stretched(divisor))
    quotient = matcher.producer(value, "Div")
    radius = matcher.number(quotient.inputs[1]) if quotient is not None else 1.0
    norm = matcher.producer(quotient.inputs[0] if quotient is not None else value, "ReduceL2")
    if norm is None or norm.inputs[0] != x or not norm.integer("keepdims", 1):
        return None
    if radius is None or not (0.0 < radius < math.inf and 0.0 < floor < math.inf):
        return None
    attributes = {"axes": matcher.axes(norm), "radius": radius, "floor": floor}
    return matcher.macro(node, "DivideByNorm", (x,), attributes)


def _at_least(matcher: Matcher, name: str) -> tuple[str, float]:
    """x and c for a value max(x, c); ("", 0) otherwise."""
    larger, clip = matcher.producer(name, "Max"), matcher.producer(name, "Clip")
    if larger is not None and len(larger.inputs) == 2:
        value, constant = matcher.with_constant(larger)
        return value, (matcher.entry(constant) if value else None) or 0.0
    if clip is None or clip.input(2) or math.isfinite(clip.real("max", math.inf)):
        return "", 0.0
    floor = matcher.entry(clip.input(1)) if clip.input(1) else clip.real("min", 0.0)
    return clip.inputs[0], floor or 0.0


NORM_PATTERNS: Final[tuple[Callable[[Matcher, RawNode], RawNode | None], ...]] = (
    _layer_norm,
    _rms_norm,
    _group_norm,
    _centre,
    _divide_by_norm,
)
