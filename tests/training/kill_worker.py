"""A private run that is killed and gone on with: a checkpoint every few steps, loading in a worker
process. As a program, until it ends or is killed:

    python -m tests.training.kill_worker FOLDER STEPS
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim import Adam
from torch.utils.data import DataLoader

from lipcert.training import Private, make_private
from tests.training.runs import BATCH, DELTA, EXAMPLES, Small, clipless, data

SAVE_EVERY = 3


def begun(folder: Path, steps: int, **changes: Any) -> Private:
    """The run in the folder, new or gone on with."""
    torch.manual_seed(0)
    model = Small()
    return make_private(
        model,
        Adam(model.parameters(), lr=0.01),
        DataLoader(data(), batch_size=BATCH, num_workers=1, multiprocessing_context="fork"),
        clipless(),
        target_epsilon=3.0,
        delta=DELTA,
        steps=steps,
        dataset_size=EXAMPLES,
        folder=folder,
        record_every=2,
        record_data=True,
        resume=(folder / "ledger.jsonl").exists(),
        **changes,
    )


def live(private: Private, tell: Callable[[str], object]) -> None:
    """Train to the end; tell how many releases there are, with those before, after each."""
    tell(f"{private.releases} {private.epsilon!r}\n")
    with private:
        for x, y in private.loader:
            private.step(x, y)
            tell(f"{private.releases}\n")
            if private.releases % SAVE_EVERY == 0:
                private.save()


def main(folder: Path, steps: int) -> None:
    warnings.simplefilter("ignore")

    def tell(line: str) -> None:
        sys.stdout.write(line)
        sys.stdout.flush()

    live(begun(folder, steps), tell)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
