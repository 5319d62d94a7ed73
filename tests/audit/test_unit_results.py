"""Results of units, and a folder of them: what is written is read, and nothing else is."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.audit.job import Job, Unit, units_of
from lipcert.audit.trace.files import sealed, unsealed
from lipcert.audit.unit_results import (
    FAMILIES,
    Findings,
    ResultFolder,
    Tally,
    UnitResult,
    total_of,
)
from lipcert.errors import NoVerdictError
from lipcert.measure.measured import Measured, decide
from lipcert.settings.settings import Settings
from tests.core.generated import SCALARS, WORDS, values_of
from tests.core.test_canonical import VALUES

JOB = Job("m.onnx", Settings(), data="d.npz", unit_size=4)
UNITS = units_of([("model", "data", 40)], JOB, attacked=0)


def result_of(unit: Unit) -> UnitResult:
    """Something that depends on the unit alone; some examples of unit 2 violate a bound."""
    places = np.arange(unit.start, unit.stop)
    norms = np.abs(np.sin(places)) + (unit.number == 2)
    decided = decide(Measured(norms, np.zeros(norms.size)), 1.0)
    tally = Tally.of(norms, 1.0, decided, weights="model", places=places)
    tallies = {family: {"a": tally} for family in FAMILIES}
    return UnitResult(unit, Findings(len(places), tallies))


@pytest.fixture
def folder(tmp_path: Path) -> ResultFolder:
    """With results of the first three units."""
    found = ResultFolder.opened(tmp_path, JOB, "digest")
    for unit in UNITS[:3]:
        found.keep(result_of(unit))
    return found


def read_again(folder: ResultFolder):
    """As a merge does."""
    job = ResultFolder.job_in(folder.path)
    return total_of(ResultFolder.opened(folder.path, job, "digest").kept(UNITS))


def test_doing_a_unit_twice_counts_once(folder: ResultFolder) -> None:
    folder.keep(result_of(UNITS[1]))
    kept = list(folder.kept(UNITS))
    assert total_of(kept) == total_of(map(result_of, UNITS[:3])) == read_again(folder)
    assert total_of([*kept, result_of(UNITS[0])]) == total_of(kept)
    assert len(list((folder.path / "results").iterdir())) == 3


def test_results_of_another_audit_are_refused(folder: ResultFolder) -> None:
    with pytest.raises(NoVerdictError, match="belongs to another audit"):
        list(ResultFolder.opened(folder.path, JOB, "another").kept(UNITS))
    with pytest.raises(NoVerdictError, match="holds another audit"):
        ResultFolder.opened(folder.path, Job("m.onnx", Settings(), data="e.npz"), "digest")


@pytest.mark.parametrize("name", ["job.json", "results/2.json"])
def test_a_file_with_any_byte_changed_or_lost_is_refused(folder: ResultFolder, name: str) -> None:
    """Every byte once, by one of its bits or a digit for a digit; every tenth end."""
    path = folder.path / name
    data = path.read_bytes()
    read = (
        (lambda line: Job.read(line, "here"))
        if name == "job.json"
        else (lambda line: UnitResult.read(line, "digest", UNITS[2]))
    )
    read(data)
    for at, byte in enumerate(data):
        other = b"0" if chr(byte) in "123456789" else bytes([byte ^ (1 << at % 8)])
        changed = [data[:at] + other + data[at + 1 :], data[:at] + data[at + 1 :]]
        for line in changed if at % 10 else [*changed, data[:at]]:
            with pytest.raises((ValueError, NoVerdictError)):
                read(line)
    path.write_bytes(data[:50] + b"#" + data[51:])
    with pytest.raises(NoVerdictError, match=name.replace(".", r"\.")):
        read_again(folder)


def renewed(change):
    """The result of unit 2 with something changed, and its digest made anew."""

    def doing(results: Path) -> None:
        path = results / "2.json"
        members, _ = unsealed(path.read_bytes())
        previous = members.pop("prev")
        change(members)
        path.write_bytes(sealed(members, previous)[0])

    return doing


def replaced(make):
    """The file of unit 2 made otherwise."""

    def doing(results: Path) -> None:
        (results / "2.json").unlink()
        make(results / "2.json")

    return doing


def nested(depth: int) -> bytes:
    """A line whose digest fits."""
    body = b'{"a":' + b"[" * depth + b"]" * depth + b',"prev":"digest"}'
    digest = hashlib.sha256(body).hexdigest().encode()
    return body[:-1] + b',"h":"' + digest + b'"}\n'


NESTED = "[" * 200_000 + "]" * 200_000
NUMBERED = renewed(lambda found: found["unit"].update(number=99))
FAULTS = {
    "a copy in place of a result": (
        lambda r: (r / "2.json").write_bytes((r / "1.json").read_bytes()),
        r"2\.json is not what unit 2 found: it is the result of unit 1 .*delete it",
    ),
    "a copy in place of a missing one": (
        lambda r: (r / "3.json").write_bytes((r / "2.json").read_bytes()),
        r"3\.json is not what unit 3 found",
    ),
    "two exchanged": (
        lambda r: [
            (r / "1.json").rename(r / "t"),
            (r / "2.json").rename(r / "1.json"),
            (r / "t").rename(r / "2.json"),
        ],
        r"1\.json is not what unit 1 found",
    ),
    "a unit that is none": (
        lambda r: (r / "2.json").rename(r / "99.json"),
        "99.json' is not a result",
    ),
    "another name": (lambda r: (r / "2.json").rename(r / "02.json"), "02.json' is not a result"),
    "another ending": (lambda r: (r / "2.json").rename(r / "2.jso"), "2.jso' is not a result"),
    "another number": (NUMBERED, "it is the result of unit 99"),
    "another kind": (renewed(lambda found: found["unit"].update(kind="attack")), "unit 2 .attack"),
    "another range": (renewed(lambda found: found["unit"].update(start=9)), "data, 9 to 12"),
    "more examples": (renewed(lambda m: m["found"].update(examples=5)), "counts 5 examples of 4"),
    "no tallies": (renewed(lambda m: m["found"].update(tallies={})), "of every family"),
    "no number": (
        renewed(lambda m: m["found"]["tallies"]["grad_norm"]["a"].update(max_observed="much")),
        "not a number",
    ),
    "another audit's": (
        lambda r: (r / "2.json").write_bytes(result_of(UNITS[2]).written("other")),
        "another audit",
    ),
    "not JSON": (replaced(lambda path: path.write_text("")), "its digest"),
    "nested": (replaced(lambda path: path.write_text(NESTED)), "its digest"),
    "nested, digest made anew": (
        replaced(lambda path: path.write_bytes(nested(200_000))),
        "not readable as JSON",
    ),
    "another program's": (
        replaced(lambda path: path.write_bytes(sealed({"a": 0}, "digest")[0])),
        "another audit",
    ),
    "not text": (replaced(lambda path: path.write_bytes(b"\xff\x00")), "its digest"),
    "a dangling link": (replaced(lambda path: path.symlink_to("gone")), "it is a link"),
    "a link to a device": (replaced(lambda path: path.symlink_to("/dev/zero")), "it is a link"),
    "a pipe": (replaced(os.mkfifo), "not a regular file"),
    "a folder": (replaced(Path.mkdir), "not a regular file|directory"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_no_result_of_the_job_is_refused(folder: ResultFolder, name: str) -> None:
    fault, why = FAULTS[name]
    fault(folder.path / "results")
    with pytest.raises(NoVerdictError, match=why):
        read_again(folder)


def test_what_somebody_is_writing_is_passed_over(folder: ResultFolder) -> None:
    (folder.path / "results" / ".3.json.abc").write_text('{"schema"', encoding="utf-8")
    assert read_again(folder).done == (0, 1, 2)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("gone")])
def test_a_description_that_is_no_file_is_refused(make, tmp_path: Path) -> None:
    make(tmp_path / "job.json")
    with pytest.raises(NoVerdictError, match="is not a folder of results"):
        ResultFolder.job_in(tmp_path)
    with pytest.raises(NoVerdictError, match="cannot use the folder"):
        ResultFolder.opened(tmp_path, JOB, "digest")


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoVerdictError, match="not a folder of results"):
        ResultFolder.job_in(tmp_path / "absent")
    assert ResultFolder.job_in(ResultFolder.opened(tmp_path, JOB, "d").path) == JOB
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NoVerdictError, match="cannot use the folder"):
        ResultFolder.opened(file, JOB, "d")
    (tmp_path / "results" / "0.json").mkdir()
    with pytest.raises(NoVerdictError, match="cannot write"):
        ResultFolder(tmp_path, "d").keep(result_of(UNITS[0]))


GIVEN = {**SCALARS, float: st.floats(allow_nan=False).map(lambda x: x + 0.0)}
TALLIES = st.dictionaries(WORDS, values_of(Tally, GIVEN), max_size=2)
EVERY = st.fixed_dictionaries(dict.fromkeys(FAMILIES, TALLIES))
HINT = get_type_hints(Findings, include_extras=True)["tallies"]
ANY_UNIT = values_of(Unit).map(lambda unit: replace(unit, stop=None))
RESULTS = values_of(UnitResult, {**GIVEN, HINT: EVERY, Unit: ANY_UNIT})


@given(RESULTS)
def test_a_result_is_read_back_as_one_of_its_job(result: UnitResult) -> None:
    assert UnitResult.read(result.written("job"), "job", result.unit) == result
    with pytest.raises(ValueError, match="it belongs to another audit"):
        UnitResult.read(result.written("job"), "other", result.unit)


@given(RESULTS, st.data())
def test_a_result_that_was_changed_is_refused_or_says_so(
    result: UnitResult, data: st.DataObject
) -> None:
    """Whatever stands in it, with a digest that fits."""
    members, _ = unsealed(result.written("job"))
    previous = members.pop("prev")
    place = members if data.draw(st.booleans()) else members["found"]
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(VALUES | st.none())
    line, _ = sealed(members, previous)
    try:
        found = UnitResult.read(line, "job", result.unit)
    except ValueError:
        return
    assert found.written("job") == line
