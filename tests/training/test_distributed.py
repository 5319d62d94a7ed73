"""Many processes make one release: one sum, one noise, one count; and one that fails stops all."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from lipcert.audit.job import Job
from lipcert.audit.records import Verdict
from lipcert.audit.run import audit
from lipcert.audit.tape import digest_of
from lipcert.audit.trace.reading import read_trace, verify
from lipcert.cli.sources import effective_settings
from lipcert.errors import NoVerdictError, UsageError
from lipcert.training.release import NoiseSource
from lipcert.training.world import World, WorldError
from tests.training.runs import BATCH, STEPS, Small, clipless, train
from tests.training.test_private import MECHANISMS, _clipped_sums
from tests.training.world_worker import PATIENCE, Ended, rank_run, ranked, wrapped

NETWORKS = {"plain": Small, "ddp": wrapped}
WITH_DDP = ["clipless", "gradient-clipping", "gradient-clipping, groups"]
pytestmark = pytest.mark.filterwarnings("ignore")


def steps_of(private, count: int):
    """What a rank draws, releases and holds in its first steps."""
    found = []
    for x, y in private.loader:
        named = dict(private.network.module.named_parameters())
        before = {name: item.detach().clone() for name, item in named.items()}
        stds = {
            private.network.matches[name].recorded: group.noise_std
            for group in private.release.enforcement.present().groups
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
                "after": digest_of(named.values()),
            }
        )
        if len(found) == count:
            break
    return found


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", NETWORKS)
def test_one_sum_and_one_noise(kind: str, tmp_path, model_file) -> None:
    """Against a float64 loop over the examples of both ranks, with the noise drawn again."""
    chosen = MECHANISMS if kind == "plain" else {name: MECHANISMS[name] for name in WITH_DDP}

    def life(rank: int):
        found, connections = {}, []
        for name, mechanism in chosen.items():
            with rank_run(
                None, mechanism, network=NETWORKS[kind], model_file=model_file, seed=7
            ) as private:
                found[name] = steps_of(private, 2)
            connections.append(len(os.listdir("/proc/self/fd")))
        assert connections[1] >= connections[-1]  # those of a run end with it
        return found

    first, second = (ended.value for ended in _all_well(ranked(life, 2, tmp_path)))
    for name in chosen:
        again = NoiseSource(7)
        for one, other in zip(first[name], second[name], strict=True):
            assert one["stds"] == other["stds"]
            assert one["after"] == other["after"]
            assert set(one["index"] % 2) <= {0}  # none at all in the first batch of this seed
            assert set(other["index"] % 2) <= {1}
            x, y = torch.cat([one["x"], other["x"]]), torch.cat([one["y"], other["y"]])
            sums = _clipped_sums(one["mechanism"], name, one["before"], x, y)
            noise = {key: torch.zeros_like(item) for key, item in one["released"].items()}
            again.add(noise, one["stds"])
            for key, released in one["released"].items():
                expected = sums[key] / BATCH + noise[key].double()
                assert torch.equal(released, other["released"][key])
                assert torch.allclose(released.double(), expected, atol=2e-6)


def _all_well(ends: list[Ended | None]) -> list[Ended]:
    assert [ended.error for ended in ends if ended] == [""] * len(ends)
    return [ended for ended in ends if ended]


@pytest.mark.nightly
def test_a_run_of_three_ranks(tmp_path, model_file) -> None:
    """With batches that are empty in some ranks; the trace of all of them passes its audit."""
    folder = tmp_path / "run"

    def life(rank: int) -> tuple[int, float, list[str]]:
        with rank_run(
            folder, network=wrapped, model_file=model_file, batch=4, steps=12, max_physical_batch=1
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
    assert any(sizes[0][i] + sizes[1][i] + sizes[2][i] > 0 and 0 in (sizes[0][i], sizes[1][i])
               for i in range(12))  # fmt: skip
    for rank in range(3):
        drawn = [int(i) for step in trace.steps(rank) for b in step.batches for i in b.index]
        assert {i % 3 for i in drawn} <= {rank}
    found = verify(folder / "trace")
    assert (found.faults, [item.steps for item in found.ranks]) == ((), [12, 12, 12])
    assert all(item.closed for item in found.ranks)
    _audited(folder)


def _size(step) -> int:
    return sum(batch.examples for batch in step.batches)


def _audited(folder) -> None:
    settings = effective_settings({}, {}, folder / "lipcert.toml").settings
    job = Job(str(folder / "model.onnx"), settings, trace=str(folder / "trace"))
    report = audit(job)
    assert [item for item in report.checks if item.verdict is not Verdict.PASS] == []
    assert len(report.checks) > 5


def test_ranks_that_differ_from_the_beginning(tmp_path, model_file) -> None:
    """Also in the seed: each would have its own order of a shuffled epoch."""
    replaced = clipless(neighbours="replace-one")

    def life(rank: int) -> list[str]:
        changes = [
            {"mechanism": clipless(input_norm=1.0 + rank)},
            {"batch": BATCH + rank},
            {"network": lambda: _shifted(rank)},
            {"optimizer": lambda p, lr: SGD(p, lr * (1 + rank))},
            {"mechanism": replaced, "sampling": "shuffle", "seed": rank},
            {"record_every": 1 if rank else None, "folder": tmp_path / "run"},
            {"noise_multiplier": 1.0 if rank else None},
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
    assert first[:6] == second[:6]
    assert all("rank 1 and rank 0 differ in the mechanism" in first[i] for i in (0, 1, 3, 5))
    assert "rank 1 and rank 0 differ in the weights" in first[2]
    assert "differ in the seed; give all ranks the same" in first[4]
    assert "give exactly one of target_epsilon and noise_multiplier" in first[6]
    assert "rank 0 stopped: " in second[6]


def fatal(rank: int, victim: int, moment: str):
    """What kills or stops a rank in its third step."""

    def total(*unused: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def at(private, step: int) -> None:
        if rank != victim or step != 2:
            return
        if moment == "in the sum":
            World.total = total  # type: ignore[method-assign]
        elif moment == "before the step":
            os.kill(os.getpid(), signal.SIGKILL)
        elif moment == "leaves":
            raise KeyError("secret 17")
        elif moment == "becomes random":
            private.network.module.part.p = 0.5
        else:
            time.sleep(5.0)

    return at


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("kind", "victim", "moment", "reason"),
    [
        ("plain", 1, "before the step", "rank 1 has ended"),
        ("plain", 1, "in the sum", "rank 1 has ended"),
        ("plain", 0, "in the sum", "rank 0 has ended"),
        ("ddp", 0, "in the sum", "rank 0 has ended"),
        ("plain", 2, "sleeps", "rank 2 did not come within 2 s"),
        ("plain", 1, "leaves", "rank 1 stopped: KeyError;"),
        ("ddp", 1, "becomes random", "rank 1 stopped: training: part (Dropout"),
    ],
)
@pytest.mark.usefixtures("uncertified")
def test_one_that_fails_stops_all(
    kind: str, victim: int, moment: str, reason: str, tmp_path, model_file
) -> None:
    """And whatever any rank has released is counted."""
    folder = tmp_path / "run"

    def life(rank: int) -> tuple[int, str, float, bool]:
        at = fatal(rank, victim, moment)
        with rank_run(
            folder,
            network=lambda: with_part(kind),
            model_file=model_file,
            patience=2.0 if moment == "sleeps" else PATIENCE,
        ) as private:
            try:
                for step, (x, y) in enumerate(private.loader):
                    weights = digest_of(private.model.parameters())
                    at(private, step)
                    begun = time.monotonic()
                    private.step(x, y)
            except NoVerdictError as error:
                took = time.monotonic() - begun
                same = weights == digest_of(private.model.parameters())
                return private.releases, str(error), took, same
        raise AssertionError

    ends = ranked(life, 3, tmp_path)
    survivors = [ended.value for rank, ended in enumerate(ends) if ended and rank != victim]
    assert len(survivors) == 2
    counted = (folder / "ledger.jsonl").read_text().count('"kind":"release"')
    for releases, said, took, same in survivors:
        assert reason in said
        assert "resume=True" in said
        assert "17" not in said
        assert took < 5.0
        assert same
        assert releases <= counted + 1  # in memory: it counts before the sum, and has none
    recorded = [len(list(read_trace(folder / "trace").steps(rank))) for rank in range(3)]
    assert max(recorded) == 2 <= counted


class WithPart(Small):
    """The same network, with a part that may be made random."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.part(self.hidden(x).relu()))
        return logits


def with_part(kind: str) -> nn.Module:
    return DistributedDataParallel(WithPart()) if kind == "ddp" else WithPart()


@pytest.mark.usefixtures("uncertified")
def test_ranks_go_on_after_a_kill_in_the_midst_of_a_step(tmp_path, model_file) -> None:
    """One had recorded the step, the other had not."""
    folder = tmp_path / "run"

    def recorded(recorder, *unused: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def life(rank: int) -> int:
        resume = (folder / "ledger.jsonl").exists()
        with rank_run(folder, model_file=model_file, resume=resume) as private:
            for step, (x, y) in enumerate(private.loader):
                if step == 2 and rank == 1 and not resume:
                    recorder = private.release.recorder
                    for hook in recorder._hooks:
                        hook.remove()
                    private.optimizer.register_step_post_hook(recorded)
                private.step(x, y)
                private.save()
        return private.releases

    first = ranked(life, 2, tmp_path)
    assert "rank 1 has ended" in first[0].error
    assert first[1] is None
    trace = read_trace(folder / "trace")
    assert [len(list(trace.steps(rank))) for rank in range(2)] == [3, 2]
    second = _all_well(ranked(life, 2, tmp_path))
    assert [ended.value for ended in second] == [STEPS, STEPS]
    found = verify(folder / "trace")
    assert (found.faults, [item.steps for item in found.ranks]) == ((), [STEPS, STEPS])
    assert [bool(step.batches) for step in trace.steps(1)] == [True, True, False] + [True] * 3
    states = [step.noise.generator for step in trace.steps(0) if step.noise]
    assert len(set(states)) == len(states) >= STEPS


def _shifted(rank: int) -> nn.Module:
    module = Small()
    with torch.no_grad():
        module.head.weight[0] += 0.1 * rank
        module.head.weight[1] -= 0.1 * rank
    return module


@pytest.mark.nightly
def test_what_distributed_data_parallel_would_do_itself(tmp_path, model_file) -> None:
    """Exchanging gradients before they are counted: refused, or left to the release."""

    def life(rank: int) -> list[str]:
        groups = [dist.new_group([0]), dist.new_group([1])]
        said = []
        for network_of in (
            lambda: DistributedDataParallel(Small(), static_graph=True),
            lambda: DistributedDataParallel(Small(), process_group=groups[rank]),
        ):
            with pytest.raises((UsageError, WorldError)) as refused:
                rank_run(network=network_of, model_file=model_file)
            said.append(str(refused.value))
        unused = rank_run(
            network=lambda: DistributedDataParallel(Small(), find_unused_parameters=True),
            model_file=model_file,
        )
        with unused:
            train(unused)
        with rank_run(network=wrapped, model_file=model_file) as private:
            assert isinstance(private.model, DistributedDataParallel)
            assert not private.model.require_backward_grad_sync
            train(private)
        assert private.model.require_backward_grad_sync
        with rank_run(model_file=model_file) as private:
            later = DistributedDataParallel(private.model)
            for x, y in private.loader:
                private.optimizer.zero_grad()
                private.criterion(later(x), y).backward()
                private.optimizer.step()
            said.append(digest_of(private.model.parameters()))
        return said

    ends = _all_well(ranked(life, 2, tmp_path))
    assert ends[0].value[2] == ends[1].value[2]
    for ended in ends:
        assert "static_graph" in ended.value[0]
        assert "ranks of the default process group" in ended.value[1]


def test_a_common_draw_is_shared_out(tmp_path, model_file) -> None:
    def life(rank: int) -> list[list[int]]:
        with rank_run(
            None,
            clipless(neighbours="replace-one"),
            model_file=model_file,
            sampling="without-replacement",
        ) as private:
            return [step["index"].tolist() for step in steps_of(private, 3)]

    first, second = (ended.value for ended in _all_well(ranked(life, 2, tmp_path)))
    for one, other in zip(first, second, strict=True):
        assert (len(one), len(other)) == (8, 7)
        assert len({*one, *other}) == BATCH
    assert len({*first[0], *second[0]} & {*first[1], *second[1]}) < BATCH


def test_a_group_of_one(tmp_path, model_file) -> None:
    def life(rank: int) -> int:
        with rank_run(network=wrapped, model_file=model_file) as private:
            train(private)
        return rank + private.releases

    (ended,) = _all_well(ranked(life, 1, tmp_path))
    assert ended.value == STEPS


@pytest.mark.usefixtures("uncertified")
def test_every_rank_is_waited_for(tmp_path, model_file) -> None:
    def life(rank: int) -> str:
        if rank == 1:
            time.sleep(2.0)
            return "late"
        with pytest.raises(WorldError, match="not all 2 ranks called make_private") as refused:
            rank_run(model_file=model_file, patience=0.5)
        return str(refused.value)

    ends = _all_well(ranked(life, 2, tmp_path))
    assert "larger patience" in ends[0].value


@given(data=st.data())
def test_digests_see_every_change(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.int8]))
    values = torch.tensor(data.draw(st.lists(st.integers(-9, 9), min_size=2, max_size=9)))
    values = values.to(kind)
    place = data.draw(st.integers(0, len(values) - 1))
    other = values.clone()
    other[place] += 1
    assert digest_of([values]) == digest_of([values.clone()])
    assert digest_of([values]) != digest_of([other])
    swapped = values.flip(0)
    assert (digest_of([values]) == digest_of([swapped])) == torch.equal(values, swapped)
    assert digest_of([values.repeat(2)[::2]]) == digest_of([values.repeat(2)[::2].clone()])
