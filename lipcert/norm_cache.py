"""NormCache: slow certified norms, remembered from one run to the next in a private directory.

What enters: linear maps, and the rule that certifies their norms. What leaves: the same bounds.
Invariant: an answer is what this very code computed for these very weights. A key covers the
weights, how they are applied, the tier and the sources of every module that computes norms; an
entry repeats its key and ends in a checksum, and whatever does not match to the last byte is
computed again. Entries hold no witnesses: a bound that was remembered has none, and who wants to
hand on a proof computes without a cache.

Trust: no checksum stops somebody who writes entries on purpose, and an entry that is too small is
a wrong bound. So the directory is created for its owner alone, and it is not used, for reading or
writing, where it belongs to somebody else or others may write to it. `--no-cache` computes
everything again.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Final, final

import numpy as np

from lipcert.facts import Bound
from lipcert.norm_sources import rules_digest
from lipcert.norms.linear_map import ConvMap, DenseMap, LinearMap, PaddedConvMap
from lipcert.norms.operator_norm import RULES, Tier, operator_norm
from lipcert.scope import NormRule
from lipcert.upper import Upper

_FORMAT: Final = "lipcert-norm/1"
_SLOW_SECONDS: Final = 0.05
_LONGEST_ENTRY: Final = 4096
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@final
class NormCache:
    """Certifies norms as `certify` does, and keeps those that took long.

    directory: where they are kept. rules: `rules_digest()`, taken before the engine was imported;
    nothing is kept if it has changed since. hits: how many answers came from the directory.
    complaint: why it is not used, "" if it is.
    """

    def __init__(
        self,
        directory: Path,
        rules: str,
        certify: NormRule = operator_norm,
        slow_seconds: float = _SLOW_SECONDS,
    ) -> None:
        self.directory = directory
        self._certify = certify
        self._slow_seconds = slow_seconds
        self._rules = rules
        self.hits = 0
        self.complaint = ""

    def __call__(self, linear_map: LinearMap, tier: Tier) -> Bound:
        """The norm of the map: remembered, or certified now."""
        key = self._key(linear_map, tier)
        found = self._read(key)
        if found is not None:
            self.hits += 1
            return found
        started = time.perf_counter()
        bound = self._certify(linear_map, tier)
        if bound.is_finite and time.perf_counter() - started >= self._slow_seconds:
            self._write(key, bound)
        return bound

    def _key(self, linear_map: LinearMap, tier: Tier) -> str:
        """A digest of all that the bound depends on."""
        weight = linear_map.weight.array
        match linear_map:
            case DenseMap():
                use = "dense"
            case ConvMap():
                use = f"conv {linear_map.geometry!r} {linear_map.groups!r}"
            case PaddedConvMap():
                use = (
                    f"padded {linear_map.geometry!r} {linear_map.pads!r} "
                    f"{linear_map.border.value} {linear_map.groups!r}"
                )
        digest = hashlib.sha256(f"{self._rules} {tier.value} {use} {weight.shape}\n".encode())
        digest.update(np.ascontiguousarray(weight, dtype="<f8").ravel().data)
        return digest.hexdigest()

    def _read(self, key: str) -> Bound | None:
        """The bound of an entry that is whole and stands under its own key."""
        try:
            if not self._is_private():
                return None
            with self._file(key).open("rb") as stream:
                line = stream.read(_LONGEST_ENTRY)
            *_, rule, value, _ = line.decode("ascii").split()
            bound = Bound(Upper(float.fromhex(value)), rule)
        except (OSError, ValueError, OverflowError):
            return None
        is_whole = bound.is_finite and rule in RULES and line == _entry(key, bound)
        return bound if is_whole else None

    def _write(self, key: str, bound: Bound) -> None:
        """Keep a bound; a directory that cannot be written costs time and nothing else."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._is_private() and self._rules == rules_digest():
                _write_atomically(self._file(key), _entry(key, bound))
        except OSError:
            return

    def _file(self, key: str) -> Path:
        return self.directory / f"{key}.norm"

    def _is_private(self) -> bool:
        """Whether nobody but its owner, who runs this process, can have written what is there."""
        try:
            status = self.directory.stat()
        except FileNotFoundError:
            return False
        self.complaint = _weakness(status)
        return not self.complaint


def _entry(key: str, bound: Bound) -> bytes:
    """One line: format, key, rule, bound, and the checksum of what stands before it."""
    text = f"{_FORMAT} {key} {bound.rule} {bound.value.value.hex()}"
    return f"{text} {hashlib.sha256(text.encode()).hexdigest()}\n".encode()


def _weakness(status: os.stat_result) -> str:
    """Why entries of a directory cannot be trusted, "" where they can."""
    if os.name != "posix":
        return "its owner and mode cannot be checked on this system"
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a directory"
    if status.st_uid != os.geteuid():
        return "it belongs to another user"
    if status.st_mode & _OTHERS_WRITE:
        return f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o}; chmod 700 it)"
    return ""


def _write_atomically(file: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
