"""Clips of backpropagation: turn the program of the file into the one that training runs.

Input: a program and the clips of the premises. Output: the program with a clip behind every layer,
and before each layer that clips its input; or what is wrong with the places of the clips. All
values of the file keep their names: the cotangent of a layer's output is the clipped one, which
enters the layer.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from lipcert.core.coverage import tensors_read
from lipcert.core.kinds import CotangentClip, Embedding, InputClip
from lipcert.core.ledger.layer_clipping import BackpropClipping, LayerEnds
from lipcert.core.paths import is_only_way, steps_between
from lipcert.core.program import Program, Step
from lipcert.core.reader.records import Model, shown
from lipcert.core.window_kinds import Conv


def layer_faults(program: Program, clip: BackpropClipping) -> Iterator[str]:
    """Yield what is wrong with the places of clips.

    A layer is a path of steps whose inner values nothing else reads, and layers share no step: so
    it is unambiguous which steps an input clip precedes and which a cotangent clip follows.
    """
    if len(clip.layers) > len(program.steps):
        yield "there are more layers that clip than steps"
        return
    taken: set[str] = set()
    for layer in clip.layers:
        ends = layer.ends
        steps = layer_steps(program, ends)
        if any(isinstance(step.op, Embedding) for step in steps) and clip.input_radius(layer):
            yield f"the layer that ends in {shown(ends[1])} reads rows by number, but clips numbers"
        if not steps or not is_only_way(program, steps):
            yield f"from {shown(ends[0])} to {shown(ends[1])} there is no layer that could clip"
        elif not taken.isdisjoint(step.output for step in steps):
            yield f"the layer that ends in {shown(ends[1])} is part of another"
        taken.update(step.output for step in steps)


def clip_faults(
    clip: BackpropClipping, model: Model, program: Program, trained: frozenset[str]
) -> Iterator[str]:
    """Yield what is wrong with the places of clips, in the file as well as by `layer_faults`.

    The ends of a layer are values of the file, and nothing else reads a value between them: then
    the nodes between them are the layer, whatever steps they were lowered to. A layer contains a
    trained tensor.
    """
    yield from layer_faults(program, clip)
    known = {*program.inputs, *(name for node in model.nodes for name in node.outputs)}
    for ends in (layer.ends for layer in clip.layers):
        if not known.issuperset(ends):
            yield f"the layer that ends in {shown(ends[1])} does not lie between values of the file"
        elif not _is_closed(ends, model, program):
            yield f"the layer that ends in {shown(ends[1])} is read from within"
        if trained.isdisjoint(tensors_read(layer_steps(program, ends))):
            yield f"the layer that ends in {shown(ends[1])} holds nothing that is trained"


def _is_closed(ends: LayerEnds, model: Model, program: Program) -> bool:
    """Whether the nodes between two values are read only through the second.

    Values that are the first one under another name (by Identity) do not lie between.
    """
    first, last = ends
    paired = zip(model.nodes, program.covered, strict=True)
    nodes = [node for node, role in paired if role in {"step", "part"}]
    start = {first}
    for node in nodes:
        if node.op_type == "Identity" and not node.domain and start.issuperset(node.inputs):
            start.update(node.outputs)
    nodes = [node for node in nodes if start.isdisjoint(node.outputs)]
    reached, needed = set(start), {last}
    for node in nodes:
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
    inside = (reached & needed) - {*start, last}
    outside = [
        node for node in nodes if reached.isdisjoint(node.inputs) or needed.isdisjoint(node.outputs)
    ]
    read = {program.output, *(head.name for head in program.heads)}
    return inside.isdisjoint(read) and all(inside.isdisjoint(n.inputs) for n in outside)


def layer_steps(program: Program, ends: LayerEnds) -> tuple[Step, ...]:
    """Return the steps of a layer, each of which reads the one before; none without a path."""
    first, last = ends
    known = first in program.shapes and last in program.shapes
    steps = (steps_between(program, first, last) or ()) if known else ()
    return steps if all(len(step.inputs) == 1 for step in steps) else ()


def with_clips(program: Program, clip: BackpropClipping) -> Program:
    """Return the program with its clips in place, for layers that have no `layer_faults`.

    A layer that does not clip its input has no clip before it; the rules alone bound that input.
    """
    before: dict[str, InputClip] = {}
    behind: dict[str, CotangentClip] = {}
    for layer in clip.layers:
        steps = layer_steps(program, layer.ends)
        by_channel = clip.is_by_channel and any(isinstance(step.op, Conv) for step in steps)
        behind[layer.output] = CotangentClip(clip.cotangent_radius(layer), by_channel)
        radius = clip.input_radius(layer)
        if radius is not None:
            before[steps[0].output] = InputClip(radius)
    shapes = dict(program.shapes)
    renamed: dict[str, str] = {}
    found: list[Step] = []

    def inserted(op: InputClip | CotangentClip, value: str, step: Step) -> str:
        name = f"{value}#clip"
        while name in shapes:
            name += "'"
        shapes[name] = shapes[value]
        found.append(Step(op, (value,), name, shapes[value], step.node))
        return name

    for step in program.steps:
        inputs = tuple(renamed.get(name, name) for name in step.inputs)
        if step.output in before:
            inputs = (inserted(before[step.output], inputs[0], step),)
        found.append(replace(step, inputs=inputs))
        if step.output in behind:
            renamed[step.output] = inserted(behind[step.output], step.output, step)
    output = renamed.get(program.output, program.output)
    return replace(program, output=output, shapes=shapes, steps=tuple(found))


def without_cotangent_clips(program: Program) -> Program:
    """Return the program without clips of cotangents, which do not change its values."""
    return replace(
        program,
        steps=tuple(
            replace(step, op=replace(step.op, radius=math.inf))
            if isinstance(step.op, CotangentClip)
            else step
            for step in program.steps
        ),
    )
