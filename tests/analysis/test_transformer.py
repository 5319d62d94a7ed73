"""An encoder under clipped backpropagation: the numbers of docs/mechanisms.md, by hand."""

import math

import numpy as np
import pytest
from onnx import NodeProto

from lipcert import Settings, analyze, load_model
from tests.core.lower.cases import model as onnx_model
from tests.core.lower.cases import node

DEPTH, TOKENS, PIXELS, WIDTH, CLASSES = 4, 16, 4, 64, 10
C = 0.1
SHARED: dict[str, object] = {
    "mechanism": "backprop-clipping",
    "cotangent_clip": C,
    "loss": "cross-entropy",
    "input_box": (0.0, 1.0),
}
SCALES = ("norm*.scale",)
NORMS = ("norm*",)
UNKNOWN = ("*.out", "*.fc2")


class _Encoder:
    """Nodes and tensors, in the order of computation."""

    def __init__(self, scale: float) -> None:
        self.nodes: list[NodeProto] = []
        self.tensors: dict[str, np.ndarray] = {}
        self.scale = scale
        self.rng = np.random.default_rng(0)

    def add(self, op: str, inputs: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(node(op, inputs, name, **attributes))
        return name

    def tensor(self, name: str, array: np.ndarray) -> str:
        self.tensors[name] = array.astype(np.float32)
        return name

    def linear(self, name: str, x: str, inputs: int, outputs: int) -> str:
        weight = self.tensor(f"{name}.w", self.rng.standard_normal((inputs, outputs)) / inputs)
        bias = self.tensor(f"{name}.b", self.rng.standard_normal(outputs) / 9)
        return self.add("Add", f"{self.add('MatMul', f'{x} {weight}')} {bias}")

    def norm(self, name: str, x: str) -> str:
        scale = self.tensor(f"norm{name}.scale", np.full(WIDTH, self.scale))
        shift = self.tensor(f"norm{name}.shift", np.zeros(WIDTH))
        return self.add("LayerNormalization", f"{x} {scale} {shift}", epsilon=1e-5)

    def block(self, name: str, x: str) -> str:
        read = self.norm(f"{name}a", x)
        q, k, v = (self.linear(f"{name}.{part}", read, WIDTH, WIDTH) for part in "qkv")
        scores = self.add("MatMul", f"{q} {self.add('Transpose', k, perm=[0, 2, 1])}")
        mixed = self.add("MatMul", f"{self.add('Softmax', scores, axis=-1)} {v}")
        x = self.add("Add", f"{x} {self.linear(f'{name}.out', mixed, WIDTH, WIDTH)}")
        wide = self.linear(f"{name}.fc1", self.norm(f"{name}b", x), WIDTH, 2 * WIDTH)
        narrow = self.linear(f"{name}.fc2", self.add("Gelu", wide), 2 * WIDTH, WIDTH)
        return self.add("Add", f"{x} {narrow}")

    def write(self, path):
        place = self.tensor("place", self.rng.standard_normal((TOKENS, WIDTH)) / 50)
        x = self.add("Add", f"{self.linear('embed', 'x', PIXELS, WIDTH)} {place}")
        for index in range(DEPTH):
            x = self.block(f"block{index}", x)
        self.tensors["axes"] = np.array([1])
        pooled = self.add("ReduceMean", f"{self.norm('', x)} axes", keepdims=0)
        logits = self.linear("head", pooled, WIDTH, CLASSES)
        shape = ["N", TOKENS, PIXELS]
        proto = onnx_model(self.nodes, shape, self.tensors, 20, output=logits)
        path.write_bytes(proto.SerializeToString())
        return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory):
    """By the scale of the norms."""
    folder = tmp_path_factory.mktemp("encoder")
    return {s: _Encoder(s).write(folder / f"{s}.onnx") for s in (1.0, 0.25, 0.125)}


def grad_norms(path, **settings: object) -> dict[str, float | None]:
    found = analyze(load_model(path, trusted=True), Settings(**{**SHARED, **settings}))  # type: ignore[arg-type]
    every = {item.name: item.grad_norm for item in found.parameters if item.trainable}
    return {**every, "": found.network.grad_norm}


def weights(read: float, clipped: float):
    """β of every weight. read: of the five layers behind norms; clipped: of the two that clip."""
    yield math.sqrt(TOKENS * PIXELS)  # embed
    for _ in range(DEPTH):
        yield from (read, read, read, clipped, read, clipped)


def expected(read: float, clipped: float, head: float) -> float:
    """√Σ(β·C)² over weights, (√tokens·C)² over their biases; the head and the places meet one."""
    betas = [*weights(read, clipped)]
    biases = len(betas) * TOKENS + 2
    return C * math.sqrt(sum(beta**2 for beta in betas) + head**2 + biases)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("scale", "settings", "read", "clipped", "head", "shown"),
    [
        (1.0, {"input_clip": 8.0, "freeze": NORMS}, 8.0, 8.0, 8.0, 4.55),
        (1.0, {"input_clips": dict.fromkeys(UNKNOWN, 8.0), "freeze": NORMS},
         32.0, 8.0, 8.0, 13.2),
        (0.25, {"input_clips": dict.fromkeys(UNKNOWN, 8.0), "freeze": NORMS}, 8.0, 8.0, 2.0, 4.48),
        (0.125, {"input_clips": dict.fromkeys(UNKNOWN, 4.0), "freeze": NORMS}, 4.0, 4.0, 1.0, 2.92),
    ],
)  # fmt: skip
def test_every_depth_costs_the_same(
    files,
    scale: float,
    settings: dict[str, object],
    read: float,
    clipped: float,
    head: float,
    shown: float,
) -> None:
    found = grad_norms(files[scale], **settings)[""]
    assert found == pytest.approx(expected(read, clipped, head), rel=1e-4)
    assert f"{found:.3g}" == f"{shown:.3g}"


@pytest.mark.nightly
def test_norms_that_are_trained(files) -> None:
    """A scale meets √(n(d − 1)), whatever its layer reads; a shift as many tokens as there are."""
    every = grad_norms(files[1.0], input_clip=8.0)
    shifts = grad_norms(files[1.0], input_clip=8.0, freeze=SCALES)
    fixed = grad_norms(files[1.0], input_clip=8.0, freeze=NORMS)
    scale = C * math.sqrt(TOKENS * (WIDTH - 1))
    assert every["normblock2a.scale"] == pytest.approx(scale, rel=1e-3)
    nine = 2 * DEPTH + 1
    assert shifts[""] == pytest.approx(math.hypot(fixed[""], C * math.sqrt(nine * TOKENS)))
    assert every[""] == pytest.approx(math.hypot(shifts[""], math.sqrt(nine) * scale), rel=1e-3)
    assert [f"{each['']:.3g}" for each in (every, shifts, fixed)] == ["10.6", "4.7", "4.55"]


@pytest.mark.nightly
def test_the_head_alone_is_bounded_by_the_last_norm(files) -> None:
    """√2·√(d + 1): the gradient of the loss times the mean of tokens of norm √d, and its bias; a
    clip beyond √2 never acts, and makes the bound one for all weights of the head."""
    found = grad_norms(files[1.0], cotangent_clip=2.0, trainable=("head.*",))[""]
    assert found == pytest.approx(math.sqrt(2 * (WIDTH + 1)), rel=1e-4)
    plain = {"mechanism": "none", "cotangent_clip": None}
    at_point = grad_norms(files[1.0], **plain, trainable=("head.*",))[""]
    assert 0.0 < (at_point or 0.0) <= found
    assert (grad_norms(files[1.0], **plain)[""] or 0.0) > 1e15
