"""What the structural digest does not see, and what it must."""

import random

import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from lipcert.core.digest import structural_digest
from tests.core.lower.cases import read
from tests.core.models import SHIPPED, saved_outside

MODELS = pytest.mark.parametrize("path", SHIPPED[::3], ids=lambda path: path.stem)


def digest(proto, folder) -> str:
    return structural_digest(read(proto, folder))


def replaced(field, items) -> None:
    items = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(items)


def shuffle(m, rng):
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


def texts(m, rng):
    """Other symbols, spellings and texts for people, and a value that nothing is."""
    for item in (*m.graph.input, *m.graph.output):
        for dim in item.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = f"symbol_{dim.dim_param}"
    m.graph.value_info.append(helper.make_tensor_value_info("nowhere", 1, [3]))
    m.producer_name, m.producer_version, m.doc_string = "other", "9", "text"
    m.graph.name = m.graph.doc_string = "text"
    helper.set_model_props(m, {"a": "b"})
    m.opset_import[0].domain = "ai.onnx"
    for node in m.graph.node:
        node.domain = node.domain or "ai.onnx"
        node.input.append("")
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


@MODELS
@pytest.mark.parametrize("change", [shuffle, rename, texts, one_by_one])
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


GATED = """
<ir_version: 10, opset_import: ["": 21]>
gated (float[N,2] x) => (float[N,2] y)
<float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 0, 0}, float[3,2] v = {1, 2, 3, 4, 5, 7}>
{
    h = Gemm <alpha = 1.0, transB = 0> (x, w, b)
    a = Relu (h)
    s = Sigmoid (h)
    p = Mul (a, s)
    y = MatMul (p, v)
}"""
CHANGES = (
    ("alpha = 1.0", "alpha = 1.00000095367431640625"),
    ("alpha = 1.0", "alpha = 1"),
    ("alpha = 1.0", "alpha = [1.0]"),
    ("alpha = 1.0, ", ""),
    ("(a, s)", "(s, a)"),
    ("= Sigmoid", "= Tanh"),
    ("alpha = 1.0", "beta = 1.0"),
    ("float[2,3]", "float[3,2]"),
    ("5, 6}", "5, 6.00000047}"),
    ("v = {1", "v = {1.00000012"),
    ("b = {1, 0, 0}", "b = {1, -0.0, 0}"),
    ("float[3] b = {1,", "int32[3] b = {1065353216,"),
    ("y)\n", "y, float p)\n"),
    ("(float[N,2] y)", "(float p, float[N,2] y)"),
    ("v)\n", "v)\n    unused = Neg (y)\n"),
    ("7}>", "7}, float[1] unused = {1}>"),
    (" x)", " x, float[2,3] w)"),
    (" x)", " x, float[2,3] z)"),
    ("(float[N,2] x)", "(float[2,3] z, float[N,2] x)"),
    ("float[N,2] x", "float[1,2] x"),
    ("float[N,2] x", "float x"),
    ("float[N,2] x", "float[] x"),
    ("float[N,2] x", "float16[N,2] x"),
    ('"": 21', '"": 20'),
    ('"": 21', '"": 21, "com.microsoft": 1'),
    ("= Relu", "= com.microsoft.Relu"),
    ("a = Relu", "no, a = Relu"),
    ("a = Relu", '"", a = Relu'),
    ("a = Relu", 'a, "" = Relu'),
)


def written(text: str, folder) -> str:
    return digest(onnx.parser.parse_model(text), folder)


def test_every_change_gives_a_digest_of_its_own(tmp_path):
    """Of one attribute, operand, number, name of an operator, input, output or what is unused."""
    texts = {GATED, *(GATED.replace(before, after) for before, after in CHANGES)}
    digests = {written(text, tmp_path) for text in texts}
    assert len(digests) == len(texts) == len(CHANGES) + 1


def test_a_shared_weight_is_not_two_equal_ones(tmp_path):
    """Of equal weights u and w, one is read by both layers; or each by one, in either order."""
    spare = "<float[2,3] u = {1, 2, 3, 4, 5, 6}, float[2,3] w"
    text = GATED.replace("<float[2,3] w", spare).replace("Relu (h)", "MatMul (x, OTHER)")
    others = [text.replace("OTHER", "w"), text.replace("OTHER", "u")]
    others.append(others[0].replace("(x, w, b)", "(x, u, b)"))
    shared, separate, swapped = (written(other, tmp_path) for other in others)
    assert shared != separate == swapped
