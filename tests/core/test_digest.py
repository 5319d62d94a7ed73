"""What the structural digest does not see, and what it must."""

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from lipcert.core.digest import structural_digest
from tests.core.models import SHIPPED, gated, read, saved_outside

MODELS = pytest.mark.parametrize("path", SHIPPED[::3], ids=lambda path: path.stem)


def digest(proto, folder) -> str:
    return structural_digest(read(proto, folder))


def replaced(field, items) -> None:
    items = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(items)


def another_order(nodes, rng):
    """Nodes in an order of computation, drawn at random."""
    missing = {name for item in nodes for name in item.output}
    left, found = list(nodes), []
    while left:
        ready = [place for place, item in enumerate(left) if missing.isdisjoint(item.input)]
        found.append(left.pop(rng.choice(ready)))
        missing.difference_update(found[-1].output)
    return found


def shuffle(m, rng):
    replaced(m.graph.node, another_order(m.graph.node, rng))
    for field in (m.graph.initializer, m.graph.value_info):
        replaced(field, rng.sample(list(field), len(field)))
    for node in m.graph.node:
        replaced(node.attribute, rng.sample(list(node.attribute), len(node.attribute)))


def rename(m, rng):
    names = {item.name for item in (*m.graph.input, *m.graph.initializer)}
    names |= {name for node in m.graph.node for name in node.output if name}
    fresh = [f"t{index}" for index in rng.sample(range(len(names)), len(names))]
    new = {"": "", **dict(zip(sorted(names), fresh, strict=True))}
    for item in (*m.graph.input, *m.graph.initializer, *m.graph.output):
        item.name = new[item.name]
    for node in m.graph.node:
        node.name = f"n{rng.random()}"
        node.input[:] = [new[name] for name in node.input]
        node.output[:] = [new[name] for name in node.output]
    m.graph.ClearField("value_info")


def rename_symbols(m, rng):
    for item in (*m.graph.input, *m.graph.output):
        for dim in item.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = f"symbol_{dim.dim_param}"


def texts(m, rng):
    m.producer_name, m.producer_version, m.doc_string = "other", "9", "text"
    m.graph.name = m.graph.doc_string = "text"
    helper.set_model_props(m, {"a": "b"})
    for node in m.graph.node:
        node.doc_string = "text"
        node.metadata_props.add(key="a", value="b")


def one_by_one(m, rng):
    for tensor in m.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if tensor.data_type in {TensorProto.FLOAT, TensorProto.INT64} and array.size:
            tensor.ClearField("raw_data")
            name = "float_data" if tensor.data_type == TensorProto.FLOAT else "int64_data"
            tensor.ClearField(name)
            getattr(tensor, name).extend(array.ravel().tolist())


def other_spellings(m, rng):
    m.opset_import[0].domain = "ai.onnx"
    for node in m.graph.node:
        node.domain = node.domain or "ai.onnx"
        node.input.append("")


def unused_value_info(m, rng):
    m.graph.value_info.append(helper.make_tensor_value_info("nowhere", 1, [3]))


@MODELS
@pytest.mark.parametrize(
    "change",
    [shuffle, rename, rename_symbols, texts, one_by_one, other_spellings, unused_value_info],
)
def test_what_does_not_matter(path, change, tmp_path):
    proto = onnx.load(path)
    before = digest(proto, tmp_path)
    change(proto, random.Random(3))
    assert digest(proto, tmp_path) == before


@MODELS
def test_numbers_outside_the_file(path, tmp_path):
    proto = onnx.load(path)
    inside = read(proto, tmp_path)
    outside = saved_outside(proto, tmp_path)
    assert outside.external
    assert outside.sha256 != inside.sha256
    assert structural_digest(outside) == structural_digest(inside)


@MODELS
def test_everything_at_once_many_times(path, tmp_path):
    proto = onnx.load(path)
    before = digest(proto, tmp_path)
    for seed in range(3):
        for change in (rename, shuffle, texts, one_by_one):
            change(proto, random.Random(seed))
        assert digest(proto, tmp_path) == before


def test_shipped_models_differ(tmp_path):
    digests = {digest(onnx.load(path), tmp_path) for path in SHIPPED}
    assert len(digests) == len(SHIPPED) > 3


@MODELS
def test_one_ulp_of_any_weight(path, tmp_path):
    proto, rng = onnx.load(path), random.Random(1)
    digests = {digest(proto, tmp_path)}
    weights = [
        t for t in proto.graph.initializer if t.data_type == TensorProto.FLOAT and t.raw_data
    ]
    chosen = rng.sample(weights, min(len(weights), 6))
    for tensor in chosen:
        content = bytearray(tensor.raw_data)
        content[4 * rng.randrange(len(content) // 4)] ^= 1
        tensor.raw_data = bytes(content)
        digests.add(digest(proto, tmp_path))
    assert len(digests) == len(chosen) + 1


@pytest.mark.sample(3)
@MODELS
def test_any_operator_attribute_or_operand(path, tmp_path):
    original = onnx.load(path)
    digests = [digest(original, tmp_path)]
    for index in range(min(len(original.graph.node), 13)):
        for change in (_operator, _attribute, _operands):
            proto = onnx.ModelProto.FromString(original.SerializeToString())
            if change(proto.graph.node[index]):
                digests.append(digest(proto, tmp_path))
    assert len(set(digests)) == len(digests)


def _operator(node):
    node.op_type += "X"
    return True


def _attribute(node):
    node.attribute.append(helper.make_attribute("extra", 1))
    return True


def _operands(node):
    names = list(node.input)
    node.input[:] = names[1:] + names[:1]
    return len(set(names)) > 1


def alpha(m):
    m.graph.node[0].attribute[0].f = 1.0 + 2**-20


def kind(m):
    m.graph.node[0].attribute[0].CopyFrom(helper.make_attribute("alpha", 1))


def listed(m):
    m.graph.node[0].attribute[0].CopyFrom(helper.make_attribute("alpha", [1.0]))


def swap(m):
    m.graph.node[3].input[:] = ["s", "a"]


def transposed(m):
    m.graph.initializer[0].dims[:] = [16, 8]


def minus_zero(m):
    bias = numpy_helper.to_array(m.graph.initializer[1]).copy()
    bias[0] = -0.0
    m.graph.initializer[1].raw_data = bias.tobytes()


def plus_zero(m):
    minus_zero(m)
    m.graph.initializer[1].raw_data = m.graph.initializer[1].raw_data.replace(b"\x80", b"\x00", 1)


def bits_as_integers(m):
    m.graph.initializer[1].data_type = TensorProto.INT32


def output(m):
    m.graph.output.append(helper.make_tensor_value_info("p", 1, None))


def output_first(m):
    output(m)
    replaced(m.graph.output, list(m.graph.output)[::-1])


def dead_node(m):
    m.graph.node.append(helper.make_node("Neg", ["y"], ["unused"]))


def dead_weight(m):
    m.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "unused"))


def default(m):
    del m.graph.node[0].attribute[0]


def overridable(m):
    m.graph.input.append(helper.make_tensor_value_info("w", 1, [8, 16]))


def second_input(m):
    m.graph.input.append(helper.make_tensor_value_info("z", 1, [8, 16]))


def second_input_first(m):
    second_input(m)
    replaced(m.graph.input, list(m.graph.input)[::-1])


def fixed_batch(m):
    m.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


def no_shape(m):
    m.graph.input[0].type.tensor_type.ClearField("shape")


def scalar(m):
    del m.graph.input[0].type.tensor_type.shape.dim[:]


def half(m):
    m.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16


def opset(m):
    m.opset_import[0].version = 20


def another_opset(m):
    m.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def domain(m):
    m.graph.node[1].domain = "com.microsoft"


def second_port(m):
    m.graph.node[1].output[:] = ["", "a"]


def test_every_change_gives_a_digest_of_its_own(tmp_path):
    changes = [alpha, kind, listed, swap, transposed, minus_zero, plus_zero, bits_as_integers]
    changes += [output, output_first, dead_node, dead_weight, default, overridable, second_input]
    changes += [second_input_first, fixed_batch, no_shape, scalar, half, opset, another_opset]
    changes += [domain, second_port]
    digests = {"": digest(gated(), tmp_path)}
    for change in changes:
        proto = gated()
        change(proto)
        digests[change.__name__] = digest(proto, tmp_path)
    assert len(set(digests.values())) == len(changes) + 1, digests


def branches(first: str, second: str, copies: int):
    """MatMul of x with `first` plus MatMul of x with `second`, then the same again."""
    weight = np.ones((4, 4), np.float32)
    tensors = [numpy_helper.from_array(weight, f"w{index}") for index in range(copies)]
    nodes = [
        helper.make_node("MatMul", ["x", first], ["a"]),
        helper.make_node("MatMul", ["x", second], ["b"]),
        helper.make_node("Relu", ["a"], ["c"]),
        helper.make_node("Sigmoid", ["b"], ["d"]),
        helper.make_node("Add", ["c", "d"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", 1, ["N", 4])]
    outputs = [helper.make_tensor_value_info("y", 1, ["N", 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_a_shared_weight_is_not_two_equal_ones(tmp_path):
    shared = digest(branches("w0", "w0", 1), tmp_path)
    separate = digest(branches("w0", "w1", 2), tmp_path)
    with_spare = digest(branches("w0", "w0", 2), tmp_path)
    assert len({shared, separate, with_spare}) == 3
    assert digest(branches("w1", "w0", 2), tmp_path) == separate


@pytest.mark.parametrize("copies", [1, 2])
def test_equal_nodes_in_any_order(tmp_path, copies):
    """Both MatMul compute the same numbers; only their readers tell them apart."""
    proto = branches("w0", f"w{copies - 1}", copies)
    before = digest(proto, tmp_path)
    for seed in range(8):
        shuffle(proto, random.Random(seed))
        rename(proto, random.Random(seed))
        assert digest(proto, tmp_path) == before
