"""Tensors of every type against onnx's own decoder, and those that do not add up."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

from lipcert.core.reader import Folder
from lipcert.core.reader.records import ModelReadError
from lipcert.core.reader.tensors import DTYPES, read_tensor

SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
NUMPY = {name: np.dtype(getattr(ml_dtypes, name, None) or name) for name in DTYPES.values()}
NOWHERE = Folder(None, 0)


def as_checked(array):
    wide = array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16
    return array.astype(np.float64) if wide else array


def same(a, b) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


@given(st.sampled_from(sorted(NUMPY)), SHAPES, st.data())
def test_raw_data_of_every_type(name, shape, data):
    size = int(np.prod(shape))
    item = NUMPY[name].itemsize
    content = data.draw(st.binary(min_size=size * item, max_size=size * item))
    if name == "bool":
        content = bytes(byte & 1 for byte in content)
    proto = TensorProto(
        dims=shape, data_type=helper.np_dtype_to_tensor_dtype(NUMPY[name]), raw_data=content
    )
    tensor = read_tensor(proto, NOWHERE)
    with np.errstate(invalid="ignore"):
        expected = as_checked(numpy_helper.to_array(proto))
        assert np.array_equal(tensor.values(), expected, equal_nan=expected.dtype.kind == "f")
    assert (tensor.dtype, tensor.dims, tensor.content) == (name, shape, content)


@given(st.sampled_from(sorted(NUMPY)), SHAPES, st.data())
def test_numbers_stored_one_by_one(name, shape, data):
    drawn = np.dtype("float32" if name == "bfloat16" else name)
    elements = hnp.from_dtype(drawn, allow_nan=False)
    array = data.draw(hnp.arrays(drawn, shape, elements=elements))
    with np.errstate(over="ignore"):
        array = array.astype(NUMPY[name])
    code = helper.np_dtype_to_tensor_dtype(NUMPY[name])
    flat = array.ravel()
    bits = {"float16": np.uint16, "bfloat16": np.uint16, "bool": np.uint8}
    stored = flat.view(bits.get(name, flat.dtype))
    proto = TensorProto(dims=shape, data_type=code)
    getattr(proto, helper.tensor_dtype_to_field(code)).extend(stored.tolist())
    tensor = read_tensor(proto, NOWHERE)
    assert same(tensor.values(), as_checked(array))
    raw = TensorProto(dims=shape, data_type=code, raw_data=array.tobytes())
    assert read_tensor(raw, NOWHERE) == tensor


def test_what_is_not_a_number_is_kept_and_known():
    for bad in (np.nan, np.inf, -np.inf):
        tensor = read_tensor(numpy_helper.from_array(np.array([1.0, bad])), NOWHERE)
        assert not np.isfinite(tensor.values()).all()


FLOAT, INT8, BOOL = TensorProto.FLOAT, TensorProto.INT8, TensorProto.BOOL
UNREAD = {
    "text": {"data_type": TensorProto.STRING, "dims": [1], "string_data": [b"a"]},
    "complex": {"data_type": TensorProto.COMPLEX64, "dims": [1], "raw_data": bytes(8)},
    "four bits": {"data_type": TensorProto.INT4, "dims": [2], "raw_data": bytes(1)},
}
REFUSED = {
    "type 0": {"data_type": 0},
    "type 999": {"data_type": 999},
    "negative": {"data_type": FLOAT, "dims": [-1]},
    "twice negative": {"data_type": FLOAT, "dims": [-2, -2], "raw_data": bytes(16)},
    "2^40": {"data_type": FLOAT, "dims": [1 << 40]},
    "overflow": {"data_type": FLOAT, "dims": [1 << 28, 1 << 28, 1 << 28]},
    "overflow to 0": {"data_type": FLOAT, "dims": [1 << 27, 1 << 27, 1 << 10]},
    "rank": {"data_type": FLOAT, "dims": [1] * 17, "raw_data": bytes(4)},
    "too short": {"data_type": FLOAT, "dims": [2], "raw_data": bytes(7)},
    "too long": {"data_type": FLOAT, "dims": [2], "raw_data": bytes(9)},
    "empty": {"data_type": FLOAT, "dims": [2]},
    "too few": {"data_type": FLOAT, "dims": [3], "float_data": [1.0]},
    "two places": {"data_type": FLOAT, "dims": [1], "raw_data": bytes(4), "float_data": [1.0]},
    "two fields": {"data_type": FLOAT, "dims": [1], "int32_data": [1], "float_data": [1.0]},
    "wrong field": {"data_type": FLOAT, "dims": [1], "int32_data": [1]},
    "int8 of 128": {"data_type": INT8, "dims": [1], "int32_data": [128]},
    "uint8 of -1": {"data_type": TensorProto.UINT8, "dims": [1], "int32_data": [-1]},
    "uint32 of 2^32": {"data_type": TensorProto.UINT32, "dims": [1], "uint64_data": [1 << 32]},
    "half of 2^16": {"data_type": TensorProto.FLOAT16, "dims": [1], "int32_data": [1 << 16]},
    "bool of 2": {"data_type": BOOL, "dims": [1], "int32_data": [2]},
    "raw bool of 2": {"data_type": BOOL, "dims": [1], "raw_data": b"\x02"},
    "external unmarked": {
        "data_type": FLOAT,
        "dims": [1],
        "external_data": [{"key": "location", "value": "a"}],
    },
    "external without place": {"data_type": FLOAT, "dims": [1], "data_location": 1},
}


@pytest.mark.parametrize("members", UNREAD.values(), ids=UNREAD)
def test_a_tensor_that_is_not_read_is_kept_as_it_is(members):
    proto = TensorProto(name="t", **members)
    kept = read_tensor(proto, NOWHERE)
    assert kept.dtype == "unread"
    assert TensorProto.FromString(bytes(kept.content)) == TensorProto(**members)


@pytest.mark.parametrize("kind", REFUSED)
def test_tensors_that_do_not_add_up(kind):
    with pytest.raises(ModelReadError, match="tensor 'evil"):
        read_tensor(TensorProto(name="evil\x1b[31m", **REFUSED[kind]), NOWHERE)


def test_segments():
    proto = TensorProto(data_type=FLOAT, dims=[1], raw_data=bytes(4))
    proto.segment.begin = 0
    with pytest.raises(ModelReadError, match="segmented"):
        read_tensor(proto, NOWHERE)


def test_bounds_of_the_table():
    known = {TensorProto.DataType.Name(code).lower() for code in DTYPES}
    assert known == {
        name.replace("float32", "float").replace("float64", "double") for name in DTYPES.values()
    }
