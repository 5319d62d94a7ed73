"""Runs of Opacus, recorded and audited: right ones pass, faulty ones are found as documented."""

import io
import re
from itertools import chain, islice
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lipcert
from lipcert.audit.opacus import attach_opacus
from lipcert.audit.records import AuditReport, Verdict
from lipcert.audit.trace.reading import read_trace, verify
from lipcert.errors import UsageError
from lipcert.privacy.plan import Sampling
from lipcert.training import GradientClipping, Loss, make_private
from tests.audit.opacus_runs import (
    BATCH,
    FAULTY_RUNS,
    POOL,
    RADIUS,
    RIGHT_RUNS,
    SIGMA,
    STEPS,
    OpacusRun,
    audit_of,
    audited,
    codes,
    examples,
    noised_by_half,
    noised_everywhere,
    recorded,
    recorded_by_ranks,
)
from tests.models.shipped import module

opacus = pytest.importorskip("opacus", reason="Opacus is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "opacus.md"


@pytest.mark.sample(2)
@pytest.mark.parametrize("run", RIGHT_RUNS, ids=lambda run: run.name)
def test_a_right_run_passes(run: OpacusRun, tmp_path: Path) -> None:
    report = audited(tmp_path / "t", run)
    assert (report.verdict, report.reasons) == (Verdict.PASS, ())
    agreement = next(check for check in report.checks if check.code == "LC317")
    assert agreement.verdict is Verdict.PASS  # the clipped sum, made again in float64


def documented() -> dict[str, str]:
    table = PAGE.read_text(encoding="utf-8").split("<!-- table: faults -->\n")[1]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", table.split("<!-- end -->")[0], re.MULTILINE)
    return dict(rows[2:])


def test_every_fault_is_documented() -> None:
    assert documented().keys() == {run.name for run in FAULTY_RUNS}


@pytest.mark.sample(2)
@pytest.mark.parametrize("run", FAULTY_RUNS, ids=lambda run: run.name)
def test_a_faulty_run_is_found_as_documented(run: OpacusRun, tmp_path: Path) -> None:
    assert codes(audited(tmp_path / "t", run)) == documented()[run.name]


def test_what_the_trace_says(tmp_path: Path) -> None:
    recorded(tmp_path / "t", RIGHT_RUNS[1])
    assert verify(tmp_path / "t").faults == ()
    trace = read_trace(tmp_path / "t")
    assert trace.manifest.versions["opacus"] == opacus.__version__
    declared = trace.manifest.declaration
    assert (declared.noise_multiplier, declared.clip_norms) == (SIGMA, {"all": RADIUS})
    assert (declared.batch_size, declared.divisor, declared.dataset_size) == (BATCH, BATCH, POOL)
    assert (declared.sampling, declared.sampling_rate) == (Sampling.POISSON, BATCH / POOL)
    assert len(declared.groups["all"]) == len(list(module("digits_mlp").parameters()))
    steps = list(trace.steps())
    assert len(steps) == STEPS
    assert max(len(step.batches) for step in steps) > 1  # BatchMemoryManager
    for step in steps:
        assert step.noise.std == {"all": SIGMA * RADIUS}
        members = [index for batch in step.batches for index in batch.index.tolist()]
        assert len(set(members)) == len(members)
        if step.has_detail:
            noised, applied = step.gradients.noised.tensors(), step.gradients.applied.tensors()
            for name in noised:
                assert applied[name] == pytest.approx(noised[name] / BATCH, rel=1e-5)


def test_the_account_must_be_one_of_clipped_gradients(tmp_path: Path) -> None:
    run = OpacusRun("short", steps=10, settings={"mechanism": "none", "clip_norm": None})
    recorded(tmp_path / "t", run)
    with pytest.raises(UsageError, match="--mechanism gradient-clipping"):
        audit_of(tmp_path / "t", run)


def private(**options):
    """Model, optimizer, loader, and the loss of ghost clipping."""
    network = nn.Linear(64, 10)
    given = {
        "module": network,
        "optimizer": torch.optim.SGD(network.parameters(), 0.1),
        "data_loader": DataLoader(TensorDataset(*examples()), batch_size=BATCH),
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
    }
    made = opacus.PrivacyEngine().make_private(**{**given, **options})
    return made[0], made[1], made[-1], *made[2:-1]


ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 5.0,
}


def test_what_a_trace_has_no_words_for_is_refused(tmp_path: Path) -> None:
    from opacus.optimizers import FSDPOptimizerFastGradientClipping

    model, optimizer, loader = private(**ADAPTIVE)
    with lipcert.Recorder(tmp_path / "t", model, optimizer) as recorder:
        with pytest.raises(UsageError, match="its radius follows from private norms"):
            attach_opacus(recorder, optimizer, loader)
        with pytest.raises(UsageError, match="make_private returned, not SGD"):
            attach_opacus(recorder, optimizer.original_optimizer)
        with pytest.raises(UsageError, match="2 parameters of the optimizer are not of"):
            attach_opacus(recorder, private()[1])
        optimizer.__class__ = FSDPOptimizerFastGradientClipping
        with pytest.raises(UsageError, match="parameters are sharded over processes"):
            attach_opacus(recorder, optimizer)


RUNS_OF_RANKS = [run for run in RIGHT_RUNS if run.name in {"none", "ghost clipping", "per layer"}]


@pytest.mark.sample(1)
@pytest.mark.parametrize("run", RUNS_OF_RANKS, ids=lambda run: run.name)
def test_a_right_run_of_two_processes_passes(run: OpacusRun, tmp_path: Path) -> None:
    assert recorded_by_ranks(tmp_path / "t", run) == ["", ""]
    report = audit_of(tmp_path / "t", run)
    assert (report.verdict, report.reasons) == (Verdict.PASS, ())
    agreement = next(check for check in report.checks if check.code == "LC317")
    assert agreement.verdict is Verdict.PASS  # the sum over both
    steps = list(read_trace(tmp_path / "t").steps())
    assert [step.rank for step in steps if step.noise is not None] == [0] * STEPS
    assert len(steps) == 2 * STEPS


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("before", "expected"),
    [(noised_everywhere, "LC315, (LC314)"), (noised_by_half, "LC314, LC323")],
    ids=["noise of the same seed in every rank", "half of the noise that is stated"],
)
def test_a_faulty_run_of_two_processes_is_found(before, expected: str, tmp_path: Path) -> None:
    run = OpacusRun("ranks")
    assert recorded_by_ranks(tmp_path / "t", run, before=before) == ["", ""]
    assert codes(audit_of(tmp_path / "t", run)) == expected


def test_ranks_that_draw_alike_are_refused(tmp_path: Path) -> None:
    errors = recorded_by_ranks(tmp_path / "t", OpacusRun("ranks"), seeds=(5, 5))
    assert all("several ranks draw their batches from one state" in error for error in errors)


def test_the_recorder_must_know_its_rank(tmp_path: Path) -> None:
    model, optimizer, _ = private()
    optimizer.rank, optimizer.world_size = 1, 2  # as make_private makes it in a process group
    with (
        lipcert.Recorder(tmp_path / "t", model, optimizer) as recorder,
        pytest.raises(UsageError, match=r"rank 1 of 2; give one common .*rank=1, ranks=2"),
    ):
        attach_opacus(recorder, optimizer)


def test_ghost_clipping_that_adapts_is_refused_at_its_first_step(tmp_path: Path) -> None:
    from opacus.utils.adaptive_clipping.adaptive_clipping_utils import PrivacyEngineAdaptiveClipping

    with patch.object(opacus, "PrivacyEngine", PrivacyEngineAdaptiveClipping):
        options = {"grad_sample_mode": "ghost", "target_unclipped_quantile": 0.5}
        model, optimizer, loader, loss_fn = private(**options)
    with lipcert.Recorder(tmp_path / "t", model, optimizer) as recorder:
        attach_opacus(recorder, optimizer, loader)
        x, y = next(iter(loader))
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        with pytest.raises(UsageError, match="its radius follows from private norms"):
            optimizer.step()


def part_of_a_run(
    folder: Path, steps: int, saved_at: int, *, seed: int = 5, checkpoint: io.BytesIO | None = None
) -> tuple[io.BytesIO, int]:
    """So many steps, with every second recorded; the checkpoint, and the steps Opacus counts."""
    torch.manual_seed(seed)
    engine, network = opacus.PrivacyEngine(), module("digits_mlp", torch.float32).train()
    model, optimizer, loader = engine.make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9),
        data_loader=DataLoader(TensorDataset(*examples()), batch_size=BATCH),
        noise_multiplier=SIGMA,
        max_grad_norm=RADIUS,
        noise_generator=torch.Generator().manual_seed(seed),
    )
    if checkpoint is not None:
        checkpoint.seek(0)
        engine.load_checkpoint(path=checkpoint, module=model, optimizer=optimizer)
    saved = io.BytesIO()
    with lipcert.Recorder(folder, model, optimizer, every=2) as recorder:
        attach_opacus(recorder, optimizer, loader)
        loss_fn = recorder.wrap_loss(nn.CrossEntropyLoss())
        for x, y in islice(chain(loader, loader), steps):
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()
            if recorder.step == saved_at:
                engine.save_checkpoint(path=saved, module=model, optimizer=optimizer)
    return saved, engine.accountant.history[-1][-1]


def audit_of_steps(folder: Path, steps: int) -> AuditReport:
    return audit_of(folder, OpacusRun("resumed", settings={"steps": steps}))


@pytest.mark.nightly
def test_a_resumed_run_is_one_run(tmp_path: Path) -> None:
    saved, _ = part_of_a_run(tmp_path / "t", 6, 6)
    _, counted = part_of_a_run(tmp_path / "t", 4, 0, seed=9, checkpoint=saved)
    assert counted == STEPS
    assert audit_of_steps(tmp_path / "t", STEPS).verdict is Verdict.PASS


@pytest.mark.nightly
def test_steps_done_again_from_an_older_checkpoint_are_counted(tmp_path: Path) -> None:
    """Opacus forgets those after the checkpoint: its ε is that of ten."""
    saved, _ = part_of_a_run(tmp_path / "t", 7, 4)
    _, counted = part_of_a_run(tmp_path / "t", 6, 0, seed=9, checkpoint=saved)
    assert counted == STEPS
    report = audit_of_steps(tmp_path / "t", STEPS)
    assert codes(report) == "LC311"
    assert "13 steps were recorded, but 10 were accounted for" in report.reasons[0]
    assert audit_of_steps(tmp_path / "t", 13).verdict is Verdict.PASS


def train_two_epochs(model: nn.Module, optimizer, loader) -> None:
    """Without the fourth batch."""
    for number, (x, y) in enumerate(chain(loader, loader)):
        if number != 3:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def test_a_batch_that_is_skipped_is_noticed(tmp_path: Path) -> None:
    """From then on it is not guessed which examples a step has, until the next epoch."""
    torch.manual_seed(8)
    model, optimizer, loader = private()
    with lipcert.Recorder(tmp_path / "t", model, optimizer, every=100) as recorder:
        attach_opacus(recorder, optimizer, loader)
        with pytest.warns(UserWarning, match="the loader drew"):
            train_two_epochs(model, optimizer, loader)
    known = [step.batches[0].index is not None for step in read_trace(tmp_path / "t").steps()]
    assert known == [True] * 3 + [False] * 6 + [True] * 10


def test_what_opacus_made_private_is_not_made_private_again(tmp_path: Path) -> None:
    model, optimizer, loader = private()
    plain = torch.optim.SGD(model.parameters(), 0.1)
    examples_of = DataLoader(TensorDataset(*examples()), batch_size=BATCH)
    run = {"delta": 1e-5, "noise_multiplier": 1.0, "epochs": 1, "dataset_size": POOL}
    for given, named in (
        ((model, optimizer, loader), "the model and the optimizer and the loader came"),
        ((model, plain, examples_of), "the model came"),
        ((nn.Linear(64, 10), plain, loader), "the loader came"),
    ):
        with pytest.raises(UsageError, match=named):
            make_private(*given, GradientClipping(clip_norm=1.0, loss=Loss("cross-entropy")), **run)
    network = nn.Linear(64, 10)
    options = {"wrap_model": False, "module": network}
    hooks, optimizer, _ = private(**options, optimizer=torch.optim.SGD(network.parameters(), 0.1))
    with pytest.raises(UsageError, match="GradSampleHooks is not a module"):
        lipcert.Recorder(tmp_path / "t", hooks, optimizer)
    lipcert.Recorder(tmp_path / "t", network, optimizer).close()
