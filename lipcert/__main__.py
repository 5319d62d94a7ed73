"""Entry point of `lipcert` and `python -m lipcert`."""

import gc
import os
from typing import Final

from lipcert.cli.main import cli

_ALLOCATIONS: Final = 200_000
"""New objects between garbage collections; most are classes and records that stay."""


def main() -> None:
    """Run the command line and exit with one of the documented codes.

    Linear algebra runs in one thread unless the environment says otherwise: threads of small
    matrix products that wait for each other on a busy machine cost more than they gain.
    """
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    gc.set_threshold(_ALLOCATIONS)
    cli.main(prog_name="lipcert")


if __name__ == "__main__":
    main()
