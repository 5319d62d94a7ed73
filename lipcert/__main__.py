"""Entry point of `lipcert` and `python -m lipcert`."""

from __future__ import annotations

import os

from lipcert.cli.main import cli


def main() -> None:
    """Run the command line and leave with one of the documented exit codes.

    Linear algebra runs in one thread unless the environment says otherwise: threads of small
    matrix products that wait for each other on a busy machine cost more than they gain.
    """
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    cli.main(prog_name="lipcert")


if __name__ == "__main__":
    main()
