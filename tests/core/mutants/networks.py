"""Small networks of four families, certified, for the mutants of their certificates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from lipcert.analysis.certificate import certify
from lipcert.core.certificate import Certificate
from lipcert.importer.load import load_model
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.core.mutants.tight import tight

__all__ = ["FAMILIES", "Case", "certified", "network"]

Layer = tuple[str, list[str], dict[str, object]]
_PLAN: Final[Mapping[str, object]] = {
    "batch_size": 16,
    "dataset_size": 400,
    "steps": 30,
    "delta": 1e-5,
    "noise_multiplier": 2.0,
    "temperature": 0.125,
}
_CHEAP: Final[Mapping[str, object]] = {**_PLAN, "sampling": "shuffle", "neighbours": "zero-out"}
"""its ε takes no time to find"""


@final
@dataclass(frozen=True, slots=True)
class Case:
    """A model file and a certificate that the checker accepts for it."""

    name: str
    path: Path
    certificate: Certificate


def network(shapes: Mapping[str, tuple[int, ...]], size: tuple[int, ...], *layers: Layer) -> bytes:
    """Layer k reads its first input, "x" or the output "v{j}" of layer j, and gives "v{k}"."""
    rng = np.random.default_rng(5)
    tensors = [
        numpy_helper.from_array(_numbers(name, shape, rng), name) for name, shape in shapes.items()
    ]
    nodes: list[NodeProto] = [
        helper.make_node(op, inputs, [f"v{k}"], f"node{k}", **attributes)
        for k, (op, inputs, attributes) in enumerate(layers)
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *size])
    result = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "network", [given], [result], tensors)
    model: ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10
    )
    content: bytes = model.SerializeToString()
    return content


def _numbers(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if shape == ():
        return np.array([int(part) for part in name.split("_")[1:]], dtype=np.int64)
    if name.startswith(("scale", "variance")):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    fan = max(int(np.prod(shape[1:])), 1)
    return (rng.standard_normal(shape) / fan**0.5).astype(np.float32)


def _mlp() -> bytes:
    return network(
        {"w0": (8, 6), "b0": (8,), "w1": (8, 8), "b1": (8,), "w2": (8, 8), "w3": (8, 3)},
        (6,),
        ("Gemm", ["x", "w0", "b0"], {"transB": 1}),
        ("Relu", ["v0"], {}),
        ("Gemm", ["v1", "w1", "b1"], {"transB": 1}),
        ("LeakyRelu", ["v2"], {"alpha": 0.125}),
        ("MatMul", ["v3", "w2"], {}),
        ("MatMul", ["v4", "w3"], {}),
    )


def _cnn() -> bytes:
    return network(
        {"k0": (2, 1, 3, 3), "b0": (2,), "k1": (2, 2, 3, 3), "k2": (2, 2, 3, 3), "w": (4, 8)},
        (1, 4, 4),
        ("Conv", ["x", "k0", "b0"], {"pads": [1, 1, 1, 1]}),
        ("Relu", ["v0"], {}),
        ("Conv", ["v1", "k1"], {"pads": [1, 1, 1, 1]}),
        ("MaxPool", ["v2"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Conv", ["v3", "k2"], {"pads": [1, 1, 1, 1]}),
        ("Relu", ["v4"], {}),
        ("Flatten", ["v5"], {}),
        ("Gemm", ["v6", "w"], {"transB": 1}),
    )


def _residual() -> bytes:
    channels = {f"{name}{k}": (2,) for k in (0, 1) for name in ("scale", "shift")}
    return network(
        {
            "k0": (2, 1, 3, 3),
            "k1": (2, 2, 3, 3),
            "k2": (2, 2, 1, 1),
            **channels,
            "mean0": (2,),
            "variance0": (2,),
            "w": (3, 2),
            "b": (3,),
        },
        (1, 3, 3),
        ("Conv", ["x", "k0"], {"pads": [1, 1, 1, 1]}),
        ("BatchNormalization", ["v0", "scale0", "shift0", "mean0", "variance0"], {}),
        ("Relu", ["v1"], {}),
        ("Conv", ["v2", "k1"], {"pads": [1, 1, 1, 1]}),
        ("GroupNormalization", ["v3", "scale1", "shift1"], {"num_groups": 2, "epsilon": 0.5}),
        ("Relu", ["v4"], {}),
        ("Conv", ["v5", "k2"], {}),
        ("Add", ["v6", "v2"], {}),
        ("GlobalAveragePool", ["v7"], {}),
        ("Flatten", ["v8"], {}),
        ("Gemm", ["v9", "w", "b"], {"transB": 1}),
    )


def _transformer() -> bytes:
    square = dict.fromkeys(("query", "key", "value", "mix"), (6, 6))
    return network(
        {"scale0": (6,), "shift0": (6,), **square, "w0": (6, 8), "w1": (8, 6), "w2": (24, 3)},
        (4, 6),
        ("LayerNormalization", ["x", "scale0", "shift0"], {"epsilon": 0.5}),
        ("MatMul", ["v0", "query"], {}),
        ("MatMul", ["v0", "key"], {}),
        ("MatMul", ["v0", "value"], {}),
        ("Attention", ["v1", "v2", "v3"], {"q_num_heads": 2, "kv_num_heads": 2}),
        ("MatMul", ["v4", "mix"], {}),
        ("Add", ["x", "v5"], {}),
        ("MatMul", ["v6", "w0"], {}),
        ("Gelu", ["v7"], {}),
        ("MatMul", ["v8", "w1"], {}),
        ("Add", ["v6", "v9"], {}),
        ("Flatten", ["v10"], {}),
        ("MatMul", ["v11", "w2"], {}),
    )


_NETWORKS: Final[Mapping[str, Callable[[], bytes]]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "residual": _residual,
    "transformer": _transformer,
    "clipped": _cnn,
    "layers": _cnn,
    "scaled": _mlp,
}
_MECHANISMS: Final[Mapping[str, Mapping[str, object]]] = {
    "clipped": {"mechanism": "backprop-clipping", "input_clip": 1.0, "cotangent_clip": 0.5},
    "layers": {
        "mechanism": "backprop-clipping",
        "input_box": (0.0, 1.0),
        "input_clips": {"k1": 2.0, "k2": 1.0, "w": 0.5},
        "cotangent_clips": {"w": 0.25, "*": 0.5},
    },
    "scaled": {
        "mechanism": "weight-clipping",
        "constraint": ConstraintSpec("frobenius", 50.0),
        "tier": "tight",
    },
}
FAMILIES: Final = tuple(_NETWORKS)


def certified(family: str, folder: Path, *, constrained: bool, **more: object) -> Case:
    """The network of a family with a certificate for its weights or for a set of weights."""
    path = folder / f"{family}.onnx"
    path.write_bytes(_NETWORKS[family]())
    chosen: dict[str, object] = {**_CHEAP, **_MECHANISMS.get(family, {}), **more}
    if constrained:
        held = {"constraint": ConstraintSpec("spectral", 1.5), "bias_norm": 1.0}
        chosen |= {"scope": "constraint-set", **held}
    imported = load_model(path, trusted=True)
    issued = certify(imported, Settings(**chosen))  # type: ignore[arg-type]
    scope = "set" if constrained else "point"
    return Case(f"{family}/{scope}", path, tight(issued.certificate, path))
