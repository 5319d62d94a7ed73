"""Layers in eval mode are found by their nodes and by what exporters leave of them."""

import numpy as np
import pytest

from lipcert import load_model
from lipcert.graph.ir import EvalLayer
from tests.core.lower.cases import model as onnx_model
from tests.core.lower.cases import node

CHANNELS = 4
STATISTICS = {
    "bn1.weight": np.full(CHANNELS, 1.5, np.float32),
    "bn1.bias": np.zeros(CHANNELS, np.float32),
    "bn1.running_mean": np.zeros(CHANNELS, np.float32),
    "bn1.running_var": np.ones(CHANNELS, np.float32),
}
NORM = " ".join(STATISTICS)


def imported(folder, nodes, tensors: dict[str, np.ndarray]):
    path = folder / "model.onnx"
    shape: list[int | str] = ["N", CHANNELS]
    path.write_bytes(onnx_model(list(nodes), shape, tensors).SerializeToString())
    return load_model(path, trusted=True)


def noted(made, **notes: str):
    """With metadata; "__" in a key stands for a dot."""
    for key, value in notes.items():
        made.metadata_props.add(key=key.replace("__", "."), value=value)
    return made


def named(made, name: str):
    made.name = name
    return made


def test_nodes_are_named_by_their_module(tmp_path) -> None:
    norm = named(node("BatchNormalization", f"x {NORM}", "n"), "/bn1/BatchNormalization")
    drop = named(node("Dropout", "n", "y"), "/head/Dropout")
    model = imported(tmp_path, [norm, drop], STATISTICS)
    assert model.graph.eval_layers == (
        EvalLayer("BatchNormalization", "bn1", "/bn1/BatchNormalization"),
        EvalLayer("Dropout", "/head/Dropout", "/head/Dropout"),
    )
    (found,) = (item for item in model.diagnostics if item.code == "LC026")
    assert "'bn1' (BatchNormalization), '/head/Dropout' (Dropout)" in found.message
    assert "GroupNorm" in found.remedy


MODULE = ": __main__.Net/stage: torch.nn.modules.container.Sequential/"
CALL = "%a : [num_users=1] = call_function[target=torch.ops.aten.{}](args = (%x,), kwargs = {{}})"
DROPPED = EvalLayer("Dropout", "stage.2")
FOLDED = EvalLayer("BatchNormalization", "stage.1")


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        (
            {"namespace": MODULE + "stage.2: torch.nn.modules.dropout.Dropout2d/clone: aten.clone"},
            DROPPED,
        ),
        ({"namespace": MODULE + "stage.2: timm.layers.drop.DropPath/clone: aten.clone"}, DROPPED),
        (
            {"namespace": MODULE + "stage.1: torch.nn.modules.batchnorm.BatchNorm2d/y: aten.add"},
            FOLDED,
        ),
        (
            {"pkg__torch__onnx__fx_node": CALL.format("dropout.default")},
            EvalLayer("Dropout", "step"),
        ),
        (
            {
                "namespace": MODULE + "stage.1: my.layers.Norm/y: aten.batch_norm",
                "pkg__torch__onnx__fx_node": CALL.format("_native_batch_norm_legit_no_training"),
            },
            FOLDED,
        ),
        ({"namespace": MODULE + "stage.1: torch.nn.modules.normalization.GroupNorm/y: a.b"}, None),
        ({"namespace": ": __main__.BatchNormNet/relu: aten.relu.default"}, None),
        ({"pkg__torch__onnx__fx_node": CALL.format("relu.default")}, None),
    ],
)
def test_notes_of_torch_name_layers_without_nodes(
    notes: dict[str, str], expected: EvalLayer | None, tmp_path
) -> None:
    """The node is an Identity, or whatever the layer was folded into."""
    step = named(noted(node("Relu", "x", "y"), **notes), "step")
    found = imported(tmp_path, [step], {}).graph.eval_layers
    assert found == (() if expected is None else (expected,))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model/conv/FusedBatchNormV3", "BatchNormalization"),
        ("/head/Dropout", "Dropout"),
        ("/bn1/Relu", ""),
        ("/batch_norm/Relu", ""),
    ],
)
def test_names_of_operators_count_names_of_modules_do_not(name: str, kind: str, tmp_path) -> None:
    """A GroupNorm that took the place of a BatchNorm often keeps its name."""
    found = imported(tmp_path, [named(node("Relu", "x", "y"), name)], {}).graph.eval_layers
    assert found == ((EvalLayer(kind, name),) if kind else ())


def test_running_statistics_that_something_else_reads(tmp_path) -> None:
    """A batch normalization that is spelled out."""
    tensors = {"stem.bn.running_mean": np.full(CHANNELS, 0.5, np.float32)}
    steps = [node("Sub", "x stem.bn.running_mean", "c"), node("Relu", "c", "y")]
    found = imported(tmp_path, steps, tensors).graph.eval_layers
    assert found == (EvalLayer("BatchNormalization", "stem.bn"),)


def test_what_the_output_does_not_read_does_not_count(tmp_path) -> None:
    unread = node("BatchNormalization", f"x {NORM}", "n")
    model = imported(tmp_path, [unread, node("Relu", "x", "y")], STATISTICS)
    assert model.graph.eval_layers == ()
    assert not any(item.code == "LC026" for item in model.diagnostics)
