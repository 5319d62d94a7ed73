"""The networks of the suite, as `networks.txt` describes them, and what they are certified for."""

import json
import re
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from lipcert.settings.settings import ConstraintSpec

HERE = Path(__file__).parent
RUN = {
    "dataset_size": 400,
    "batch_size": 16,
    "steps": 30,
    "delta": 1e-5,
    "noise_multiplier": 2.0,
}
SHUFFLED = {**RUN, "sampling": "shuffle", "neighbours": "zero-out"}
BALL = {"batch_size": 16, "input_norm": 1.0}
BOX = {"batch_size": 16, "input_box": (0.0, 1.0)}
HELD = {
    "constraint": ConstraintSpec("spectral", 1.5),
    "bias_norm": 1.0,
}


def models(path: Path = HERE / "networks.txt") -> dict[str, bytes]:
    """Every network that a text describes, by name."""
    text = path.read_text(encoding="utf-8")
    _, *parts = re.split(r"^(\S+)$", text, flags=re.MULTILINE)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {name: network(rows.strip().split("\n")) for name, rows in pairs}


def network(rows) -> bytes:
    """A model from its rows; its weights are random, its constants are nodes."""
    said: dict[str, list[str]] = {"constants": [], "outputs": []}
    nodes: list[NodeProto] = []
    for row in rows:
        word, *rest = row.split()
        if word in {"inputs", "weights", "constants", "outputs"}:
            said[word] = rest
            continue
        reads = [item for item in rest if "=" not in item]
        attributes = dict(map(_named, (item for item in rest if "=" in item)))
        name = f"v{len(nodes)}"
        results = [name, "places"] if word == "TopK" else [name]
        nodes.append(helper.make_node(word, reads, results, f"node{len(nodes)}", **attributes))
    rng = np.random.default_rng(5)
    tensors = [
        numpy_helper.from_array(_random(name, shape, rng), name)
        for name, shape, _ in map(_shaped, said["weights"])
    ]
    inputs = [
        helper.make_tensor_value_info(name, kind, ["N", *shape])
        for name, shape, kind in map(_shaped, said["inputs"])
    ]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in said["outputs"] or nodes[-1].output[:1]
    ]
    made = [_constant(*_named(item)) for item in said["constants"]]
    graph = helper.make_graph([*made, *nodes], "network", inputs, outputs, tensors)
    sets = [helper.make_opsetid("", 23)]
    model: ModelProto = helper.make_model(graph, opset_imports=sets, ir_version=10)
    content: bytes = model.SerializeToString()
    return content


def _named(item: str):
    name, _, value = item.partition("=")
    return name, value if value.isalpha() else json.loads(value)


def _shaped(item: str) -> tuple[str, tuple[int, ...], int]:
    """A name, its shape, and whether it holds real or whole numbers."""
    name, shape, *whole = item.split(":")
    return (
        name,
        tuple(map(int, shape.split(","))),
        [TensorProto.FLOAT, TensorProto.INT64][len(whole)],
    )


def _constant(name: str, value: object) -> NodeProto:
    numbers = np.asarray(value)
    numbers = numbers.astype(np.float32) if numbers.dtype.kind == "f" else numbers
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(numbers, name))


def _random(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if name.startswith(("scale", "variance")):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    fan = max(int(np.prod(shape[1:])), 1)
    return (rng.standard_normal(shape) / fan**0.5).astype(np.float32)


def of_loss(kind: str, **more: object) -> dict[str, object]:
    """A loss on inputs of norm 1."""
    return {**BALL, "loss": kind, **more}


def run(sampling: str, neighbours: str, **more: object) -> dict[str, object]:
    """A run of a clipped gradient, drawn so."""
    clip = {"mechanism": "gradient-clipping", "clip_norm": 1.0}
    return {**RUN, "sampling": sampling, "neighbours": neighbours, **clip, **more}


GOOD = {
    "perceptron": ("perceptron", of_loss("mse", label_norm=1.0, tier="quick")),
    "raised-products": ("perceptron", of_loss("mse", label_norm=1.0, input_box=(0.0, 1.0))),
    "convolution": ("convolution", SHUFFLED),
    "residual": ("residual", {**SHUFFLED, "loss": "multi-margin"}),
    "attention": ("attention", SHUFFLED),
    "heads": ("heads", SHUFFLED),
    "constraint-set": ("perceptron", {**SHUFFLED, **HELD}),
    "gradient-clipping": ("perceptron", run("poisson", "add-remove")),
    "balls-in-bins": ("perceptron", run("balls-in-bins", "add-remove")),
    "backprop-clipping": (
        "convolution",
        {**SHUFFLED, "mechanism": "backprop-clipping", "input_clip": 1.0, "cotangent_clip": 0.5,
         "scope": "constraint-set"},
    ),
    "layer-clips": (
        "convolution",
        {**SHUFFLED, "mechanism": "backprop-clipping", "input_box": (0.0, 1.0),
         "input_clips": {"k1": 1.0}, "cotangent_clips": {"w": 0.25, "*": 0.5}},
    ),
    **{name: (name, BALL) for name in (
        "kinks", "sigmoids", "waves", "gates", "powers", "prelu", "scaled", "pools", "grouped",
        "lengths", "sorted", "normalized", "instances", "directions", "products", "probabilities",
        "branches", "shared", "dropout", "causal", "weighted",
    )},
    **{f"{name}-in-a-box": (name, BOX) for name in ("linear", "residual", "pools")},
    "kernel-weights": ("kernels", {**BOX, "tier": "tight"}),
    "images-in-a-box": ("images", {**BOX, "loss": "kr", "tier": "quick"}),
    "joined": ("joined", BALL),
    "embedding": ("embedding", {"batch_size": 16}),
    "masked": ("masked", {"batch_size": 16}),
    "tokens": ("tokens", {"batch_size": 16, "per_token": "mean", "class_axis": "last"}),
    "tokens-summed": ("tokens", {"batch_size": 16, "loss": "focal", "per_token": "sum"}),
    "two-inputs": (
        "two-inputs",
        {"batch_size": 16, "input_norms": {"a": 1.0}, "input_boxes": {"b": (0.0, 1.0)}},
    ),
    "two-outputs": ("two-outputs", of_loss("v2=cross-entropy,v3=0.5*mse(label-norm=1)")),
    "cross-entropy": ("linear", of_loss("cross-entropy", temperature=0.5, label_smoothing=0.125)),
    "focal": ("linear", of_loss("focal", focal_gamma=1.5)),
    "nll": ("logarithms", of_loss("nll")),
    "bce": ("linear", of_loss("bce", temperature=2.0, output_reduction="sum")),
    "mae": ("linear", of_loss("mae")),
    "huber": ("linear", of_loss("huber", huber_delta=0.5)),
    "cosine": ("linear", of_loss("cosine", cosine_floor=0.25)),
    "multiclass-hinge": ("linear", of_loss("multiclass-hinge")),
    "binary-hinge": ("scalar", of_loss("multiclass-hinge", margin=0.5)),
    "multi-margin": ("linear", of_loss("multi-margin", output_reduction="sum")),
    "kr": ("linear", of_loss("kr")),
    "hkr": ("scalar", of_loss("hkr", hkr_weight=0.5)),
    "half-squares": ("linear", of_loss("mse", half=True, label_norm=0.5, output_reduction="sum")),
    "clipped-loss": ("linear", {**BALL, "loss_clip": 0.25}),
    "summed": ("linear", {"input_norm": 1.0, "reduction": "sum", "neighbours": "replace-one"}),
    "frozen": ("perceptron", {**BALL, "freeze": ("w0", "b0")}),
    "parameters-apart": ("perceptron", {**BALL, "group": "parameter"}),
    "frobenius": ("perceptron", {**BALL, "constraint": ConstraintSpec("frobenius", 2.0),
                                 "bias_norm": 0.5}),
    "held-convolution": ("convolution", {**BALL, **HELD}),
    "clipless": ("perceptron", {**SHUFFLED, **HELD, "mechanism": "clipless", "input_norm": 1.0}),
    "fixed-weight-norm": ("shared", {**SHUFFLED, **HELD, "mechanism": "fixed-weight-norm",
                                     "input_norm": 1.0}),
    "weight-clipping": ("linear", {
        **SHUFFLED, "mechanism": "weight-clipping", "constraint": ConstraintSpec("spectral", 4.0),
        "bias_norm": 4.0, "scope": "point", "input_norm": 1.0,
    }),
    "clipped-groups": ("perceptron", run("poisson", "zero-out", clip_scope="group")),
    "decay-inside": ("linear", run("full-batch", "add-remove", decay="inside", batch_size=400)),
    "clipped-dropout": ("dropout", run("shuffle", "zero-out", input_norm=1.0)),
    "poisson-replaced": ("linear", run("poisson", "replace-one")),
    "without-replacement": ("linear", run("without-replacement", "replace-one")),
    "euclidean-clips": (
        "convolution",
        {**SHUFFLED, "mechanism": "backprop-clipping", "input_clip": 1.0, "cotangent_clip": 0.5,
         "conv_clip": "l2"},
    ),
}  # fmt: skip
"""the model of each certificate that is accepted, and what it is certified for"""
