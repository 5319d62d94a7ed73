"""Heartbeat: every rank says a word to every other, and knows who did not answer.

What enters: a process group on the CPU (gloo), a word. What leaves: the words of all others, and
why some are missing. Invariant: it takes `patience` seconds at most, whatever the others do.

Collective calls of torch.distributed do not say which rank they wait for, so words go from each to
each. After a rank was missing the group is of no more use: gloo closes its connections.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, final

import torch
import torch.distributed as dist
from torch import Tensor

LONGEST: Final = 1024
"""bytes of a word; what is longer loses its end"""
_LEAST: Final = 0.01
"""seconds that are waited at least, for what has arrived already"""
_GONE: Final = "has ended, or its connection is lost"


@final
@dataclass(frozen=True, slots=True)
class Heartbeat:
    """words: of the others that answered, by rank. missing: why the others did not, by rank."""

    words: Mapping[int, str]
    missing: Mapping[int, str]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Exchange:
    """Under way with one rank."""

    heard: Tensor
    works: tuple[Any, ...]


def heartbeat(group: Any, rank: int, ranks: int, word: str, patience: float) -> Heartbeat:
    """Say the word to all other ranks of a group, who must do the same.

    A rank is missing after `patience` seconds, or as soon as its process has ended.
    """
    deadline = time.monotonic() + patience
    said = _bytes_of(word)
    words: dict[int, str] = {}
    missing: dict[int, str] = {}
    begun: dict[int, _Exchange] = {}
    for peer in range(ranks):
        if peer == rank:
            continue
        try:
            begun[peer] = _begun(said, peer, group)
        except RuntimeError:
            missing[peer] = _GONE
    for peer, exchange in begun.items():
        try:
            for work in exchange.works:
                work.wait(timedelta(seconds=max(deadline - time.monotonic(), _LEAST)))
            words[peer] = _word_in(exchange.heard)
        except RuntimeError:
            late = time.monotonic() >= deadline
            missing[peer] = f"did not come within {patience:g} s" if late else _GONE
    return Heartbeat(words, dict(sorted(missing.items())))


def abandon(group: Any, rank: int) -> None:
    """Close all connections of a group, so that whoever waits for this rank in it stops waiting.

    gloo does so when a wait runs out; this one is for a word that nobody says.
    """
    try:
        peer = 0 if rank else 1
        silence: Any = dist.irecv(torch.zeros(1), peer, group=group)
        silence.wait(timedelta(seconds=_LEAST))
    except RuntimeError:
        return


def _begun(said: Tensor, peer: int, group: Any) -> _Exchange:
    heard = torch.zeros(LONGEST, dtype=torch.uint8)
    return _Exchange(
        heard, (dist.irecv(heard, peer, group=group), dist.isend(said, peer, group=group))
    )


def _bytes_of(word: str) -> Tensor:
    data = bytearray(word.encode()[:LONGEST].ljust(LONGEST, b"\0"))
    return torch.frombuffer(data, dtype=torch.uint8)


def _word_in(heard: Tensor) -> str:
    return bytes(heard.numpy()).rstrip(b"\0").decode(errors="ignore")
