"""The folder of a private run: the names of its files, and whether it may be used.

What enters: a folder, and whether a run in it is to be gone on with. What leaves: the same folder,
which is made once it is known that there is a run; or a UsageError. Invariant: a run in a folder is
never begun a second time.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from lipcert.errors import UsageError

MODEL: Final = "model.onnx"
CERTIFICATE: Final = "model.lipcert.json"
SETTINGS: Final = "lipcert.toml"
LEDGER: Final = "ledger.jsonl"
CHECKPOINT: Final = "checkpoint.pt"
TRACE: Final = "trace"
UNCERTIFIED: Final = "no_certificate.txt"
"""why there is no certificate, where there is none"""


def usable(folder: Path, *, resume: bool, is_first: bool) -> Path:
    """For a new run, or to go on with the one it holds; is_first: this rank writes it."""
    exists = (folder / LEDGER).exists()
    if exists and not resume:
        raise UsageError(
            f"training: {folder} holds a run already; give resume=True to go on with it, or "
            "another folder"
        )
    if resume and not exists and is_first:
        raise UsageError(f"training: {folder} holds no run to go on with; leave out resume=True")
    return folder


def opened(folder: Path, stage: Path) -> None:
    """Make the folder, with what was put on the stage meanwhile; nothing where it is the stage."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (MODEL, CERTIFICATE, UNCERTIFIED):
        if folder != stage and (stage / name).exists():
            shutil.move(stage / name, folder / name)
