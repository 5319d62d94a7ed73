"""The command group: loads verbs lazily and turns every outcome into an exit code.

Invariant: no exception leaves `cli.main`, which prints a result on stdout and exits with one of the
codes of `ExitCode`; `lipcert --help` loads click and the declarations of the verbs, and nothing
that computes.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NoReturn

import click

from lipcert.cli.sources import DEBUG_VARIABLE
from lipcert.cli.unknown import unknown_option, verb_meant, what_is_wrong
from lipcert.errors import (
    ExitCode,
    LipCertError,
    NoVerdictError,
    Refusal,
    exit_code_of,
)
from lipcert.text.safe import safe
from lipcert.version import __version__

_INTERRUPTED: Final = "interrupted before there was a result"
_VERBS: Final = {
    **dict.fromkeys(("inspect", "analyze", "suggest", "certify"), "network"),
    "check": "check",
    **dict.fromkeys(("trace", "compare", "report"), "documents"),
    "audit": "audit",
    "privacy": "privacy",
    "explain": "network",
    "config": "documents",
}
"""Verb → the module with the command of its name."""


class _LipCertGroup(click.Group):
    """A group of verbs that are imported when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs, in the order in which they are used."""
        del ctx
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the `command` of the verb's module."""
        del ctx
        return _command_of(cmd_name) if cmd_name in _VERBS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that the first word names; otherwise fail with the most similar one."""
        if args[0] not in _VERBS and not args[0].startswith("-"):
            ctx.fail(f"there is no verb {args[0]!r}; {verb_meant(args[0], _VERBS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; an interrupt prints one line (click would add a blank one)."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            if sys.stderr.isatty():
                click.echo(err=True)  # after the ^C that the terminal shows
            raise NoVerdictError(_INTERRUPTED) from error

    def main(self, args: Sequence[str] | None = None, *more: Any, **extra: Any) -> NoReturn:
        """Run, report errors in one line, and exit with the documented code."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            code = self._outcome(words, *more, **{**extra, "standalone_mode": False})
        except BrokenPipeError:
            _silence_stdout()
            code = ExitCode.NO_VERDICT
        sys.exit(int(code))

    def _outcome(self, words: list[str], *more: Any, **extra: Any) -> ExitCode:
        """Run a verb; report an error and return its code."""
        try:
            code = super().main(words, *more, **extra)
            sys.stdout.flush()
            return ExitCode(code or ExitCode.HOLDS)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.ctx.get_help() if error.ctx else "", err=True)
            return ExitCode.USAGE
        except click.NoSuchOption as error:
            verbs = {name: _command_of(name) for name in _VERBS}
            return _fail(words, ExitCode.USAGE, unknown_option(error, verbs), _usage_hint(error))
        except click.ClickException as error:
            return _fail(words, ExitCode.USAGE, what_is_wrong(error, words), _usage_hint(error))
        except LipCertError as error:
            refusals = getattr(error, "refusals", ())
            return _fail(words, exit_code_of(error), str(error), refusals=refusals)
        except (BrokenPipeError, SystemExit) as error:
            # click answers a closed pipe with SystemExit, and with nothing else
            raise BrokenPipeError from error
        except (click.Abort, KeyboardInterrupt):
            return _fail(words, ExitCode.NO_VERDICT, _INTERRUPTED)
        except OSError as error:
            if error.filename is None:
                return _fail_internally(words, error)
            message = f"{error.filename!r} cannot be used: {error.strerror or error}"
            return _fail(words, ExitCode.NO_VERDICT, message)
        except Exception as error:  # noqa: BLE001
            return _fail_internally(words, error)


@click.command(cls=_LipCertGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lipcert")
@click.option("--debug", is_flag=True, help="Show the traceback of an internal error.")
def cli(debug: bool) -> None:
    """Certified gradient bounds and DP sensitivities of ONNX networks.

    Exit codes: 0 done and holds, 1 definite negative, 2 usage, 3 no verdict, 4 internal error.
    """
    del debug


def _command_of(verb: str) -> click.Command:
    module = importlib.import_module(f"lipcert.cli.{_VERBS[verb]}")
    command: click.Command = getattr(module, verb)
    return command


def _fail(
    words: Sequence[str],
    code: ExitCode,
    message: str,
    hint: str = "",
    refusals: tuple[Refusal, ...] = (),
) -> ExitCode:
    """Print one line on stderr; if JSON was requested, also an error object on stdout."""
    for line in _refusal_lines(refusals) or [message]:
        click.echo(f"lipcert: error: {safe(line)}", err=True)
    if hint:
        click.echo(hint, err=True)
    if _wants_json(words):
        from lipcert.report.json import error_json

        click.echo(error_json(int(code), message, refusals), nl=False)
    return code


def _refusal_lines(refusals: tuple[Refusal, ...]) -> list[str]:
    """Return every reason, once if many nodes share it; a single refusal in its own words."""
    if len(refusals) < 2:
        return [str(refusal) for refusal in refusals]
    from lipcert.report.document import Findings

    return [
        f"[{found.code}] {found.where and found.where + ': '}{found.message}"
        f"{found.remedy and '. Remedy: ' + found.remedy}"
        for found in Findings.of(refusals).rows
    ]


def _fail_internally(words: Sequence[str], error: Exception) -> ExitCode:
    if "--debug" in words or os.environ.get(DEBUG_VARIABLE):
        traceback.print_exc()
    python = ".".join(str(number) for number in sys.version_info[:3])
    message = (
        f"[LC901] {type(error).__name__}: {error} (lipcert {__version__}, Python {python}). "
        f"This is a defect of LipCert: report it with the model; {DEBUG_VARIABLE}=1 shows where."
    )
    return _fail(words, ExitCode.INTERNAL, message)


def _usage_hint(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"See '{context.command_path} --help'." if context is not None else ""


def _wants_json(words: Sequence[str]) -> bool:
    """Whether --format json was requested, even if the rest cannot be parsed."""
    return "--format=json" in words or ("--format", "json") in pairwise(words)


def _silence_stdout() -> None:
    """Keep the interpreter from complaining at exit when the reader of stdout is gone."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
