"""A-EVAL: the checker itself sees what computes something else in train mode."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lipcert import Settings, load_model
from lipcert.analysis.certificate import certify
from lipcert.core.certificate import Assumption, Certificate, read_certificate
from lipcert.core.check import Choices, check
from lipcert.core.text import promise, texts
from lipcert.core.verdict import Report, Verdict
from lipcert.text.certificate import write_certificate
from tests.core.lower.cases import model as onnx_model
from tests.core.lower.cases import node


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier behind a batch normalization and a Dropout; another one behind no output."""
    rng = np.random.default_rng(0)
    tensors = {
        "weight": rng.standard_normal((4, 3)).astype(np.float32),
        "scale": np.ones(4, np.float32),
        "shift": np.zeros(4, np.float32),
        "mean": np.zeros(4, np.float32),
        "var": np.ones(4, np.float32),
    }
    nodes = [
        node("BatchNormalization", "x scale shift mean var", "n"),
        node("Dropout", "n", "d"),
        node("Dropout", "x", "unread"),
        node("MatMul", "d weight", "y"),
    ]
    for made, name in zip(nodes, ("norm", "drop", "unused drop", "dense"), strict=True):
        made.name = name
    path = tmp_path_factory.mktemp("eval") / "network.onnx"
    path.write_bytes(onnx_model(nodes, ["N", 4], tensors).SerializeToString())
    return path


@pytest.fixture(scope="module")
def issued(network: Path) -> Certificate:
    settings = Settings(input_norm=1.0, loss="cross-entropy", batch_size=8)
    return read_certificate(certify(load_model(network, trusted=True), settings).data)


def accepting(certificate: Certificate, network: Path) -> Report:
    """Whoever checks accepts every assumption that the certificate states."""
    accepted = frozenset(item.id for item in certificate.assumptions)
    return check(write_certificate(certificate), network, Choices(accepted=accepted))


def entry(certificate: Certificate, name: str) -> Assumption:
    (found,) = (item for item in certificate.assumptions if item.id == name)
    return found


def test_the_certificate_names_the_layers_on_the_way_to_the_output(
    network: Path, issued: Certificate
) -> None:
    found = entry(issued, "A-EVAL")
    assert found.status == "declared"
    assert found.data["layers"] == [
        {"kind": "BatchNormalization", "name": "norm"},
        {"kind": "Dropout", "name": "drop"},
    ]
    assert ", named norm; Dropout, named drop" in texts(issued.assumptions)["A-EVAL"]
    report = accepting(issued, network)
    assert report.verdict is Verdict.VALID, report.reasons
    assert all("in eval mode" in sentence for sentence in promise(report)[:2])


def test_a_certificate_that_names_some_of_the_layers_is_invalid(
    network: Path, issued: Certificate
) -> None:
    found = entry(issued, "A-EVAL")
    fewer = replace(
        found,
        data={"layers": found.data["layers"][:1]},
    )
    changed = tuple(fewer if item is found else item for item in issued.assumptions)
    assert accepting(replace(issued, assumptions=changed), network).verdict is Verdict.INVALID


def test_layers_that_only_notes_tell_of_are_named_too(tmp_path: Path) -> None:
    """The checker sees an Identity; to assume more is no lie."""
    drop = node("Identity", "x", "d")
    drop.metadata_props.add(key="namespace", value=": m.Net/head.drop: torch.nn.Dropout/c: aten.c")
    weight = {"weight": np.eye(4, dtype=np.float32)}
    path = tmp_path / "model.onnx"
    proto = onnx_model([drop, node("MatMul", "d weight", "y")], ["N", 4], weight)
    path.write_bytes(proto.SerializeToString())
    settings = Settings(input_norm=1.0, loss="cross-entropy")
    found = read_certificate(certify(load_model(path, trusted=True), settings).data)
    assert entry(found, "A-EVAL").data["layers"] == [{"kind": "Dropout", "name": "head.drop"}]
    assert accepting(found, path).verdict is Verdict.VALID


def test_networks_without_such_layers_assume_nothing_of_the_mode() -> None:
    path = Path(__file__).resolve().parents[2] / "models" / "digits_mlp.onnx"
    found = read_certificate(certify(load_model(path, trusted=True), Settings(input_norm=1.0)).data)
    assert not any(item.id == "A-EVAL" for item in found.assumptions)


def test_a_clip_bounds_alone_what_dropout_feeds(tmp_path: Path) -> None:
    """A clipped run may drop: √2·‖(x, 1)‖ bounds the gradient in eval mode, 10 times that does not.

    Dropout needs no assumption then, and a claim of less than the clip does not follow.
    """
    rng = np.random.default_rng(0)
    tensors = {
        "weight": rng.standard_normal((4, 3)).astype(np.float32),
        "bias": np.zeros(3, np.float32),
    }
    nodes = [node("Dropout", "x", "d"), node("Gemm", "d weight bias", "y")]
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_model(nodes, ["N", 4], tensors).SerializeToString())
    model = load_model(path, trusted=True)
    for scope in ("flat", "group"):
        settings = Settings(
            mechanism="gradient-clipping", clip_norm=10.0, clip_scope=scope,
            input_norm=1.0, loss="cross-entropy",
        )  # fmt: skip
        found = certify(model, settings)
        assert found.analysis.network.grad_norm == pytest.approx(10.0)
        assert all(item.grad_norm == 10.0 for item in found.analysis.parameters)
        assert found.certificate.network.grad_norm >= 10.0
        assert not any(item.id == "A-EVAL" for item in found.certificate.assumptions)
        (*_, group) = found.certificate.groups
        smaller = replace(group, grad_norm=2.0, sensitivity=2.0)
        forged = replace(found.certificate, groups=(*found.certificate.groups[:-1], smaller))
        assert accepting(forged, path).verdict is Verdict.INVALID
