"""Backpropagation clipping: where the clips stand, and whole networks under attack."""

import dataclasses
import math

import numpy as np
import pytest

from lipcert import analyze, load_model
from lipcert.analysis.clipping import with_clips
from lipcert.core.kinds import CotangentClip, InputClip
from lipcert.errors import UnsupportedModelError, UsageError
from lipcert.graph.geometry import Window
from lipcert.settings.settings import Settings
from tests.core.lower.cases import model as onnx_model
from tests.core.lower.cases import node
from tests.core.random_models import random_model
from tests.networks import chain, dag, moved, padded, proved, trained
from tests.ops import Activation, Add, Conv, Dense, Maker, Normalize, Scale, Shift, Softmax
from tests.test_network_attacks import found_above, random_bounds

CLIPPED = {"mechanism": "backprop-clipping", "input_clip": 0.5, "cotangent_clip": 0.25}
SETTINGS = Settings(**CLIPPED)  # type: ignore[arg-type]


def kinds(graph) -> list[str]:
    return [node.kind for node in graph.nodes]


def dense(name: str, bias: bool = True) -> Dense:
    rng = np.random.default_rng(len(name))
    b = trained(f"{name}.bias", rng.standard_normal(3)) if bias else None
    return Dense(trained(f"{name}.weight", rng.standard_normal((3, 3))), b)


def test_every_trained_layer_stands_between_two_clips() -> None:
    graph = with_clips(chain((3,), dense("fc1"), Activation("relu"), dense("fc2")), SETTINGS)
    layer = ["InputClip", "Gemm", "CotangentClip"]
    assert kinds(graph) == [*layer, "Relu", *layer]
    assert graph.output_name == graph.nodes[-1].output


def test_radii_of_single_layers() -> None:
    """By the name of the layer, or of a parameter; the others have the radius of all."""
    settings = dataclasses.replace(
        SETTINGS,
        input_clips=(("fc1", None), ("fc2.weight", 3.0)),
        cotangent_clips=(("fc[23].bias", 2.0),),
    )
    names = ("fc1", "fc2", "fc3")
    graph = with_clips(chain((3,), *map(dense, names)), settings)
    radii = [getattr(node.op, "radius", node.kind) for node in graph.nodes]
    assert radii == ["Gemm", 0.25, 3.0, "Gemm", 2.0, 0.5, "Gemm", 2.0]


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"input_clips": (("fc3.*", None),)}, r"input-clips: 'fc3\.\*' matches no layer"),
        ({"cotangent_clips": (("fc", 1.0),)}, "cotangent-clips: 'fc' matches no layer; did you"),
    ],
)
def test_patterns_that_fit_no_layer(table: dict[str, object], match: str) -> None:
    settings = dataclasses.replace(SETTINGS, **table)  # type: ignore[arg-type]
    graph = chain((3,), dense("fc1"), dense("fc2"))
    with pytest.raises(UsageError, match=match):
        with_clips(graph, settings)


def test_patterns_may_fit_layers_that_are_not_trained() -> None:
    graph = chain((3,), dense("fc1"), dense("fc2"))
    frozen = {
        name: dataclasses.replace(p, trainable=not name.startswith("fc1"))
        for name, p in graph.parameters.items()
    }
    table = (("fc1", 9.0), ("fc1.weight", 9.0))
    found = with_clips(
        dataclasses.replace(graph, parameters=frozen),
        dataclasses.replace(SETTINGS, input_clips=table),
    )
    assert kinds(found) == ["Gemm", "InputClip", "Gemm", "CotangentClip"]


TOKENS = (4, 3)
BEFORE: dict[str, tuple[Maker, float]] = {
    "x": (moved(lambda own: own), 12**0.5),
    "tanh": (Activation("tanh"), 12**0.5),
    "sigmoid": (Activation("sigmoid"), 12**0.5),
    "softmax": (Softmax(), 4**0.5),
    "norm": (Normalize((1,), 1e-5, centred=True), 12**0.5),
    "relu": (Activation("relu"), math.inf),
}


@pytest.mark.parametrize("last", BEFORE)
def test_a_layer_is_bounded_by_what_holds_whatever_the_weights_are(last: str) -> None:
    """No input clip: β of a weight is what its input is known to be; a bias needs none, and meets
    as many positions as there are."""
    maker, beta = BEFORE[last]
    settings = {"mechanism": "backprop-clipping", "cotangent_clip": 0.25, "input_box": (-1, 1)}
    graph = chain(TOKENS, maker, dense("fc"))
    if last != "x":
        graph = chain(TOKENS, dense("first"), maker, dense("fc"))
    found = proved(graph, **settings).grad_norms
    assert found["fc.weight"] == pytest.approx(0.25 * beta, rel=1e-4)
    assert found["fc.weight"] >= 0.25 * beta * (1 - 1e-4)
    assert found["fc.bias"] == 0.25 * 4**0.5
    found = proved(graph, **settings, input_clips={"fc": 1.5}).grad_norms
    assert found["fc.weight"] == 0.25 * 1.5
    assert found["fc.bias"] == 0.25 * 4**0.5


def test_a_normalisation_bounds_what_stands_behind_it_while_its_scale_is_frozen() -> None:
    """Its own scale has a bound in any case: it multiplies what is normalised."""
    scale = Scale(trained("norm.weight", 2.0 * np.ones(3)), trained("norm.bias", np.zeros(3)))
    norm = Normalize((1,), 1e-5, centred=True)
    graph = chain(TOKENS, dense("first"), norm, scale, dense("fc"))
    settings = {"mechanism": "backprop-clipping", "cotangent_clip": 0.25, "input_box": (-1, 1)}
    free = proved(graph, **settings)
    assert free.grad_norms["fc.weight"] == math.inf
    assert free.grad_norms["norm.weight"] <= 0.25 * 8**0.5
    fixed = proved(graph, **settings, freeze=("norm.*",))
    assert fixed.grad_norms["fc.weight"] == pytest.approx(0.25 * 2.0 * 12**0.5, rel=1e-4)


def test_an_input_without_a_domain_has_no_bound() -> None:
    settings = {"mechanism": "backprop-clipping", "cotangent_clip": 0.25}
    found = proved(chain((3,), dense("fc")), **settings).grad_norms
    assert found == {"fc.weight": math.inf, "fc.bias": 0.25}


def test_what_has_no_bound_is_named_with_what_to_do(tmp_path) -> None:
    nodes = [node("MatMul", "x a.weight", "h"), node("Relu", "h", "r"),
             node("MatMul", "r b.weight", "y")]  # fmt: skip
    square = np.eye(2, dtype=np.float32)
    path = tmp_path / "net.onnx"
    proto = onnx_model(nodes, ["N", 2], {"a.weight": square, "b.weight": square})
    path.write_bytes(proto.SerializeToString())
    model = load_model(path, trusted=True)
    settings = Settings(
        mechanism="backprop-clipping", cotangent_clip=0.25, input_norm=1.0, loss="bce"
    )
    found = analyze(model, settings)
    (lost,) = (item for item in found.diagnostics if item.code == "LC102")
    assert lost.node == "b.weight"
    assert "what its layer reads has no bound and is not clipped" in lost.message
    assert "a radius for 'b' in the [input-clips] table" in lost.remedy
    clipped = analyze(model, dataclasses.replace(settings, input_clips=(("b", 2.0),)))
    assert {item.name: item.grad_norm for item in clipped.parameters} == {
        "a.weight": 0.25,
        "b.weight": 0.5,
    }
    assert clipped.assumptions.mechanism["layers"] == [
        {"input": "x", "output": "h"},
        {"input": "r", "output": "y", "input_clip": 2.0},
    ]

    shift = Shift(trained("fc.bias", np.ones(3)))
    graph = with_clips(chain((3,), dense("fc", bias=False), shift), SETTINGS)
    assert kinds(graph) == ["InputClip", "Gemm", "Add", "CotangentClip"]


def test_a_scaled_product_is_one_layer_with_its_bias(tmp_path) -> None:
    """Names without a dot say nothing of layers: the gradients are β·|alpha|·C and |beta|·C."""
    nodes = [node("Gemm", "x w b", "h", alpha=0.5, beta=3.0), node("Relu", "h", "y")]
    path, square = tmp_path / "net.onnx", np.eye(2, dtype=np.float32)
    proto = onnx_model(nodes, ["N", 2], {"w": square, "b": square[0]})
    path.write_bytes(proto.SerializeToString())
    found = analyze(load_model(path), Settings(**CLIPPED, input_norm=1.0, loss="bce"))
    assert {item.name: item.grad_norm for item in found.parameters} == {"w": 0.0625, "b": 0.75}


def test_interleaved_branches_keep_their_layers_whole() -> None:
    steps = [
        ("a", dense("left", bias=False), ("x",)),
        ("b", dense("right", bias=False), ("x",)),
        ("c", Shift(trained("left.bias", np.ones(3))), ("a",)),
        ("d", Shift(trained("right.bias", np.ones(3))), ("b",)),
        ("y", Add((1.0, 1.0)), ("c", "d")),
    ]
    graph = with_clips(dag((3,), steps), SETTINGS)
    assert kinds(graph).count("InputClip") == 2
    assert kinds(graph).count("CotangentClip") == 2
    by_output = {node.output: node for node in graph.nodes}
    assert by_output["c"].inputs == ("a",)


def test_frozen_layers_are_not_clipped() -> None:
    graph = chain((3,), dense("fc1"), dense("fc2"))
    frozen = {
        name: dataclasses.replace(p, trainable=not name.startswith("fc1"))
        for name, p in graph.parameters.items()
    }
    clipped = with_clips(dataclasses.replace(graph, parameters=frozen), SETTINGS)
    assert kinds(clipped) == ["Gemm", "InputClip", "Gemm", "CotangentClip"]


def conv(pad: int) -> Conv:
    weight = trained("conv.weight", np.ones((2, 1, 3)))
    return Conv(weight, trained("conv.bias", np.ones(2)), (Window(4 + 2 * pad, 3),))


def test_the_input_of_a_convolution_is_clipped_before_its_padding() -> None:
    pad = padded((0, 1), (0, 1), "wrap")
    graph = with_clips(chain((1, 4), pad, conv(1)), SETTINGS)
    assert kinds(graph) == ["InputClip", "Move", "Conv", "CotangentClip"]


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_reflected_and_repeated_borders_are_refused(mode: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"LC420.*reflected or repeated.*Remedy"):
        with_clips(chain((1, 4), padded((0, 1), (0, 1), mode), conv(1)), SETTINGS)


@pytest.mark.parametrize("mode", ["constant", "wrap"])
def test_the_published_bounds_are_reproduced(mode: str) -> None:
    """β·C for the weight and C for the bias, with l1.5 on convolutions and 2-norms elsewhere."""
    graph = chain((1, 4), padded((0, 1), (0, 1), mode), conv(1))
    found = proved(graph, 1e3, input_norm=1e3, **CLIPPED).grad_norms
    assert found == {"conv.weight": 0.125, "conv.bias": 0.25}
    found = proved(chain((3,), dense("fc")), input_norm=9.0, **CLIPPED).grad_norms
    assert found == {"fc.weight": 0.125, "fc.bias": 0.25}


def test_the_euclidean_clip_pays_for_overlap_and_positions() -> None:
    graph = chain((1, 4), padded((0, 1), (0, 1), "wrap"), conv(1))
    found = proved(graph, 1e3, input_norm=1e3, **CLIPPED, conv_clip="l2").grad_norms
    assert found["conv.weight"] == pytest.approx(0.125 * 3**0.5)
    assert found["conv.bias"] == pytest.approx(0.25 * 4**0.5)


def test_reads_of_the_clips_themselves() -> None:
    graph = with_clips(chain((1, 4), conv(0)), SETTINGS)
    first, _, last = (node.op for node in graph.nodes)
    assert isinstance(first, InputClip)
    assert isinstance(last, CotangentClip)
    assert (first.radius, last.radius) == (0.5, 0.25)
    assert last.by_channel


@pytest.mark.sample(seed=6)
@pytest.mark.parametrize("seed", range(200, 216))
def test_clipped_random_files_stay_below_their_bounds(seed: int, tmp_path) -> None:
    radius, clip = 10.0 ** np.random.default_rng(seed).uniform(-2, 0.5, 2)
    mechanism = {
        "mechanism": "backprop-clipping",
        "input_clip": float(radius),
        "cotangent_clip": float(clip),
        "conv_clip": "l2" if seed % 2 else None,
    }
    proto = random_model(seed)
    found = random_bounds(proto, seed, tmp_path, constrained=False, **mechanism)
    if found is None:
        pytest.skip("the file is refused, or a clip has no place in it")
    assert not found_above(proto, found, seed)
