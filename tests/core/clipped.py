"""Clipped backpropagation on the nodes of a file, by the words of A-LAYERS: an oracle.

A layer is what lies between its ends in the file. It knows no step and no rule of the checker.
"""

from dataclasses import replace

import torch

from lipcert.core.clips import clip_faults
from lipcert.core.coverage import tensors_read
from lipcert.core.ledger.layer_clipping import BackpropClipping, ClippedLayer
from tests.core.onnx_torch import apply


def compute_clipped(
    proto,
    x,
    tensors,
    clip: BackpropClipping,
    *,
    backward: bool = True,
):
    """Every value, and what others than the layer itself read of the output of a layer.

    backward: with clips of cotangents.
    """
    convolutions = {node.output[0] for node in proto.graph.node if "Conv" in node.op_type}
    inside = [_inside(proto, *layer.ends) for layer in clip.layers]
    source = proto.graph.input[0].name
    values, behind = {**tensors, source: x}, {}
    for index, node in enumerate(proto.graph.node):
        read = {**values, **behind}
        for layer, nodes in zip(clip.layers, inside, strict=True):
            radius = layer.input_clip or clip.input_clip
            if index in nodes and layer.input in node.input and radius is not None:
                read[layer.input] = shrunk(read[layer.input], radius, by_channel=False)
        values.update(zip(node.output, apply(node, read), strict=False))
        for layer, nodes in zip(clip.layers, inside, strict=True):
            if layer.output in node.output and backward:
                convolves = any(proto.graph.node[i].output[0] in convolutions for i in nodes)
                by_channel = clip.conv_clip == "l1.5" and convolves
                radius = layer.cotangent_clip or clip.cotangent_clip
                behind[layer.output] = _Clip.apply(values[layer.output], radius, by_channel)
    return values, behind


def _inside(proto, first: str, last: str) -> set[int]:
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


def shrunk(x, radius: float, *, by_channel: bool):
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


def random_clip(model, program, trained: frozenset[str], rng) -> BackpropClipping:
    """Clips of random radii round most of the steps that use something trained.

    Often each layer has its own, and some clip nothing of what they read.
    """
    reads, receives = map(float, 10.0 ** rng.uniform(-2, 0.5, size=2))
    found = BackpropClipping(reads, receives, str(rng.choice(["l1.5", "l2"])), ())
    for ends in _candidates(program, trained, rng):
        more = replace(found, layers=(*found.layers, ClippedLayer(*ends)))
        if rng.random() < 0.9 and not any(clip_faults(more, model, program, trained)):
            found = more
    is_shared = rng.random() < 0.4
    layers = (layer if is_shared else _with_radii(layer, rng) for layer in found.layers)
    own = {} if is_shared else {"input_clip": None, "cotangent_clip": None}
    return replace(found, layers=tuple(layers), **own)


def _with_radii(layer: ClippedLayer, rng) -> ClippedLayer:
    reads, receives = map(float, 10.0 ** rng.uniform(-2, 0.5, size=2))
    unclipped = rng.random() < 0.5
    return replace(layer, input_clip=None if unclipped else reads, cotangent_clip=receives)


def _candidates(program, trained: frozenset[str], rng):
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
