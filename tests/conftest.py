"""One thread per test process, since the processes already run in parallel.

Text is as wide as where there is no terminal.

`pytest -m fast` is the inner loop: every test but those of slow.txt, which `pytest --record-slow`
writes from the seconds that it measures. `pytest -m nightly` runs what nothing else runs: tests of
whole pages, and all but a sample of random searches. Hypothesis draws 16 examples, always the same;
with `--hypothesis-profile nightly` it draws 300, always others.
"""

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ["COLUMNS"] = "120"

_LENIENT = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
settings.register_profile("pr", _LENIENT, max_examples=16, derandomize=True)
settings.register_profile("nightly", _LENIENT, max_examples=300, print_blob=True)
settings.load_profile("pr")
providers.is_local_module_file = lambda path: False
"""What is drawn does not depend on constants of what is loaded, of which all sources are read."""

HERE = Path(__file__).parent
SLOW = frozenset((HERE / "slow.txt").read_text(encoding="utf-8").splitlines())
"""modules and tests that the inner loop leaves out"""

gc.disable()  # until all tests are collected: what they are made of stays


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """No test cuts the power, and none can see whether what was written has reached the disk, for
    which each file of a recorded trace waits for some milliseconds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    """tqdm keeps a thread once it has shown a bar. Beside threads no model is read in a fork, which
    is quick and sees what a test has put in the place of something.
    """
    yield
    tqdm = sys.modules.get("tqdm")
    if tqdm is not None and tqdm.tqdm.monitor is not None:
        tqdm.tqdm.monitor_interval = 0
        tqdm.tqdm.monitor.exit()
        tqdm.tqdm.monitor = None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _export_from_the_store(item.config)
    _export_by_known_lists()
    load = sys.modules.get("lipcert.importer.load")
    if load is not None:
        child = sys.modules["lipcert.importer.child"]
        folder = item.path.relative_to(HERE).parts[0]
        load.run_in_child = child.run_in_child if folder in READ_APART else _run_here
        _prove_once(folder)


READ_APART = ("hostile", "process")
"""folders whose tests read models in a child process, as users do"""


def _prove_once(folder: str) -> None:
    """Whether a proof that is known is made again depends on what a folder tests."""
    bounded = sys.modules.get("lipcert.analysis.bounded")
    if bounded is not None:
        from tests import proofs

        prove = sys.modules["lipcert.search.chains"].with_chains
        bounded.with_chains = proofs.remembering(prove) if folder in proofs.FOLDERS else prove


def _run_here(work: Callable[[str], str], argument: str, *_: object) -> str:
    """To fork a process that holds torch and all tests takes longer than to read a small model."""
    return work(argument)


def _export_by_known_lists() -> None:
    """torch lists all of its operators at every export, and the sources of those that it writes.

    The lists are the same each time, for nothing here adds an operator, and two thirds of an
    export of a small network: they are kept from the second export of a process on.
    """
    exporter = sys.modules.get("torch.onnx._internal.exporter._registration")
    if exporter is not None:
        table, operators = exporter.ONNXRegistry, sys.modules["torch._export.utils"]
        if isinstance(vars(table)["from_torchlib"], classmethod):
            table.from_torchlib = staticmethod(cache(table.from_torchlib))
            operators._materialize_cpp_cia_ops = cache(operators._materialize_cpp_cia_ops)


def _export_from_the_store(config: pytest.Config) -> None:
    """As soon as something is loaded that exports; what exports nothing does not load torch."""
    if "torch" in sys.modules and not hasattr(config, "exports"):
        from tests import exports

        config.exports = exports.Store(anew=config.getoption("record_exports"))
        exports.install(config.exports)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "exports"):
        session.config.exports.close()


def is_slow(path: Path) -> bool:
    """Whether a file belongs to what the inner loop leaves out."""
    return path.relative_to(HERE).as_posix() in SLOW


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The inner loop does not even import what it leaves out."""
    skips = config.option.markexpr == "fast" and collection_path.suffix == ".py"
    return True if skips and is_slow(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what samples leave to the night, and what the inner loop runs."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample"):
            cases.setdefault(_function(item.nodeid), []).append(item)
    for members in cases.values():
        _leave_out(members)
    refuse_empty_tables({item.module for item in items if isinstance(item, pytest.Function)})
    for item in items:
        name = _function(item.nodeid)
        if not (item.get_closest_marker("nightly") or name in SLOW or is_slow(item.path)):
            item.add_marker("fast")


def _leave_out(cases: list[pytest.Item]) -> None:
    """Leave all but a sample of the cases of a test, or of the values of a parameter, to the night.

    The sample is spread evenly.
    """
    (mark,) = cases[0].iter_markers("sample")
    for parameter, wanted in mark.kwargs.items() or [("", mark.args[0])]:
        known = [case.callspec.params[parameter] if parameter else case.nodeid for case in cases]
        values = list(dict.fromkeys(known))
        spread = {values[i * len(values) // wanted] for i in range(min(wanted, len(values)))}
        for case, value in zip(cases, known, strict=True):
            if value not in spread:
                case.add_marker("nightly")


def refuse_empty_tables(modules) -> None:
    """A test that goes through a table passes where the table is empty, and has tested nothing."""
    empty = [
        f"{module.__name__}.{name}"
        for module in modules
        for name, table in vars(module).items()
        if name.isupper()
        and isinstance(table, tuple | list | set | frozenset | Mapping)
        and not table
    ]
    if empty:
        raise pytest.UsageError(f"these tables of tests are empty: {', '.join(sorted(empty))}")


def _function(nodeid: str) -> str:
    """Path below tests/ and name of a test, without its parameters."""
    return nodeid.removeprefix("tests/").partition("[")[0]


# What writes slow.txt --------------------------------------------------------------------------

LIMIT = 0.1
"""seconds of processor time that all parameters of a test may take together"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-slow", action="store_true", help="write tests/slow.txt")
    parser.addoption("--record-exports", action="store_true", help="write tests/exports")


class Stopwatch:
    """Processor time of tests, and of the fixtures that each module sets up; in every process."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()
        self.fixtures: Counter[str] = Counter()
        self.last = sum(os.times()[:4])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        before, self.last = self.last, sum(os.times()[:4])
        report.seconds = self.last - before
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = _function(report.nodeid)
        if report.when == "call":
            self.tests[name] += report.seconds
        else:
            self.fixtures[name.partition("::")[0]] += report.seconds

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Of the first module that imports a library, beyond what most modules import."""
        before = sum(os.times()[:4])
        report = yield
        seconds = sum(os.times()[:4]) - before
        if isinstance(collector, pytest.Module) and seconds > 2 * LIMIT:
            self.fixtures[_function(collector.nodeid)] += seconds
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """What did not run stays as it was listed."""
        if not hasattr(session.config, "workerinput"):
            ran = {name.partition("::")[0] for name in self.tests}
            paths = {line: line.partition("::")[0] for line in SLOW}
            kept = {x for x, path in paths.items() if path not in ran and (HERE / path).exists()}
            lines = sorted(kept.union(self.slow()))
            (HERE / "slow.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")

    def slow(self) -> Iterator[str]:
        """Modules whose fixtures, or most of whose tests, are slow; slow tests of the others."""
        modules: dict[str, list[str]] = {}
        for name in self.tests:
            modules.setdefault(name.partition("::")[0], []).append(name)
        for module, names in modules.items():
            slow = [name for name in names if self.tests[name] > LIMIT]
            is_whole = self.fixtures[module] > LIMIT or 2 * len(slow) > len(names)
            yield from [module] if is_whole else slow


def pytest_configure(config: pytest.Config) -> None:
    # The package asserts nothing; pytest rewrites it since its plugin is part of it.
    config.pluginmanager.rewrite_hook._must_rewrite.discard("lipcert")
    if config.getoption("record_slow"):
        for name in ("scipy.stats", "torch", "lipcert.training", "tests.models.shipped"):
            import_module(name)
        config.pluginmanager.register(Stopwatch())
