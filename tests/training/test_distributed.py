"""Many processes make one release: one sum, one noise, one count; and one that fails stops all."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from lipcert.audit.job import Job
from lipcert.audit.records import Verdict
from lipcert.audit.run import audit
from lipcert.audit.trace.reading import read_trace
from lipcert.audit.trace.verification import verify
from lipcert.cli.sources import effective_settings
from lipcert.errors import UsageError
from lipcert.training import Private, network
from lipcert.training.noise import NoiseSource
from lipcert.training.world import World, checksum
from tests.training.runs import BATCH, STEPS, Small, clipless, train
from tests.training.test_private import MECHANISMS, _clipped_sums
from tests.training.world_worker import PATIENCE, Ended, rank_run, ranked, wrapped

NETWORKS: dict[str, Callable[[], nn.Module]] = {"plain": Small, "ddp": wrapped}
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "model.onnx"
    network.export(Small(), torch.zeros(1, 6), path)
    return path


def steps_of(private: Private, count: int) -> list[dict[str, Any]]:
    """What a rank draws, releases and holds in its first steps."""
    found = []
    for x, y in private.loader:
        named = dict(private.network.module.named_parameters())
        before = {name: item.detach().clone() for name, item in named.items()}
        stds = {
            private.network.matches[name].recorded: group.noise_std
            for group in private.enforcement.present().groups
            for name in group.parameters
        }
        private.step(x, y)
        found.append(
            {
                "index": private.loader.index,
                "x": x,
                "y": y,
                "before": before,
                "stds": stds,
                "mechanism": private.settings.mechanism,
                "released": {name: item.grad.clone() for name, item in named.items()},
                "after": checksum(named.values()),
            }
        )
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("kind", NETWORKS)
def test_one_sum_and_one_noise(kind: str, tmp_path: Path, model_file: Path) -> None:
    """Against a float64 loop over the examples of both ranks, with the noise drawn again."""

    def life(rank: int) -> dict[str, list[dict[str, Any]]]:
        found = {}
        for name, mechanism in MECHANISMS.items():
            with rank_run(
                None, mechanism, network=NETWORKS[kind], model_file=model_file, seed=7
            ) as private:
                found[name] = steps_of(private, 2)
        return found

    first, second = (ended.value for ended in _all_well(ranked(life, 2, tmp_path)))
    for name in MECHANISMS:
        again = NoiseSource(7)
        for one, other in zip(first[name], second[name], strict=True):
            assert one["stds"] == other["stds"]
            assert one["after"] == other["after"]
            assert set(one["index"] % 2) == {0}
            assert set(other["index"] % 2) == {1}
            x, y = torch.cat([one["x"], other["x"]]), torch.cat([one["y"], other["y"]])
            sums = _clipped_sums(one["mechanism"], name, one["before"], x, y)
            for key, released in one["released"].items():
                noise = torch.zeros_like(released)
                again.add({key: noise}, one["stds"])
                expected = sums[key] / BATCH + noise.double()
                assert torch.equal(released, other["released"][key])
                assert torch.allclose(released.double(), expected, atol=2e-6)


def _all_well(ends: list[Ended | None]) -> list[Ended]:
    assert [ended.error for ended in ends if ended] == [""] * len(ends)
    return [ended for ended in ends if ended]


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_run_of_three_ranks(kind: str, tmp_path: Path, model_file: Path) -> None:
    """With batches that are empty in some ranks; the trace of all of them passes its audit."""
    folder = tmp_path / "run"

    def life(rank: int) -> tuple[int, float, list[str]]:
        with rank_run(
            folder,
            network=NETWORKS[kind],
            model_file=model_file,
            batch=4,
            steps=12,
            max_physical_batch=1,
        ) as private:
            seen = [step["after"] for step in steps_of(private, 100)]
        return private.releases, private.epsilon, seen

    ends = _all_well(ranked(life, 3, tmp_path))
    assert ends[0].value == ends[1].value == ends[2].value
    assert ends[0].value[0] == 12
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    assert sum('"kind":"release"' in line for line in lines) == 12
    trace = read_trace(folder / "trace")
    sizes = [[_size(step) for step in trace.steps(rank)] for rank in range(3)]
    assert any(0 < sizes[0][i] + sizes[1][i] + sizes[2][i] and 0 in (sizes[0][i], sizes[1][i])
               for i in range(12))  # fmt: skip
    for rank in range(3):
        drawn = [int(i) for step in trace.steps(rank) for b in step.batches for i in b.index]
        assert {i % 3 for i in drawn} <= {rank}
    found = verify(folder / "trace")
    assert (found.faults, [item.steps for item in found.ranks]) == ((), [12, 12, 12])
    assert all(item.closed for item in found.ranks)
    _audited(folder)


def _size(step: Any) -> int:
    return sum(batch.examples for batch in step.batches)


def _audited(folder: Path) -> None:
    settings = effective_settings({}, {}, folder / "lipcert.toml").settings
    job = Job(str(folder / "model.onnx"), settings, trace=str(folder / "trace"), timed=False)
    report = audit(job)
    assert report is not None
    assert [item for item in report.checks if item.verdict is not Verdict.PASS] == []
    assert len(report.checks) > 5


def test_ranks_that_differ_from_the_beginning(tmp_path: Path, model_file: Path) -> None:
    def life(rank: int) -> list[str]:
        changes: list[dict[str, Any]] = [
            {"mechanism": clipless(input_norm=1.0 + rank)},
            {"batch": BATCH + rank},
            {"network": lambda: _shifted(rank)},
            {"optimizer": lambda p, lr: SGD(p, lr * (1 + rank))},
            {"record_every": 1 if rank else None, "folder": tmp_path / "run"},
            {"steps": STEPS if rank else None},
        ]
        said = []
        for change in changes:
            try:
                rank_run(model_file=model_file, **change)
            except UsageError as error:
                said.append(str(error))
            except Exception as error:  # noqa: BLE001
                said.append(repr(error))
        return said

    first, second = (ended.value for ended in _all_well(ranked(life, 2, tmp_path)))
    assert first[:5] == second[:5]
    assert all("rank 1 and rank 0 differ in the mechanism" in first[i] for i in (0, 1, 3, 4))
    assert "rank 1 and rank 0 differ in the weights" in first[2]
    assert "give exactly one of steps and epochs" in first[5]
    assert "rank 0 stopped: " in second[5]


def _shifted(rank: int) -> nn.Module:
    module = Small()
    with torch.no_grad():
        module.head.weight[0] += 0.1 * rank
        module.head.weight[1] -= 0.1 * rank
    return module
