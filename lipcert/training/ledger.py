"""Ledger: count the noised gradients of a run, each before its release.

Given the description of a run (its `LedgerHeader`) and a call before every release, the ledger
returns the number of all releases so far (by this process and earlier ones), the ε that they cost,
and the number that is allowed.

Invariants: the count is never below the number of releases, whatever kills the process, because a
release is recorded on disk before it is made. The count may be above it: a release that was counted
and lost with the process stays counted, because its output may have been seen. With a target ε, a
number of releases is allowed only if its ε was evaluated and found to be at most the target.

A changed line is refused when the ledger is opened. Whole lines cut off at the end, or a removed
file, cannot be detected: everyone with write access to the folder is trusted.

A ledger file has one line for each event, and one process at a time locks and writes it:

    {"kind":"header", …}                     what the run is
    {"kind":"release","number":1,"time":…}   before release 1; with a number k, before all up to k
    {"kind":"unused","number":…}             the process ended having made only this many
    {"kind":"torn","number":…}               an unfinished line stood here; it counts as a release
    {"kind":"epoch","number":…}              the rest of a shuffled epoch that was not continued

Every line holds the digest of the line before (`audit.trace.files`). Reading takes untrusted
bytes and returns the header and a count, or raises NoVerdictError with the line of the first
irregularity. Invariant: the count never falls, except that "unused" gives back releases that the
line right before it counted.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final, Literal, Self

from lipcert.audit.trace.files import (
    MEMBERS,
    ChainFile,
    FormError,
    Json,
    JsonObject,
    TraceError,
    links,
    sealed,
)
from lipcert.core.codec import Bound, member
from lipcert.errors import NoVerdictError, UsageError
from lipcert.privacy.accounting import Accountant, epsilon, steps_for_epsilon
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings.values import check_positive
from lipcert.training.world import OneProcess

_SPENDING: Final = frozenset({"release", "torn", "epoch"})


@dataclass(frozen=True, slots=True)
class LedgerHeader:
    """The first line of a ledger: what a run releases, how often, and with how much noise.

    It is the same in all processes of a run. mechanism: described in words. digest: of the settings
    and of the structure of the model. versions: of libraries; they may change when a run is
    resumed. released: the content of one release.
    """

    plan: TrainingPlan = field(metadata=member(apart=True))
    noise_multiplier: Bound
    mechanism: str
    digest: str
    target_epsilon: Bound | None = None
    accountant: Accountant | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    released: str = "one gradient: the noised sum over a batch, divided by a constant"
    schema: Literal["lipcert.ledger/1"] = "lipcert.ledger/1"

    def __post_init__(self) -> None:
        check_positive("noise-multiplier", float(self.noise_multiplier))
        check_positive("ledger: target-epsilon", self.target_epsilon)

    def members(self) -> JsonObject:
        """Return the members as they are written in the file; those that are None are omitted."""
        plan = self.plan
        found: dict[str, Json | None] = {
            "dataset_size": plan.dataset_size,
            "dataset_size_from": plan.dataset_size_from.value if plan.size_tells else None,
            "sampling": plan.sampling.value,
            "delta": plan.delta,
            "batch_size": plan.batch,
            "steps": plan.steps,
            "epochs": None if plan.epochs is None else float(plan.epochs),
            "neighbours": plan.neighbours.value,
        }
        of_plan = {key: value for key, value in found.items() if value is not None}
        return {**MEMBERS.write(self), **of_plan}

    @classmethod
    def of_members(cls, members: JsonObject) -> Self:
        """Return the header with these members; raise `FormError` if they do not describe one."""
        try:
            plan = TrainingPlan.described(members)
            others = members.keys() - TrainingPlan.__dataclass_fields__
            header = MEMBERS.read(cls, {key: members[key] for key in others}, "header", plan=plan)
        except (TypeError, ValueError, UsageError) as error:
            raise FormError(f"it does not describe a run: {error}") from error
        if header.members() != members:
            raise FormError("it has members that no header has")
        return header


@dataclass(frozen=True, slots=True)
class LedgerContent:
    """The complete lines of a file: how many releases they count, and where the next line goes."""

    header: LedgerHeader
    releases: int
    head: str
    """Digest of the last line."""
    end: int
    """Length of the complete lines in bytes."""


def read_ledger(file: BinaryIO, name: str) -> LedgerContent | None:
    """Return the content of a file; None if it has no complete line."""
    content = None
    least = 0
    try:
        for link in links(file, name, ""):
            try:
                if content is None:
                    header, number = _header(link.members), 0
                else:
                    header, number = content.header, _counted(link.members, content.releases, least)
                    least = content.releases + 1 if number > content.releases else number
            except FormError as error:
                raise _refused(name, f"line {link.number}: {error}") from error
            content = LedgerContent(header, number, link.digest, link.end)
    except TraceError as error:
        raise _refused(name, f"line {error.fault.line}: {error.fault.message}") from error
    return content


def require_same(path: str, found: LedgerHeader, given: LedgerHeader) -> None:
    """Raise UsageError with the members that differ, except versions."""
    one, other = found.members(), given.members()
    differ = [
        f"{key.replace('_', '-')} {one.get(key, 'none')} there, {other.get(key, 'none')} here"
        for key in (one | other)
        if key != "versions" and one.get(key) != other.get(key)
    ]
    if differ:
        raise UsageError(
            f"ledger: {path} counts the releases of another run ({'; '.join(differ)}): continue "
            "the same run, or name a new folder"
        )


def _header(members: JsonObject) -> LedgerHeader:
    if members.pop("kind", None) != "header":
        raise FormError("it is not a header")
    return LedgerHeader.of_members(members)


def _counted(members: JsonObject, before: int, least: int) -> int:
    """Return the number of releases that are counted after a line."""
    number, kind = members.get("number"), members.get("kind")
    if members.keys() != {"kind", "number", "time"} or type(number) is not int:
        raise FormError("it is not a line of a ledger")
    rises = kind in _SPENDING and number > before
    falls = kind == "unused" and least <= number < before
    if not (rises or falls):
        raise FormError(f"{kind!r} with the number {number} cannot follow {before} releases")
    return number


def _refused(name: str, reason: str) -> NoVerdictError:
    return NoVerdictError(
        f"ledger: {name}, {reason}; so the number of releases is unknown: restore the file as it "
        "was written, or begin a new run in another folder with a budget of its own"
    )


def _first(plan: TrainingPlan, releases: int) -> TrainingPlan:
    """Return the plan that consists of the first releases alone.

    For sampling by epoch, k releases begin ⌈k/⌈N/B⌉⌉ epochs, and each epoch contains an example at
    most once: `Sampler` keeps the short batch at the end of an epoch, and finishes an epoch before
    the next.
    """
    if plan.sampling.by_epoch:
        begun = -(-releases // plan.batches_per_epoch)
        return replace(plan, steps=None, epochs=float(begun))
    return plan.with_steps(releases)


class Ledger(OneProcess):
    """The ledger of one run, in memory or in a file that one process at a time holds.

    A ledger file is begun or continued. An unfinished last line, which a writer leaves if it is
    killed while writing, counts as a release. That writer had not released anything yet; but what
    cut the line is unknown, and it may have been a whole line before: breaking a line must never
    gain a release.

    Args:
        path: None keeps the ledger in memory.
        spent: the count at which a ledger in memory begins, for ranks whose releases another rank
            writes down.
        ahead: how many releases one write covers. With more than 1 the disk is waited for less
            often, and a process that is killed leaves up to ahead − 1 releases counted that it did
            not make.

    Raises:
        UsageError: if the file belongs to another run, or another process holds it.
    """

    def __init__(
        self, header: LedgerHeader, path: Path | None = None, *, spent: int = 0, ahead: int = 1
    ) -> None:
        super().__init__()
        if spent < 0 or ahead < 1:
            raise UsageError(f"ledger: {spent} spent, {ahead} ahead: give ≥ 0 and ≥ 1")
        if spent and path is not None:
            raise UsageError("ledger: the file states what was spent; leave spent out")
        self.header, self.path = header, path
        self._evaluated = (0, 0.0)
        self._ahead = ahead
        self._releases = self._counted = spent
        self._file = None if path is None else ChainFile(path, "ledger")
        if self._file is not None:
            try:
                self._go_on(self._file)
            except (NoVerdictError, UsageError, OSError):
                self._file.close()
                raise

    @property
    def releases(self) -> int:
        """The number of releases, including those of processes that died and whose weights are
        lost."""
        return self._releases

    def epsilon_of(self, releases: int) -> float:
        """Return ε such that the first `releases` of the run are (ε, δ)-DP; 0 for none.

        Hypothesis: the number of releases was not chosen by looking at their results. A run that is
        stopped early because of how it went has the ε of the whole plan. An evaluation takes up to
        a second, so the last one is kept.
        """
        if releases == 0:
            return 0.0
        if self._evaluated[0] != releases:
            plan, accountant = _first(self.header.plan, releases), self.header.accountant
            self._evaluated = (releases, epsilon(plan, self.header.noise_multiplier, accountant))
        return self._evaluated[1]

    @cached_property
    def planned_epsilon(self) -> float:
        """ε of the whole plan: the one to state if results decided when to stop."""
        return self.epsilon_of(self.header.plan.releases)

    @cached_property
    def planned(self) -> int:
        """The number of releases of the run: those of its plan, or fewer if the target allows
        fewer."""
        target = self.header.target_epsilon
        if target is None or self.planned_epsilon <= target:
            return self.header.plan.releases
        return self._affordable

    @cached_property
    def most(self) -> int:
        """The largest number of releases within the target ε; without a target, those of the
        plan."""
        is_planned = self.header.target_epsilon is None
        return self.planned if is_planned else max(self.planned, self._affordable)

    @cached_property
    def _affordable(self) -> int:
        header = self.header
        plan, sigma, target = header.plan, header.noise_multiplier, header.target_epsilon or 0.0
        return steps_for_epsilon(plan, sigma, target, header.accountant).steps

    @property
    def left(self) -> int:
        """The number of planned releases that are still to be made."""
        return max(0, self.planned - self._releases)

    @property
    def is_spent(self) -> bool:
        """Whether no further release is allowed."""
        return self._releases >= self.planned and self._releases >= self.most

    def epsilon(self) -> float:
        """Return ε of all releases so far, see `epsilon_of`."""
        return self.epsilon_of(self._releases)

    @property
    def summary(self) -> str:
        """The privacy that was spent, in one line; evaluating it takes up to a second or two."""
        target = self.header.target_epsilon
        words = "" if target is None else f", target {target:g}"
        return (
            f"{self._releases} releases at noise multiplier {self.header.noise_multiplier:g}: "
            f"ε = {self.epsilon():.4g} at δ = {self.header.plan.delta:g} "
            f"(whole plan: {self.planned_epsilon:.4g}{words}); {self.left} left"
        )

    def spend(self) -> int:
        """Count one more release permanently, before it is made; return its number, from 0."""
        self.require_here()
        if self.is_spent:
            raise NoVerdictError(
                f"ledger: the budget of {self.most} releases is spent; nothing may be released"
            )
        if self._releases == self._counted:
            rest = min(self._ahead, self.planned - self._releases)
            self._count("release", self._releases + max(1, rest))
        self._releases += 1
        return self._releases - 1

    def close(self) -> None:
        """Give back the releases that were counted ahead, and close the file."""
        if self._file is None:
            return
        if self._file.is_open and self._counted > self._releases:
            self._count("unused", self._releases)
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        """Close the ledger."""
        self.close()

    def _go_on(self, held: ChainFile) -> None:
        """Find the end of the chain of lines, or begin one.

        The rest of an epoch that was begun counts as spent: which example was in which batch is
        unknown now, and in a new epoch an example might take part a second time in what counts as
        one epoch.
        """
        with held.reading() as file:
            content = read_ledger(file, str(held.path))
        if content is None:
            self._begin(held)
            return
        require_same(str(held.path), content.header, self.header)
        held.go_on(content.head, content.end)
        self._counted = content.releases
        if held.unfinished:
            self._count("torn", self._counted + 1)
        if self.header.plan.sampling.by_epoch:
            rest = -self._counted % self.header.plan.batches_per_epoch
            if rest:
                self._count("epoch", self._counted + rest)
        self._releases = self._counted

    def _begin(self, held: ChainFile) -> None:
        """Write the header, over the beginning of one that a killed process may have left."""
        members: JsonObject = {"kind": "header", **self.header.members()}
        line, _ = sealed(members, held.head)
        with held.reading() as file:
            begun = file.read()
        if not line.startswith(begun):
            raise NoVerdictError(
                f"ledger: {held.path} is not the beginning of a ledger of this run; if you know "
                "that nothing was released, remove it; otherwise name a new folder"
            )
        held.go_on(held.head, 0)
        held.append(members)

    def _count(self, kind: str, number: int) -> None:
        """Record that `number` releases are counted; it is on the disk when this returns.

        After a failure the file is closed and accepts no more lines.
        """
        if self._file is not None:
            try:
                self._file.append({"kind": kind, "number": number, "time": time.time()})
            except NoVerdictError:
                self._file.close()
                raise
        self._counted = number
