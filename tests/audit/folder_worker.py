"""A worker that shares a folder of work and whose units take a while; run as a script.

python -m tests.audit.folder_worker FOLDER SECONDS: does units of `JOB` until all are done.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from lipcert.audit.folder import WorkFolder
from lipcert.audit.job import Job, Unit, units_of
from lipcert.audit.tally import FAMILIES, Tally
from lipcert.audit.unit_result import UnitResult
from lipcert.settings import Settings

JOB = Job("m.onnx", Settings(), data="d.npz", unit_size=4)
UNITS = units_of([("model", "data", 400)], JOB, attacked=0)


def result_of(unit: Unit) -> UnitResult:
    """Something that depends on the unit alone."""
    places = np.arange(unit.start, unit.stop)
    norms = np.abs(np.sin(places))
    tally = Tally.of(norms, 1.0, None, recomputed=0, weights="model", places=places)
    return UnitResult(
        unit=unit.number,
        kind=unit.kind,
        examples=len(places),
        tallies={family: {"a": tally} for family in FAMILIES},
        checks=(),
        seconds=0.0,
    )


def main(path: Path, seconds: float) -> None:
    folder = WorkFolder.opened(path, JOB, "digest")
    for unit in folder.claimed(UNITS):
        time.sleep(seconds)
        folder.keep(unit, result_of(unit))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
