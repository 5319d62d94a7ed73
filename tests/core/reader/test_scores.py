"""Scores of ai.onnx.ml beside onnxruntime, their bounds beside torch, and what stays as it is."""

import numpy as np
import pytest
import torch
from onnx import helper

from lipcert.analysis.bounded import bounded
from lipcert.analysis.certificate import certify
from lipcert.analysis.pipeline import analyze
from lipcert.core.check import Choices, check
from lipcert.core.lower.errors import Unsupported
from lipcert.core.verdict import Verdict
from lipcert.errors import ModelFileError, UnsupportedModelError
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.core.lower.cases import agrees, kinds, model, node, nodes_of, program, read
from tests.importer.models import saved

RNG = np.random.default_rng(3)
WIDE = RNG.standard_normal((3, 4)).astype(np.float32)
ROW = WIDE[0].tolist()
LABELS = {"classlabels_ints": [0, 1, 2]}
NAN = float("nan")


def ml(op, inputs="x", outputs="y", **attributes):
    return node(op, inputs, outputs, domain="ai.onnx.ml", **attributes)


def classified(rows, offsets, post="NONE", outputs="label y", **attributes):
    numbers = np.ravel(rows).tolist()
    given = {"coefficients": numbers, "intercepts": offsets, "post_transform": post, **LABELS}
    known = {name: item for name, item in {**given, **attributes}.items() if item != []}
    return ml("LinearClassifier", "x", outputs, **known)


PAIR = [[-number for number in ROW], ROW]
TWO = {"classlabels_ints": [0, 1]}
THREE = [0.25, -1.0, 2.0]
CASES = {
    # name: (nodes, steps that are activations, products or norms)
    "regressor": ([ml("LinearRegressor", coefficients=ROW)], "Dense"),
    "regressor of three": (
        [ml("LinearRegressor", coefficients=WIDE.ravel().tolist(), intercepts=THREE, targets=3)],
        "Dense",
    ),
    "classes": ([classified(WIDE, THREE)], "Dense"),
    "sigmoids": ([classified(WIDE, THREE, "LOGISTIC")], "Dense sigmoid"),
    "softmax": ([classified(WIDE, THREE, "SOFTMAX", multi_class=1)], "Dense Softmax"),
    "two classes": ([classified(WIDE[:2], THREE[:2], "SOFTMAX")], "Dense Softmax"),
    "opposite rows": ([classified(PAIR, [-0.5, 0.5], "LOGISTIC", **TWO)], "Dense sigmoid"),
    "opposite rows, softmax": ([classified(PAIR, [-0.5, 0.5], "SOFTMAX", **TWO)], "Dense Softmax"),
    "one row": ([classified([ROW], [0.5], "LOGISTIC", **TWO)], "Dense sigmoid"),
    "words": (
        [classified(WIDE, THREE, "SOFTMAX", classlabels_ints=[], classlabels_strings=[*"abc"])],
        "Dense Softmax",
    ),
    "shares of sigmoids": (
        [classified(WIDE, THREE, "LOGISTIC", "label p"), ml("Normalizer", "p", norm="L1")],
        "Dense softplus Softmax",
    ),
    "shares of opposites": (
        [classified(PAIR, [-0.5, 0.5], "LOGISTIC", "label p"), ml("Normalizer", "p", norm="L1")],
        "Dense sigmoid",
    ),
    "shares of a softmax": (
        [classified(WIDE, THREE, "SOFTMAX", "label p"), ml("Normalizer", "p", norm="L1")],
        "Dense Softmax",
    ),
    "length of a softmax": (
        [classified(WIDE, THREE, "SOFTMAX", "label p"), ml("Normalizer", "p", norm="L2")],
        "Dense Softmax DivideByNorm",
    ),
    "norm 2": ([ml("Normalizer", norm="L2")], "DivideByNorm"),
    "norm 1": ([ml("Normalizer", norm="L1")], "DivideByNorm ReduceNorm Divide"),
    "scaler": ([ml("Scaler", offset=ROW, scale=[2.0, 0.5, 1.0, -1.0])], ""),
    "scaler of all": ([ml("Scaler", offset=[1.0], scale=[0.3])], ""),
    "imputer": ([ml("Imputer", imputed_value_floats=[7.0], replaced_value_float=NAN)], ""),
    "features": ([ml("ArrayFeatureExtractor", "x i")], ""),
    "features of whole numbers": (
        [*nodes_of("c = Cast<to=1>(x)"), ml("ArrayFeatureExtractor", "c i", "f"),
         ml("LinearRegressor", "f", coefficients=[1.0, 2.0, 3.0])], "Dense"),
}  # fmt: skip


def graph(nodes):
    proto = model(nodes, ["N", 4], {"i": [[2, 0, 2]]})
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    return proto


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_onnxruntime(name):
    nodes, steps = CASES[name]
    found = agrees(graph(nodes))
    counted = {"Dense", "Softmax", "sigmoid", "softplus", "DivideByNorm", "ReduceNorm", "Divide"}
    assert [kind for kind in kinds(found) if kind in counted] == steps.split()


OPEN = {
    "classes": [ml("Scaler", "x", "s", offset=[1.0], scale=[2.0]),
                ml("LinearRegressor", "s", coefficients=ROW)],
    "an mlp": "c = Cast<to=1>(x)  y = MatMul(c, w)",
    "turned": "m = Mul(x, a)  y = Gemm<transB=1>(m, wt)",
    "two": "h = MatMul(x, w)  g = MatMul(x, wt)  y = Add(h, g)",
    "a sum": "y = ReduceMean<axes=[1]>(x)",
    "unstored": "t = Transpose<perm=[1, 0]>(x)  y = MatMul(x, t)",
}  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_an_open_width_is_that_of_the_first_matrix(name, tmp_path):
    proto = model(OPEN[name], ["N", "W"], {"w": WIDE.T, "wt": WIDE, "a": ROW})
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    if name in {"classes", "an mlp", "turned"}:
        found = load_model(saved(proto, tmp_path))
        assert found.graph.input_shape == (4,)
        assert found.verification.max_difference < 1e-5
    else:
        with pytest.raises((ModelFileError, UnsupportedModelError), match=r"LC0(07|08|16)"):
            load_model(saved(proto, tmp_path))


def test_whole_numbers_are_scored(tmp_path):
    nodes = [ml("Scaler", "x", "s", offset=ROW, scale=[0.5] * 4), classified(WIDE, THREE)]
    nodes[1].input[0] = "s"
    proto = graph(nodes)
    proto.graph.input[0].type.tensor_type.elem_type = 7
    assert load_model(saved(proto, tmp_path)).verification.max_difference < 1e-5


def test_coefficients_are_parameters_and_labels_are_left_aside(tmp_path):
    nodes = [classified(PAIR, [-0.5, 0.5], "LOGISTIC", "label p", **TWO)]
    nodes += [ml("Normalizer", "p", "q", norm="L1"), ml("ZipMap", "q", classlabels_int64s=[0, 1])]
    proto = graph(nodes)
    proto.graph.output.insert(0, helper.make_tensor_value_info("label", 7, None))
    path = saved(proto, tmp_path)
    found = load_model(path)
    assert found.reading.outputs == ("q",)
    name = "LinearClassifier_label p"
    shapes = {name: item.shape for name, item in found.graph.parameters.items()}
    assert shapes == {f"{name}.coefficients": (1, 4), f"{name}.intercepts": (1,)}
    (note,) = found.diagnostics
    assert note.code == "LC012"
    assert "'label', 'y'" in note.message
    for inner, size in (("p.scores", 2), ("p.score", 1)):
        assert load_model(path, output=inner).reading.program.shapes[inner] == (1, size)
    with pytest.raises(UnsupportedModelError, match=r"LC005.*labels"):
        load_model(path, output="label")


def test_logits_are_named_where_a_loss_reads_probabilities(tmp_path):
    path = saved(graph([classified(WIDE, THREE, "SOFTMAX")]), tmp_path)
    found = analyze(load_model(path), Settings(loss="cross-entropy", input_norm=1.0))
    (note,) = [item for item in found.diagnostics if item.code == "LC103"]
    assert "--output y.scores if" in note.remedy
    found = analyze(load_model(path, output="y.scores"), Settings(loss="cross-entropy"))
    assert "LC103" not in {item.code for item in found.diagnostics}


OTHERS = {
    "probit": classified(WIDE, THREE, "PROBIT"),
    "one row of scores": classified([ROW], [0.5], **TWO),
    "one row for three classes": classified([ROW], [0.5], "LOGISTIC"),
    "no rows": classified(WIDE, []),
    "rows that do not fit": classified(WIDE, [1.0] * 5),
    "another kind": classified(WIDE, THREE, multi_class=1.5),
    "an unknown attribute": classified(WIDE, THREE, alpha=1),
    "no targets": ml("LinearRegressor", coefficients=ROW, targets=0),
    "targets that do not fit": ml("LinearRegressor", coefficients=ROW, targets=3),
    "offsets that do not fit": ml("LinearRegressor", coefficients=ROW, intercepts=[1.0, 2.0]),
    "softmax of one target": ml("LinearRegressor", coefficients=ROW, post_transform="SOFTMAX"),
    "two inputs": ml("LinearRegressor", "x x", coefficients=ROW),
    "no offset": ml("Scaler", scale=[1.0]),
    "offset and scale": ml("Scaler", offset=ROW, scale=[1.0]),
    "largest": ml("Normalizer", norm="MAX"),
    "zeros": ml("Imputer", imputed_value_floats=[7.0], replaced_value_float=0.0),
    "zeros by default": ml("Imputer", imputed_value_floats=[7.0]),
    "entries from behind": ml("ArrayFeatureExtractor", "x j"),
    "entries of numbers of the data": ml("ArrayFeatureExtractor", "i x"),
    "trees": ml("TreeEnsembleRegressor", n_targets=1),
    "support vectors": ml("SVMRegressor", coefficients=ROW, kernel_type="RBF"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_understood_is_refused(name, tmp_path):
    proto = graph([OTHERS[name]])
    proto.graph.initializer.append(helper.make_tensor("j", 7, [1], [-1]))
    with pytest.raises(Unsupported):
        program(proto)
    assert proto.graph.node[0].op_type in [item.op_type for item in read(proto, tmp_path).nodes]


@pytest.mark.parametrize(("rows", "kind"), [(WIDE, "rows"), (PAIR, "pair"), ([ROW], "target")])
def test_gradients_stay_below_their_bounds_and_come_near(rows, kind, tmp_path):
    """Of the squared error, inputs of norm 2, labels of norm 1: rows w and -w are one parameter."""
    offsets = {"pair": [-0.5, 0.5], "rows": THREE, "target": [0.5]}[kind]
    nodes = [classified(rows, offsets)]
    if kind == "target":
        nodes = [ml("LinearRegressor", coefficients=ROW, intercepts=offsets)]
    path = saved(graph(nodes), tmp_path)
    stated = Settings(loss="mse", label_norm=1.0, input_norm=2.0, output_reduction="sum")
    network = load_model(path)
    issued = certify(network, stated)
    assert check(issued.data, path, Choices()).verdict is Verdict.CONDITIONAL
    own = slice(1, None) if kind == "pair" else slice(None)
    trained = [torch.tensor(np.asarray(item)[own]).double() for item in (rows, offsets)]
    x = torch.tensor(RNG.standard_normal((200, 4)))
    x, largest = 2.0 * x / x.norm(dim=1, keepdim=True), [0.0, 0.0]
    for example in x:
        w, b = (item.clone().requires_grad_() for item in trained)
        scores = w @ example + b
        scores = torch.cat([-scores, scores]) if kind == "pair" else scores
        label = -scores.detach() / scores.detach().norm()
        ((scores - label) ** 2).sum().backward()
        largest = [
            max(old, new.grad.norm().item()) for old, new in zip(largest, (w, b), strict=True)
        ]
    bounds = [*bounded(network, stated).grad_norms.values()]
    assert all(0.8 * bound <= found <= bound for found, bound in zip(largest, bounds, strict=True))
