"""A check that takes more than its budget is UNKNOWN, whatever the file holds."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from lipcert.core import budget
from lipcert.core.budget import MAX_ENTRIES, Limits, OverBudget, limited, spend
from lipcert.core.check import Choices, check
from lipcert.core.digest import structural_digest
from lipcert.core.lower.lower import lower
from lipcert.core.reader.model import read_model
from lipcert.core.text import promise
from lipcert.core.verdict import Verdict
from lipcert.text.certificate import write_certificate
from tests.checkers import checker
from tests.commands import lipcert
from tests.core.lower.cases import model, nodes_of
from tests.core.models import SHIPPED
from tests.core.mutants.networks import certified

MEMORY = 3 << 30
SECONDS = 60
"""of processor time on a busy machine, as of `test_hostile_certificates`"""


def chained(count, write):
    """So many nodes, each of which reads the one before; the last is "y"."""
    names = ["x", *(f"v{k}" for k in range(count - 1)), "y"]
    return "  ".join(write(k, names[k], names[k + 1]) for k in range(count))


def turning(count):
    """Transposes and reshapes in turn, of which none can be put together for nothing."""
    flat = {"wide": [-1, 2048, 4096]}
    nodes = chained(
        count,
        lambda k, a, b: (
            f"{b} = Reshape({a}, wide)" if k % 2 else f"{b} = Transpose<perm=[0, 2, 1]>({a})"
        ),
    )
    return nodes, ["N", 2048, 4096], flat


def scattered(count):
    indices = np.arange(4096)[::-1]
    nodes = chained(count, lambda k, a, b: f"{b} = Gather<axis={1 + k % 2}>({a}, i)")
    return nodes, ["N", 4096, 4096], {"i": indices}


def repeated(count):
    """A constant that is expanded again and again, and added each time."""
    added = "c{1} = Expand(c, m)  d{1} = Mul(c{1}, two)  {1} = Add({0}, d{1})"
    nodes = chained(count, lambda k, a, b: added.format(a, b))
    return nodes, ["N", 2048, 4096], {"c": [0.5], "two": 2.0, "m": [1, 2048, 4096]}


def piled(count):
    """Data with a little more beside it each time."""
    nodes = chained(count, lambda k, a, b: f"{b} = Concat<axis=1>({a}, c)")
    return nodes, [1, 1 << 16], {"c": np.ones((1, 1))}


def counted(count):
    """Whole numbers, of which Python holds each."""
    added = chained(count, lambda k, a, b: f"{b} = Add({'j' if a == 'x' else a}, j)")
    nodes = f"j = Expand(i, m)  {added}  z = Gather<axis=1>(x, y)"
    return nodes, ["N", 4], {"i": [0], "m": [1 << 23]}


def windowed(count):
    pool = f"MaxPool<kernel_shape=[{1 << 30}], pads=[{1 << 29}, {1 << 29}]>"
    return chained(count, lambda k, a, b: f"{b} = {pool}({a})"), ["N", 1, 4], {}


HOSTILE = {
    "transposes and reshapes": turning(40),
    "gathers": scattered(40),
    "expanded constants": repeated(20),
    "concatenations": piled(6000),
    "whole numbers": counted(30),
    "windows": windowed(4),
}


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return certified("mlp", tmp_path_factory.mktemp("budget"), constrained=False)


def about(certificate, path):
    """The same certificate, as if of the model in this file."""
    found = read_model(path)
    identity = replace(
        certificate.model,
        structure=structural_digest(found),
        opset=found.opset,
        output=found.outputs[-1],
    )
    return write_certificate(replace(certificate, model=identity))


def saved(folder, nodes, shape, constants):
    path = folder / "hostile.onnx"
    output = nodes_of(nodes)[-1].output[0]
    path.write_bytes(model(nodes, shape, constants, output=output).SerializeToString())
    return path


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_end_in_a_verdict(case, tmp_path, name):
    path, certificate = saved(tmp_path, *HOSTILE[name]), tmp_path / "c.json"
    certificate.write_bytes(about(case.certificate, path))
    limit = [] if name == "transposes and reshapes" else ["--max-entries", str(1 << 25)]
    done = checker([certificate, "--model", path, *limit], tmp_path, MEMORY, SECONDS)
    assert done.returncode == 3, done.stdout + done.stderr
    assert not done.stderr
    assert "LIPCERT-CHECK: UNKNOWN" in done.stdout
    assert re.search(r"more than \d+ (entries|whole numbers)", done.stdout), done.stdout


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_real_networks_are_far_from_the_limit(path):
    found = read_model(path)
    with limited(Limits(entries=MAX_ENTRIES // 10)):
        lower(found, found.outputs[-1])


def test_transposes_after_each_other_take_no_room(tmp_path):
    nodes = chained(26, lambda k, a, b: f"{b} = Transpose<perm=[0, 2, 1]>({a})")
    path = saved(tmp_path, f"{nodes}  z = Relu(y)", ["N", 512, 1024], {})
    with limited(Limits(entries=16 * 512 * 1024)):
        assert len(lower(read_model(path), "z").steps) == 1


# verdicts ------------------------------------------------------------------------------------


def test_what_is_over_the_time_is_unknown_at_every_stage(case, monkeypatch):
    """Time that stands still until one look at it, after which there is none left."""
    data = write_certificate(case.certificate)
    looks = 0

    def counting():
        nonlocal looks
        looks += 1
        return 0.0

    monkeypatch.setattr(budget.time, "monotonic", counting)
    everything = Choices(accepted=frozenset(item.id for item in case.certificate.assumptions))
    assert check(data, case.path, everything).verdict is Verdict.VALID
    stages = set()
    for last in range(1, looks, max(1, looks // 25)):
        left = iter([0.0] * last)
        monkeypatch.setattr(budget.time, "monotonic", lambda: next(left, math.inf))  # noqa: B023
        report = check(data, case.path, everything)
        assert report.verdict is Verdict.UNKNOWN
        assert "--max-seconds" in report.reasons[0]
        assert not promise(report)
        stages.add(report.stages[-1].number)
    assert {2, 3, 4} <= stages


def test_what_is_over_the_entries_is_unknown(tmp_path, case):
    nodes = "q = Pad(x, p)  y = Relu(q)"
    path = saved(tmp_path, nodes, ["N", 4], {"p": [0, 1, 0, 1]})
    data = about(case.certificate, path)
    few, many = (check(data, path, Choices(limits=Limits(entries=n))) for n in (3, 1000))
    assert few.verdict is Verdict.UNKNOWN
    assert "more than 3 entries (--max-entries)" in few.reasons[0]
    assert many.verdict is Verdict.INVALID


def test_a_budget_holds_inside_of_its_block_only():
    spend(10 * MAX_ENTRIES)
    with limited(Limits(entries=5)):
        spend(5)
        with pytest.raises(OverBudget):
            spend(1)
    spend(10 * MAX_ENTRIES)
    with limited(Limits(seconds=-1.0)), pytest.raises(OverBudget, match="max-seconds"):
        spend()


@pytest.mark.parametrize("program", ["verb", "lipcert-check"])
def test_the_limits_are_options(case, tmp_path, program, capsys):
    from lipcert.core.main import main

    path = tmp_path / "c.json"
    path.write_bytes(write_certificate(case.certificate))
    words = [str(path), "--model", str(case.path), "--max-seconds", "0"]
    if program == "verb":
        done = lipcert(["check", *words])
        code, said = done.exit_code, done.stdout
    else:
        code = main(words)
        said = capsys.readouterr().out
    assert code == 3
    assert "UNKNOWN" in said.splitlines()[-1]
    assert "more than 0 seconds (--max-seconds)" in said
