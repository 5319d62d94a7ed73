"""A pre-commit hook: check certificates again that changed, or whose network changed.

    python -m lipcert.cli.hook [OPTION]... [FILE]...

It takes options of `lipcert check` and the changed files, as pre-commit gives them. It prints one
line for each certificate, or the whole report if it does not hold, and exits with the worst code. A
certificate NAME.lipcert.json belongs to the network NAME.onnx next to it; one without a network
cannot be judged, and a network without a certificate claims nothing.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from lipcert.errors import ExitCode
from lipcert.text.safe import safe

CERTIFICATE: Final = ".lipcert.json"
MODEL: Final = ".onnx"
_WORST_FIRST: Final = (
    ExitCode.INTERNAL,
    ExitCode.USAGE,
    ExitCode.NEGATIVE,
    ExitCode.NO_VERDICT,
    ExitCode.HOLDS,
)


def pairs(files: Sequence[str]) -> dict[Path, Path]:
    """Return the certificates to check, each once, with their networks."""
    found = {}
    for file in files:
        ending = CERTIFICATE if file.endswith(CERTIFICATE) else MODEL
        stem = file.removesuffix(ending)
        certificate, model = Path(stem + CERTIFICATE), Path(stem + MODEL)
        if ending == CERTIFICATE or certificate.exists():
            found[certificate] = model
    return found


def main(words: Sequence[str]) -> int:
    """Check the files among these words, and return the worst exit code."""
    files = [word for word in words if word.endswith((CERTIFICATE, MODEL))]
    options = [word for word in words if word not in files]
    codes = [_checked(certificate, model, options) for certificate, model in pairs(files).items()]
    return next(code for code in _WORST_FIRST if code in {*codes, ExitCode.HOLDS})


def _checked(certificate: Path, model: Path, options: Sequence[str]) -> ExitCode:
    """Check one certificate in a separate process, and return its exit code."""
    given = ["--model", str(model), *options, "--", str(certificate)]
    done = subprocess.run(
        [sys.executable, "-m", "lipcert", "check", *given],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    known = done.returncode in {*ExitCode}
    code = ExitCode(done.returncode) if known else ExitCode.INTERNAL  # it was ended from outside
    found = done.stdout.splitlines()[-1:] if code is ExitCode.HOLDS else [done.stdout, done.stderr]
    click.echo("\n".join([f"{safe(str(certificate))}:", *filter(None, found)]))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
