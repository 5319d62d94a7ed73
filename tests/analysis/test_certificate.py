"""Certificates state what the checker derives, a little more, and never less than the truth."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import helper

from lipcert import ConstraintSpec, Settings, analyze, load_model
from lipcert.analysis.bounded import bounded
from lipcert.analysis.certificate import Issued, certify
from lipcert.core.check import Choices, check
from lipcert.core.lines.norms import NormLine
from lipcert.core.verdict import Verdict
from lipcert.errors import NoVerdictError, UsageError
from lipcert.search.prover import ROOM
from tests.importer.models import model, saved, weights
from tests.plans import planned

MODELS = Path(__file__).resolve().parents[2] / "models"
RUN = planned(1437, 64, epochs=20)


def issued(name: str, **settings: object) -> Issued:
    return certify(load_model(MODELS / f"{name}.onnx"), Settings(**settings))  # type: ignore[arg-type]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["digits_mlp", "digits_cnn", "digits_resnet_groupnorm"])
def test_shipped_models_are_certified_for_both_engines(name: str) -> None:
    found = issued(name)
    for engine in ("float", "exact"):
        report = check(found.data, MODELS / f"{name}.onnx", Choices(engine))
        assert report.verdict is Verdict.CONDITIONAL
        assert {item.status for item in report.assumptions} <= {"declared", "checked"}


def test_the_bytes_do_not_depend_on_the_order_of_sets(tmp_path: Path) -> None:
    """Which is another one in this process."""
    file = tmp_path / "certificate.json"
    words = ["certify", str(MODELS / "digits_mlp.onnx"), "--loss", "nll", "-o", str(file)]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "lipcert", *words]
    subprocess.run(command, env=environment, cwd=MODELS.parent, capture_output=True, check=True)
    assert file.read_bytes() == issued("digits_mlp", loss="nll").data


def test_a_run_in_which_nothing_is_known_to_be_trained_has_no_certificate(tmp_path: Path) -> None:
    path = saved(model([helper.make_node("Tanh", ["x"], ["y"])], ("N", 4), {}), tmp_path)
    with pytest.raises(NoVerdictError, match="no trained tensor of the file is known"):
        certify(load_model(path), Settings(loss="nll", **RUN))


def test_claims_are_those_of_the_analysis() -> None:
    found = issued("digits_mlp")
    analysed = {item.name: item.grad_norm for item in found.analysis.parameters}
    for claim in found.certificate.parameters:
        bound = analysed[claim.name]
        assert bound <= claim.grad_norm <= bound * (1.0 + 100.0 * ROOM)


def test_a_rule_that_changes_no_bound_is_not_issued() -> None:
    """How long the scores are does not matter where their softmax may be next to a corner."""
    settings = Settings(loss="cross-entropy", input_norm=1.0)
    found = bounded(load_model(MODELS / "digits_mlp.onnx"), settings)
    kept = {line.rule for line in issued("digits_mlp", input_norm=1.0).certificate.lines}
    needed = found.derived.needed(found.scope.trained, lipschitz=True)
    assert {line.rule for line in needed.lines} - kept == {"fact/zero"}


def test_what_is_proved_for_a_set_does_not_depend_on_the_weights() -> None:
    settings = {"constraint": ConstraintSpec("spectral", 1.0), "bias_norm": 1.0, **RUN}
    found = issued("digits_mlp", mechanism="clipless", **settings)
    assert found.certificate.scope.kind == "constraint-set"
    assert not [line for line in found.certificate.lines if isinstance(line, NormLine)]
    assert found.certificate.privacy.status == "recomputed"


def test_a_clip_bounds_free_weights() -> None:
    found = issued("digits_mlp", mechanism="gradient-clipping", clip_norm=1.0, **RUN)
    (group,) = found.certificate.groups
    assert group.grad_norm == 1.0
    assert found.certificate.network.grad_norm == pytest.approx(1.0, rel=2 * ROOM)


def test_a_parameter_that_two_tensors_hold_is_not_certified(tmp_path: Path) -> None:
    """The checker would take the second one for a constant, and its gradient for none."""
    weight = weights(4, 4)
    nodes = [
        helper.make_node("MatMul", ["x", "onnx::MatMul_1"], ["h"]),
        helper.make_node("MatMul", ["h", "onnx::MatMul_2"], ["y"]),
    ]
    tensors = {"onnx::MatMul_1": weight, "onnx::MatMul_2": weight}
    imported = load_model(saved(model(nodes, ("N", 4), tensors), tmp_path))
    assert imported.scattered == {"onnx::MatMul_1"}
    with pytest.raises(NoVerdictError, match=r"lipcert\.export"):
        certify(imported, Settings())


def test_a_stated_rate_is_certified_as_the_larger_one() -> None:
    """A certificate knows B/N; ε is that of the rate stated there, and not below the run's own."""
    clipped = {"mechanism": "gradient-clipping", "clip_norm": 1.0, "input_norm": 1.0}
    run = planned(1437, 32, epochs=2.0, **clipped)
    rarer = issued("digits_mlp", **run, sampling_rate=1 / 45)
    privacy = rarer.certificate.privacy
    own = analyze(load_model(MODELS / "digits_mlp.onnx"), Settings(**run, sampling_rate=1 / 45))
    assert privacy.epsilon >= own.privacy.epsilon
    with pytest.raises(NoVerdictError, match=r"states the rate B/N, and 0\.05 is above 32/1437"):
        issued("digits_mlp", **run, sampling_rate=0.05)
    with pytest.raises(UsageError, match=r"trials: certify states the ε of one run.*--trials 5"):
        issued("digits_mlp", **run, trials=5)
