"""From a model to a `Program`.

Contract: in real arithmetic, the steps compute what the file computes for a batch of one example.
If `batch_proved`, moreover, for a batch of any size N, entry i of the output is this function of
entry i of the input: the first dimension of the input is read as N, and every rule keeps the
examples apart (`values`). A model of which a rule says that it does not is refused. A model whose
sizes are fixed, so that no rule can follow N, is read as one example at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Final

import numpy as np

from lipcert.checker.graph import axis_ops, layout_ops, linear_ops, selection_ops
from lipcert.checker.graph.call import Call, Sink
from lipcert.checker.graph.constant_ops import CONSTANT_OPS, literal, shape_of, size_of
from lipcert.checker.graph.entry_ops import ENTRY_OPS, activated
from lipcert.checker.graph.errors import MixingError, Unsupported
from lipcert.checker.graph.macros import needed_steps, rewritten
from lipcert.checker.graph.program import Attention, Operand, Program, Shape, Step
from lipcert.checker.graph.values import Constant, Data, Place, Value
from lipcert.checker.reader.records import Input, Model, Node, shown

__all__ = ["lower"]

_VERSIONS: Final = range(7, 27)
_Rule = Callable[[Call], "Value | list[Value]"]


def _same(call: Call) -> Value:
    """Identity, Dropout at inference, and types of real numbers, which are all real here."""
    kind = call.node.op_type
    if kind == "Dropout":
        call.real("ratio", 0.5), call.integer("seed", 0)
        if call.has(2) and call.constant(2).lo.any():
            raise Unsupported("dropout in training mode")
        if call.version >= 12 and call.has(1):
            call.number(1)
    if kind == "Cast" and call.integer("to", 0) not in {1, 10, 11, 16}:
        raise Unsupported("it rounds to whole numbers")
    if kind in {"Cast", "CastLike"}:
        call.integer("saturate", 1), call.text("round_mode", "up")
    if kind == "CastLike":
        like, value = call.value(1), call.value(0)
        if any(isinstance(item, Constant) and not item.is_float for item in (like, value)):
            raise Unsupported("it converts between real and whole numbers")
        if isinstance(value, Constant) and not _is_single(value):
            raise Unsupported("it may round a constant")
    return call.value(0)


def _is_single(value: Constant) -> bool:
    """Whether float32 holds the numbers."""
    with np.errstate(over="ignore"):
        return all(np.array_equal(ends.astype(np.float32), ends) for ends in (value.lo, value.hi))


_LAYOUT: Final[Mapping[str, _Rule]] = {
    "CastLike": _same,
    "DepthToSpace": layout_ops.depth_to_space,
    "Dropout": _same,
    "Expand": layout_ops.expand,
    "Flatten": layout_ops.flatten,
    "Gather": selection_ops.gather,
    "Identity": _same,
    "Pad": selection_ops.pad,
    "Reshape": layout_ops.reshape,
    "Resize": selection_ops.resize,
    "Shape": shape_of,
    "Size": size_of,
    "Slice": selection_ops.slice_,
    "SpaceToDepth": layout_ops.space_to_depth,
    "Split": selection_ops.split,
    "Squeeze": layout_ops.squeeze,
    "Tile": layout_ops.tile,
    "Transpose": layout_ops.transpose,
    "Unsqueeze": layout_ops.unsqueeze,
    "Upsample": selection_ops.resize,
}
_DATA: Final[Mapping[str, _Rule]] = {
    **ENTRY_OPS,
    **dict.fromkeys(["AveragePool", "LpPool", "MaxPool"], axis_ops.pool),
    **dict.fromkeys(["GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"], axis_ops.global_pool),
    **dict.fromkeys(
        ["ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum",
         "ReduceSumSquare"], axis_ops.reduction,
    ),
    **dict.fromkeys(["Softmax", "LogSoftmax"], axis_ops.softmax),
    **dict.fromkeys(
        ["GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"],
        axis_ops.normalization,
    ),
    **dict.fromkeys(["Conv", "ConvTranspose"], linear_ops.conv),
    "BatchNormalization": linear_ops.batch_norm,
    "Cast": _same,
    "Gemm": linear_ops.gemm,
    "MatMul": linear_ops.matmul,
    "TopK": axis_ops.top,
}  # fmt: skip


def lower(model: Model, output: str) -> Program:
    """The program of one output; `Unsupported` with the node and the reason."""
    version = model.opset.get("", 0)
    if version not in _VERSIONS:
        raise Unsupported(f"operator set {version} of ONNX is not supported")
    needed, names = _needed(model, output)
    source = _source(model, names)
    dims = source.dims or ()
    try:
        return _lowered(model, output, needed, source, batched=True)
    except MixingError:
        raise
    except Unsupported:
        if not isinstance(dims[0], int):
            raise
    return _lowered(model, output, needed, source, batched=False)


def _needed(model: Model, output: str) -> tuple[list[bool], set[str]]:
    """Which nodes the output is computed from, and all names that are read."""
    names = {output}
    needed = [False] * len(model.nodes)
    for position in reversed(range(len(model.nodes))):
        node = model.nodes[position]
        if names.intersection(filter(None, node.outputs)):
            needed[position] = True
            names.update(filter(None, node.inputs))
    return needed, names


def _source(model: Model, names: set[str]) -> Input:
    """The one input, of which the first dimension may be anything and all others are fixed."""
    inputs = [item for item in model.inputs if item.name in names]
    if len(inputs) != 1:
        raise Unsupported(f"the output depends on {len(inputs)} inputs instead of one")
    (source,) = inputs
    if not source.dtype.startswith(("float", "bfloat")):
        raise Unsupported(f"the input {shown(source.name)} does not hold real numbers")
    dims = source.dims
    if not dims or any(not isinstance(size, int) or size < 1 for size in dims[1:]) or dims[0] == 0:
        raise Unsupported(f"the input {shown(source.name)} is not of fixed shape behind axis 0")
    return source


def _lowered(
    model: Model, output: str, needed: Sequence[bool], source: Input, *, batched: bool
) -> Program:
    assert source.dims is not None  # noqa: S101
    dims: Shape = tuple(size for size in source.dims[1:] if isinstance(size, int))
    first = source.dims[0] if isinstance(source.dims[0], int) and not batched else 1
    start = Data(source.name, (first, *dims), Place(0) if batched else None)
    values: dict[str, Value] = {source.name: start}
    taken = {source.name, *model.initializers, *(n for node in model.nodes for n in node.outputs)}
    sink = Sink(taken, batched)
    read = {
        name for node, use in zip(model.nodes, needed, strict=True) if use for name in node.inputs
    }
    for name in sorted(read & set(model.initializers)):
        try:
            values[name] = literal(model.initializers[name], name)
        except Unsupported as error:
            raise Unsupported(f"the initializer {shown(name)}: {error}") from None
    for position, node in enumerate(model.nodes):
        if needed[position]:
            _lower_node(node, position, model.opset, values, sink)
    result = values.get(output)
    if not isinstance(result, Data):
        raise Unsupported("the output does not depend on the input")
    raw = needed_steps(sink.steps, result.name)
    steps = rewritten(raw, start, result.name, sink)
    for step in steps:
        _check_finite(step, model)
    shapes = {source.name: start.shape, **{step.output: step.shape for step in steps}}
    covered = _covered(model, needed, raw, steps, values)
    return Program(
        source.name, result.name, shapes, steps, batched, covered, frozenset(sink.untracked)
    )


def _lower_node(
    node: Node, position: int, opset: Mapping[str, int], values: dict[str, Value], sink: Sink
) -> None:
    """Add the outputs of a node to the values."""
    where = f"node {shown(node.name)} ({shown(node.op_type)})"
    try:
        inputs = [_known(values, name) if name else None for name in node.inputs]
        call = Call(node, position, opset.get("", 0), inputs, sink)
        start = len(sink.steps)
        found = _rule(node, inputs)(call)
        call.check_read()
    except MixingError as error:
        raise MixingError(f"{where}: {error}") from None
    except Unsupported as error:
        raise Unsupported(f"{where}: {error}") from None
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, ZeroDivisionError):
        raise Unsupported(f"{where}: its inputs and attributes do not fit") from None
    results = found if isinstance(found, list) else [found]
    own = {step.output: place for place, step in enumerate(sink.steps) if place >= start}
    for name, value in zip(node.outputs, results, strict=False):
        if not name:
            continue
        values[name] = value
        if isinstance(value, Data) and value.name in own:
            place = own.pop(value.name)
            sink.steps[place] = replace(sink.steps[place], output=name)
            values[name] = replace(value, name=name)


def _known(values: Mapping[str, Value], name: str) -> Value:
    if name not in values:
        raise Unsupported(f"{shown(name)} is a result that is not supported")
    return values[name]


def _rule(node: Node, inputs: Sequence[Value | None]) -> _Rule:
    kind = node.op_type
    if node.domain == "com.microsoft" and kind in {"Gelu", "FastGelu", "QuickGelu"}:
        return _MICROSOFT[kind]
    if node.domain:
        raise Unsupported(f"the domain {shown(node.domain)} is not supported")
    rule = _LAYOUT.get(kind)
    if rule is None:
        table = _DATA if any(isinstance(item, Data) for item in inputs) else CONSTANT_OPS
        rule = table.get(kind)
    if rule is None:
        raise Unsupported("the operator is not supported")
    return rule


def _microsoft(name: str) -> _Rule:
    def rule(call: Call) -> Value:
        if len(call) != 1:
            raise Unsupported("an activation with a built-in bias")
        numbers = (call.real("alpha", 1.702),) if name == "quick_gelu" else ()
        return activated(call, call.data(), name, *numbers)

    return rule


_MICROSOFT: Final = {
    "FastGelu": _microsoft("gelu_tanh"),
    "Gelu": _microsoft("gelu"),
    "QuickGelu": _microsoft("quick_gelu"),
}


def _check_finite(step: Step, model: Model) -> None:
    """Only a mask, which is part of an attention, may hold infinities."""
    if isinstance(step.op, Attention):
        return
    operands = [getattr(step.op, item.name) for item in fields(step.op)]
    for operand in operands:
        if isinstance(operand, Operand) and not np.isfinite((operand.lo, operand.hi)).all():
            node = model.nodes[step.node]
            where = f"node {shown(node.name)} ({shown(node.op_type)})"
            raise Unsupported(f"{where}: a constant is not finite")


def _covered(
    model: Model,
    needed: Sequence[bool],
    raw: Sequence[Step],
    steps: Sequence[Step],
    values: Mapping[str, Value],
) -> tuple[str, ...]:
    final, used = {step.node for step in steps}, {step.node for step in raw}
    read = {name for step in raw for name in step.inputs}
    result = []
    for position, node in enumerate(model.nodes):
        outputs = [values.get(name) for name in node.outputs]
        if not needed[position]:
            result.append("unused")
        elif position in final:
            result.append("step")
        elif position in used:
            result.append("part")
        elif all(not isinstance(value, Data) for value in outputs):
            result.append("constant")
        else:
            alias = any(isinstance(v, Data) and (v.name in read) for v in outputs)
            result.append("part" if alias else "unused")
    return tuple(result)
