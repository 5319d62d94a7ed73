"""A hook before commits: certificates that changed, or whose network did, are checked again.

    python -m lipcert.cli.hook [OPTION]... [FILE]...

Input: options of `lipcert check`, and files that changed, as pre-commit gives them. Output: one
line for each certificate, all of the report where it does not hold, and the worst exit code. A
certificate NAME.lipcert.json is of the network NAME.onnx beside it; one without a network cannot be
judged, and a network without a certificate claims nothing.
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
    """The certificates to be checked, each once, with their networks."""
    found = {}
    for file in files:
        ending = CERTIFICATE if file.endswith(CERTIFICATE) else MODEL
        stem = file.removesuffix(ending)
        certificate, model = Path(stem + CERTIFICATE), Path(stem + MODEL)
        if ending == CERTIFICATE or certificate.exists():
            found[certificate] = model
    return found


def main(words: Sequence[str]) -> int:
    """Check what the words name."""
    files = [word for word in words if word.endswith((CERTIFICATE, MODEL))]
    options = [word for word in words if word not in files]
    codes = [_checked(certificate, model, options) for certificate, model in pairs(files).items()]
    return next(code for code in _WORST_FIRST if code in {*codes, ExitCode.HOLDS})


def _checked(certificate: Path, model: Path, options: Sequence[str]) -> ExitCode:
    """The exit code of one check; in a process of its own, which a defect ends alone."""
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
