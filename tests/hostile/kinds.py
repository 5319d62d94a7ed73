"""Kinds of hostile files: the name, the code of its refusal, and how to make it.

What the reader alone refuses, places of numbers and broken tensors, is in `tests.core.reader`.
"""

import gzip
import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.core.lower.cases import listed, nodes_of
from tests.importer.models import model, weights

WEIGHT = weights(4, 4)
PLAIN = ("N", 4)
DATA = "weights.bin"


@dataclass(frozen=True)
class Kind:
    """A hostile file: expected code, and a function from an empty folder to the file's content.

    The model lies in a folder `inside`; what lies beside that folder must not be read.
    """

    code: str
    make: Callable[[Path], ModelProto | bytes]

    def write(self, folder: Path) -> Path:
        """Make the file and return its path."""
        inside = folder / "inside"
        (inside / "sub").mkdir(parents=True)
        path = inside / "model.onnx"
        content = self.make(inside)
        path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
        return path


def matmul(array: np.ndarray = WEIGHT) -> ModelProto:
    """A sound model: y = x·w."""
    return model("y = MatMul(x, w)", PLAIN, {"w": array})


def external(**entries: object) -> ModelProto:
    """The sound model, its weight elsewhere."""
    proto = matmul()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    return proto


def reads(location: str, **entries: object) -> Callable[[Path], ModelProto]:
    """A model that refers to `location`; sound bytes lie in and beside its folder."""

    def make(inside: Path) -> ModelProto:
        for place in (inside / DATA, inside.parent / DATA):
            place.write_bytes(WEIGHT.tobytes())
        return external(**{"location": location, **entries})

    return make


def linked(link: Callable[[Path, Path], None], name: str = DATA) -> Callable[[Path], ModelProto]:
    """A model whose data file is a link to sound bytes beside its folder."""

    def make(inside: Path) -> ModelProto:
        target = inside.parent / "target"
        target.mkdir()
        (target / DATA).write_bytes(WEIGHT.tobytes())
        link(target if "/" in name else target / DATA, inside / name.partition("/")[0])
        return external(location=name)

    return make


def in_a_constant(inside: Path) -> ModelProto:
    del inside
    tensor = external(location="../" + DATA).graph.initializer[0]
    constant = helper.make_node("Constant", [], ["c"], value=tensor)
    return model([constant, *nodes_of("y = MatMul(x, c)")], PLAIN)


def in_a_branch(inside: Path) -> ModelProto:
    del inside
    branches = [f"b () => (float[] o) {{ o = {last} }}" for last in ("MatMul(x, w)", "Relu(x)")]
    proto = model(choice("y", *branches), PLAIN, {"c": np.array(True)})
    body = proto.graph.node[0].attribute[0].g
    body.initializer.extend(external(location="../" + DATA).graph.initializer)
    return proto


def choice(result: str, then: str, other: str) -> str:
    return f"{result} = If<then_branch={then}, else_branch={other}>(c)"


def of(proto: ModelProto | bytes) -> Callable[[Path], ModelProto | bytes]:
    """A file that needs nothing beside it."""
    return lambda inside: proto


def tensor(**changes) -> Callable[[Path], ModelProto]:
    """The sound model with a broken weight."""
    proto = matmul()
    weight = proto.graph.initializer[0]
    for name, value in changes.items():
        if isinstance(value, list):
            weight.ClearField(name)
            getattr(weight, name).extend(value)
        else:
            setattr(weight, name, value)
    return lambda inside: proto


def number(value: float) -> Callable[[Path], ModelProto]:
    """The sound model with one weight that is no number."""
    array = WEIGHT.copy()
    array[1, 2] = value
    return lambda inside: matmul(array)


def doubled_initializer(inside: Path) -> ModelProto:
    del inside
    proto = matmul()
    proto.graph.initializer.append(numpy_helper.from_array(2 * WEIGHT, "w"))
    return proto


def graph(nodes: str, **tensors: np.ndarray) -> Callable[[Path], ModelProto]:
    """A model of these nodes."""
    return lambda inside: model(nodes, PLAIN, tensors)


def conv(**attributes) -> Callable[[Path], ModelProto]:
    """A convolution with these attributes."""
    op = f"y = Conv{listed(attributes)}(x, w)"
    return lambda inside: model(op, ("N", 2, 5, 5), {"w": weights(4, 2, 3, 3)})


def functions(bodies: Mapping[str, Sequence[str]], payload: bytes = b"") -> ModelProto:
    """A call of the function f0; each function calls others, or Relu, one after the other."""
    proto = model("y = f.f0(x)", PLAIN)
    proto.opset_import.append(helper.make_opsetid("f", 1))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    for name, callees in bodies.items():
        called = [callee if callee == "Relu" else f"f.{callee}" for callee in callees]
        steps = nodes_of("  ".join(f"v{i + 1} = {name}(v{i})" for i, name in enumerate(called)))
        if payload:
            constant = helper.make_tensor("", TensorProto.UINT8, [len(payload)], payload, raw=True)
            steps.append(helper.make_node("Constant", [], ["unused"], value=constant))
        result = f"v{len(callees)}"
        proto.functions.append(helper.make_function("f", name, ["v0"], [result], steps, imports))
    return proto


def doubling(depth: int, payload: bytes = b"") -> Callable[[Path], ModelProto]:
    """Functions that each call the next one twice: 2^depth nodes."""
    bodies = {f"f{i}": [f"f{i + 1}"] * 2 for i in range(depth - 1)} | {f"f{depth - 1}": ["Relu"]}
    return lambda inside: functions(bodies, payload)


def choices(depth: int) -> Callable[[Path], ModelProto]:
    """An If whose branches hold an If whose branches …: 2^depth leaves."""
    body = "b () => (float[] o) { o = Relu(x) }"
    for _ in range(depth):
        body = f"b () => (float[] o) {{ {choice('o', body, body)} }}"
    nodes = f"s = ReduceSum<keepdims=0>(x)  c = Cast<to=9>(s)  {choice('y', body, body)}"
    return lambda inside: model(nodes, PLAIN)


def field(number: int, content: bytes) -> bytes:
    """A protobuf field that holds bytes."""
    length = len(content)
    digits = []
    while length > 0x7F:
        digits.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2, *digits, length]) + content


def deep_choice(depth: int) -> bytes:
    """An If in an If in an If …, written by hand because protobuf refuses to."""
    content = b""
    for _ in range(depth):
        content = field(1, field(4, b"If") + field(5, field(1, b"then_branch") + field(6, content)))
    return b"\x08\x08" + field(8, b"\x10\x11") + field(7, content)


def zipped() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.onnx", bytes(1 << 24))
    return stream.getvalue()


def gzipped(size: int) -> bytes:
    """A model with one huge unused initializer of zeros."""
    tail = field(7, field(5, field(9, bytes(size))))
    return gzip.compress(b"\x08\x08" + tail, compresslevel=1)


def versions(ir: int, opset: int) -> ModelProto:
    proto = matmul()
    proto.ir_version = ir
    proto.opset_import[0].version = opset
    return proto


def custom_domain() -> ModelProto:
    proto = model("y = evil.example.Relu(x)", PLAIN)
    proto.opset_import.append(helper.make_opsetid("evil.example", 1))
    return proto


def named(name: str) -> Callable[[Path], ModelProto | bytes]:
    """A model refused because of a node with this name."""
    proto = model("y = Round(x)", PLAIN)
    proto.graph.node[0].name = name
    return of(proto)


HUGE = np.array([1 << 20, 1 << 20])

KINDS = {
    "external-parent": Kind("LC015", reads("../" + DATA)),
    "external-symlink": Kind("LC015", linked(lambda to, at: at.symlink_to(to))),
    "external-symlinked-folder": Kind(
        "LC015", linked(lambda to, at: at.symlink_to(to), f"link/{DATA}")
    ),
    "external-hard-link": Kind("LC015", linked(lambda to, at: at.hardlink_to(to))),
    "external-device": Kind("LC015", reads("/dev/zero")),
    "external-absent": Kind("LC015", reads("absent.bin")),
    "external-too-short": Kind("LC016", reads(DATA, length=16)),
    "external-in-a-constant": Kind("LC015", in_a_constant),
    "external-in-a-branch": Kind("LC015", in_a_branch),
    "tensor-huge-and-empty": Kind("LC016", tensor(dims=[1 << 40], raw_data=b"")),
    "tensor-large-product": Kind("LC002", tensor(dims=[1 << 27, 1 << 27], raw_data=b"")),
    "tensor-nan": Kind("LC014", number(np.nan)),
    "tensor-infinite": Kind("LC014", number(-np.inf)),
    "tensor-doubled-name": Kind("LC016", doubled_initializer),
    "graph-missing-input": Kind("LC001", graph("y = Add(x, ghost)")),
    "graph-doubled-value": Kind("LC001", graph("y = Relu(x)  y = Abs(x)")),
    "graph-many-outputs-of-a-node": Kind(
        "LC001", graph(f"y, {', '.join(f'o{i}' for i in range(200_000))}, y = Split(x)")
    ),
    "function-bomb-2^31": Kind("LC002", doubling(32)),
    "function-byte-bomb": Kind("LC002", doubling(13, bytes(1 << 20))),
    "function-chain": Kind(
        "LC001", of(functions({f"f{i}": [f"f{i + 1}"] for i in range(500)} | {"f500": ["Relu"]}))
    ),
    "domain-custom": Kind("LC003", of(custom_domain())),
    "opset-9999": Kind("LC003", of(versions(8, 9999))),
    "conv-group-0": Kind("LC0", conv(group=0)),
    "conv-stride-0": Kind("LC0", conv(strides=[0, 0])),
    "conv-stride-negative": Kind("LC0", conv(strides=[-1, -1])),
    "conv-dilation-0": Kind("LC0", conv(dilations=[0, 0])),
    "conv-pads-2^20": Kind("LC002", conv(pads=[1 << 20] * 4)),
    "expand-2^40": Kind("LC0", graph("y = Expand(x, s)", s=np.array([1 << 38, 1]))),
    "constant-expand-2^40": Kind(
        "LC016",
        graph("c = Expand(w, s)  y = Add(x, c)", w=np.ones((1, 1), np.float32), s=HUGE),
    ),
    "constant-of-shape-2^40": Kind("LC016", graph("c = ConstantOfShape(s)  y = Add(x, c)", s=HUGE)),
    "layer-norm-negative-epsilon": Kind(
        "LC016", graph("y = LayerNormalization<epsilon=-1.0>(x, w)", w=weights(4))
    ),
    "if-2^10": Kind("LC007", choices(10)),
    "if-8192-deep": Kind("LC001", of(deep_choice(8192))),
    "file-zip-bomb": Kind("LC001", of(zipped())),
    "file-gzip-bomb": Kind("LC002", lambda inside: gzipped(80 << 20)),
    "name-markup": Kind("LC005", named("[/]")),
    "name-escape": Kind("LC005", named("\x1b[31mred\x1b]0;title\x07")),
    "name-newline": Kind("LC005", named("a\n::error::b\r\u2028c")),
    "name-direction": Kind("LC005", named("a\u202egnp.exe")),
}
