"""N is a public constant: with it, neighbouring data sets have one rate, divisor and length."""

import warnings

import pytest
from torch.utils.data import TensorDataset

from lipcert import analyze, load_model
from lipcert.audit.trace.reading import read_trace
from lipcert.cli.sources import effective_settings
from lipcert.core.certificate import read_certificate
from lipcert.core.text import texts
from lipcert.errors import UsageError
from lipcert.training.intake import DatasetSizeWarning
from tests.training.runs import BATCH, audited, clipless, data, private_run, train


def neighbour(count: int = 59) -> TensorDataset:
    x, y = data().tensors
    return TensorDataset(x[:count], y[:count])


def account(run):
    """What everyone else's treatment depends on."""
    plan = run.calibration.plan
    return plan.sampling_rate, plan.releases, plan.batch, run.release.divisor, len(run.loader)


@pytest.mark.parametrize("changes", [
    {"steps": None, "epochs": 2.0},
    {"steps": None, "epochs": 2.0, "sampling": "shuffle",
     "mechanism": clipless(neighbours="zero-out")},
    {"steps": None, "epochs": 2.0, "sampling": "without-replacement",
     "mechanism": clipless(neighbours="replace-one")},
], ids=["poisson", "shuffle", "without-replacement"])  # fmt: skip
def test_neighbours_are_treated_alike_where_the_size_is_declared(changes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DatasetSizeWarning)
        runs = [private_run(examples=neighbour(n), **changes) for n in (60, 59, 45)]
    assert len({account(run) for run in runs}) == 1
    for run in runs:
        with run:
            train(run)
            assert run.releases == 8


def test_a_counted_size_is_told_and_moves_the_rate(tmp_path) -> None:
    with pytest.warns(DatasetSizeWarning, match=r"LC409.*declare dataset_size=60"):
        run = private_run(tmp_path / "run", dataset_size=None)
    with (
        pytest.warns(DatasetSizeWarning),
        private_run(examples=neighbour(), dataset_size=None) as other,
    ):
        assert account(other) != account(run)
    run.close()
    folder = tmp_path / "run"
    settings = effective_settings({}, {}, folder / "lipcert.toml").settings
    found = analyze(load_model(folder / "model.onnx"), settings)
    assert "LC409" in {item.code for item in found.diagnostics}
    assert "N was counted in the data set" in sampling_text(folder)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_a_counted_size_is_no_fault_where_neighbours_have_one_size(relation: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DatasetSizeWarning)
        run = private_run(mechanism=clipless(neighbours=relation), dataset_size=None)
    assert run.calibration.plan.dataset_size == 60
    run.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize(("count", "declared"), [(59, 60), (60, 75), (60, 45)])
def test_a_run_of_a_declared_size_is_certified_and_audited(
    count: int, declared: int, tmp_path
) -> None:
    folder = tmp_path / "run"
    with private_run(folder, examples=neighbour(count), dataset_size=declared) as run:
        assert run.calibration.plan.sampling_rate == pytest.approx(BATCH / declared)
        train(run)
    assert "public constants, the same for neighbouring data sets" in sampling_text(folder)
    assert read_trace(folder / "trace").manifest.declaration.examples == count
    audited(folder)


@pytest.mark.parametrize("size", [0, -3, 1.5, True, "60", 10])
def test_a_size_that_is_none_is_refused_before_anything_is_made(size, tmp_path) -> None:
    with pytest.raises(UsageError, match=r"dataset-size|sampling rate above 1"):
        private_run(tmp_path / "run", dataset_size=size)
    assert not (tmp_path / "run").exists()


def sampling_text(folder) -> str:
    found = read_certificate((folder / "model.lipcert.json").read_bytes())
    return texts(found.assumptions)["A-SAMPLING"]
