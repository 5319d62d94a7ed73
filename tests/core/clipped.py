"""Clipped backpropagation on the nodes of a file, by the words of A-LAYERS: an oracle.

A layer is what lies between its ends in the file. It knows no step and no rule of the checker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from onnx import ModelProto

from lipcert.core.clips import clip_faults
from lipcert.core.coverage import tensors_read
from lipcert.core.ledger import BackpropClipping
from lipcert.core.program import Program
from lipcert.core.reader.records import Model
from tests.core.onnx_torch import apply

Tensor = torch.Tensor


def compute_clipped(
    proto: ModelProto, x: Tensor, tensors: Mapping[str, Tensor], clip: BackpropClipping
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Every value, and what others than the layer itself read of the output of a layer."""
    convolutions = {node.output[0] for node in proto.graph.node if "Conv" in node.op_type}
    inside = [_inside(proto, *ends) for ends in clip.layers]
    source = proto.graph.input[0].name
    values, behind = {**tensors, source: x}, {}
    for index, node in enumerate(proto.graph.node):
        read = {**values, **behind}
        for (first, _), nodes in zip(clip.layers, inside, strict=True):
            if index in nodes and first in node.input:
                read[first] = shrunk(read[first], clip.input_clip, by_channel=False)
        values.update(zip(node.output, apply(node, read), strict=False))
        for (_, last), nodes in zip(clip.layers, inside, strict=True):
            if last in node.output:
                convolves = any(proto.graph.node[i].output[0] in convolutions for i in nodes)
                by_channel = clip.conv_clip == "l1.5" and convolves
                if clip.cotangent_clip < math.inf:
                    behind[last] = _Clip.apply(values[last], clip.cotangent_clip, by_channel)
    return values, behind


def _inside(proto: ModelProto, first: str, last: str) -> set[int]:
    """The nodes between two values."""
    reached, needed, found = {first}, {last}, set()
    for node in proto.graph.node:
        if reached & set(node.input):
            reached |= set(node.output)
    for index, node in reversed(list(enumerate(proto.graph.node))):
        if needed & set(node.output):
            needed |= set(node.input)
            found |= {index} if reached & set(node.input) else set()
    return found


def shrunk(x: Tensor, radius: float, *, by_channel: bool) -> Tensor:
    """x·min(1, radius/|x|)."""
    size = x.abs().flatten(2).sum(2).norm() if by_channel and x.ndim > 2 else x.norm()
    return x * (radius / size.clamp_min(radius))


class _Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, radius, by_channel):
        ctx.radius, ctx.by_channel = radius, by_channel
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return shrunk(gradient, ctx.radius, by_channel=ctx.by_channel), None, None


def random_clip(
    model: Model, program: Program, trained: frozenset[str], rng: np.random.Generator
) -> BackpropClipping:
    """Clips of random radii round most of the steps that use something trained."""
    radii = 10.0 ** rng.uniform(-2, 0.5, size=2)
    found = BackpropClipping(*map(float, radii), str(rng.choice(["l1.5", "l2"])), ())
    for ends in _candidates(program, trained, rng):
        more = BackpropClipping(
            found.input_clip, found.cotangent_clip, found.conv_clip, (*found.layers, ends)
        )
        if rng.random() < 0.9 and not any(clip_faults(more, model, program, trained)):
            found = more
    return found


def _candidates(
    program: Program, trained: frozenset[str], rng: np.random.Generator
) -> Iterator[tuple[str, str]]:
    """Steps with something trained, perhaps with one or two before or behind them."""
    makers = {step.output: step for step in program.steps}
    for step in program.steps:
        if len(step.inputs) != 1 or trained.isdisjoint(tensors_read([step])):
            continue
        (first,), last = step.inputs, step.output
        for _ in range(int(rng.integers(0, 3))):
            if first in makers and len(makers[first].inputs) == 1:
                (first,) = makers[first].inputs
        for behind in program.steps:
            if behind.inputs == (last,) and rng.random() < 0.2:
                last = behind.output
        if "#" not in first + last:
            yield first, last
