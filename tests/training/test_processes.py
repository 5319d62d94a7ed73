"""A run belongs to one process: what was forked from it, or copied, releases nothing."""

import copy
import io
import pickle
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lipcert.errors import UsageError
from lipcert.training.loader import PrivateLoader, Sampler
from tests.commands import in_child
from tests.training.runs import BATCH, data, private_run, train


def stepped(private) -> object:
    """One release, and the weights that it leaves."""
    train(private)
    return private.model.head.bias.tolist()


def midway(private) -> None:
    x, y = next(iter(private.loader))
    private.criterion(private.model(x), y).backward()


@pytest.mark.usefixtures("uncertified")
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_forked_process_releases_nothing(tmp_path, on_disk: bool) -> None:
    private = private_run(tmp_path / "run" if on_disk else None, seed=None)
    assert "from which it was forked" in in_child(lambda: stepped(private))
    midway(private)
    assert "from which it was forked" in in_child(private.optimizer.step)
    private.optimizer.step()
    one = {"head.bias": torch.zeros(3)}
    std = {"head.bias": 1.0}
    assert "from which it was forked" in in_child(lambda: private.release.noise.add(one, std))
    assert "from which it was forked" in in_child(private.ledger.spend)
    if on_disk:
        assert "from which it was forked" in in_child(private.save)
    assert in_child(lambda: private.__exit__(None, None, None)) == "None"
    train(private)
    private.close()


def test_a_forked_sampler_draws_nothing() -> None:
    private = private_run(seed=None)
    sampler = Sampler(private.calibration.plan)
    assert "from which it was forked" in in_child(sampler.draw)
    loader = PrivateLoader(DataLoader(data(), batch_size=BATCH), sampler, private.ledger)
    next(iter(loader))  # which is loaded, and would be handed out again
    assert "from which it was forked" in in_child(lambda: next(iter(loader)))
    assert "True" in in_child(lambda: len(Sampler(private.calibration.plan).draw().index) >= 0)


def test_a_run_made_in_a_forked_process_is_its_own() -> None:
    """Two of them have noise that has nothing in common."""
    found = [in_child(lambda: stepped(private_run(seed=None))) for _ in range(2)]
    assert all(item.startswith("[") for item in found), found
    assert found[0] != found[1]


@pytest.mark.usefixtures("uncertified")
def test_forked_workers_load(tmp_path) -> None:
    """They hold a copy of the run, and never ask it for anything."""
    private = private_run(tmp_path / "run", seed=None, steps=2, workers=1)
    train(private)
    assert private.releases == 2
    private.close()


def test_no_copies() -> None:
    private = private_run(seed=None)
    noise = private.release.noise
    for copied in (pickle.dumps, copy.copy, copy.deepcopy, lambda x: torch.save(x, io.BytesIO())):
        for item in (noise, private.loader._sampler, private.ledger):
            with pytest.raises(UsageError, match="neither copied nor pickled"):
                copied(item)
    for whole in (private, private.loader, private.release):
        with pytest.raises(UsageError, match="neither copied nor pickled"):
            copy.deepcopy(whole)
    with pytest.raises(UsageError, match="still open"):
        private_run(network=lambda: private.model)
    private.close()
    private_run(network=lambda: private.model).close()


def test_other_generators_repeat_no_noise() -> None:
    """Noise and batches come from no generator that a script seeds, saves or restores."""
    seen = []
    for private in [private_run(seed=None, steps=3) for _ in range(2)]:
        for x, y in private.loader:
            torch.manual_seed(3)
            np.random.seed(3)
            private.optimizer.zero_grad()
            private.criterion(private.model(x), y).backward()
            bias = private.model.head.bias
            clean = torch.zeros_like(bias) if bias.grad is None else bias.grad / BATCH
            private.optimizer.step()
            seen.append(bias.grad - clean)
    assert len({tuple(item.mul(1e4).round().tolist()) for item in seen}) == len(seen) == 6


def test_one_batch_is_released_once_by_all_threads() -> None:
    private = private_run(seed=None)
    midway(private)
    ended: list[str] = []

    def step() -> None:
        try:
            private.optimizer.step()
            ended.append("released")
        except UsageError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=step) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended.count("released") == 1 == private.releases
