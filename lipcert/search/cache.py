"""ProposalCache: claims that took long to find, stored in a private directory.

Input: kernels, and the search that proposes norms for them. Output: the same claims. Trust: none.
The core proves every claim again, so that no entry, whatever its origin, can make a bound smaller.
A forged one may cost time, or propose more than a search would find: so the directory is created
for its owner alone, and is neither read nor written where it belongs to another user or others may
write to it. Incomplete entries are searched again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import time
from pathlib import Path
from typing import Final, final

import numpy as np

from lipcert.core.certificate import NormClaim
from lipcert.core.norms.kernels import Kernel
from lipcert.process.files import write_whole
from lipcert.search.norms import Propose
from lipcert.search.proposals import proposals
from lipcert.settings.choices import TierName
from lipcert.version import __version__

_FORMAT: Final = "lipcert-proposals/2"
_SLOW_SECONDS: Final = 0.05
_LONGEST_ENTRY: Final = 4096
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@final
class ProposalCache:
    """Proposes claims as `propose` does, and keeps those that took long.

    hits: how many answers came from the directory. complaint: why it is not used, "" if it is.
    """

    def __init__(
        self,
        directory: Path,
        propose: Propose = proposals,
        slow_seconds: float = _SLOW_SECONDS,
    ) -> None:
        self.directory = directory
        self._propose = propose
        self._slow_seconds = slow_seconds
        self.hits = 0
        self.complaint = ""

    def __call__(self, kernel: Kernel, tier: TierName) -> tuple[NormClaim, ...]:
        """The claims for a kernel: remembered, or searched now."""
        key = kernel_key(kernel, tier)
        found = self._read(key)
        if found:
            self.hits += 1
            return found
        started = time.perf_counter()
        claims = self._propose(kernel, tier)
        if claims and time.perf_counter() - started >= self._slow_seconds:
            self._write(key, claims)
        return claims

    def _read(self, key: str) -> tuple[NormClaim, ...]:
        """The claims of an entry that is whole and stands under its own key; else none."""
        try:
            if not self._is_private():
                return ()
            with self._file(key).open("rb") as stream:
                data = stream.read(_LONGEST_ENTRY)
            claims = tuple(_claim(*item) for item in json.loads(data.split(b"\n")[0])["claims"])
            return claims if data == _entry(key, claims) else ()
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return ()

    def _write(self, key: str, claims: tuple[NormClaim, ...]) -> None:
        """Keep claims; a directory that cannot be written costs time and nothing else."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._is_private():
                write_whole(self._file(key), _entry(key, claims), private=True, durable=False)
        except OSError:
            return

    def _file(self, key: str) -> Path:
        return self.directory / f"{key}.norm"

    def _is_private(self) -> bool:
        """Whether only its owner, who runs this process, can have written the content."""
        try:
            status = self.directory.stat()
        except FileNotFoundError:
            return False
        self.complaint = _weakness(status)
        return not self.complaint


def kernel_key(kernel: Kernel, tier: TierName) -> str:
    """A digest of all that a search depends on."""
    frame, entries = kernel.frame, kernel.entries
    use = (_FORMAT, __version__, tier, entries.shape, frame.size, frame.groups, kernel.is_matrix)
    digest = hashlib.sha256(f"{use!r} {frame.window!r} {len(frame.moved)}\n".encode())
    for line in frame.moved:
        digest.update(f"{line.tolist()}\n".encode())
    for ends in (entries.lo, entries.hi):
        digest.update(np.ascontiguousarray(ends, dtype="<f8").ravel().data)
    return digest.hexdigest()


def _claim(bound: str, method: str, twists: list[int], counts: list[int]) -> NormClaim:
    """A claim as it is kept; an error for anything else."""
    value = float.fromhex(bound)
    if not 0.0 <= value < math.inf:
        raise ValueError(f"{bound!r} is not a bound")
    return NormClaim(value, str(method), tuple(map(int, twists)), tuple(map(int, counts)))


def _entry(key: str, claims: tuple[NormClaim, ...]) -> bytes:
    """A line of JSON, and its checksum."""
    rows = [[claim.bound.hex(), claim.method, claim.twists, claim.counts] for claim in claims]
    text = json.dumps({"format": _FORMAT, "key": key, "claims": rows})
    return f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n".encode()


def _weakness(status: os.stat_result) -> str:
    """Why entries of a directory may be somebody else's, "" where they are not."""
    if os.name != "posix":
        return "its owner and mode cannot be checked on this system"
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a directory"
    if status.st_uid != os.geteuid():
        return "it belongs to another user"
    if status.st_mode & _OTHERS_WRITE:
        return f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o}; chmod 700 it)"
    return ""
