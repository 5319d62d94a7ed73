"""Checkpoint: weights and optimizer of a run in one file, written in one go.

What enters: everything with a `state_dict`. What leaves: a file, or the same things as they were.
Invariant: neither seeds nor states of generators are written: who could read them would know the
noise. So a run that goes on draws new batches and new noise, and the ledger, which is a file of
its own, has counted what was done since the checkpoint.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from lipcert.errors import NoVerdictError, UsageError


class Stateful(Protocol):
    """A module, an optimizer, a scheduler."""

    def state_dict(self) -> dict[str, Any]:
        """What it holds."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take it back."""


def write_checkpoint(path: Path, parts: Mapping[str, Stateful], releases: int) -> None:
    """Write all parts, and how many releases were made when they were as they are."""
    partial = path.with_suffix(".partial")
    states = {name: part.state_dict() for name, part in parts.items()}
    with partial.open("wb") as file:
        torch.save({"releases": releases, "parts": states}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def read_checkpoint(path: Path, parts: Mapping[str, Stateful]) -> int:
    """Give every part its state; the number of releases when it was written."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        releases, states = int(found["releases"]), found["parts"]
    except (OSError, RuntimeError, KeyError, TypeError, ValueError, EOFError,
            pickle.UnpicklingError) as error:  # fmt: skip
        raise NoVerdictError(
            f"training: {path} is no checkpoint of a private run: {error}"
        ) from error
    missing = sorted(parts.keys() - states.keys())
    if missing:
        raise UsageError(f"training: the checkpoint {path} holds no {', '.join(missing)}")
    for name, part in parts.items():
        part.load_state_dict(states[name])
    return releases
