"""Job: the description of an audit, which other processes can read, its units of work, and shards.

Jobs and units are frozen records of plain values, and a job can be written as JSON. Invariant: two
processes with the same job do the same work on a unit, so that it does not matter which of them
does it. This module loads nothing heavy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from lipcert.audit.trace.files import FORMS, sealed, unsealed
from lipcert.errors import NoVerdictError, UsageError
from lipcert.measure.precision import Precision
from lipcert.settings.gates import NO_GATES, OF_AUDITS, Gates
from lipcert.settings.settings import Settings
from lipcert.settings.values import check_positive
from lipcert.text.codec import Codec
from lipcert.version import __version__

_SCHEMA: Final = "lipcert.audit-job/4"
MAX_DETECTABLE_FACTOR: Final = 1e3
"""Default limit of the factor by which the bound of a group may be wrong unnoticed in a pass."""
_SHARD: Final = re.compile(r"(\d{1,9})/(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Job:
    """An audit; paths are as given.

    At least one of data, trace and attack_steps > 0 is required.

    Args:
        model: the ONNX file.
        certificate: makes the claims that are audited; None for those of an analysis under
            `settings`.
        data: a source of examples, as `lipcert.data.opening` reads it, or a name for examples that
            are given as an object.
        data_x: name of the inputs in the data.
        data_y: name of the labels in the data.
        trace: a recorded run.
        attack_steps: steps of the ascent to bad examples; 0 for no attack.
        attack_weights: the attack also moves the weights within their constraints.
        unit_size: number of examples in one unit of work.
        micro_batch: number of examples evaluated at once.
        limit: audit only this many examples of a source, from the first.
        gates: limits of the numbers that an audit computes, `OF_AUDITS`.
        max_detectable_factor: the factor by which the bound of a group may be wrong unnoticed in a
            pass; inf for no limit.
        interrupted: the recorded run was killed, so that a trace with fewer steps than declared, or
            without an end, is all there is, and may pass.
    """

    model: str
    settings: Settings
    certificate: str | None = None
    data: str | None = None
    data_x: str | None = None
    data_y: str | None = None
    trace: str | None = None
    attack_steps: int = 0
    attack_weights: bool = False
    device: str = "cpu"
    precision: Precision = Precision.FLOAT32
    watch_values: bool = True
    unit_size: int = 2048
    micro_batch: int = 128
    limit: int | None = None
    gates: Gates = NO_GATES
    max_detectable_factor: float = MAX_DETECTABLE_FACTOR
    interrupted: bool = False

    def __post_init__(self) -> None:
        if self.data is None and self.trace is None and self.attack_steps == 0:
            raise UsageError("audit: nothing to audit; give --data, --trace or --attack")
        if self.interrupted and self.trace is None:
            raise UsageError("audit: --interrupted applies to a recorded run; give its --trace")
        for name in ("unit_size", "micro_batch", "limit"):
            check_positive(name.replace("_", "-"), getattr(self, name))
        if unknown := self.gates.limits.keys() - {*OF_AUDITS}:
            raise UsageError(f"audit: --{min(unknown)} is a gate of `lipcert analyze`")
        if not self.max_detectable_factor >= 1.0:
            raise UsageError(
                f"max-detectable-factor: {self.max_detectable_factor!r} is not a number of at "
                "least 1; give inf to set no limit"
            )

    def written(self) -> bytes:
        """Return the job as a sealed line of JSON; `read` is the inverse."""
        line, _ = sealed({"schema": _SCHEMA, "lipcert": __version__, **_CODEC.write(self)}, "")
        return line

    @classmethod
    def read(cls, line: bytes, where: str) -> Job:
        """Return the job of a line; raise NoVerdictError if it was changed, or another version
        wrote it."""
        try:
            members, _ = unsealed(line)
            stamp = [members.pop(name, None) for name in ("schema", "lipcert", "prev")]
            if stamp != [_SCHEMA, __version__, ""]:
                raise NoVerdictError(
                    f"audit: {where} was written by another version of lipcert; start the audit "
                    "again in an empty folder"
                )
            return _CODEC.read(cls, members, "job")
        except (ValueError, KeyError, TypeError) as error:
            raise NoVerdictError(
                f"audit: {where} does not describe an audit, or another version of lipcert wrote "
                f"it: {error}; start the audit again in an empty folder"
            ) from error

    def digest(self, inputs: Mapping[str, str]) -> str:
        """Return a digest of this job and of its inputs (given as digests).

        Results carry it, so that those of other jobs are never mixed in.
        """
        words = json.dumps([self.written().decode("ascii"), dict(sorted(inputs.items()))])
        return hashlib.sha256(words.encode()).hexdigest()


class Kind(Enum):
    """The kind of work in a unit."""

    REPLAY = "replay"
    ATTACK = "attack"


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of a job: the examples start … stop−1 of a source, at the named weights.

    weights: "model", or "step 200" of the trace. examples: "data", or "step 200"; an attack starts
    from these examples. stop: None: to the end, wherever that is; a source of unknown length is one
    unit, because it can only be read in order.
    """

    number: int
    kind: Kind
    weights: str
    examples: str
    start: int
    stop: int | None

    def __str__(self) -> str:
        end = "the end" if self.stop is None else self.stop
        found = f"{self.examples}, {self.start} to {end}"
        return f"unit {self.number} ({self.kind.value} at {self.weights}: {found})"


@dataclass(frozen=True, slots=True)
class Shard:
    """The unit at `index`, counted from 0, of every `count` units."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise UsageError(
                f"shard {self}: of {self.count} shards the first is 0 and the last "
                f"{max(0, self.count - 1)}; if a launcher counts from 1, subtract 1"
            )

    @classmethod
    def of(cls, word: str) -> Shard:
        """Return the shard that a command line spells 3/8; raise UsageError for anything else."""
        found = _SHARD.fullmatch(word)
        if found is None:
            raise UsageError(f"shard {word!r}: give INDEX/COUNT, 0/4 to 3/4 for four processes")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def units_of(pairs: list[tuple[str, str, int | None]], job: Job, attacked: int) -> tuple[Unit, ...]:
    """Return the units of a job.

    pairs: (weights, source of examples, number of examples or None). attacked: the number of
    examples from which an attack starts, at each set of weights.
    """
    units: list[Unit] = []
    for weights, examples, count in pairs:
        if count is None:
            units.append(Unit(len(units), Kind.REPLAY, weights, examples, 0, job.limit))
            continue
        stop = count if job.limit is None else min(count, job.limit)
        for start in range(0, stop, job.unit_size):
            end = min(start + job.unit_size, stop)
            units.append(Unit(len(units), Kind.REPLAY, weights, examples, start, end))
    if job.attack_steps:
        for weights in dict.fromkeys(weights for weights, _, _ in pairs):
            source, count = next((e, n) for w, e, n in pairs if w == weights)
            end = attacked if count is None else min(count, attacked)
            units.append(Unit(len(units), Kind.ATTACK, weights, source, 0, end))
    return tuple(units)


_CODEC: Final = Codec(ValueError, FORMS, nulls=True)
