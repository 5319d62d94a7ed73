"""Run a function in a child process of limited memory and time, so that its crash stays there.

`run_in_child` returns the result of a module-level function for a text. It raises ModelFileError
(LC002) if the budget does not suffice and (LC001) if native code crashes, and ChildError if the
function raises: a fault of LipCert.

On Linux the process forks, which costs milliseconds. If other Python threads run (a fork might
inherit their locks), and on other systems, a fresh interpreter is started, which costs a second.
Systems without the module `resource` (Windows) limit the wall-clock time only.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import select
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from lipcert.core.reader import MAX_BYTES
from lipcert.errors import ModelFileError

if sys.platform != "win32":
    import resource

Work = Callable[[str], str]

_ANSWER: Final = "answer"
_MEMORY: Final = "memory"
_FAULT: Final = "fault"
_OUT_OF_TIME: Final = frozenset({"SIGXCPU", "SIGKILL"})
_MIB: Final = 1 << 20
_BASE_SECONDS: Final = 8
"""CPU seconds for a file of any size."""
_DENSE_SECONDS: Final = 32
"""CPU seconds per MiB of nodes, which are small and take long, unlike weights."""
_DENSE_BYTES: Final = 2 * _MIB
"""The first bytes of a file, all of which may be nodes."""
_MODEL_WITH_DATA_ELSEWHERE: Final = 64 * _MIB
"""Size in bytes of a file that may have most of its weights in other files."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What the import of one file may use in a child process, far above normal use.

    A small file may use 2 GiB and eight CPU seconds; a larger one more, by its size.
    """

    bytes: int
    """Address space beyond that of an idle interpreter."""
    seconds: int
    """CPU seconds."""

    @classmethod
    def of_file(cls, size: int) -> Budget:
        """Return the budget of a file of this many bytes on disk."""
        dense = min(size, _DENSE_BYTES)
        seconds = _BASE_SECONDS + _DENSE_SECONDS * dense // _MIB + size // (5 * _MIB)
        return cls(2048 * _MIB + 16 * size, seconds)

    @classmethod
    def of_path(cls, path: Path) -> Budget:
        """Return the budget by the size of the model and the large files that it names."""
        try:
            size = path.stat().st_size
            if path.is_file() and 0 < size <= _MODEL_WITH_DATA_ELSEWHERE:
                size += sum(_sizes_of_named(path.parent, path.read_bytes()))
        except (OSError, ValueError):
            size = 0
        return cls.of_file(min(size, MAX_BYTES))

    @property
    def patience(self) -> float:
        """Seconds of wall-clock time, enough for a busy machine."""
        return 20.0 + 4.0 * self.seconds


def _sizes_of_named(folder: Path, model: bytes) -> Iterator[int]:
    """Yield sizes of the files that the model names, as it does for external data."""
    for item in folder.iterdir():
        found = item.lstat()
        is_large = stat.S_ISREG(found.st_mode) and found.st_size >= _MIB
        if is_large and os.fsencode(item.name) in model:
            yield found.st_size


class ChildError(RuntimeError):
    """The function raised an exception that it should not raise."""


def run_in_child(work: Work, argument: str, budget: Budget, subject: str) -> str:
    """Compute work(argument) in a child process; `subject` names the file in messages.

    Raises:
        ModelFileError: if the budget does not suffice, or the child crashes.
        ChildError: if `work` raises.
    """
    can_fork = sys.platform == "linux" and threading.active_count() == 1
    run = _forked if can_fork else _spawned
    try:
        status, reply = run(work, argument, budget)
    except TimeoutError as error:
        raise _over_budget(subject, f"{budget.patience:.0f} seconds") from error
    if status < 0:
        name = _signal_name(-status)
        if name in _OUT_OF_TIME:
            raise _over_budget(subject, f"{budget.seconds} seconds of one processor")
        raise ModelFileError(f"{subject!r} crashes its reader ({name})")
    kind, text = json.loads(reply) if reply else (_FAULT, f"exit status {status}")
    if kind == _MEMORY:
        raise _over_budget(subject, f"{budget.bytes >> 20} MiB of memory")
    if kind == _FAULT:
        raise ChildError(text)
    return str(text)


def _over_budget(subject: str, what: str) -> ModelFileError:
    return ModelFileError(f"{subject!r} needs more than {what} to import", "LC002")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _reply(work: Work, argument: str) -> bytes:
    """Return the result or the failure, as a JSON pair."""
    try:
        pair = (_ANSWER, work(argument))
    except MemoryError:
        pair = (_MEMORY, "")
    except Exception as error:  # noqa: BLE001  sent to the parent, which raises it as ChildError
        pair = (_FAULT, f"{type(error).__name__}: {error}")
    return json.dumps(pair).encode()


def _limit(budget: Budget) -> None:
    """Limit what this process may use from here on to its budget."""
    if sys.platform == "win32":
        return
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, math.ceil(time.process_time()) + budget.seconds)
    occupied = Path("/proc/self/statm")
    if occupied.exists():  # macOS does not know the limit of the address space
        pages = int(occupied.read_text(encoding="ascii").split()[0])
        _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + budget.bytes)


def _lower(kind: int, value: int) -> None:
    if sys.platform == "win32":
        return
    _, hard = resource.getrlimit(kind)
    allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (allowed, hard))


def _silence() -> None:
    """Redirect standard streams to nowhere, since native libraries write to them at will."""
    with open(os.devnull, "r+b", buffering=0) as nowhere:
        for stream in (0, 1, 2):
            os.dup2(nowhere.fileno(), stream)


def _forked(work: Work, argument: str, budget: Budget) -> tuple[int, bytes]:
    """Run in a forked child; return its exit status (negative: a signal) and its reply."""
    source, sink = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(source)
        _run_child(work, argument, budget, sink)
    os.close(sink)
    status = 0
    try:
        reply = _read(source, budget.patience)
    except BaseException:
        os.kill(process, signal.SIGKILL)
        raise
    finally:
        os.close(source)
        _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status), reply


def _run_child(work: Work, argument: str, budget: Budget, sink: int) -> NoReturn:
    """Compute, reply and exit, without the parent's clean-up."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _silence()
        _limit(budget)
        with open(sink, "wb") as pipe:
            pipe.write(_reply(work, argument))
        status = 0
    finally:
        os._exit(status)


def _read(source: int, patience: float) -> bytes:
    """Read a pipe to its end, or raise TimeoutError."""
    deadline = time.monotonic() + patience
    poll = select.poll()
    poll.register(source, select.POLLIN)
    parts: list[bytes] = []
    while poll.poll(max(0.0, 1000.0 * (deadline - time.monotonic()))):
        part = os.read(source, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
    raise TimeoutError


def _spawned(work: Work, argument: str, budget: Budget) -> tuple[int, bytes]:
    """Do the same in a fresh interpreter with the search path of this one."""
    words = [work.__module__, work.__name__, str(budget.bytes), str(budget.seconds)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, *words],
            input=argument.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=budget.patience,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    return done.returncode, done.stdout


def _serve(module: str, name: str, size: str, seconds: str) -> None:
    """Serve one request: the main function of a fresh interpreter."""
    argument = sys.stdin.buffer.read().decode()
    work = getattr(importlib.import_module(module), name)
    with os.fdopen(os.dup(1), "wb") as pipe:
        _silence()
        _limit(Budget(int(size), int(seconds)))
        pipe.write(_reply(work, argument))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        _serve(*sys.argv[1:])
