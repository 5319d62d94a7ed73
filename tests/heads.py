"""Networks with several outputs, and plain losses of them, for the tests of sums of losses."""

import numpy as np
import onnx
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from lipcert.core.ledger.premises import LossPart
from lipcert.core.losses.base import parameters_of, read_loss
from tests.plain_losses import loss_value, one_hot

PARAMETERS: dict[str, dict[str, float | str]] = {
    "cross-entropy": {"temperature": 0.5, "label_smoothing": 0.0},
    "mse": {"label_norm": 1.5, "half": "false", "output_reduction": "sum"},
    "mae": {"output_reduction": "sum"},
    "bce": {"temperature": 2.0, "output_reduction": "mean"},
    "nll": {},
}


def part(output: str, kind: str, weight: float) -> LossPart:
    """A part of a loss, with the parameters of this module."""
    own = PARAMETERS[kind]
    assert own.keys() == parameters_of(kind).keys() - {"per_token", "class_axis"}
    return LossPart(output, kind, tuple(sorted(own.items())), weight)


def torch_loss(kind: str, z: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Of one example. label: a class, or a target of the shape of z."""
    scores = z.reshape(-1)
    target = label.reshape(-1) if label.ndim else one_hot(label, scores)
    return loss_value(read_loss(kind, PARAMETERS[kind]), scores, target)


def random_label(kind: str, z: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """An admissible one."""
    if kind in {"cross-entropy", "nll"}:
        return torch.randint(z.numel(), (), generator=random)
    bell = torch.randn(z.shape, generator=random, dtype=z.dtype)
    if kind == "bce":
        return (bell > 0).to(z.dtype)
    return bell / bell.norm() * 1.5 if kind == "mse" else 9.0 * bell


def network(shapes: dict[str, str], rng: np.random.Generator, *, relu: bool = True) -> ModelProto:
    """x [N, 5] → a hidden layer (or none) → outputs of 4 entries each.

    shapes: by output: "vector" [N, 4], "matrix" [N, 2, 2], "turned" [4, N], "behind" (computed from
    the output before it), "same" (the hidden layer itself, of 4 entries).
    """
    nodes: list[NodeProto] = []
    tensors: dict[str, np.ndarray] = {}

    def dense(source: str, target: str, columns: int) -> None:
        for name, shape in ((f"{target}.w", (4, columns)), (f"{target}.b", (4,))):
            tensors[name] = rng.standard_normal(shape).astype(np.float32)
        nodes.append(
            helper.make_node(
                "Gemm", [source, f"{target}.w", f"{target}.b"], [target], f"fc {target}", transB=1
            )
        )

    hidden, width = "x", 5
    if relu:
        dense("x", "sum", 5)
        nodes.append(helper.make_node("Relu", ["sum"], ["hidden"], "relu"))
        hidden, width = "hidden", 4
    before, inputs = hidden, width
    outputs = []
    for name, shape in shapes.items():
        dims: list[int | str] = ["N", 4]
        match shape:
            case "matrix":
                dense(hidden, f"{name}.flat", width)
                tensors[f"{name}.shape"] = np.array([-1, 2, 2])
                nodes.append(
                    helper.make_node("Reshape", [f"{name}.flat", f"{name}.shape"], [name], name)
                )
                dims = ["N", 2, 2]
            case "turned":
                dense(hidden, f"{name}.flat", width)
                nodes.append(helper.make_node("Transpose", [f"{name}.flat"], [name], name))
                dims = [4, "N"]
            case "behind":
                dense(before, name, inputs)
            case "same":
                nodes.append(helper.make_node("Identity", [hidden], [name], name))
            case _:
                dense(hidden, name, width)
        outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
        before, inputs = (name, 4) if dims == ["N", 4] else (hidden, width)
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 5])
    stored = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "heads", [source], outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def two_heads(path, *, relu: bool = True, seed: int = 0):
    """A file of a network with the outputs `cls` and `reg`."""
    proto = network({"cls": "vector", "reg": "vector"}, np.random.default_rng(seed), relu=relu)
    onnx.save(proto, path)
    return path
