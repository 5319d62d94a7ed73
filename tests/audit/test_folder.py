"""A folder of results: what is written is read, and what does not belong to it is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lipcert.audit.folder import ResultFolder
from lipcert.audit.job import Job, Unit, units_of
from lipcert.audit.tally import FAMILIES, Tally
from lipcert.audit.unit_result import UnitResult, total_of
from lipcert.errors import NoVerdictError
from lipcert.settings import Settings

JOB = Job("m.onnx", Settings(), data="d.npz", unit_size=4)
UNITS = units_of([("model", "data", 40)], JOB, attacked=0)


def result_of(unit: Unit) -> UnitResult:
    """Something that depends on the unit alone."""
    places = np.arange(unit.start, unit.stop)
    norms = np.abs(np.sin(places))
    tally = Tally.of(norms, 1.0, None, recomputed=0, weights="model", places=places)
    tallies = {family: {"a": tally} for family in FAMILIES}
    return UnitResult(unit.number, unit.kind, len(places), tallies, (), 0.0)


def test_doing_a_unit_twice_counts_once(tmp_path: Path) -> None:
    folder = ResultFolder.opened(tmp_path, JOB, "digest")
    for unit in (*UNITS[:3], UNITS[1]):
        folder.keep(result_of(unit))
    assert total_of(folder.kept()) == total_of(map(result_of, UNITS[:3]))
    assert total_of([*folder.kept(), result_of(UNITS[0])]) == total_of(folder.kept())
    assert len(list((tmp_path / "results").iterdir())) == 3


def test_other_results_are_refused(tmp_path: Path) -> None:
    folder = ResultFolder.opened(tmp_path, JOB, "digest")
    folder.keep(result_of(UNITS[0]))
    with pytest.raises(NoVerdictError, match="belongs to another audit"):
        list(ResultFolder.opened(tmp_path, JOB, "another").kept())
    result = tmp_path / "results" / "0.json"
    result.write_text(result.read_text(encoding="utf-8")[:-10], encoding="utf-8")
    with pytest.raises(NoVerdictError, match=r"0\.json is damaged"):
        list(folder.kept())


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoVerdictError, match="no folder of results"):
        ResultFolder.job_in(tmp_path / "absent")
    assert ResultFolder.job_in(ResultFolder.opened(tmp_path, JOB, "d").path) == JOB
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NoVerdictError, match="cannot use the folder"):
        ResultFolder.opened(file, JOB, "d")
    (tmp_path / "results" / "0.json").mkdir()
    with pytest.raises(NoVerdictError, match="cannot write"):
        ResultFolder(tmp_path, "d").keep(result_of(UNITS[0]))
