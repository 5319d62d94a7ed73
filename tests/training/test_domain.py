"""The domain of inputs: nothing undeclared is enforced, and what does not fit leaves no trace."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from lipcert import NoVerdictError, Settings, UsageError, analyze, load_model
from lipcert.analysis.certificate import certify
from lipcert.core.certificate import read_certificate
from lipcert.core.check import Choices, check
from lipcert.core.text import texts
from lipcert.core.verdict import Verdict
from lipcert.report.analysis import analysis_json
from lipcert.training import (
    BackpropClipping,
    Clipless,
    FixedWeightNorm,
    GradientClipping,
    TrainingMechanism,
    WeightClipping,
)
from lipcert.training.calibration import CertificateWarning
from tests.commands import lipcert
from tests.training.runs import clipless, data, private_run, train

MODELS = Path(__file__).parents[2] / "models"
CLIPS: list[TrainingMechanism] = [
    GradientClipping(clip_norm=0.5),
    GradientClipping(clip_norm=0.5, clip_scope="group"),
    BackpropClipping(input_clip=1.0, cotangent_clip=0.5),
]


def far_away() -> TensorDataset:
    """Examples that lie in no usual domain."""
    x, y = data().tensors
    return TensorDataset(x * 300.0 - 40.0, y)


@pytest.mark.sample(1)
@pytest.mark.parametrize("mechanism", CLIPS, ids=["flat", "group", "backprop"])
def test_clips_need_no_domain_and_enforce_none(mechanism: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("error", CertificateWarning)
        run = private_run(folder, mechanism, examples=far_away())
    with run:
        train(run)
    file = (folder / "model.lipcert.json").read_bytes()
    found = texts(read_certificate(file).assumptions)
    assert found["A-INPUT"] == "Every example is admitted, whatever its entries are."
    words = [str(folder / "model.lipcert.json"), "--model", str(folder / "model.onnx")]
    audit = lipcert(["audit", *words, "--trace", str(folder / "trace")])
    assert audit.exit_code == 0, audit.output
    assert lipcert(["report", str(folder / "model.lipcert.json"), "-o",
                    str(tmp_path / "r.html")]).exit_code == 0  # fmt: skip


@pytest.mark.parametrize("mechanism", CLIPS, ids=["flat", "group", "backprop"])
def test_examples_that_are_no_numbers_are_refused_all_the_same(mechanism: Any) -> None:
    x, y = data().tensors
    x[3, 0] = float("nan")
    with pytest.raises(NoVerdictError, match="NaN or infinity"):
        private_run(None, mechanism, examples=TensorDataset(x, y))


@pytest.mark.parametrize("kind", [Clipless, WeightClipping, FixedWeightNorm])
def test_a_domain_that_the_bounds_need_has_to_be_declared(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"input_norm=R .* or input_box=\(LO, HI\)"):
        private_run(tmp_path / "run", kind(radius=1.0, bias_norm=1.0))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("examples", "words"), [
    (far_away(), r"example 0 of the batch has the norm .* input_norm or input_box"),
    (TensorDataset(data().tensors[0], torch.full((60,), 7)), r"label"),
], ids=["inputs", "labels"])  # fmt: skip
def test_what_is_inadmissible_is_found_before_the_folder_is_made(
    examples: TensorDataset, words: str, tmp_path: Path
) -> None:
    with pytest.raises(NoVerdictError, match=words):
        private_run(tmp_path / "run", clipless(), examples=examples)
    assert not (tmp_path / "run").exists()


def test_a_network_without_a_bound_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(NoVerdictError, match="has no bound"):
        private_run(tmp_path / "run", clipless(radius=None, constraints=(("head.*", "spectral:1"),),
                                               bias_norm=None))  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_an_analysis_under_clips_assumes_no_domain() -> None:
    model = load_model(MODELS / "digits_mlp.onnx", trusted=True)
    settings = Settings(mechanism="gradient-clipping", clip_norm=1.0)
    found = analyze(model, settings)
    assert found.assumptions.input_norm is None
    assert found.assumptions.input_box is None
    assert "LC104" not in {item.code for item in found.diagnostics}
    assert found.network.grad_norm == 1.0
    assert "Infinity" not in analysis_json(found)
    issued = certify(model, settings)
    accepted = frozenset(item.id for item in issued.certificate.assumptions)
    assert check(issued.data, Path(model.path), Choices(accepted=accepted)).verdict is Verdict.VALID


def test_an_audit_attacks_a_clip_without_a_domain() -> None:
    words = ["--mechanism", "gradient-clipping", "--clip-norm", "0.1", "--attack", "pga"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = lipcert(["audit", "models/digits_mlp.onnx", *words, "--format", "json"])
    assert found.exit_code == 0, found.output
    values = {item["value"]: item for item in json.loads(found.stdout)["values"]}
    assert max(item["max_observed"] for item in values.values()) > 1.0
