"""What a reviewer does with the folder of a private run: check, audit, report.

    python examples/review_run.py FOLDER DATA

The folder is what `make_private(…, folder=FOLDER)` leaves: model.onnx, model.lipcert.json, trace/
and the key of the trace; DATA is the data set, an .npz file of arrays x and y in its order. Ends
with FOLDER/audit.html; exits with 1 if the certificate or a recorded step is wrong.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from torch.utils.data import TensorDataset

__all__ = ["review", "saved"]


def saved(folder: Path, examples: TensorDataset) -> Path:
    """The data set as an audit reads it: as the network is fed, in the order of the indices."""
    x, y = examples.tensors
    np.savez(folder / "data.npz", x=x.numpy(), y=y.numpy())
    return folder / "data.npz"


def review(folder: Path, data: Path) -> int:
    """0 where the certificate holds, under its declared assumptions, and the audit passes."""
    model, certificate = folder / "model.onnx", folder / "model.lipcert.json"
    found, page = folder / "audit.json", folder / "audit.html"
    checked = lipcert("check", certificate, "--model", model)
    audited = lipcert("audit", certificate, "--model", model, "--trace", folder / "trace",
                      "--data", data, "--report", f"json={found}")  # fmt: skip
    reported = lipcert("report", found, "-o", page)
    return 0 if checked in (0, 3) and audited == reported == 0 else 1  # 3: conditional


def lipcert(*words: object) -> int:
    """Run a command of the same installation; its exit code."""
    print("$ lipcert", *words, flush=True)
    return subprocess.run(
        [sys.executable, "-m", "lipcert", *map(str, words)], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(review(Path(sys.argv[1]), Path(sys.argv[2])))
