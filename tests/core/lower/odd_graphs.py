"""Random small graphs as an attacker would write them: odd attributes, constants and spellings.

A graph grows node by node; a node that onnxruntime does not run is taken back, so that all others
mean something. Nothing here knows what a node ought to compute.
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import AttributeProto, ModelProto, NodeProto, helper, numpy_helper

from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from lipcert.errors import UnsupportedModelError
from lipcert.importer.agreement import check_agreement
from lipcert.importer.model import Reading, stored_model
from tests.core.lower.cases import onnx_file
from tests.draws import Draws

Array = np.ndarray
ort.set_default_logger_severity(4)
OPSETS = (7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 22, 23)


@dataclass
class Odd(Draws):
    """A graph in the making. values: names of tensors with their shapes for one example."""

    opset: int
    dims: tuple[int, ...]
    batch: int | str
    nodes: list[NodeProto] = field(default_factory=list)
    tensors: dict[str, Array] = field(default_factory=dict)
    values: dict[str, tuple[int, ...]] = field(default_factory=dict)
    latest: str = "x"
    real: type = np.float32

    # choices ----------------------------------------------------------------------------------

    def one(self, *items):
        return items[int(self.rng.integers(len(items)))]

    def maybe(self, chance=0.5):
        return bool(self.rng.random() < chance)

    @property
    def shape(self):
        return self.values[self.latest]

    @property
    def rank(self):
        return len(self.shape)

    def axis(self):
        """An axis, often counted from the end, seldom that of the batch, seldom out of range."""
        if self.maybe(0.02):
            return self.one(self.rank, -self.rank - 1)
        axis = self.whole(0 if self.maybe(0.1) else min(1, self.rank - 1), self.rank - 1)
        return axis - self.rank if self.maybe(0.4) else axis

    def axes(self):
        if self.maybe(0.12):
            return []
        return [self.axis() for _ in range(self.whole(1, min(3, self.rank)))]

    def numbers(self, shape, special=0.08):
        array = self.rng.standard_normal(shape).astype(self.real)
        if self.maybe(special):
            array[...] = self.one(0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3.0, 0.5, 1e4, -1e-4)
        elif self.maybe(special) and array.size:
            array.flat[self.whole(0, array.size - 1)] = self.one(0.0, np.inf, -np.inf, np.nan)
        return array

    def partner(self):
        """A shape that broadcasts with the latest value: smaller, larger, of another rank."""
        shape = list(self.shape)
        for axis in range(len(shape)):
            if shape[axis] == 1 and axis and self.maybe(0.3):
                shape[axis] = self.whole(2, 3)
            elif self.maybe(0.4):
                shape[axis] = 1
        shape = shape[self.whole(0, len(shape)) :] if self.maybe() else shape
        if shape and len(shape) == self.rank and self.maybe(0.9):
            shape[0] = 1
        if self.maybe(0.06):
            shape = [1] * (self.rank - len(shape)) + shape
            shape = [self.whole(1, 2), *shape]
        return tuple(shape)

    # parts ------------------------------------------------------------------------------------

    def constant(self, array):
        """The name of a constant: an initializer, or a node of one kind or another."""
        array = np.asarray(array)
        if array.dtype.kind == "f" and array.dtype != np.float16:
            array = array.astype(self.real)
        name = f"c{len(self.tensors) + len(self.nodes)}_{len(self.tensors)}"
        if self.maybe(0.75):
            self.tensors[name] = array
            return name
        if self.opset >= 12 and array.ndim <= 1 and self.maybe(0.3):
            kind = {"f": "float", "i": "int"}.get(array.dtype.kind)
            if kind and array.size and array.dtype.itemsize == (4 if kind == "float" else 8):
                key, value = f"value_{kind}", array.tolist()
                key += "s" if array.ndim else ""
                self.nodes.append(helper.make_node("Constant", [], [name], name, **{key: value}))
                return name
        tensor = numpy_helper.from_array(array, name)
        self.nodes.append(helper.make_node("Constant", [], [name], name, value=tensor))
        return name

    def ints(self, items, dtype=None):
        return self.constant(np.asarray(items, dtype or self.one(np.int64, np.int64, np.int32)))

    def value(self):
        """The latest value, or sometimes an earlier one."""
        return self.one(*self.values) if self.maybe(0.25) else self.latest

    def add(self, op, inputs, outputs=1, domain="", **attributes):
        """A node; lists that are empty keep their kind."""
        name = f"n{len(self.nodes)}"
        outs = [name] if outputs == 1 else [f"{name}_{k}" for k in range(outputs)]
        empty = {key for key, item in attributes.items() if isinstance(item, list) and not item}
        plain = {
            key: item for key, item in attributes.items() if key not in empty and item is not None
        }
        node = helper.make_node(op, inputs, outs, name, domain=domain, **plain)
        for key in empty:
            kind = AttributeProto.INTS
            node.attribute.append(helper.make_attribute(key, [], attr_type=kind))
        self.nodes.append(node)
        return outs

    # the file ---------------------------------------------------------------------------------

    def proto(self, outputs):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.real))
        inputs = {"x": (kind, [self.batch, *self.dims])}
        proto = onnx_file(self.nodes, inputs, outputs, self.tensors, self.opset)
        for item in proto.graph.output:
            item.ClearField("type")
        proto.opset_import.add(domain="com.microsoft", version=1)
        return proto

    def grow(self, write):
        """One more operator, if onnxruntime runs it; otherwise the graph stays as it was."""
        kept = len(self.nodes), dict(self.tensors)
        count = self.batch if isinstance(self.batch, int) else 1
        x = np.random.default_rng(0).standard_normal((count, *self.dims)).astype(self.real)
        try:
            outs = write(self)
            session = _session(self.proto(outs))
            found = session.run(outs, {"x": x})
            if not all(item.dtype == self.real and 0 < item.size <= 4096 for item in found):
                raise ValueError
        except Exception:  # noqa: BLE001 (onnxruntime has no common type of error)
            del self.nodes[kept[0] :]
            self.tensors = kept[1]
            return False
        for name, item in zip(outs, found, strict=True):
            self.values[name] = item.shape
        self.latest = self.one(*outs)
        return True


def _session(proto):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return ort.InferenceSession(proto.SerializeToString(), options)


# operators ------------------------------------------------------------------------------------


def unary(g):
    op = g.one("Abs", "Atan", "Cos", "Erf", "Exp", "HardSwish", "Mish", "Neg", "Relu", "Sigmoid",
               "Sin", "Softplus", "Softsign", "Tanh", "Sqrt", "Log", "Reciprocal", "Identity",
               "Floor", "Sign")  # fmt: skip
    return g.add(op, [g.value()])


def parametric(g):
    op = g.one("Celu", "Elu", "LeakyRelu", "Selu", "HardSigmoid", "Gelu", "ThresholdedRelu",
               "Shrink", "Swish", "QuickGelu", "FastGelu", "ContribGelu")  # fmt: skip
    number = g.one(None, 0.3, -0.7, 2.0, 0.0)
    if op == "Gelu":
        return g.add(op, [g.value()], approximate=g.one(None, "none", "tanh"))
    if op in {"QuickGelu", "FastGelu", "ContribGelu"}:
        domain, op = "com.microsoft", op.removeprefix("Contrib")
        inputs = [g.value()]
        if op == "FastGelu" and g.maybe(0.3):
            inputs.append(g.constant(g.numbers(g.shape[-1:], 0)))
        return g.add(op, inputs, domain=domain, alpha=number if op == "QuickGelu" else None)
    if op == "Shrink":
        return g.add(op, [g.value()], lambd=g.one(None, 0.1), bias=g.one(None, 0.1, 0.5))
    second = {"Selu": "gamma", "HardSigmoid": "beta"}.get(op)
    more = {second: g.one(None, 0.4, -0.2, 3.0)} if second else {}
    return g.add(op, [g.value()], alpha=number, **more)


def binary(g):
    op = g.one("Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Max", "Min", "Sum", "Mean")
    other = g.value() if g.maybe(0.35) else g.constant(g.numbers(g.partner()))
    if op == "Pow" and g.maybe(0.7):
        other = g.constant(np.full(g.one((), (1,), (1, 1, 1, 1, 1)), g.one(0.5, 2, 3, -1, 1, 0.0)))
    inputs = [g.latest, other]
    if g.maybe() and op != "PRelu":
        inputs.reverse()
    if op in {"Max", "Min", "Sum", "Mean"}:
        if g.maybe(0.5):
            array = g.numbers(g.partner() if g.maybe() else (), 0.2)
            inputs.insert(g.whole(0, 2), g.constant(array))
        if g.maybe(0.1):
            inputs = inputs[:1]
    return g.add(op, inputs)


def where(g):
    mask = g.rng.random(g.partner()) < g.one(0.0, 0.5, 1.0)
    branches = [g.value(), g.constant(g.numbers(g.partner(), 0.5)) if g.maybe(0.8) else g.value()]
    if g.maybe():
        branches.reverse()
    return g.add("Where", [g.constant(mask), *branches])


def clip(g):
    low, high = sorted((g.one(-np.inf, -1.0, 0.0, 0.5), g.one(np.inf, 1.0, 0.0, 6.0)))
    if g.maybe(0.1):
        low, high = high, low
    if g.opset < 11:
        return g.add("Clip", [g.latest], min=g.one(None, low), max=g.one(None, high))
    ends = ["" if g.maybe(0.3) else g.constant(np.full(g.one((), (), (1,)), n, np.float32))
            for n in (low, high)]  # fmt: skip
    return g.add("Clip", [g.latest, *ends[: g.whole(0, 2)]])


def gemm(g):
    flat = g.add("Flatten", [g.latest], axis=g.one(None, 1, 1, 0, g.rank, -1))[0]
    rows, columns = g.whole(1, 3), int(np.prod(g.shape[1:]))
    turn_a, turn_b = g.one(None, None, 0, 1), g.one(None, 0, 1)
    w = g.numbers((rows, columns) if turn_b else (columns, rows), 0.02)
    inputs = [flat, g.constant(w)]
    if g.maybe():
        inputs.append(g.constant(g.numbers(g.one((), (1,), (rows,), (1, rows), (1, 1), (2, rows)))))
    if g.maybe(0.1):
        inputs[:2] = inputs[1::-1]
    return g.add("Gemm", inputs, transA=turn_a, transB=turn_b, alpha=g.one(None, 0.5, -2.0, 0.0),
                 beta=g.one(None, 0.5, 0.0))  # fmt: skip


def matmul(g):
    last = g.shape[-1]
    kind = g.whole(0, 5)
    if kind == 0 and g.rank > 1:
        order = [*range(g.rank - 2), g.rank - 1, g.rank - 2]
        other = g.add("Transpose", [g.latest], perm=order)[0]
        return g.add("MatMul", g.one([g.latest, other], [other, g.latest]))
    if kind == 1:
        left = g.numbers(g.one((2, g.shape[-2]), (g.shape[-2],), (1, 2, g.shape[-2])), 0.02)
        return g.add("MatMul", [g.constant(left), g.latest])
    shape = g.one((last, 2), (last, 3), (last,), (1, last, 2), (1, 1, last, 2), (2, last, 2))
    return g.add("MatMul", [g.latest, g.constant(g.numbers(shape, 0.02))])


def _windowed(g, spatial):
    found = {
        "strides": g.one(None, [g.whole(1, 4) for _ in range(spatial)]),
        "dilations": g.one(None, None, [g.whole(1, 2) for _ in range(spatial)]),
        "pads": g.one(None, None, [g.whole(0, 2) for _ in range(2 * spatial)]),
        "auto_pad": g.one(None, None, None, "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"),
    }
    if found["pads"] and g.maybe(0.1):
        found["pads"][0] = -1
    return found


def conv(g):
    spatial, channels = g.rank - 2, g.shape[1]
    group = g.one(1, 1, *[k for k in (2, 3, channels) if channels % k == 0])
    taps = [g.whole(1, 3) for _ in range(spatial)]
    turned = g.maybe(0.4)
    own = g.whole(1, 2)
    if turned:
        shape, outputs = (channels, own, *taps), own * group
    else:
        shape, outputs = (own * group, channels // group, *taps), own * group
    inputs = [g.latest, g.constant(g.numbers(shape, 0.02))]
    if g.maybe(0.4):
        inputs.append(g.constant(g.numbers((outputs,), 0.02)))
    more = {"group": g.one(None, group) if group == 1 else group}
    more["kernel_shape"] = g.one(None, taps)
    if turned:
        more["output_padding"] = g.one(None, None, [g.whole(0, 1) for _ in range(spatial)])
        if g.maybe(0.1):
            more["output_shape"] = [g.whole(3, 8) for _ in range(spatial)]
    return g.add("ConvTranspose" if turned else "Conv", inputs, **_windowed(g, spatial), **more)


def pool(g):
    op = g.one("MaxPool", "AveragePool", "LpPool")
    spatial = g.rank - 2
    more = {"ceil_mode": g.one(None, 0, 1), "kernel_shape": [g.whole(1, 3) for _ in range(spatial)]}
    if op == "LpPool":
        more["p"] = g.one(None, 1, 2, 3)
    if op == "AveragePool":
        more["count_include_pad"] = g.one(None, 0, 1)
    if op == "MaxPool":
        more["storage_order"] = g.one(None, None, 0, 1)
    found = _windowed(g, spatial)
    for key in ("ceil_mode", "dilations", "storage_order"):
        source = more if key in more else found
        if g.maybe(0.5) and g.opset < 10:
            source[key] = None
    return g.add(op, [g.latest], **found, **more)


def global_pool(g):
    op = g.one("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
    return g.add(op, [g.latest], p=g.one(None, 1, 2, 3) if op == "GlobalLpPool" else None)


def reduce(g):
    op = g.one("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2",
               "ReduceSumSquare", "ReduceProd", "ReduceLogSumExp", "ReduceLogSum")  # fmt: skip
    since = 13 if op == "ReduceSum" else 18
    given, keep = g.one(None, g.axes(), g.axes(), g.axes()), g.one(None, 0, 1)
    if g.opset < since:
        return g.add(op, [g.latest], axes=given, keepdims=keep)
    idle = g.one(None, None, 0, 1)
    inputs = [g.latest] + ([] if given is None else [g.ints(given, np.int64)])
    return g.add(op, inputs, keepdims=keep, noop_with_empty_axes=idle)


def softmax(g):
    axis = g.one(None, g.axis(), g.axis())
    return g.add(g.one("Softmax", "LogSoftmax", "Hardmax"), [g.latest], axis=axis)


def norm(g):
    op = g.one("LayerNormalization", "RMSNormalization", "InstanceNormalization",
               "GroupNormalization", "BatchNormalization", "LpNormalization",
               "MeanVarianceNormalization", "LRN")  # fmt: skip
    epsilon = g.one(None, 1e-3, 0.1)
    channels = g.shape[1] if g.rank > 1 else 1
    match op:
        case "LayerNormalization" | "RMSNormalization":
            axis = g.one(None, g.axis())
            first = -1 if axis is None else axis
            own = g.shape[first:]
            shape = g.one(own, own, own[-1:], (1,), g.shape, (*(1,) * len(own[1:]), own[-1]))
            inputs = [g.latest, g.constant(g.numbers(shape, 0))]
            if op == "LayerNormalization" and g.maybe():
                inputs.append(g.constant(g.numbers(g.one(own, shape), 0)))
            return g.add(op, inputs, axis=axis, epsilon=epsilon, stash_type=g.one(None, 1))
        case "BatchNormalization":
            shape = (channels,)
            old = {"spatial": g.one(None, 1, 0)} if g.opset < 9 else {}
            if old.get("spatial") == 0:
                shape = g.shape[1:]
            arrays = [g.numbers(shape, 0) for _ in range(3)] + [g.rng.random(shape) + 0.1]
            mode = {"training_mode": g.one(None, 0, 1)} if g.opset >= 14 else {}
            names = [g.constant(np.asarray(item, np.float32)) for item in arrays]
            return g.add(op, [g.latest, *names], epsilon=epsilon, **mode, **old)
        case "InstanceNormalization" | "GroupNormalization":
            groups = g.one(1, channels, 2, 3)
            shape = (channels,)
            if op == "GroupNormalization" and g.opset < 21 and g.maybe(0.9):
                shape = (groups,)
            inputs = [g.latest, *(g.constant(g.numbers(shape, 0)) for _ in range(2))]
            more = {"num_groups": groups} if op == "GroupNormalization" else {}
            return g.add(op, inputs, epsilon=epsilon, **more)
        case "LpNormalization":
            return g.add(op, [g.latest], axis=g.one(None, g.axis()), p=g.one(None, 1, 2))
        case "LRN":
            return g.add(op, [g.latest], size=g.one(1, 2, 3), bias=g.one(None, 2.0))
        case _:
            return g.add(op, [g.latest], axes=g.one(None, g.axes()))


def top(g):
    axis = g.axis()
    count = g.whole(1, max(1, g.shape[axis]))
    more = {"axis": g.one(None, axis)}
    if g.opset >= 11:
        more |= {"largest": g.one(None, 0, 1), "sorted": g.one(None, 1, 0)}
    if g.opset < 10:
        return g.add("TopK", [g.latest], outputs=2, k=count, **more)[:1]
    return g.add("TopK", [g.latest, g.ints([count], np.int64)], outputs=2, **more)[:1]


def layout(g):
    op = g.one("Reshape", "Reshape", "Flatten", "Squeeze", "Squeeze", "Unsqueeze", "Transpose")
    match op:
        case "Transpose":
            order = [int(k) for k in g.rng.permutation(g.rank)]
            if g.maybe(0.6) and 0 in order:
                order.remove(0)
                order.insert(0, 0)
            return g.add(op, [g.latest], perm=g.one(None, order, order, order, []))
        case "Flatten":
            return g.add(op, [g.latest], axis=g.one(None, *range(-g.rank, g.rank + 1)))
        case "Squeeze":
            ones = [k for k, size in enumerate(g.shape) if size == 1 and (k or g.maybe(0.1))]
            named = ones[: g.whole(0, len(ones))]
            named = [k - g.rank if g.maybe() else k for k in named]
            given = g.one(None, named, named, named)
        case "Unsqueeze":
            count = g.whole(1, 2)
            given = [g.whole(-g.rank - count, g.rank + count - 1) for _ in range(count)]
            given = [] if g.maybe(0.1) else given
        case _:
            shape = g.shape
            sizes = list(shape)
            for _ in range(g.whole(0, 2)):
                place = g.whole(0, len(sizes) - 1)
                if g.maybe() and place + 1 < len(sizes):
                    sizes[place : place + 2] = [sizes[place] * sizes[place + 1]]
                elif sizes[place] % 2 == 0:
                    sizes[place : place + 1] = g.one([2, sizes[place] // 2], [sizes[place] // 2, 2])
                else:
                    sizes.insert(place, 1)
            if g.maybe(0.8):
                place = 0 if g.maybe(0.7) else g.whole(0, len(sizes) - 1)
                sizes[place] = -1
            for place, size in enumerate(sizes):
                if place < len(shape) and size == shape[place] and g.maybe(0.4):
                    sizes[place] = 0
            if g.maybe(0.1):
                sizes = g.one([], [-1], [0, -1], [1, 1, -1])
            more = {"allowzero": g.one(None, 0, 1)} if g.opset >= 14 else {}
            return g.add(op, [g.latest, g.ints(sizes, np.int64)], **more)
    if g.opset < 13:
        return g.add(op, [g.latest], axes=given)
    inputs = [g.latest] + ([] if given is None else [g.ints(given, np.int64)])
    return g.add(op, inputs)


def slicing(g):
    count = g.whole(1, min(2, g.rank))
    named = g.one(None, [g.axis() for _ in range(count)], [g.axis() for _ in range(count)])
    starts = [g.whole(-5, 5) for _ in range(count)]
    ends = [g.one(g.whole(-6, 6), 2**31 - 1, 2**63 - 1, -(2**63), -(2**31)) for _ in range(count)]
    steps = g.one(None, [g.one(1, 2, -1, -2, 3) for _ in range(count)])
    if g.opset < 10:
        return g.add("Slice", [g.latest], starts=starts, ends=ends, axes=named)
    inputs = [g.latest, g.ints(starts, np.int64), g.ints(ends, np.int64)]
    if named is not None or steps is not None:
        inputs.append("" if named is None else g.ints(named, np.int64))
    if steps is not None:
        inputs.append(g.ints(steps, np.int64))
    return g.add("Slice", inputs)


def split(g):
    axis = g.axis()
    size, count = g.shape[axis], g.whole(1, 3)
    cuts = sorted(g.whole(0, size) for _ in range(count - 1))
    sizes = np.diff([0, *cuts, size]).tolist()
    given = g.one(None, sizes, sizes)
    more = {"axis": g.one(None, axis, axis, axis)}
    if g.opset < 13:
        more["split"] = given
        return [g.one(*g.add("Split", [g.latest], outputs=max(count, 1), **more))]
    inputs = [g.latest] + ([] if given is None else [g.ints(given, np.int64)])
    if given is None and g.opset >= 18:
        more["num_outputs"] = count
    return [g.one(*g.add("Split", inputs, outputs=count, **more))]


def gather(g):
    axis = g.axis()
    size = g.shape[axis]
    shape = g.one((), (1,), (2,), (2, 2), (3,), (0,))
    places = g.rng.integers(-size, size, shape)
    if g.maybe(0.2):
        return g.add("GatherElements", [g.latest, g.ints(np.zeros(g.shape, int), np.int64)],
                     axis=axis)  # fmt: skip
    return g.add("Gather", [g.latest, g.ints(places)], axis=g.one(None, axis, axis, axis))


def pad(g):
    mode = g.one(None, "constant", "reflect", "edge", "wrap")
    pads = [g.one(0, 0, 1, 2, -1) for _ in range(2 * g.rank)]
    if g.maybe(0.9):
        pads[0] = pads[g.rank] = 0
    number = g.one(None, 0.0, 0.5, -np.inf)
    if g.opset < 11:
        return g.add("Pad", [g.latest], mode=mode, pads=pads, value=number)
    named = None
    if g.opset >= 18 and g.maybe(0.4):
        named = [g.axis() for _ in range(g.whole(1, 2))]
        pads = [g.one(0, 1, 2, -1) for _ in range(2 * len(named))]
    inputs = [g.latest, g.ints(pads, np.int64)]
    inputs.append("" if number is None else g.constant(np.float32(number)))
    if named is not None:
        inputs.append(g.ints(named))
    return g.add("Pad", inputs, mode=mode)


def repeat(g):
    if g.maybe(0.5):
        counts = [1 if k == 0 and g.maybe(0.9) else g.whole(1, 2) for k in range(g.rank)]
        return g.add("Tile", [g.latest, g.ints(counts, np.int64)])
    return g.add("Expand", [g.latest, g.ints(list(g.partner()), np.int64)])


def resize(g):
    scales = [1.0] * min(2, g.rank) + [g.one(1.0, 2.0, 3.0, 1.5, 0.5) for _ in range(g.rank - 2)]
    if g.opset < 10:
        op = "Upsample"
        if g.opset < 9:
            return g.add(op, [g.latest], scales=scales, mode=g.one(None, "nearest"))
        return g.add(op, [g.latest, g.constant(np.asarray(scales))], mode=g.one(None, "nearest"))
    scale = g.constant(np.asarray(scales))
    if g.opset == 10:
        return g.add("Resize", [g.latest, scale], mode=g.one(None, "nearest", "linear"))
    more = {
        "mode": g.one(None, "nearest", "nearest", "linear", "linear"),
        "coordinate_transformation_mode": g.one(
            None, "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel",
            "half_pixel_symmetric", "tf_half_pixel_for_nn"),
        "nearest_mode": g.one(None, "floor", "ceil", "round_prefer_floor", "round_prefer_ceil"),
    }  # fmt: skip
    if g.opset >= 18:
        more["antialias"] = g.one(None, None, 0, 1)
        more["keep_aspect_ratio_policy"] = g.one(None, None, "stretch", "not_larger")
    roi = g.one("", g.constant(np.zeros(0)))
    if g.maybe(0.6):
        return g.add("Resize", [g.latest, roi, scale], **more)
    sizes = [int(a * b) for a, b in zip(g.shape, scales, strict=True)]
    empty = g.one("", g.constant(np.zeros(0)))
    if g.opset >= 18 and g.maybe(0.4) and g.rank > 2:
        more["axes"] = list(range(2, g.rank))
        sizes = sizes[2:]
    return g.add("Resize", [g.latest, roi, empty, g.ints(sizes, np.int64)], **more)


def concat(g):
    axis = g.axis()
    parts = [g.latest]
    for _ in range(g.whole(0, 2)):
        if g.maybe(0.6):
            shape = list(g.shape)
            shape[axis] = g.whole(0, 2)
            parts.append(g.constant(g.numbers(tuple(shape))))
        else:
            parts.append(g.value())
    g.rng.shuffle(parts)
    return g.add("Concat", parts, axis=axis)


def blocks(g):
    more = {"mode": g.one(None, "DCR", "CRD")} if g.opset >= 11 else {}
    if g.maybe():
        return g.add("DepthToSpace", [g.latest], blocksize=2, **more)
    return g.add("SpaceToDepth", [g.latest], blocksize=2)


def types(g):
    kind = g.whole(0, 3)
    if kind == 0:
        return g.add("Dropout", [g.latest], **({"ratio": 0.3} if g.opset < 12 else {}))
    if kind == 1 and g.opset >= 15:
        like = g.constant(np.zeros(1, g.one(np.float32, np.float16, np.float64)))
        middle = g.add("CastLike", [g.latest, like])[0]
    else:
        middle = g.add("Cast", [g.latest], to=g.one(1, 10, 11, 7, 6, 9, 16))[0]
    return g.add("Cast", [middle], to=1 if g.real is np.float32 else 11)


def sizes(g):
    """Shapes that the graph computes from its own values."""
    more = {}
    if g.opset >= 15:
        more = {"start": g.one(None, 0, 1, -1), "end": g.one(None, None, g.rank, -1, 9)}
    shape = g.add("Shape", [g.latest], **more)[0]
    kind = g.whole(0, 6)
    if kind == 0:
        return g.add("Reshape", [g.latest, shape])
    if kind == 1:
        return g.add("Expand", [g.constant(g.numbers((1,))), shape])
    if kind == 2:
        number = numpy_helper.from_array(np.asarray([0.7], np.float32))
        filled = g.add("ConstantOfShape", [shape], value=g.one(None, number))[0]
        return g.add(g.one("Add", "Mul"), [g.latest, filled])
    first = g.add("Gather", [shape, g.ints(g.one(0, -1, [0], [1]), np.int64)], axis=0)[0]
    if kind == 3:
        count = g.add("Size", [g.latest])[0]
        rest = g.add("Div", [count, first])[0]
        both = []
        for item in (first, rest):
            both.append(g.add("Reshape", [item, g.ints([1], np.int64)])[0])
        return g.add("Reshape", [g.latest, g.add("Concat", both, axis=0)[0]])
    tail = g.ints([g.one(-1, 0, 1)], np.int64)
    whole = g.add("Reshape", [first, g.ints([1], np.int64)])[0]
    if kind == 4:
        whole = g.add(g.one("Add", "Mul", "Sub", "Div"), [whole, g.ints([g.whole(1, 3)],
                      np.int64)])[0]  # fmt: skip
    return g.add("Reshape", [g.latest, g.add("Concat", [whole, tail], axis=0)[0]])


def folded(g):
    """A constant that other constants are computed into, then added or multiplied."""
    name = g.constant(g.numbers(g.partner(), 0.05))
    for _ in range(g.whole(1, 3)):
        other = g.constant(g.numbers(g.one((), (1,), g.partner()), 0.05))
        op = g.one("Add", "Sub", "Mul", "Div", "Neg", "Sqrt", "Where", "Cast", "Transpose",
                   "Unsqueeze", "Squeeze", "Concat", "Identity", "Slice", "Max", "Exp",
                   "Expand")  # fmt: skip
        match op:
            case "Neg" | "Identity" | "Transpose" | "Exp":
                name = g.add(op, [name])[0]
            case "Sqrt":
                name = g.add(op, [g.constant(np.abs(g.numbers(g.partner(), 0.05)))])[0]
            case "Where":
                flags = g.constant(g.rng.random(g.one((), g.partner())) < 0.5)
                name = g.add(op, [flags, *g.one((name, other), (other, name))])[0]
            case "Cast":
                name = g.add(op, [g.add(op, [name], to=g.one(10, 11, 7, 9))[0]], to=1)[0]
            case "Squeeze":
                name = g.add(op, [name])[0]
            case "Unsqueeze":
                at = g.one(0, -1)
                if g.opset < 13:
                    name = g.add(op, [name], axes=[at])[0]
                else:
                    name = g.add(op, [name, g.ints([at], np.int64)])[0]
            case "Concat":
                name = g.add(op, [name, name], axis=g.one(0, -1))[0]
            case "Slice":
                ends = [g.ints([k], np.int64) for k in (g.whole(-2, 1), g.whole(-1, 4))]
                if g.opset >= 10:
                    name = g.add(op, [name, *ends])[0]
            case "Expand":
                name = g.add(op, [name, g.ints(list(g.partner()), np.int64)])[0]
            case _:
                name = g.add(op, list(g.one((name, other), (other, name))))[0]
    return g.add(g.one("Add", "Mul", "Sub", "Div"), list(g.one((g.latest, name), (name, g.latest))))


def gates(g):
    """Layers in several nodes, with the right numbers and with others."""
    x, c = g.latest, lambda n: g.constant(np.asarray(n, np.float32))
    near = lambda n: c(g.one(n, n, n * 1.01, -n))  # noqa: E731
    match g.whole(0, 6):
        case 0:
            gate = g.add("Sigmoid", g.add("Mul", [x, near(1.7)]) if g.maybe() else [x])[0]
        case 1:
            inner = g.add("Add", [x, near(3.0)])[0]
            ends = (0.0, g.one(6.0, 6.0, 5.0))
            if g.opset < 11:
                gate = g.add("Clip", [inner], min=ends[0], max=ends[1])[0]
            else:
                gate = g.add("Clip", [inner, *map(c, ends)])[0]
        case 2:
            gate = g.add("HardSigmoid", [x], alpha=g.one(1 / 6, 0.2, -0.1), beta=g.one(0.5, 0.4))[0]
        case 3:
            inner = g.add("Div", [x, near(2**0.5)])
            gate = g.add("Add", [g.add("Erf", inner)[0], g.one(c(1.0), near(1.0))])[0]
        case 4:
            cube = g.add("Pow", [x, c(g.one(3.0, 3.0, 2.0))])[0]
            total = g.add("Add", [x, g.add("Mul", [cube, near(0.044715)])[0]])[0]
            curve = g.add("Tanh", g.add("Mul", [total, near(0.7978846)]))[0]
            gate = g.add("Add", [curve, c(1.0)])[0]
        case 5:
            gate = g.add("Tanh", g.add("Softplus", [x]))[0]
        case _:
            return _length(g, x, c)
    both = g.add("Mul", list(g.one((x, gate), (gate, x))))[0]
    return g.add("Mul", [both, near(0.5)]) if g.maybe() else [both]


def _reduced(g, op, value, axes, keep=1):
    if g.opset < (13 if op == "ReduceSum" else 18):
        return g.add(op, [value], axes=axes, keepdims=keep)[0]
    return g.add(op, [value, g.ints(axes, np.int64)], keepdims=keep)[0]


def _length(g, x, c):
    axes = [k for k in range(1, g.rank) if g.maybe(0.7)] or [g.rank - 1]
    mean = _reduced(g, "ReduceMean", x, axes)
    d = g.add("Sub", list(g.one((x, mean), (x, mean), (mean, x))))[0] if g.maybe(0.7) else x
    other = axes if g.maybe(0.8) else [g.rank - 1]
    square = g.add("Pow", [d, c(2.0)])[0] if g.maybe() else g.add("Mul", [d, d])[0]
    total = _reduced(g, g.one("ReduceMean", "ReduceSum"), square, other)
    root = g.add("Sqrt", g.add("Add", [total, c(g.one(1e-3, 0.5, 0.0))]))[0]
    if g.maybe(0.2):
        root = _reduced(g, "ReduceL2", x, other)
        if g.opset >= 11:
            root = g.add("Clip", [root, c(1e-3)])[0]
    return g.add("Div", [g.one(x, d, d), root])


def attention(g):
    """softmax(c·q@k + mask)@v, and what only looks like it."""
    order = [*range(g.rank - 2), g.rank - 1, g.rank - 2]
    key = g.add("Transpose", [g.latest], perm=order)[0]
    scores = g.add("MatMul", [g.latest, key])[0]
    if g.maybe(0.6):
        scores = g.add("Mul", [scores, g.constant(np.float32(g.one(0.5, 1.0, -0.3)))])[0]
    if g.maybe(0.6):
        size = g.shape[-2]
        hidden = np.where(g.rng.random((size, size)) < 0.4, g.one(-np.inf, -1e4, -1.0), 0.0)
        mask = g.constant(hidden.astype(np.float32))
        scores = g.add(g.one("Add", "Add", "Sub"), [scores, mask])[0]
    axis = g.one(-1, -1, g.rank - 2)
    weights = g.add("Softmax", [scores], axis=axis)[0]
    return g.add("MatMul", [weights, g.latest])


def sums(g):
    """Sums along axes, of parts of a value or of products."""
    if g.maybe(0.3):
        more = {"exclusive": g.one(None, 0, 1), "reverse": g.one(None, 0, 1)}
        return g.add("CumSum", [g.latest, g.ints(g.axis())], **more)
    if g.maybe(0.3):
        more = {"upper": g.one(None, 0, 1)}
        inputs = [g.latest] + ([g.ints(g.whole(-2, 2), np.int64)] if g.maybe() else [])
        return g.add("Trilu", inputs, **more)
    labels = "abcde"[: g.rank]
    own = "".join(g.one(*labels) for _ in range(g.whole(0, 2)))
    own = "".join(dict.fromkeys(own)) + g.one("", "x")
    sizes = [3 if label == "x" else g.shape[labels.index(label)] for label in own]
    kept = [label for label in dict.fromkeys(labels + own) if g.maybe(0.7)]
    g.rng.shuffle(kept)
    equation = f"{labels},{own}" + g.one("", f"->{''.join(kept)}", f"->{''.join(kept)}")
    return g.add("Einsum", [g.latest, g.constant(g.numbers(sizes, 0.02))], equation=equation)


def places(g):
    """Entries at constant places."""
    if g.maybe():
        axis = g.axis()
        shape = [g.whole(1, size) for size in g.shape]
        return g.add("GatherElements", [g.latest, g.ints(g.rng.integers(0, 2, shape), np.int64)],
                     axis=axis)  # fmt: skip
    leading = g.whole(0, max(g.rank - 1, 0))
    depth = g.whole(1, max(g.rank - leading, 1))
    limits = g.shape[leading : leading + depth]
    shape = (*g.shape[:leading], *g.one((), (2,), (1, 3)), len(limits))
    return g.add("GatherND", [g.latest, g.ints(g.rng.integers(-1, limits, shape), np.int64)],
                 batch_dims=g.one(leading, leading, None))  # fmt: skip


def jumps(g):
    """A step inside of a function that may be continuous, or not."""
    x, c = g.value(), lambda n: g.constant(np.asarray(n, np.float32))
    number = g.one(0.0, 0.0, 0.5)
    step = g.add(g.one("Greater", "Less", "GreaterOrEqual", "LessOrEqual"),
                 list(g.one((x, c(number)), (c(number), x))))[0]  # fmt: skip
    shift = g.one(0.0, 0.0, number, 0.25)
    other = g.add(g.one("Sub", "Add"), [x, c(shift)])[0] if shift else x
    pair = (other, c(g.one(0.0, number, number - shift, number + shift)))
    return g.add("Where", [step, *g.one(pair, pair[::-1])])


def heads(g):
    """The operator Attention on one value, perhaps with a mask."""
    inputs = [g.latest] * 3
    if g.maybe():
        size = g.shape[-2]
        mask = g.one(g.numbers((size, size), 0), g.rng.random((size, size)) < 0.6)
        inputs.append(g.constant(mask))
    count = g.one(1, 1, 2)
    more = {"q_num_heads": count, "kv_num_heads": count} if g.rank == 3 else {}
    return g.add("Attention", inputs, is_causal=g.one(None, 0, 1), scale=g.one(None, 0.5),
                 softcap=g.one(None, None, 2.0), **more)  # fmt: skip


OPERATORS = (
    unary, parametric, binary, binary, where, where, clip, gemm, matmul, conv, conv, pool, pool,
    global_pool, reduce, reduce, softmax, norm, norm, top, layout, layout, layout, slicing, slicing,
    split, gather, pad, pad, repeat, resize, concat, blocks, types, sizes, sizes, folded, folded,
    gates, attention, sums, sums, places, jumps, heads,
)  # fmt: skip


def odd_graph(rng: np.random.Generator, operators=OPERATORS) -> ModelProto:
    """A graph of a few operators, as `onnxruntime` runs it for one example or a fixed batch."""
    while True:
        dims = tuple(int(rng.choice([1, 1, 2, 2, 3, 4, 6])) for _ in range(rng.integers(0, 5)))
        batch = ["N", "N", "N", 1, 2, 3][int(rng.integers(6))]
        g = Odd(rng, int(rng.choice(OPSETS)), dims, batch)
        g.real = np.float64 if rng.random() < 0.15 else np.float32
        g.values["x"] = (batch if isinstance(batch, int) else 1, *dims)
        wanted = int(rng.integers(1, 5))
        grown = sum(g.grow(operators[int(rng.integers(len(operators)))]) for _ in range(3 * wanted)
                    if len(g.values) <= wanted)  # fmt: skip
        if grown:
            return g.proto([g.latest])


def outcome(proto: ModelProto, folder: Path) -> str:
    """ "" where checker and onnxruntime agree, "refused" where the former refuses, "undefined"
    where no number is finite, or what differs."""
    path = folder / "odd.onnx"
    path.write_bytes(proto.SerializeToString())
    output = proto.graph.output[0].name
    try:
        model, file = stored_model(path)
        reading = Reading(model, lower(model, output), (output,))
        check_agreement(reading, None, file, path.parent, {"": (None, None)})
    except Unsupported:
        return "refused"
    except UnsupportedModelError as error:
        (found,) = error.refusals
        return "undefined" if found.reason.endswith("finite numbers") else found.reason
    return ""


def outcomes(seed: int, count: int, operators=OPERATORS):
    """(number, graph, outcome) of so many graphs."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            proto = odd_graph(np.random.default_rng([seed, number]), operators)
            yield number, proto, outcome(proto, Path(folder))
