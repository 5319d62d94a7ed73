"""The folder of a private run: its files, each written atomically, and whether it may be used.

Input: a folder, and whether to resume the run in it; everything with a `state_dict`. Output: the
folder, created once the run is certain to start; a checkpoint, or the same objects restored from
it. Invariants: a run in a folder is never started a second time; neither seeds nor states of
generators are written, since a reader of them would know the noise. So a resumed run draws new
batches and new noise, and the ledger, a file of its own, has counted all releases since the
checkpoint.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from lipcert.errors import NoVerdictError, UsageError
from lipcert.process.files import write_whole

MODEL: Final = "model.onnx"
CERTIFICATE: Final = "model.lipcert.json"
SETTINGS: Final = "lipcert.toml"
LEDGER: Final = "ledger.jsonl"
CHECKPOINT: Final = "checkpoint.pt"
TRACE: Final = "trace"
UNCERTIFIED: Final = "no_certificate.txt"
"""why there is no certificate, where there is none"""


class Stateful(Protocol):
    """A module, an optimizer, a scheduler."""

    def state_dict(self) -> dict[str, Any]:
        """The state of the object, by name."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Restore the state of the object."""


def usable(folder: Path, *, resume: bool, is_first: bool) -> Path:
    """For a new run, or to continue the one it holds; is_first: this rank writes it."""
    exists = (folder / LEDGER).exists()
    if exists and not resume:
        raise UsageError(
            f"training: {folder} holds a run already; give resume=True to continue it, or "
            "another folder"
        )
    if resume and not exists and is_first:
        raise UsageError(f"training: {folder} holds no run to continue; leave out resume=True")
    return folder


def opened(folder: Path, stage: Path) -> None:
    """Create the folder from the staged files; does nothing where it is the stage itself."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (MODEL, CERTIFICATE, UNCERTIFIED):
        if folder != stage and (stage / name).exists():
            shutil.move(stage / name, folder / name)


def copy_file(source: Path, path: Path) -> None:
    """Copy a file in one go; NoVerdictError where it cannot be read."""
    try:
        data = source.read_bytes()
    except OSError as error:
        raise NoVerdictError(f"training: cannot read {source}: {error.strerror}") from error
    write_whole(path, data)


def write_checkpoint(path: Path, parts: Mapping[str, Stateful], releases: int) -> None:
    """Write all parts, and the number of releases made at this state."""
    states = {name: part.state_dict() for name, part in parts.items()}
    content = {"releases": releases, "parts": states}
    write_whole(path, lambda file: torch.save(content, file))


def read_checkpoint(path: Path, parts: Mapping[str, Stateful]) -> int:
    """Give every part its state; the number of releases when it was written."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        releases, states = int(found["releases"]), found["parts"]
    except (OSError, RuntimeError, KeyError, TypeError, ValueError, EOFError,
            pickle.UnpicklingError) as error:  # fmt: skip
        raise NoVerdictError(
            f"training: {path} is not a checkpoint of a private run: {error}"
        ) from error
    missing = sorted(parts.keys() - states.keys())
    if missing:
        raise UsageError(f"training: the checkpoint {path} holds no {', '.join(missing)}")
    for name, part in parts.items():
        part.load_state_dict(states[name])
    return releases
