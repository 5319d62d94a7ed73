"""World: the processes that train together.

A `World` is this process's view of the default process group, if there is one: its rank, secrets
and counts that all ranks share, checks that all ranks are present and hold the same values, and
sums over all ranks.

Invariants: without a process group everything here is the identity; a rank that refuses, differs,
ends or does not arrive stops all others, with an error that names it, before they wait longer than
`patience` seconds.

Collective calls of torch.distributed do not report which rank they wait for, so each rank sends
messages to each other rank, over gloo. Once a rank is missing the group is unusable: gloo closes
its connections.

`OneProcess` marks objects (generators, ledgers) that must stay in the process that made them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lipcert.errors import LipCertError, NoVerdictError, UsageError

LONGEST: Final = 1024
"""Length of a message in bytes; longer ones are truncated."""
_SHORTEST: Final = 0.01
"""Shortest wait in seconds, for messages that have arrived already."""
_GONE: Final = "has ended, or its connection is lost"
PATIENCE: Final = 120.0
"""Seconds that ranks wait for one another."""
_FAREWELL: Final = 5.0
"""Seconds that a failing rank waits for the others, to report the reason."""
_LONG: Final = 30.0
"""Factor by which the others wait longer for work that only the first rank does."""
_BITS: Final = 256
_FAILED: Final = "failed\n"
_FINE: Final = "fine\n"
_NOTIFIED: Final = "training: the other ranks have been notified"
_RESUME: Final = "start all of them again with resume=True"


def heartbeat(
    group: Any, rank: int, ranks: int, word: str, patience: float
) -> tuple[dict[int, str], dict[int, str]]:
    """Exchange a message with all other ranks of a group, which must do the same.

    A rank is missing after `patience` seconds, or as soon as its process has ended.

    Returns:
        by rank, the words of the others that answered, and why the others did not.
    """
    deadline = time.monotonic() + patience
    data = bytearray(word.encode()[:LONGEST].ljust(LONGEST, b"\0"))
    sent = torch.frombuffer(data, dtype=torch.uint8)
    words: dict[int, str] = {}
    missing: dict[int, str] = {}
    begun: dict[int, tuple[Tensor, tuple[Any, ...]]] = {}
    for peer in range(ranks):
        if peer == rank:
            continue
        received = torch.zeros(LONGEST, dtype=torch.uint8)
        try:
            receiving: Any = dist.irecv(received, peer, group=group)
            begun[peer] = received, (receiving, dist.isend(sent, peer, group=group))
        except RuntimeError:
            missing[peer] = _GONE
    for peer, (received, works) in begun.items():
        try:
            for work in works:
                work.wait(timedelta(seconds=max(deadline - time.monotonic(), _SHORTEST)))
            words[peer] = bytes(received.numpy()).rstrip(b"\0").decode(errors="ignore")
        except RuntimeError:
            late = time.monotonic() >= deadline
            missing[peer] = f"did not come within {patience:g} s" if late else _GONE
    return words, dict(sorted(missing.items()))


def abandon(group: Any, rank: int) -> None:
    """Close all connections of a group, so that ranks that wait for this one stop waiting.

    gloo closes them when a wait times out; this function waits for a message that never comes.
    """
    try:
        peer = 0 if rank else 1
        silence: Any = dist.irecv(torch.zeros(1), peer, group=group)
        silence.wait(timedelta(seconds=_SHORTEST))
    except RuntimeError:
        return


class WorldError(NoVerdictError):
    """Another rank is the reason why this one stops."""


@dataclass(frozen=True, slots=True)
class World:
    """This process among all ranks.

    calls: the group over which ranks exchange messages on the CPU. sums: the group over which
    tensors in main memory are summed; if a sum fails, `calls` can still find out who is missing.
    """

    rank: int = 0
    ranks: int = 1
    calls: Any = None
    sums: Any = None
    patience: float = PATIENCE

    @classmethod
    def here(cls, patience: float = PATIENCE) -> World:
        """Return the default process group, or this process alone."""
        if not patience > 0.0:
            raise UsageError(f"training: patience={patience}: give seconds above 0")
        if not (dist.is_available() and dist.is_initialized()):
            return cls(patience=patience)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        if ranks == 1:
            return cls(patience=patience)
        wait = timedelta(seconds=patience)
        try:
            calls = dist.new_group(backend="gloo", timeout=wait)
            sums = dist.new_group(backend="gloo", timeout=wait)
        except RuntimeError as error:
            raise WorldError(
                f"training: not all {ranks} ranks called make_private within {patience:g} s: call "
                f"it in all of them, or give a larger patience ({_first_line(error)})"
            ) from error
        return cls(rank, ranks, calls, sums, patience)

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files that only one rank writes."""
        return self.rank == 0

    def shared_secret(self, seed: int | None) -> int:
        """Return one number for all ranks: the seed if one is given, else the first rank's
        secret."""
        self.agree("the seed", repr(seed))  # else an example might be drawn by several ranks
        return self.from_first(secrets.randbits(_BITS) if seed is None else seed)

    def from_first(self, value: int) -> int:
        """Return the value that the first rank has."""
        return int(self._words(str(value) if self.is_first else "", "the first rank's word")[0])

    def numbers_from_first(self, numbers: Iterable[float]) -> list[float]:
        """Return the first rank's numbers, after work that only it does and that may take long; all
        ranks give as many."""
        slow = replace(self, patience=self.patience * _LONG)
        words = [slow._words(number.hex(), "the first rank's word")[0] for number in numbers]
        return [float.fromhex(word) for word in words]

    def most(self, value: int) -> int:
        """Return the largest value of any rank."""
        return max(int(word) for word in self._words(str(value), "the largest count"))

    def agree(self, what: str, value: str) -> None:
        """Raise UsageError unless all ranks have the same value."""
        self._compare(what, {what: value}, "; give all ranks the same")

    def assemble(self, step: int, held: Mapping[str, str]) -> None:
        """Require that all ranks are at this step and hold the same values; an error names the
        difference."""
        self._compare(
            f"step {step}",
            {"the number of the step": str(step), **held},
            f" at step {step}, so nothing is released: let private.loader and the optimizer alone "
            "lead all ranks through the same steps",
        )

    def _compare(self, where: str, held: Mapping[str, str], remedy: str) -> None:
        own = "\n".join(hashlib.sha256(value.encode()).hexdigest() for value in held.values())
        words = [word.split("\n") for word in self._words(own, where)]
        for place, what in enumerate(held):
            others = [str(i) for i, word in enumerate(words) if word[place] != words[0][place]]
            if others:
                raise UsageError(
                    f"training: rank {', '.join(others)} and rank 0 differ in {what}{remedy}"
                )

    def total(self, tensors: Iterable[Tensor], step: int) -> None:
        """Replace every tensor, in place, by its sum over the ranks."""
        if self.ranks == 1:
            return
        for alike in _alike(tensors):
            flat = torch.cat([item.reshape(-1) for item in alike])
            group = self.sums if flat.device.type == "cpu" else None
            try:
                work = dist.all_reduce(flat, group=group, async_op=True)
                work.wait(timedelta(seconds=self.patience))
            except RuntimeError as error:
                if group is not None:
                    abandon(group, self.rank)
                self._words("", f"the sum of step {step}")
                raise WorldError(
                    f"training: the gradients of step {step} could not be added up over the "
                    f"ranks, so nothing is released: {_first_line(error)}; {_RESUME}"
                ) from error
            start = 0
            for item in alike:
                item.copy_(flat[start : start + item.numel()].view_as(item))
                start += item.numel()

    @contextmanager
    def notifying(self) -> Iterator[None]:
        """Notify the other ranks of an error inside the block, unless another rank caused it."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException | None) -> None:
        """Notify the others once that this rank ends; the text of foreign errors is not sent."""
        is_notified = isinstance(error, WorldError) or _NOTIFIED in getattr(error, "__notes__", ())
        if self.ranks == 1 or error is None or is_notified:
            return
        reason = str(error) if isinstance(error, LipCertError) else type(error).__name__
        patience = min(self.patience, _FAREWELL)
        heartbeat(self.calls, self.rank, self.ranks, _FAILED + reason, patience)
        error.add_note(_NOTIFIED)

    def leave(self) -> None:
        """End the connections to the others, if they still exist."""
        for group in (self.calls, self.sums):
            if group is not None and dist.is_initialized():
                with suppress(ValueError, AssertionError):  # all groups were ended, and made anew
                    dist.destroy_process_group(group)

    def _words(self, word: str, what: str) -> list[str]:
        """Exchange a word with all ranks; return all words, in the order of the ranks."""
        if self.ranks == 1:
            return [word]
        answers, missing = heartbeat(self.calls, self.rank, self.ranks, _FINE + word, self.patience)
        wrong = {
            rank: f"stopped: {answer.removeprefix(_FAILED)}"
            for rank, answer in answers.items()
            if answer.startswith(_FAILED)
        } | missing
        if wrong:
            reasons = "; ".join(f"rank {rank} {reason}" for rank, reason in wrong.items())
            raise WorldError(
                f"training: not all {self.ranks} ranks reached {what}, so nothing is released: "
                f"{reasons}; {_RESUME}"
            )
        words = {**answers, self.rank: _FINE + word}
        return [words[rank].removeprefix(_FINE) for rank in range(self.ranks)]


def refuse_incomplete(module: nn.Module) -> None:
    """Raise UsageError for a module that does not hold its code and all of its numbers here."""
    if isinstance(module, torch.jit.ScriptModule):
        raise UsageError("training: a ScriptModule is not exported; give what was scripted")
    if isinstance(module, torch.fx.GraphModule) and "train" in vars(module):
        raise UsageError("training: a module of torch.export never trains; give what was exported")
    if any("nn.quantized" in type(part).__module__ for part in module.modules()):
        raise UsageError("training: a quantised module has no weights to train; quantise it later")
    for name, item in (*module.named_parameters(), *module.named_buffers()):
        if hasattr(item, "device_mesh"):  # as a DTensor has
            why = (
                "is split among processes (FSDP, tensor parallelism), none of which holds the "
                "whole network; use DistributedDataParallel, or the plain module"
            )
        elif is_lazy(item):
            why = "of a lazy module has no shape yet; call the module once on an example"
        elif item.is_meta:
            why = "has no numbers (device 'meta'); call module.to_empty(device='cpu'), load weights"
        else:
            continue
        raise UsageError(f"training: {name} {why}")


def _alike(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group the tensors into lists of one dtype on one device."""
    found: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for item in tensors:
        found.setdefault((item.dtype, item.device), []).append(item)
    return list(found.values())


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


_FORKS = [object()]
"""Replaced in every forked child, because a process number alone may be that of a process that
ended."""
os.register_at_fork(after_in_child=lambda: _FORKS.__setitem__(0, object()))


class OneProcess:
    """Base class of objects that count, draw or add noise, and must not be used in two processes.

    A forked process has the same generator in the same state: it would draw the same noise as its
    parent, so that the difference of two releases reveals the difference of their gradients without
    noise, while each process counts only its own half. A process that only holds such an object,
    such as a data-loading worker, is left alone.
    """

    _made_in: tuple[int, object]

    def __init__(self) -> None:
        self._made_in = os.getpid(), _FORKS[0]

    @property
    def is_here(self) -> bool:
        """Whether this is the process that made the object."""
        number, forks = self._made_in
        return number == os.getpid() and forks is _FORKS[0]

    def require_here(self) -> None:
        """Raise UsageError in any other process."""
        if not self.is_here:
            raise UsageError(
                f"training: this is process {os.getpid()}, and the {type(self).__name__} of the "
                f"run belongs to process {self._made_in[0]}, from which it was forked: both would "
                "draw the same noise and examples, and count separately; call make_private in the "
                "process that trains, after the fork, each run with a folder of its own"
            )

    def __reduce__(self) -> NoReturn:
        """Refuse copies, which would draw or count the same again."""
        raise UsageError(
            f"training: the {type(self).__name__} of a run is neither copied nor pickled, since a "
            "copy would draw and count the same again; call make_private where it is needed, and "
            "continue a run with resume=True"
        )
