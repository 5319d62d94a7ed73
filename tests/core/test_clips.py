"""Where clips stand in a program, and places where none can stand."""

import math

import numpy as np
import pytest

from lipcert.core.clips import clip_faults, layer_steps, with_clips, without_cotangent_clips
from lipcert.core.kinds import CotangentClip, InputClip
from lipcert.core.ledger.layer_clipping import BackpropClipping, ClippedLayer, LayerEnds
from lipcert.core.lower.lower import lower
from lipcert.core.window_kinds import Conv
from tests.core.lower.cases import model, read

SQUARE = np.eye(4, dtype=np.float32)
NUMBERS = {"u": SQUARE, "v": SQUARE, "b": np.ones(4, dtype=np.float32)}


def clips(*layers: LayerEnds, conv_clip: str = "l1.5") -> BackpropClipping:
    return BackpropClipping(0.5, 0.25, conv_clip, tuple(ClippedLayer(*ends) for ends in layers))


def lowered(proto, folder):
    found = read(proto, folder)
    return found, lower(found, proto.graph.output[0].name)


@pytest.fixture
def residual(tmp_path):
    """h = x·u; y = (relu(h)·v + b) + h."""
    nodes = "h = MatMul(x, u)  r = Relu(h)  m = MatMul(r, v)  s = Add(m, b)  y = Add(s, h)"
    return lowered(model(nodes, ["N", 4], NUMBERS), tmp_path)


def reads(program) -> dict[str, tuple[str, ...]]:
    return {step.output: step.inputs for step in program.steps}


def test_each_layer_has_the_clips_that_it_states(residual) -> None:
    """The first reads x as it is; what reads h beside a layer reads it behind the first's clip."""
    _, program = residual
    layers = (ClippedLayer("x", "h", None, 0.125), ClippedLayer("h", "r", 2.0, 0.5))
    found = with_clips(program, BackpropClipping(layers=layers))
    assert reads(found) == {
        "h": ("x",),
        "h#clip": ("h",),
        "h#clip#clip": ("h#clip",),
        "r": ("h#clip#clip",),
        "r#clip": ("r",),
        "s": ("r#clip",),
        "y": ("s", "h#clip"),
    }
    assert {step.output: step.op for step in found.steps if "#" in step.output} == {
        "h#clip": CotangentClip(0.125, by_channel=False),
        "h#clip#clip": InputClip(2.0),
        "r#clip": CotangentClip(0.5, by_channel=False),
    }


def test_names_of_the_file_are_not_taken(tmp_path) -> None:
    nodes = '"x#clip" = MatMul(x, u)  z = MatMul(x, v)  y = Add("x#clip", z)'
    _, program = lowered(model(nodes, ["N", 4], NUMBERS), tmp_path)
    found = with_clips(program, clips(("x", "x#clip"), ("x", "z")))
    names = [step.output for step in found.steps]
    assert len(set(names)) == len(names)
    assert set(reads(program)) <= set(names)
    assert reads(found)["x#clip"] != reads(found)["z"]


@pytest.mark.parametrize(("conv_clip", "by_channel"), [("l1.5", True), ("l2", False)])
def test_gradients_at_convolutions_are_clipped_by_channel(tmp_path, conv_clip, by_channel) -> None:
    nodes = 'p = Pad<mode="wrap">(x, pads)  c = Conv(p, k)  f = Flatten(c)  y = MatMul(f, u)'
    numbers = {"k": np.ones((1, 1, 3)), "u": np.eye(4), "pads": [0, 0, 1, 0, 0, 1]}
    _, program = lowered(model(nodes, ["N", 1, 4], numbers), tmp_path)
    found = with_clips(program, clips(("x", "c"), ("f", "y"), conv_clip=conv_clip))
    behind = {step.inputs[0]: step.op for step in found.steps}
    assert behind["c"] == CotangentClip(0.25, by_channel=by_channel)
    assert behind["y"] == CotangentClip(0.25, by_channel=False)
    assert behind["x"] == InputClip(0.5)
    steps = layer_steps(program, ("x", "c"))
    assert [type(step.op).__name__ for step in steps] == ["Move", "Conv"]
    assert isinstance(steps[-1].op, Conv)


def test_the_function_has_no_clips_of_cotangents(residual) -> None:
    _, program = residual
    found = without_cotangent_clips(with_clips(program, clips(("x", "h"))))
    radii = [step.op.radius for step in found.steps if isinstance(step.op, CotangentClip)]
    assert radii == [math.inf]
    assert [step.op.radius for step in found.steps if isinstance(step.op, InputClip)] == [0.5]


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ((("x", "h"), ("r", "s")), ""),
        ((), ""),
        ((("x", "absent"),), "no layer"),
        ((("absent", "h"),), "no layer"),
        ((("h", "x"),), "no layer"),
        ((("x", "x"),), "no layer"),
        ((("r", "m"),), "no layer"),
        ((("x", "s"),), "no layer"),
        ((("x", "y"),), "no layer"),
        ((("h", "r"),), "holds nothing that is trained"),
        ((("r", "s"), ("r", "s")), "part of another"),
        ((("r", "s"), ("h", "s")), "part of another"),
        ((("x", "h"),) * 9, "more layers"),
    ],
)
def test_places_where_no_layer_is(residual, layers, said) -> None:
    file, program = residual
    found = list(clip_faults(clips(*layers), file, program, frozenset("uvb")))
    assert bool(found) is bool(said)
    assert any(said in fault for fault in found) or not said


def test_a_layer_that_the_file_reads_from_within(tmp_path) -> None:
    """The steps are a normalisation and a scaling; the file also reads the centred value."""
    nodes = """mean = ReduceMean<keepdims=1>(x, axes)  d = Sub(x, mean)  square = Pow(d, two)
        variance = ReduceMean<keepdims=1>(square, axes)  sum = Add(variance, small)
        root = Sqrt(sum)  n = Div(d, root)  s = Mul(n, b)"""
    numbers = {"axes": [-1], "two": 2.0, "small": 0.5, "b": np.ones(4)}
    whole = clips(("x", "s"))
    for last, closed in (("Relu(s)", True), ("Add(s, d)", False)):
        file, program = lowered(model(f"{nodes}  y = {last}", ["N", 4], numbers, 18), tmp_path)
        found = [type(step.op).__name__ for step in layer_steps(program, ("x", "s"))]
        assert found == ["Normalize", "Scale"]
        found = list(clip_faults(whole, file, program, frozenset("b")))
        assert found == ([] if closed else ["the layer that ends in 's' is read from within"])


def test_ends_that_are_no_values_of_the_file(tmp_path) -> None:
    """A Gemm with a factor is a product, a scaling and an addition, with names of the checker's."""
    proto = model("y = Gemm<alpha=2.0>(x, u, b)", ["N", 4], NUMBERS)
    file, program = lowered(proto, tmp_path)
    first, *_, last = program.steps
    assert first.output != last.output == "y"
    assert not list(clip_faults(clips(("x", "y")), file, program, frozenset("ub")))
    inner = clips(("x", first.output))
    (fault,) = clip_faults(inner, file, program, frozenset("ub"))
    assert "does not lie between values of the file" in fault
