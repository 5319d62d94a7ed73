"""Files that nobody should trust: one reason each, never another exception, nothing else read."""

from __future__ import annotations

import contextlib
import gzip
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from lipcert.core.reader import files
from lipcert.errors import ModelFileError, UnsupportedModelError, UsageError
from lipcert.importer.load import load_model
from tests.importer.models import model, saved, weights

node = helper.make_node


def sound():
    return model([node("MatMul", ["x", "w"], ["y"])], ("N", 4), {"w": weights(4, 3)})


def refused(tmp_path, content, code):
    path = tmp_path / "model.onnx"
    path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    with pytest.raises((ModelFileError, UnsupportedModelError)) as caught:
        load_model(path)
    assert code in str(caught.value)
    assert "\n" not in str(caught.value)


def test_absent_file_and_folder(tmp_path):
    for path in (tmp_path / "absent.onnx", tmp_path, tmp_path / "\x00"):
        with pytest.raises(ModelFileError, match="LC001"):
            load_model(path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x00" * 64, b"{}", bytes(range(256))])
def test_no_model_at_all(tmp_path, content):
    refused(tmp_path, content, "LC001")


def test_truncated_at_every_place(tmp_path):
    content = sound().SerializeToString()
    for end in range(0, len(content), 3):
        path = tmp_path / "cut.onnx"
        path.write_bytes(content[:end])
        with pytest.raises((ModelFileError, UnsupportedModelError)):
            load_model(path, trusted=True)


def test_gzip(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx.gz"
    path.write_bytes(gzip.compress(sound().SerializeToString()))
    assert load_model(path).graph.output_shape == (3,)
    path.write_bytes(gzip.compress(sound().SerializeToString()) + b"tail")
    with pytest.raises(ModelFileError, match="LC001"):
        load_model(path)
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    path.write_bytes(gzip.compress(b"\x00" * 10_000))
    with pytest.raises(ModelFileError, match="LC002"):
        load_model(path)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none(tmp_path, number):
    array = weights(4, 3)
    array[1, 2] = number
    refused(tmp_path, model([node("MatMul", ["x", "w"], ["y"])], ("N", 4), {"w": array}), "LC014")


def bomb(depth):
    """Nested functions of two calls each: 2^depth nodes."""
    proto = model([node("f0", ["x"], ["y"], domain="f")], ("N", 4))
    proto.opset_import.append(helper.make_opsetid("f", 1))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    for level in range(depth):
        inner = f"f{level + 1}" if level + 1 < depth else "Relu"
        domain = "f" if level + 1 < depth else ""
        body = [node(inner, ["a"], ["b"], domain=domain), node(inner, ["b"], ["c"], domain=domain)]
        proto.functions.append(helper.make_function("f", f"f{level}", ["a"], ["c"], body, imports))
    return proto


def test_function_bomb(tmp_path):
    start = time.perf_counter()
    refused(tmp_path, bomb(31), "LC002")
    assert time.perf_counter() - start < 5.0
    assert len(load_model(saved(bomb(3), tmp_path)).graph.nodes) == 8


@pytest.mark.parametrize(
    ("kind", "domain", "code"),
    [
        ("Loop", "", "LC004"),
        ("LSTM", "", "LC004"),
        ("ArgMax", "", "LC005"),
        ("Round", "", "LC005"),
        ("QuantizeLinear", "", "LC005"),
        ("Nonsense", "", "LC003"),
        ("Relu", "my.domain", "LC003"),
        ("SoftmaxCrossEntropyLoss", "", "LC011"),
        ("RandomNormalLike", "", "LC003"),
        ("Attention", "com.microsoft", "LC003"),
    ],
)
def test_operators_outside(tmp_path, kind, domain, code):
    proto = model([node(kind, ["x"], ["y"], domain=domain)], ("N", 4))
    if domain:
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    refused(tmp_path, proto, code)


def test_names_that_are_no_text(tmp_path):
    content = sound().SerializeToString()
    for name in (b"MatMul", b"\x01x", b"\x01w", b"\x01y"):
        place = content.index(name) + len(name) - 1
        broken = content[:place] + b"\xff" + content[place + 1 :]
        refused(tmp_path, broken, "LC001")


def test_all_offenders_are_named_at_once(tmp_path):
    nodes = [
        node("Round", ["x"], ["a"], name="first"),
        node("Relu", ["a"], ["b"]),
        node("Nonsense", ["b"], ["y"], name="second"),
    ]
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(saved(model(nodes, ("N", 4)), tmp_path))
    assert [refusal.node for refusal in caught.value.refusals] == ["first", "second"]


def test_versions(tmp_path):
    refused(tmp_path, model([node("Relu", ["x"], ["y"])], ("N", 4), opset=9999), "LC003")
    for version in (0, 999):
        proto = sound()
        proto.ir_version = version
        refused(tmp_path, proto, "LC001")


def test_inputs_and_outputs(tmp_path):
    two = model([node("Add", ["x", "z"], ["y"])], ("N", 4))
    two.graph.input.append(helper.make_tensor_value_info("z", 1, [3, 4]))
    refused(tmp_path, two, "LC010")
    refused(tmp_path, model([node("Relu", ["x"], ["y"])], ("N", 4), dtype=7), "LC006")
    refused(tmp_path, model([node("Cast", ["x"], ["y"], to=7)], ("N", 4)), "LC005")
    both = model(
        [node("Relu", ["x"], ["y"]), node("Abs", ["x"], ["z"])], ("N", 4), outputs=["y", "z"]
    )
    refused(tmp_path, both, "LC012")
    assert load_model(saved(both, tmp_path), output="z").graph.output_name == "z"
    for trusted in (False, True):
        with pytest.raises(UsageError, match="no output 'absent'; known: 'y', 'z'"):
            load_model(saved(both, tmp_path), output="absent", trusted=trusted)
    deep = model(
        [node("Relu", ["x"], ["y"]), node("Abs", ["y"], ["z"])], ("N", 4), outputs=["y", "z"]
    )
    chosen = load_model(saved(deep, tmp_path))
    assert chosen.graph.output_name == "z"
    assert [item.code for item in chosen.diagnostics] == ["LC012"]
    constant = model([node("Shape", ["x"], ["s"]), node("Cast", ["s"], ["y"], to=1)], ("N", 4))
    refused(tmp_path, constant, "LC008")


@pytest.mark.parametrize(
    "attributes",
    [
        {"group": 0},
        {"group": 3},
        {"strides": [0, 1]},
        {"strides": [1]},
        {"pads": [-1, 0, 0, 0]},
        {"pads": [2**40, 0, 0, 0]},
        {"dilations": [0, 0]},
        {"kernel_shape": [5, 5]},
        {"auto_pad": "MAYBE"},
        {"pads": [1]},
    ],
)
def test_nonsense_attributes(tmp_path, attributes):
    op = node("Conv", ["x", "w"], ["y"], **attributes)
    refused(tmp_path, model([op], ("N", 2, 5, 5), {"w": weights(4, 2, 3, 3)}), "LC0")


@given(position=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.integers(0, 3))
def test_flipped_bytes_never_crash(tmp_path, position, byte, cut):
    nodes = [
        node("Conv", ["x", "k"], ["h"], pads=[1, 1, 1, 1]),
        node("Relu", ["h"], ["r"]),
        node("Flatten", ["r"], ["f"]),
        node("Gemm", ["f", "w"], ["y"], transB=1),
    ]
    tensors = {"k": weights(2, 1, 3, 3), "w": weights(3, 18)}
    content = bytearray(model(nodes, ("N", 1, 3, 3), tensors).SerializeToString())
    place = position % len(content)
    content[place : place + cut] = bytes([byte])
    path = tmp_path / "flipped.onnx"
    path.write_bytes(bytes(content))
    with contextlib.suppress(ModelFileError, UnsupportedModelError):
        load_model(path, trusted=True)
