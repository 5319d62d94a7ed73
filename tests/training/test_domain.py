"""The domain of inputs: nothing undeclared is enforced, and what does not fit leaves no trace."""

import json
import warnings
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lipcert import analyze, load_model
from lipcert.analysis.certificate import certify
from lipcert.audit.observation import options_of
from lipcert.core.certificate import read_certificate
from lipcert.core.check import Choices, check
from lipcert.core.text import texts
from lipcert.core.verdict import Verdict
from lipcert.errors import NoVerdictError, UsageError
from lipcert.report.analysis import analysis_json
from lipcert.settings.settings import Settings
from lipcert.training import (
    BackpropClipping,
    Clipless,
    FixedWeightNorm,
    GradientClipping,
    WeightClipping,
)
from lipcert.training.batches import admitted
from lipcert.training.calibration import CertificateWarning
from lipcert.training.intake import (
    FirstExamples,
    batch_size_of,
    numbers_of,
    require_full_precision,
)
from tests.commands import lipcert
from tests.training.runs import audited, clipless, data, private_run, train

MODELS = Path(__file__).parents[2] / "models"
CLIPS = [
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
def test_clips_need_no_domain_and_enforce_none(mechanism, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("error", CertificateWarning)
        run = private_run(folder, mechanism, examples=far_away())
    with run:
        train(run)
    file = (folder / "model.lipcert.json").read_bytes()
    found = texts(read_certificate(file).assumptions)
    assert found["A-INPUT"] == "Every example has any entries."
    audited(folder)


@pytest.mark.parametrize("mechanism", CLIPS, ids=["flat", "group", "backprop"])
def test_examples_that_are_no_numbers_are_refused_all_the_same(mechanism) -> None:
    x, y = data().tensors
    x[3, 0] = float("nan")
    with pytest.raises(NoVerdictError, match="NaN or infinity"):
        private_run(None, mechanism, examples=TensorDataset(x, y))


NOT_HELD = clipless(radius=None, constraints=(("head.*", "spectral:1"),), bias_norm=None)
INPUTS, LABELS = data().tensors
REFUSED = [
    *(
        (kind(radius=1.0, bias_norm=1.0), data(), r"input_norm=R .* or input_box=\(LO, HI\)")
        for kind in (Clipless, WeightClipping, FixedWeightNorm)
    ),
    (clipless(), far_away(), "example 0 of the batch has the norm .* input_norm or input_box"),
    (clipless(), TensorDataset(INPUTS, torch.full((60,), 7)), "label"),
    (NOT_HELD, data(), "has no bound"),
]


@pytest.mark.parametrize(("mechanism", "examples", "words"), REFUSED)
def test_what_is_inadmissible_is_found_before_the_folder_is_made(
    mechanism, examples: TensorDataset, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError if "=R" in words else NoVerdictError, match=words):
        private_run(tmp_path / "run", mechanism, examples=examples)
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


BALL = Settings(input_norm=1.0)
BOX = Settings(input_box=(0.0, 1.0))


def batch(lengths: list[float], entries: int = 12, seed: int = 0) -> torch.Tensor:
    x = torch.randn(len(lengths), entries, generator=torch.Generator().manual_seed(seed)).double()
    scaled = x / torch.linalg.vector_norm(x, dim=1, keepdim=True) * torch.tensor(lengths)[:, None]
    return scaled.float()


def square(example: torch.Tensor) -> Fraction:
    """‖x‖², exactly."""
    return sum((Fraction(entry) ** 2 for entry in example.flatten().tolist()), Fraction())


@given(st.integers(0, 10**6), st.integers(1, 3000), st.floats(-1e-5, 1e-5))
def test_what_rounding_left_outside_is_drawn_in(seed: int, entries: int, off: float) -> None:
    x = batch([1.0 + off, 0.5, 1.0], entries, seed)
    drawn = admitted(x, BALL)
    assert all(square(example) <= 1 for example in drawn)
    torch.testing.assert_close(drawn, x, rtol=2e-5, atol=0.0)
    assert torch.equal(drawn[1], x[1])


def test_norms_that_float32_took_are_forgiven() -> None:
    x = torch.rand(4, 150528, generator=torch.Generator().manual_seed(0))
    drawn = admitted(x / x.norm(dim=1, keepdim=True), BALL)
    assert float(torch.linalg.vector_norm(drawn.double(), dim=1).max()) <= 1.0


BOTH = Settings(input_norm=1.0, input_box=(0.0, 1.0))
OUTSIDE: list[tuple[torch.Tensor, Settings, str]] = [
    *((batch([0.5, size]), BALL, "example 1 of .* has the norm") for size in (1.0001, 2.0, 1e30)),
    *(
        (torch.tensor([[0.1, 0.1], [0.1, bad]]), declared, "NaN or infinity")
        for bad in (float("nan"), float("inf"), -float("inf"))
        for declared in (BALL, BOX, BOTH)
    ),
    (torch.tensor([[0.5], [0.5], [1.01]]), BOX, r"example 2 of the batch has the entry 1\.01"),
    (torch.tensor([[1, 4]]), Settings(input_box=(0.0, 2.0)), "column of categories an input"),
]


@pytest.mark.parametrize(("x", "declared", "says"), OUTSIDE)
def test_what_is_outside_is_refused_by_its_place(
    x: torch.Tensor, declared: Settings, says: str
) -> None:
    with pytest.raises(NoVerdictError, match=says):
        admitted(x, declared)


def test_a_batch_inside_is_the_same_tensor() -> None:
    x = batch([0.9, 0.1])
    assert admitted(x, BALL) is x
    half, empty = torch.full((3, 4), 0.5), torch.zeros(0, 12)
    assert admitted(half, BOX) is half
    assert admitted(empty, BALL) is empty


def loader(*tensors: torch.Tensor, batch_size: int | None = 4) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size)


def test_the_batch_size_is_the_loaders() -> None:
    assert batch_size_of(loader(torch.zeros(8, 2))) == 4
    with pytest.raises(UsageError, match="batch_size=None"):
        batch_size_of(loader(torch.zeros(8, 2), batch_size=None))


def test_the_first_examples_are_those_that_the_loader_would_give() -> None:
    x = torch.arange(16.0).reshape(8, 2)
    found = FirstExamples.of(loader(x, torch.ones(8)), nn.Linear(2, 1))
    assert torch.equal(found.x, x)
    assert torch.equal(found.labels, torch.ones(8))
    halves = DataLoader(
        TensorDataset(x, torch.ones(8)),
        batch_size=4,
        collate_fn=lambda rows: (torch.stack([x for x, _ in rows]) / 2, [y for _, y in rows]),
    )
    found = FirstExamples.of(halves, nn.Linear(2, 1))
    assert torch.equal(found.x, x / 2)
    assert isinstance(found.labels, list)


@pytest.mark.parametrize(
    ("given", "model", "says"),
    [
        (DataLoader([1, 2, 3]), nn.Linear(2, 1), r"read in these forms: \(x, y\)"),
        (DataLoader([{"x": torch.zeros(2)}]), nn.Linear(2, 1), r"read in these forms: \(x, y\)"),
        (loader(torch.zeros(8, 2), torch.zeros(8)), nn.ReLU(), "no parameters"),
    ],
)
def test_first_examples_of_nothing_are_refused(given, model: nn.Module, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        FirstExamples.of(given, model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_of_16_bits_are_refused(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    require_full_precision(model)
    require_full_precision(model.double())
    model[1].to(dtype)
    with pytest.raises(UsageError, match=r"1\.weight is of type b?float16"):
        require_full_precision(model)


def test_what_an_optimizer_was_told_is_all_but_its_parameters() -> None:
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    told = options_of(torch.optim.SGD(first.parameters(), lr=0.1), {})
    assert told == options_of(torch.optim.SGD(second.parameters(), lr=0.1), {})
    assert told != options_of(torch.optim.SGD(first.parameters(), lr=0.2), {})
    assert told != options_of(torch.optim.Adam(first.parameters(), lr=0.1), {})


def test_the_numbers_of_a_module_include_its_buffers() -> None:
    assert len(numbers_of(nn.BatchNorm1d(3))) == 5
