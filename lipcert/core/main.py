"""`lipcert-check`: the checker as a separate program.

    lipcert-check CERTIFICATE --model MODEL

It imports the standard library, numpy and the message classes of onnx, and nothing else of the
package.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lipcert.core.budget import MAX_ENTRIES, MAX_SECONDS, Limits
from lipcert.core.certificate import CertificateFileError, read_certificate_file

EXIT_CODES: Final = {"valid": 0, "invalid": 1, "conditional": 3, "unknown": 3}
"""Exit codes by verdict; 2 means wrong usage, 4 an error of the checker itself."""
_PURPOSE: Final = "Check a certificate against the ONNX file that it describes."
_EPILOG: Final = (
    "Exits with 0 if the certificate is valid, 1 if it is invalid, 2 for wrong usage, 3 if it is "
    "conditional on assumptions that are not accepted or cannot be judged, 4 for a defect of the "
    "checker. The last line of output is the verdict with the digest of the certificate."
)


OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "--model": {"type": Path, "help": "The ONNX file that the certificate is about."},
    "--weights": {"type": Path, "help": "Weights (ONNX, safetensors) to be within constraints."},
    "--engine": {
        "choices": ("float", "exact"),
        "default": "float",
        "help": "float64 with a-priori bounds of its rounding errors, or exact integer arithmetic.",
    },
    "--accept-assumption": {
        "action": "append",
        "default": [],
        "metavar": "ID",
        "help": "Accept a declared assumption; repeat, or separate several by commas.",
    },
    "--max-entries": {
        "type": int,
        "default": MAX_ENTRIES,
        "metavar": "N",
        "help": "Most entries of tables and constants that the check computes; above it, UNKNOWN.",
    },
    "--max-seconds": {
        "type": float,
        "default": MAX_SECONDS,
        "metavar": "S",
        "help": "Most seconds that the check may take; above it, UNKNOWN.",
    },
    "--tcb": {
        "action": "store_true",
        "help": "List the files that the verdict depends on, with lines and digests; without a "
        "certificate, those that any verdict may depend on.",
    },
}
"""The options of a check, as `argparse` takes them; `lipcert check` has them, too."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a certificate, print the report, and return the exit code.

    Linear algebra runs in one thread unless the environment says otherwise, as in `lipcert check`.
    """
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")  # read when numpy is imported, below
    parser = argparse.ArgumentParser("lipcert-check", description=_PURPOSE, epilog=_EPILOG)
    parser.add_argument("certificate", type=Path, nargs="?", help="The certificate file.")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    for name, given in OPTIONS.items():
        parser.add_argument(name, **given)
    options = parser.parse_args(arguments)
    if options.tcb and options.certificate is None:
        from lipcert.core.trusted import trusted_base, trusted_lines  # noqa: PLC0415

        sys.stdout.write("\n".join(trusted_lines(trusted_base())) + "\n")
        return 0
    if options.certificate is None or options.model is None:
        parser.error("a certificate and --model are needed")
    from lipcert.core.check import Choices, check  # noqa: PLC0415  numpy only when needed

    written: Callable[..., str]
    if options.format == "json":
        from lipcert.core.document import report_json as written  # noqa: PLC0415
    else:
        from lipcert.core.text import report_text as written  # noqa: PLC0415
    try:
        data = read_certificate_file(options.certificate)
        ids = accepted_ids(options.accept_assumption)
        limits = Limits(options.max_entries, options.max_seconds)
        report = check(data, options.model, Choices(options.engine, ids, options.weights, limits))
    except CertificateFileError as error:
        sys.stderr.write(f"lipcert-check: error: {error}\n")
        return EXIT_CODES["unknown"]
    except Exception as error:  # noqa: BLE001  a defect is not a verdict
        sys.stderr.write(f"lipcert-check: defect: {type(error).__name__}: {str(error)!a}\n")
        return 4
    trusted: Sequence[Any] = ()
    if options.tcb:
        from lipcert.core.trusted import loaded_base  # noqa: PLC0415  for a list alone

        trusted = loaded_base()
    sys.stdout.write(written(report, trusted))
    return EXIT_CODES[report.verdict.value]


def accepted_ids(words: Sequence[str]) -> frozenset[str]:
    """Return the assumption ids, which are given one by one or joined by commas."""
    return frozenset(name.strip() for word in words for name in word.split(",") if name.strip())


if __name__ == "__main__":
    sys.exit(main())
