"""Entry point of `lipcert` and `python -m lipcert`."""

import atexit
import gc
import os
import sys


def main() -> None:
    """Run the command line and exit with one of the documented codes.

    Linear algebra runs in one thread unless the environment says otherwise: threads of small
    matrix products that wait for each other on a busy machine cost more than they gain.
    """
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    gc.set_threshold(200_000)  # most new objects are classes and records that stay
    atexit.register(gc.freeze)  # the end frees memory without a search for what refers to what
    try:
        from lipcert.cli.main import cli  # noqa: PLC0415  an interrupt of it is no traceback
    except KeyboardInterrupt:
        sys.stderr.write("lipcert: error: interrupted before there was a result\n")
        sys.exit(3)
    cli.main(prog_name="lipcert")


if __name__ == "__main__":
    main()
