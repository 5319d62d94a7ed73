"""A reading of a file that is not onnxruntime's is found, told where, and never certified."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lipcert.issue.reading import Reading

from lipcert import Settings, load_model
from lipcert.core.lower.lower import lower
from lipcert.core.program import Dense, Move, Operand, Place, Program, Step
from lipcert.core.reader.model import read_model
from lipcert.errors import UnsupportedModelError
from lipcert.issue import certify as certifying
from lipcert.issue.agreement import disagreement, draws
from tests.commands import lipcert
from tests.core.lower.cases import model, node
from tests.core.models import SHIPPED

CNN = next(path for path in SHIPPED if path.name == "digits_cnn.onnx")
RNG = np.random.default_rng(5)


def reading(path: Path) -> Reading:
    found = read_model(path)
    output = found.outputs[-1]
    return Reading(found, lower(found, output), output)


def saved(folder: Path, *parts, **more) -> Path:
    path = folder / "case.onnx"
    path.write_bytes(model(*parts, **more).SerializeToString())
    return path


def misread(program: Program, kind: type, change) -> Program:
    """The program with the first step of a kind changed."""
    at = next(k for k, step in enumerate(program.steps) if isinstance(step.op, kind))
    steps = list(program.steps)
    steps[at] = change(steps[at])
    return replace(program, steps=tuple(steps))


def with_other_weight(step: Step) -> Step:
    weight = step.op.weight.lo * 1.001
    return replace(step, op=replace(step.op, weight=Operand(weight, weight)))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_models_are_read_as_onnxruntime_reads_them(path):
    assert disagreement(reading(path), path, (0.0, 1.0), None) is None


def test_a_wrong_number_is_found_at_its_node():
    right = reading(CNN)
    wrong = replace(right, program=misread(right.program, Dense, with_other_weight))
    found = disagreement(wrong, CNN, (0.0, 1.0), None)
    assert found is not None
    assert found.code == "LC025"
    assert found.op == "Gemm"
    assert found.node
    assert "differs from onnxruntime by" in found.reason
    assert found.remedy


def test_a_wrong_shape_is_found(tmp_path):
    nodes = [node("Transpose", "x", "t", perm=[0, 2, 1]), node("Relu", "t")]
    path = saved(tmp_path, nodes, ["N", 2, 3])
    right = reading(path)
    steps = tuple(
        replace(step, op=Move(np.arange(6).reshape(1, 2, 3))) if isinstance(step.op, Move) else step
        for step in right.program.steps
    )
    wrong = replace(right, program=replace(right.program, steps=steps))
    found = disagreement(wrong, path, (0.0, 1.0), None)
    assert found is not None
    assert "has the shape [1, 3, 2] in onnxruntime, not [1, 2, 3]" in found.reason


def test_examples_in_the_wrong_place_are_found(tmp_path):
    """One example alone would not tell."""
    nodes = [node("Transpose", "x", "t", perm=[1, 0, 2]), node("Relu", "t")]
    path = saved(tmp_path, nodes, ["N", 3, 2])
    right = reading(path)
    assert right.program.place == Place(1)
    assert disagreement(right, path, None, 2.0) is None
    wrong = replace(right, program=replace(right.program, place=Place(0)))
    found = disagreement(wrong, path, None, 2.0)
    assert found is not None
    assert "for 3 examples at once" in found.reason


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_files_of_a_fixed_batch_are_compared_at_their_size(batch, tmp_path):
    path = saved(tmp_path, [node("MatMul", "x w")], [batch, 4], {"w": RNG.standard_normal((4, 3))})
    right = reading(path)
    assert right.program.batch_proved
    assert disagreement(right, path, None, None) is None
    wrong = replace(right, program=misread(right.program, Dense, with_other_weight))
    assert disagreement(wrong, path, None, None) is not None


def test_cancellation_is_no_misreading(tmp_path):
    """What float32 loses where large numbers cancel says nothing of the reading."""
    nodes = [node("Add", "x large", "a"), node("Sub", "a large", "b"), node("Mul", "b many")]
    path = saved(tmp_path, nodes, ["N", 4], {"large": 1e6, "many": 1e6})
    assert disagreement(reading(path), path, (0.0, 1.0), None) is None


def test_a_network_without_numbers_is_not_certified(tmp_path):
    path = saved(tmp_path, [node("Log", "x")], ["N", 4])
    assert disagreement(reading(path), path, (1.0, 2.0), None) is None
    found = disagreement(reading(path), path, (-2.0, -1.0), None)
    assert found is not None
    assert "finite" in found.reason


def test_numbers_beside_the_file_are_read(tmp_path):
    import onnx

    path = tmp_path / "outside.onnx"
    proto = model([node("MatMul", "x w")], ["N", 4], {"w": RNG.standard_normal((4, 3))})
    onnx.save(proto, path, save_as_external_data=True, location="numbers", size_threshold=0)
    assert disagreement(reading(path), path, (0.0, 1.0), None) is None


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    st.none() | st.tuples(st.floats(-3, 3), st.floats(0, 4)).map(lambda p: (p[0], p[0] + p[1])),
    st.none() | st.floats(0.0, 10.0),
)
def test_examples_are_drawn_from_the_declared_domain(shape, box, radius):
    if box is not None and radius is not None:
        least = np.linalg.norm(np.full(shape, np.clip(0.0, *box)))
        radius += float(least)
    drawn = draws(shape, 3, box, radius)
    assert drawn.shape == (3, *shape)
    if box is not None:
        assert (drawn >= box[0] - 1e-9).all()
        assert (drawn <= box[1] + 1e-9).all()
    if radius is not None:
        assert all(np.linalg.norm(item) <= radius * (1 + 1e-9) + 1e-9 for item in drawn)


@pytest.fixture
def wrong_reading(monkeypatch):
    def lowered(read, output):
        return misread(lower(read, output), Dense, with_other_weight)

    monkeypatch.setattr(certifying, "lower", lowered)


@pytest.mark.usefixtures("wrong_reading")
def test_what_is_read_otherwise_is_not_certified():
    with pytest.raises(UnsupportedModelError, match=r"LC025.*Gemm.*onnxruntime"):
        certifying.certify(load_model(CNN), Settings())


@pytest.mark.usefixtures("wrong_reading")
def test_no_certificate_is_written_of_a_wrong_reading(tmp_path):
    target = tmp_path / "wrong.lipcert.json"
    done = lipcert(["certify", str(CNN), "-o", str(target)])
    assert done.exit_code == 3
    assert "LC025" in done.output
    assert not target.exists()
