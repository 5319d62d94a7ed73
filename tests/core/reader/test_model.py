import ast
import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, TensorProto, helper, numpy_helper

import lipcert.core
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from lipcert.core.reader.model import read_model
from lipcert.core.reader.records import Attribute, Input, ModelReadError, Node
from tests.core.lower.cases import read
from tests.core.models import SHIPPED, gated

node = helper.make_node


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_models_are_read_as_onnx_reads_them(path):
    model, proto = read_model(path), onnx.load(path)
    assert model.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert model.size == path.stat().st_size
    assert model.opset == {item.domain: item.version for item in proto.opset_import}
    assert model.outputs == tuple(item.name for item in proto.graph.output)
    for found, expected in zip(model.nodes, proto.graph.node, strict=True):
        assert found.name == expected.name
        assert found.op_type == expected.op_type
        assert list(found.inputs) == list(expected.input)
        assert list(found.outputs) == list(expected.output)
        for item in expected.attribute:
            attribute, value = found.attributes[item.name], helper.get_attribute_value(item)
            assert attribute.kind == AttributeProto.AttributeType.Name(item.type)
            if attribute.kind == "TENSOR":
                assert np.array_equal(attribute.value.values(), numpy_helper.to_array(value))
            else:
                assert attribute.value == (tuple(value) if isinstance(value, list) else value)
    assert len(model.initializers) == len(proto.graph.initializer)
    for tensor in proto.graph.initializer:
        assert np.array_equal(
            model.initializers[tensor.name].values(), numpy_helper.to_array(tensor)
        )


def test_the_record(tmp_path):
    proto = gated()
    proto.graph.node[1].attribute.append(helper.make_attribute("s", "text"))
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [8, 16]))
    proto.graph.input.append(onnx.ValueInfoProto(name="z"))
    proto.graph.input[2].type.tensor_type.elem_type = TensorProto.INT64
    proto.opset_import.append(helper.make_opsetid("ai.onnx", 21))  # the same domain and version
    model = read(proto, tmp_path)
    assert model.inputs == (Input("x", "float32", ("N", 8)), Input("z", "int64", None))
    assert model.overridable == ("w",)
    assert model.opset == {"": 21}
    attributes = {"s": Attribute("STRING", b"text")}
    assert model.nodes[1] == Node("relu", "Relu", "", ("h",), ("a",), attributes)
    assert model.nodes[0].attributes == {
        "alpha": Attribute("FLOAT", 1.0),
        "transB": Attribute("INT", 0),
    }


def test_what_the_exporter_noted(tmp_path):
    proto = gated()
    proto.producer_name, proto.producer_version = "pytorch", "2.13"
    proto.graph.metadata_props.add(key="signature", value="of the graph")
    proto.graph.node[1].metadata_props.add(key="call", value="relu")
    proto.graph.value_info.add(name="h").metadata_props.add(key="from", value="w")
    model = read(proto, tmp_path)
    assert model.producer == "pytorch 2.13"
    assert model.metadata == {"signature": "of the graph"}
    assert [node.metadata for node in model.nodes] == [{}, {"call": "relu"}, {}, {}, {}]
    assert model.value_metadata == {"h": {"from": "w"}}


def changed(change):
    proto = gated()
    change(proto)
    return proto


def subgraph(m):
    m.graph.node[1].attribute.append(helper.make_attribute("then_branch", m.graph))


def cycle(m):
    m.graph.node[0].input[0] = "p"


def unsorted(m):
    nodes = list(m.graph.node)[::-1]
    del m.graph.node[:]
    m.graph.node.extend(nodes)


def twice_valued(m):
    m.graph.node[0].attribute[0].i = 3


def function(m, domain=""):
    m.functions.append(
        helper.make_function(domain, "Gelu", ["a"], ["b"], [node("Relu", ["a"], ["b"])], [])
    )


def sparse(m):
    values = helper.make_tensor("v2", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    m.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))


REFUSED = {
    "cycle": cycle,
    "unsorted": unsorted,
    "no outputs": lambda m: m.graph.node.add(op_type="Relu", input=["h"]),
    "two values": twice_valued,
    "standard function": function,
    "function of the domain of an operator": lambda m: function(m, "com.microsoft"),
    "function of a standard domain": lambda m: function(m, "ai.onnx.ml"),
    "sparse": sparse,
    "training": lambda m: m.training_info.add(),
    "reference": lambda m: setattr(m.graph.node[0].attribute[0], "ref_attr_name", "a"),
    "no kind": lambda m: m.graph.node[0].attribute[0].ClearField("type"),
    "tensors": lambda m: setattr(m.graph.node[0].attribute[0], "type", AttributeProto.TENSORS),
    "attribute twice": lambda m: m.graph.node[0].attribute.append(m.graph.node[0].attribute[0]),
    "overload": lambda m: setattr(m.graph.node[0], "overload", "o"),
    "bad tensor": lambda m: m.graph.node[0].attribute.append(
        helper.make_attribute("t", TensorProto(data_type=1, dims=[3]))
    ),
    "dangling": lambda m: m.graph.node[0].input.append("nothing"),
    "no output": lambda m: m.graph.output.add(name="nothing"),
    "nameless output": lambda m: m.graph.output.add(name=""),
    "output twice": lambda m: m.graph.output.append(m.graph.output[0]),
    "node twice": lambda m: m.graph.node.append(m.graph.node[0]),
    "input recomputed": lambda m: m.graph.node.append(node("Relu", ["h"], ["x"])),
    "weight recomputed": lambda m: m.graph.node.append(node("Relu", ["h"], ["w"])),
    "same output twice": lambda m: m.graph.node.append(node("Split", ["h"], ["q", "q"])),
    "initializer twice": lambda m: m.graph.initializer.append(m.graph.initializer[0]),
    "nameless": lambda m: m.graph.initializer[0].ClearField("name"),
    "input twice": lambda m: m.graph.input.append(m.graph.input[0]),
    "negative input": lambda m: setattr(
        m.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", -1
    ),
    "giant input": lambda m: setattr(
        m.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 1 << 62
    ),
    "opset 0": lambda m: setattr(m.opset_import[0], "version", 0),
    "two opsets": lambda m: m.opset_import.append(helper.make_opsetid("ai.onnx", 20)),
    "ir 999": lambda m: setattr(m, "ir_version", 999),
    "ir 0": lambda m: setattr(m, "ir_version", 0),
    "no graph": lambda m: m.ClearField("graph"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(tmp_path, kind):
    with pytest.raises(ModelReadError) as caught:
        read(changed(REFUSED[kind]), tmp_path)
    assert str(caught.value).isprintable()


def text(m):
    m.graph.initializer[0].CopyFrom(
        helper.make_tensor(m.graph.initializer[0].name, TensorProto.STRING, [1], [b"a"])
    )


NOT_FOLLOWED = {
    "subgraph": subgraph,
    "text": text,
    "text input": lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 8),
    "sequence input": lambda m: m.graph.input[0].CopyFrom(
        helper.make_tensor_sequence_value_info("x", 1, None)
    ),
}


@pytest.mark.parametrize("kind", NOT_FOLLOWED)
def test_read_but_refused_where_the_output_depends_on_it(tmp_path, kind):
    model = read(changed(NOT_FOLLOWED[kind]), tmp_path)
    with pytest.raises(Unsupported) as caught:
        lower(model, *model.outputs)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("length", [3, 300])
@pytest.mark.parametrize(
    "rename",
    [
        lambda m, name: setattr(m.graph.node[2], "name", name),
        lambda m, name: setattr(m.graph.node[2], "op_type", name),
        lambda m, name: setattr(m.graph.node[0].attribute[0], "name", name),
        lambda m, name: setattr(m.graph.output[0], "name", name),
        lambda m, name: m.graph.initializer[0].external_data.add(key="location", value=name),
    ],
)
def test_names_that_are_not_text(tmp_path, rename, length):
    """Protobuf gives bytes for them, with which nothing here may compute."""
    proto = gated()
    rename(proto, "#" * length)
    content = proto.SerializeToString().replace(b"#" * length, b"\xff" * length)
    with pytest.raises(ModelReadError, match="UTF-8"):
        read(content, tmp_path)


UNKNOWN = b"\xf2\x7f\x05evil!"  # field 2046


@pytest.mark.parametrize(
    "place",
    [
        lambda m: m.graph,
        lambda m: m.graph.node[2],
        lambda m: m.graph.node[0].attribute[0],
        lambda m: m.graph.initializer[0],
        lambda m: m.graph.input[0],
        lambda m: m.graph.input[0].type,
        lambda m: m.graph.input[0].type.tensor_type,
        lambda m: m.graph.input[0].type.tensor_type.shape,
        lambda m: m.graph.input[0].type.tensor_type.shape.dim[1],
    ],
)
def test_fields_that_nobody_knows(tmp_path, place):
    proto = gated()
    place(proto).MergeFromString(UNKNOWN)
    with pytest.raises(ModelReadError, match="2046"):
        read(proto, tmp_path)


def test_bytes_that_are_not_one_model(tmp_path):
    sound = gated().SerializeToString()
    extra = onnx.ModelProto()
    extra.graph.node.append(node("Neg", ["y"], ["z"]))
    for content in (
        b"",
        b"garbage",
        bytes(64),
        bytes(range(256)),
        sound * 2,
        sound + UNKNOWN,
        sound + extra.SerializeToString(),
        b"\x3a" + b"\xff" * 9 + b"\x7f",
        b"\x0b" * 100_000,
    ):
        with pytest.raises(ModelReadError):
            read(content, tmp_path)
    for end in range(len(sound)):
        with pytest.raises((ModelReadError, Unsupported)):  # of one without its operator set
            lower(read(sound[:end], tmp_path), "y")


@pytest.mark.parametrize("depth", [10, 200, 50_000])
def test_subgraphs_inside_one_another(tmp_path, depth):
    parts = [b""]
    size = 0
    for _ in range(depth):
        for key in (b"\x32", b"\x2a", b"\x0a"):  # graph of an attribute of a node
            parts.append(key + _varint(size))
            size += len(parts[-1])
    graph = b"".join(reversed(parts))
    content = b"\x08\x0a\x3a" + _varint(len(graph)) + graph
    with pytest.raises(ModelReadError):
        read(content, tmp_path)


def _varint(number):
    groups = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


@given(st.data())
def test_changed_bytes_never_break_the_reader(tmp_path, data):
    content = bytearray(gated().SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(bytes(content), tmp_path)
    except ModelReadError as complaint:
        text = str(complaint)
    else:
        return
    assert text.isprintable()


def test_only_message_classes_of_onnx_are_used():
    for path in Path(lipcert.core.__file__).parent.rglob("*.py"):
        for item in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(item, ast.ImportFrom) and (item.module or "").startswith("onnx"):
                assert item.module == "onnx.onnx_ml_pb2"
            if isinstance(item, ast.Import):
                assert not any(alias.name.startswith("onnx") for alias in item.names)
