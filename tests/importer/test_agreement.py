"""A reading of a file that is not onnxruntime's is found, told where, and not imported."""

from dataclasses import replace

import numpy as np
import pytest

from lipcert import load_model
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from lipcert.core.program import Dense, Move, Operand, Part, Place, Program, Step
from lipcert.errors import UnsupportedModelError
from lipcert.importer import assemble
from lipcert.importer.agreement import check_agreement, draws
from lipcert.importer.bindings import Bound
from lipcert.importer.model import Reading, external_digests, stored_model
from tests.core.lower.cases import model
from tests.core.models import SHIPPED

CNN = next(path for path in SHIPPED if path.name == "digits_cnn.onnx")
RNG = np.random.default_rng(5)


def disagreement(read: Reading, path, box=(0.0, 1.0)):
    """The refusal, or None."""
    try:
        check_agreement(read, None, stored_model(path)[1], path.parent, {"": (None, box)})
    except UnsupportedModelError as error:
        return error.refusals[0]
    return None


def reading(path) -> Reading:
    found, _ = stored_model(path)
    return Reading(found, lower(found, found.outputs[-1]), found.outputs[-1:])


def saved(folder, *parts, **more):
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


def test_a_wrong_number_is_found_at_its_node():
    right = reading(CNN)
    wrong = replace(right, program=misread(right.program, Dense, with_other_weight))
    found = disagreement(wrong, CNN)
    assert found.code == "LC025"
    assert found.op == "Gemm"
    assert found.node
    assert "differs from onnxruntime by" in found.reason
    assert found.remedy


def test_a_wrong_shape_is_found(tmp_path):
    nodes = "t = Transpose<perm=[0, 2, 1]>(x)  y = Relu(t)"
    path = saved(tmp_path, nodes, ["N", 2, 3])
    right = reading(path)
    steps = tuple(
        replace(step, op=Move(np.arange(6).reshape(1, 2, 3))) if isinstance(step.op, Move) else step
        for step in right.program.steps
    )
    wrong = replace(right, program=replace(right.program, steps=steps))
    found = disagreement(wrong, path)
    assert "has the shape [1, 3, 2] in onnxruntime, not [1, 2, 3]" in found.reason


def test_examples_in_the_wrong_place_are_found(tmp_path):
    """One example alone would not tell."""
    nodes = "t = Transpose<perm=[1, 0, 2]>(x)  y = Relu(t)"
    path = saved(tmp_path, nodes, ["N", 3, 2])
    right = reading(path)
    assert right.program.place == Place(1)
    assert disagreement(right, path, (-2.0, 2.0)) is None
    wrong = replace(right, program=replace(right.program, place=Place(0)))
    found = disagreement(wrong, path, (-2.0, 2.0))
    assert "for 3 examples at once" in found.reason


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_files_of_a_fixed_batch_are_compared_at_their_size(batch, tmp_path):
    path = saved(tmp_path, "y = MatMul(x, w)", [batch, 4], {"w": RNG.standard_normal((4, 3))})
    right = reading(path)
    assert right.program.batch_proved
    assert disagreement(right, path, None) is None
    wrong = replace(right, program=misread(right.program, Dense, with_other_weight))
    assert disagreement(wrong, path, None) is not None


def test_cancellation_is_no_misreading(tmp_path):
    """What float32 loses where large numbers cancel says nothing of the reading."""
    nodes = "a = Add(x, large)  b = Sub(a, large)  y = Mul(b, many)"
    path = saved(tmp_path, nodes, ["N", 4], {"large": 1e6, "many": 1e6})
    assert disagreement(reading(path), path) is None


def test_a_network_without_numbers_is_not_certified(tmp_path):
    path = saved(tmp_path, "y = Log(x)", ["N", 4])
    assert disagreement(reading(path), path, (1.0, 2.0)) is None
    found = disagreement(reading(path), path, (-2.0, -1.0))
    assert "finite" in found.reason


def test_numbers_beside_the_file_are_read(tmp_path):
    import onnx

    path = tmp_path / "outside.onnx"
    proto = model("y = MatMul(x, w)", ["N", 4], {"w": RNG.standard_normal((4, 3))})
    onnx.save(proto, path, save_as_external_data=True, location="numbers", size_threshold=0)
    assert disagreement(reading(path), path) is None
    imported = load_model(path)
    assert imported.external == external_digests(reading(path).model)


@pytest.mark.parametrize("box", [None, (0.5, 1.0), (-3.0, 0.0)])
@pytest.mark.parametrize("radius", [None, 1.5])
def test_examples_are_drawn_from_the_declared_domain(box, radius):
    drawn = draws(Part("x", (2, 2)), 3, radius, box).reshape(3, 4)
    low, high = box or (-9.0, 9.0)
    assert low <= drawn.min() < drawn.max() <= high
    assert np.linalg.norm(drawn, axis=1).max() <= (radius or 9.0) * (1.0 + 1e-9)


@pytest.fixture
def wrong_reading(monkeypatch):
    def wrong(model, output):
        return misread(lower(model, output), Dense, with_other_weight)

    monkeypatch.setattr(assemble, "lower", wrong)


@pytest.mark.usefixtures("wrong_reading")
@pytest.mark.parametrize("trusted", [True, False])
def test_what_is_read_otherwise_is_not_imported(trusted):
    with pytest.raises(UnsupportedModelError, match=r"LC025.*Gemm.*onnxruntime"):
        load_model(CNN, trusted=trusted)


def test_a_rewriting_that_differs_in_the_domain_alone_is_refused(tmp_path, monkeypatch):
    """A model of x/2 for min(x, 30)/2 is found out where the domain reaches further."""

    def careless(model, provenance):
        (limit,) = (item for item in model.nodes if item.outputs == ("m",))
        nodes = [
            replace(item, inputs=tuple(limit.inputs[0] if n == "m" else n for n in item.inputs))
            for item in model.nodes
            if item is not limit
        ]
        return Bound(replace(model, nodes=tuple(nodes)))

    monkeypatch.setattr(assemble, "separate_shared", careless)
    nodes = """limit = Constant<value_float=30.0>()  half = Constant<value_float=0.5>()
        m = Min(x, limit)  z = Mul(m, half)  y = MatMul(z, w)"""
    path = saved(tmp_path, nodes, ["N", 3], {"w": RNG.standard_normal((3, 2))})
    assert load_model(path, trusted=True).graph.nodes
    assert load_model(path, trusted=True, input_box=(0.0, 1.0)).graph.nodes
    for trusted, domain in (
        (True, {"input_box": (0.0, 100.0)}),
        (True, {"input_norm": 1000.0}),
        (False, {"input_box": (0.0, 100.0)}),
    ):
        with pytest.raises(UnsupportedModelError, match="LC013"):
            load_model(path, trusted=trusted, **domain)


def test_rounding_of_what_cancels_is_no_difference(tmp_path):
    """Of sigmoid(x) − 0.8 there is nothing left at one point but the rounding of float32."""
    nodes = f"""c = Constant<value_float={float(1 / (1 + np.exp(-np.float32(1.3))))}>()
        big = Constant<value_float=10000000.0>()  s = Sigmoid(x)  d = Sub(s, c)  e = Mul(d, big)
        y = MatMul(e, w)"""
    path = saved(tmp_path, nodes, ["N", 3], {"w": RNG.standard_normal((3, 2))})
    at = float(np.float32(1.3))
    assert load_model(path, trusted=True, input_box=(at, at)).verification.examples == 3


@pytest.mark.parametrize("change", [0.0, 3e-6, -1e-4])
def test_of_constants_that_cancel_only_rounding_is_left(change, tmp_path):
    """As DoRA begins: x·(g/‖W‖ − 1), of which g = ‖W‖ leaves nothing."""
    rows = RNG.standard_normal((8, 40)).astype(np.float32)
    lengths = np.linalg.norm(rows, axis=1)
    nodes = """n = ReduceL2<axes=[1], keepdims=0>(w)  r = Div(g, n)  s = Sub(r, one)  m = Mul(x, s)
        y = Add(m, x)"""
    path = saved(tmp_path, nodes, ["N", 8], {"w": rows, "g": lengths, "one": 1.0})
    right = reading(path)
    assert disagreement(right, path) is None
    at = {"g": replace(found := right.model.initializers["g"], content=(
        found.values() * (1.0 + change)).astype("<f4").tobytes())}  # fmt: skip
    other = replace(right, program=right.at(at).program)
    assert (disagreement(other, path) is None) == (change == 0.0)


def test_a_file_that_the_core_does_not_read_is_refused(tmp_path, monkeypatch):
    def unread(model, output):
        raise Unsupported(f"no rule for {output!r} of {model.sha256[:4]}")

    monkeypatch.setattr(assemble, "lower", unread)
    for trusted in (True, False):
        with pytest.raises(UnsupportedModelError) as caught:
            load_model(CNN, trusted=trusted)
        assert caught.value.refusals[0].code == "LC028"
        assert caught.value.refusals[0].remedy
