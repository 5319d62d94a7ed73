"""Quantised numbers of a file, beside onnxruntime: with scales for all, for an axis, for blocks."""

from fractions import Fraction

import numpy as np
import pytest
from onnx import helper, numpy_helper

from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Dense
from lipcert.errors import UnsupportedModelError
from lipcert.importer.load import load_model
from tests.core.lower.cases import agrees, listed, program
from tests.importer.models import model, saved

SHAPE = (4, 6)
KINDS = {
    # name: (type, shape of the scales, attributes, whether there is a zero point, operator set)
    "one scale": ("int8", (), {}, True, 21),
    "one scale in a vector": ("int8", (1,), {}, True, 13),
    "no zero point": ("uint8", (), {}, False, 10),
    "columns": ("uint8", (6,), {"axis": 1}, True, 21),
    "rows": ("int8", (4,), {"axis": 0}, True, 13),
    "columns from behind": ("int8", (6,), {"axis": -1}, False, 19),
    "blocks of rows": ("uint8", (2, 6), {"axis": 0, "block_size": 2}, True, 21),
    "uneven blocks of columns": ("int8", (4, 2), {"axis": 1, "block_size": 4}, True, 21),
    "long": ("int32", (), {}, False, 21),
    "short": ("int16", (6,), {"axis": 1}, True, 21),
}


def quantised(kind, seed=0):
    dtype, scales, attributes, has_zero, opset = KINDS[kind]
    rng, limits = np.random.default_rng(seed), np.iinfo(dtype)

    def whole(shape):
        return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)

    scale = 10.0 ** rng.uniform(-3, 0, scales) / 256.0 ** (np.dtype(dtype).itemsize - 1)
    tensors = {"q": whole(SHAPE), "s": scale.astype(np.float32), "b": np.ones(6, np.float32)}
    names = ["q", "s"]
    if has_zero:
        tensors["z"] = whole(scales)
        names.append("z")
    nodes = f"""w = DequantizeLinear{listed(attributes)}({", ".join(names)})  m = MatMul(x, w)
        y = Add(m, b)"""
    return model(nodes, ("N", 4), tensors, opset), tensors


def spread(scales, attributes):
    """The scale of each entry, place by place."""
    if scales.size == 1:
        return np.broadcast_to(scales.reshape(()), SHAPE)
    found = np.empty(SHAPE, scales.dtype)
    axis, block = attributes["axis"] % 2, attributes.get("block_size", 0)
    for place in np.ndindex(SHAPE):
        at = list(place)
        at[axis] //= block or 1
        found[place] = scales[tuple(at)] if block else scales[place[axis]]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_constant_holds_the_exact_numbers(kind):
    proto, tensors = quantised(kind)
    found = agrees(proto, tolerance=1e-3)
    weight = next(step.op.weight for step in found.steps if isinstance(step.op, Dense))
    attributes = KINDS[kind][2]
    scale = spread(tensors["s"], attributes)
    zero = spread(tensors["z"], attributes) if "z" in tensors else np.zeros(SHAPE, np.int8)
    for place in np.ndindex(SHAPE):
        exact = (int(tensors["q"][place]) - int(zero[place])) * Fraction(float(scale[place]))
        low, high = weight.lo.T[place], weight.hi.T[place]
        assert Fraction(low) <= exact <= Fraction(high)
        assert high - low <= 4 * np.spacing(abs(high))
    assert not weight.sources
    assert "s" in found.untracked


@pytest.mark.parametrize("kind", ["one scale", "columns"])
def test_they_are_not_trained_and_that_is_said(kind, tmp_path):
    imported = load_model(saved(quantised(kind)[0], tmp_path), trusted=True)
    assert list(imported.graph.parameters) == ["b"]
    (note,) = [item for item in imported.diagnostics if item.code == "LC027"]
    assert "'q'" in note.message
    assert "quantised" in note.message


def of_data():
    proto, _ = quantised("one scale")
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["u"])
    proto.graph.node.insert(0, node)
    proto.graph.node[1].input[0] = "u"
    proto.graph.node[2].input[0] = "w"
    proto.graph.node[2].input[1] = "v"
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(4, 6, dtype=np.float32), "v"))
    return proto


def test_quantised_data_are_refused(tmp_path):
    with pytest.raises(UnsupportedModelError) as refused:
        load_model(saved(of_data(), tmp_path), trusted=True)
    assert {item.code for item in refused.value.refusals} == {"LC005"}


def test_one_zero_point_may_have_an_axis_that_the_scale_lacks():
    proto, _ = quantised("one scale")
    zero = next(item for item in proto.graph.initializer if item.name == "z")
    zero.dims.append(1)
    agrees(proto, tolerance=1e-3)


@pytest.mark.parametrize("shape", [(5,), (1, 6), (2, 2)])
def test_scales_that_do_not_fit_are_refused(shape):
    proto, _ = quantised("columns")
    for item in proto.graph.initializer:
        if item.name in "sz":
            dtype = np.float32 if item.name == "s" else np.uint8
            item.CopyFrom(numpy_helper.from_array(np.ones(shape, dtype), item.name))
    with pytest.raises(Unsupported):
        program(proto)
