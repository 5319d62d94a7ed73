"""Backpropagation clipping: where the clips stand, and whole networks under attack."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from lipcert.analysis.clipping import with_clips
from lipcert.core.ledger.mechanism import BackpropClipping
from lipcert.core.program import CotangentClip, InputClip
from lipcert.errors import UnsupportedModelError
from lipcert.geometry import Window
from lipcert.ir import Graph
from tests.core.random_models import random_model
from tests.networks import chain, dag, padded, proved, trained
from tests.ops import Activation, Add, Conv, Dense, Shift
from tests.test_network_attacks import found_above, random_bounds

MECHANISM = BackpropClipping(0.5, 0.25)
CLIPPED = {"mechanism": "backprop-clipping", "input_clip": 0.5, "cotangent_clip": 0.25}


def kinds(graph: Graph) -> list[str]:
    return [node.kind for node in graph.nodes]


def dense(name: str, bias: bool = True) -> Dense:
    rng = np.random.default_rng(len(name))
    b = trained(f"{name}.bias", rng.standard_normal(3)) if bias else None
    return Dense(trained(f"{name}.weight", rng.standard_normal((3, 3))), b)


def test_every_trained_layer_stands_between_two_clips() -> None:
    graph = with_clips(chain((3,), dense("fc1"), Activation("relu"), dense("fc2")), MECHANISM)
    layer = ["InputClip", "Gemm", "CotangentClip"]
    assert kinds(graph) == [*layer, "Relu", *layer]
    assert graph.output_name == graph.nodes[-1].output


def test_a_product_and_its_bias_are_one_layer() -> None:
    shift = Shift(trained("fc.bias", np.ones(3)))
    graph = with_clips(chain((3,), dense("fc", bias=False), shift), MECHANISM)
    assert kinds(graph) == ["InputClip", "Gemm", "Add", "CotangentClip"]


def test_interleaved_branches_keep_their_layers_whole() -> None:
    steps = [
        ("a", dense("left", bias=False), ("x",)),
        ("b", dense("right", bias=False), ("x",)),
        ("c", Shift(trained("left.bias", np.ones(3))), ("a",)),
        ("d", Shift(trained("right.bias", np.ones(3))), ("b",)),
        ("y", Add((1.0, 1.0)), ("c", "d")),
    ]
    graph = with_clips(dag((3,), steps), MECHANISM)
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
    clipped = with_clips(dataclasses.replace(graph, parameters=frozen), MECHANISM)
    assert kinds(clipped) == ["Gemm", "InputClip", "Gemm", "CotangentClip"]


def conv(pad: int) -> Conv:
    weight = trained("conv.weight", np.ones((2, 1, 3)))
    return Conv(weight, trained("conv.bias", np.ones(2)), (Window(4 + 2 * pad, 3),))


def test_the_input_of_a_convolution_is_clipped_before_its_padding() -> None:
    pad = padded((0, 1), (0, 1), "wrap")
    graph = with_clips(chain((1, 4), pad, conv(1)), MECHANISM)
    assert kinds(graph) == ["InputClip", "Move", "Conv", "CotangentClip"]


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_reflected_and_repeated_borders_are_refused(mode: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"LC420.*reflected or repeated.*Remedy"):
        with_clips(chain((1, 4), padded((0, 1), (0, 1), mode), conv(1)), MECHANISM)


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
    graph = with_clips(chain((1, 4), conv(0)), MECHANISM)
    first, _, last = (node.op for node in graph.nodes)
    assert isinstance(first, InputClip)
    assert isinstance(last, CotangentClip)
    assert (first.radius, last.radius) == (0.5, 0.25)
    assert last.by_channel


@pytest.mark.parametrize("seed", range(200, 216))
def test_clipped_random_files_stay_below_their_bounds(seed: int, tmp_path: Path) -> None:
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
