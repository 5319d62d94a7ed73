"""Files in half precision, or doubles: compared in float32 where onnxruntime lacks them."""

import pytest
from onnx import TensorProto, helper, numpy_helper

from lipcert.errors import ModelFileError, UnsupportedModelError
from lipcert.importer.load import load_model
from tests.importer.models import model, saved, weights

HALVES = [TensorProto.FLOAT16, TensorProto.BFLOAT16]


def narrow(kind, nodes, dtype=None, **tensors):
    """A model of these nodes whose tensors, and whose input, are of a type."""
    proto = model(nodes, ("N", 4), opset=22, dtype=kind if dtype is None else dtype)
    proto.graph.output[0].type.tensor_type.elem_type = proto.graph.input[
        0
    ].type.tensor_type.elem_type
    for name, array in tensors.items():
        stored = numpy_helper.from_array(array, name)
        if kind != TensorProto.FLOAT:
            stored = helper.make_tensor(name, kind, array.shape, array.ravel())
        proto.graph.initializer.append(stored)
    return proto


@pytest.mark.parametrize("kind", HALVES)
def test_a_file_in_half_precision_is_read(kind, tmp_path):
    nodes = "h = Gemm(x, w, b)  y = Relu(h)"
    proto = narrow(kind, nodes, w=weights(4, 3), b=weights(3))
    found = load_model(saved(proto, tmp_path))
    assert {name: item.shape for name, item in found.graph.parameters.items()} == {
        "w": (4, 3),
        "b": (3,),
    }
    assert found.verification.max_difference < (1e-6 if kind == TensorProto.BFLOAT16 else 1e-2)


@pytest.mark.parametrize("kind", HALVES)
def test_casts_on_the_way_are_read(kind, tmp_path):
    """As autocast is exported: float32 scales of values in half precision, which ONNX forbids."""
    nodes = f"""c = Cast<to={kind}>(x)  m = MatMul(c, w)  n = LayerNormalization(m, g)
        y = Cast<to=1>(n)"""
    proto = narrow(kind, nodes, TensorProto.FLOAT, w=weights(4, 3))
    proto.graph.initializer.append(numpy_helper.from_array(weights(3), "g"))
    found = load_model(saved(proto, tmp_path))
    assert [*found.graph.parameters] == ["w", "g"]
    assert found.verification.max_difference < 1e-5


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.DOUBLE, *HALVES])
def test_what_onnxruntime_rejects_in_float32_stays_refused(kind, tmp_path):
    nodes = "h = Gemm(x, w)  y = Gemm(h, w)"
    proto = narrow(kind, nodes, w=weights(4, 3))
    with pytest.raises((ModelFileError, UnsupportedModelError), match="onnxruntime"):
        load_model(saved(proto, tmp_path))


def test_doubles_are_compared_in_float32_where_onnxruntime_has_no_others(tmp_path):
    nodes = """axis = Constant<value_ints=[0]>()  s = Unsqueeze(x, axis)
        , h = RNN<hidden_size=3>(s, w, r)  l = Squeeze(h, axis)  y = Softplus(l)"""
    proto = narrow(TensorProto.DOUBLE, nodes, w=weights(1, 3, 4), r=weights(1, 3, 3))
    assert load_model(saved(proto, tmp_path)).verification.max_difference < 1e-6
