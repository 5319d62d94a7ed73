"""Ranks of a process group, each in a process of its own, forked from the tests."""

import multiprocessing
import pickle
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.training.runs import (
    Small,
    private_run,
)

PATIENCE = 20.0


@dataclass(frozen=True)
class Ended:
    """How the life of a rank ended."""

    value: Any = None
    error: str = ""


def ranked(life, ranks: int, folder) -> list[Ended | None]:
    """The ends of all ranks; None for one that left no word."""
    folder.mkdir(exist_ok=True)
    store = folder / "store"
    store.unlink(missing_ok=True)
    context = multiprocessing.get_context("fork")
    lives = [
        context.Process(target=_live, args=(life, rank, ranks, folder), daemon=True)
        for rank in range(ranks)
    ]
    for item in lives:
        item.start()
    for item in lives:
        item.join(120.0)
    assert not any(item.is_alive() for item in lives)
    return [_word(folder / f"ended-{rank}") for rank in range(ranks)]


def _live(life, rank: int, ranks: int, folder) -> None:
    warnings.simplefilter("ignore")
    path = folder / f"ended-{rank}"
    path.unlink(missing_ok=True)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    try:
        ended = Ended(life(rank))
    except Exception as error:  # noqa: BLE001  # it is looked at by the test
        ended = Ended(None, f"{type(error).__name__}: {error}")
    path.write_bytes(pickle.dumps(ended))


def _word(path) -> Ended | None:
    return pickle.loads(path.read_bytes()) if path.exists() else None


def wrapped():
    """As users of DistributedDataParallel have it."""
    return DistributedDataParallel(Small())


def rank_run(folder=None, mechanism=None, **changes: Any):
    """This rank's part of a small run."""
    return private_run(folder, mechanism, **({"seed": None, "patience": PATIENCE} | changes))
