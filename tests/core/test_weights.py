"""Weights of a step: a certificate cannot choose which numbers are held against a constraint."""

import json
import struct
from dataclasses import replace

import numpy as np
import pytest

from lipcert import ConstraintSpec, Settings, load_model
from lipcert.analysis.certificate import certify
from lipcert.core.certificate import Certificate, read_certificate
from lipcert.core.check import Choices, check
from lipcert.core.document import report_json
from lipcert.core.membership import read_weights
from lipcert.core.reader.model import read_model
from lipcert.core.reader.records import ModelReadError
from lipcert.core.text import report_text
from lipcert.core.verdict import Report, Verdict
from lipcert.text.certificate import write_certificate
from tests.core.lower.cases import model as onnx_model
from tests.core.lower.cases import node

IDENTITY = np.eye(4, dtype=np.float32)


def with_norms(first: float, second: float) -> dict[str, np.ndarray]:
    return {"first": first * IDENTITY, "second": second * IDENTITY}


def safetensors(path, arrays):
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array).tobytes()
        kind = {"float32": "F32", "int64": "I64"}[str(array.dtype)]
        places = [len(body), len(body) + len(raw)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": places}
        body += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory):
    """y = Relu(x·first)·second + shift."""
    tensors = {**with_norms(0.5, 2.0), "shift": np.full(4, 0.25, np.float32)}
    nodes = [node("MatMul", "x first", "h"), node("Relu", "h", "r")]
    nodes += [node("MatMul", "r second", "p"), node("Add", "p shift", "y")]
    path = tmp_path_factory.mktemp("weights") / "network.onnx"
    path.write_bytes(onnx_model(nodes, ["N", 4], tensors).SerializeToString())
    return path


@pytest.fixture(scope="module")
def honest(network) -> Certificate:
    """first within 1, second within 100, shift frozen."""
    held = (
        ("first", ConstraintSpec("spectral", 1.0)),
        ("second", ConstraintSpec("spectral", 100.0)),
    )
    settings = Settings(scope="constraint-set", constraints=held, freeze=("shift",), input_norm=1.0)
    return read_certificate(certify(load_model(network, trusted=True), settings).data)


def renamed(certificate: Certificate, names) -> Certificate:
    """With other names of parameters, each by its tensor."""
    old = {claim.name: names.get(claim.tensor, claim.name) for claim in certificate.parameters}
    return replace(
        certificate,
        parameters=tuple(replace(c, name=old[c.name]) for c in certificate.parameters),
        groups=tuple(
            replace(group, parameters=tuple(old[name] for name in group.parameters))
            for group in certificate.groups
        ),
    )


def checked(certificate: Certificate, network, weights) -> Report:
    accepted = frozenset(item.id for item in certificate.assumptions)
    return check(write_certificate(certificate), network, Choices("float", accepted, weights))


def test_exchanged_names_do_not_exchange_weights(network, honest: Certificate, tmp_path) -> None:
    """The norm of `first` is 50 under a constraint of 1, whatever the certificate calls it."""
    weights = safetensors(tmp_path / "step.safetensors", with_norms(50.0, 0.5))
    forged = renamed(honest, {"first": "second", "second": "first"})
    for certificate in (honest, forged):
        report = checked(certificate, network, weights)
        assert report.verdict is Verdict.INVALID
        assert any("first' is not within spectral 1.0" in reason for reason in report.reasons)


@pytest.mark.parametrize("decoy", ["ema.first", "first.best"])
def test_a_decoy_under_a_name_of_the_certificate_is_not_believed(
    decoy: str, network, honest: Certificate, tmp_path
) -> None:
    """The file holds first with norm 50, and small numbers under another name."""
    arrays = {**with_norms(50.0, 0.5), decoy: 0.5 * IDENTITY}
    weights = safetensors(tmp_path / "step.safetensors", arrays)
    report = checked(renamed(honest, {"first": decoy}), network, weights)
    assert report.verdict is Verdict.UNKNOWN
    assert "it is ambiguous which tensor" in report.reasons[0]


def test_without_its_own_name_a_tensor_is_found_by_the_certificate_if_nothing_else_fits(
    network, honest: Certificate, tmp_path
) -> None:
    named = renamed(honest, {"first": "fc1.weight"})
    arrays = {"fc1.weight": 0.5 * IDENTITY, "second": 2.0 * IDENTITY}
    report = checked(named, network, safetensors(tmp_path / "a.safetensors", arrays))
    assert report.verdict is Verdict.VALID, report.reasons
    assert report.weights == {"first": "fc1.weight", "second": "second"}
    both = {**arrays, "fc1.old": 50.0 * IDENTITY}
    report = checked(named, network, safetensors(tmp_path / "b.safetensors", both))
    assert report.verdict is Verdict.UNKNOWN
    assert "'fc1.old'" in report.reasons[0]


def test_two_unknown_names_of_one_shape_are_refused(network, honest: Certificate, tmp_path) -> None:
    """Which is which would be the certificate's choice."""
    arrays = {"fc1.weight": 50.0 * IDENTITY, "fc2.weight": 0.5 * IDENTITY}
    weights = safetensors(tmp_path / "step.safetensors", arrays)
    forged = renamed(honest, {"first": "fc2.weight", "second": "fc1.weight"})
    assert checked(forged, network, weights).verdict is Verdict.UNKNOWN


def test_two_parameters_of_one_tensor_hold_the_same_numbers(
    network, honest: Certificate, tmp_path
) -> None:
    """An exporter stores equal numbers once; after a step they may differ."""
    twin = replace(honest.parameters[0], name="twin")
    group = replace(honest.groups[0], parameters=(*honest.groups[0].parameters, "twin"))
    shared = replace(
        honest, parameters=(*honest.parameters, twin), groups=(group, *honest.groups[1:])
    )
    assert twin.tensor == "first"
    arrays = {**with_norms(0.5, 2.0), "twin": 50.0 * IDENTITY}
    model = read_model(network)
    with pytest.raises(ModelReadError, match="'twin'"):
        read_weights(safetensors(tmp_path / "a.safetensors", arrays), model, shared)
    arrays["twin"] = arrays["first"]
    found = read_weights(safetensors(tmp_path / "b.safetensors", arrays), model, shared).found
    assert list(found.values()) == ["first", "second"]


def test_a_tensor_under_its_own_name_has_its_shape(network, honest: Certificate, tmp_path) -> None:
    arrays = {**with_norms(0.5, 2.0), "first": np.zeros((2, 8), np.float32)}
    report = checked(honest, network, safetensors(tmp_path / "a.safetensors", arrays))
    assert report.verdict is Verdict.UNKNOWN
    assert "in the shape [2, 8], the model in [4, 4]" in report.reasons[0]


def test_a_frozen_tensor_that_moved_is_seen(network, honest: Certificate, tmp_path) -> None:
    for value, verdict in ((0.25, Verdict.VALID), (0.5, Verdict.INVALID)):
        arrays = {**with_norms(0.5, 2.0), "shift": np.full(4, value, np.float32)}
        report = checked(honest, network, safetensors(tmp_path / "a.safetensors", arrays))
        assert report.verdict is verdict, report.reasons
    assert "'shift' is not trained" in report.reasons[0]


def test_the_names_and_what_was_not_looked_at_are_shown(
    network, honest: Certificate, tmp_path
) -> None:
    steps = np.array(7, dtype=np.int64)
    arrays = {**with_norms(0.5, 2.0), "bn.num_batches_tracked": steps}
    report = checked(honest, network, safetensors(tmp_path / "a.safetensors", arrays))
    assert report.verdict is Verdict.VALID, report.reasons
    assert "  first: first, its own name" in report_text(report)
    assert "were compared with nothing: 'bn.num_batches_tracked'" in report_text(report)
    shown = json.loads(report_json(report))
    assert shown["weights"] == [
        {"tensor": name, "stored_as": name, "own_name": True} for name in ("first", "second")
    ]
