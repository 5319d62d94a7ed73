"""Threads: run linear algebra in one thread, alone or in each of a few workers.

Threads of small matrix products that wait for each other cost more than they gain, most of all if
several workers multiply at once.

The number of threads of a BLAS library is a setting of the whole process. It is 1 while one of
these contexts is open, also for other threads of the caller, and is restored afterwards, whatever
happened inside; changes by the caller in between are undone. If contexts of several threads
overlap, the first one sets and restores the number; those that outlast it run with the caller's
setting. Nothing else is changed: torch and onnxruntime have threads of their own.
"""

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

from threadpoolctl import ThreadpoolController

_MOST_WORKERS: Final = 4
_FIRST: Final = threading.Lock()
"""Held by the context that set the limit. Never waited for: a fork may copy it while it is held."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Run linear algebra in one thread; also a decorator: `@one_thread()`."""
    if not _FIRST.acquire(blocking=False):
        yield
        return
    try:
        with _libraries().select(user_api="blas").limit(limits=1):
            yield
    finally:
        _FIRST.release()


@contextmanager
def worker_pool() -> Iterator[ThreadPoolExecutor]:
    """Open workers with one thread of linear algebra each; an error cancels waiting tasks."""
    workers = min(_MOST_WORKERS, len(os.sched_getaffinity(0)))
    with one_thread(), ThreadPoolExecutor(workers, initializer=_limit_worker) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _limit_worker() -> None:
    """Limit OpenMP, used by some builds of BLAS, whose limit is per calling thread."""
    _libraries().select(user_api="openmp").limit(limits=1)


def _libraries() -> ThreadpoolController:
    """Return the loaded libraries; searched again, in milliseconds, after new imports."""
    return _found(len(sys.modules))


@lru_cache(maxsize=1)
def _found(_: int) -> ThreadpoolController:
    return ThreadpoolController()
