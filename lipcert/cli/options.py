"""Options shared by the verbs: the knobs of `Settings`, formats and destinations, colour.

What enters: click's parse of the command line. What leaves: typed records in the click context,
so that a verb takes only what is its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import click
from click.core import ParameterSource

from lipcert.cli import paths
from lipcert.cli.knobs import KNOBS, Knob
from lipcert.cli.sources import EffectiveSettings, effective_settings, find_file
from lipcert.settings.settings import Settings

_GIVEN: Final = "lipcert.given"
_CONFIG: Final = "lipcert.config"
_ENDINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        ".csv": "csv",
        ".htm": "html",
        ".html": "html",
        ".json": "json",
        ".md": "markdown",
        ".sarif": "sarif",
    }
)
_Command = TypeVar("_Command", bound=Callable[..., object])


def knob_options(command: _Command) -> _Command:
    """Add one option per knob, and --config; read them with `chosen_settings`."""
    for knob in reversed(KNOBS):
        command = _knob_option(knob)(command)
    return click.option(
        "--config",
        metavar="FILE",
        type=paths.FILE,
        expose_value=False,
        callback=_remember_config,
        help="Settings file (default: the nearest lipcert.toml or pyproject.toml).",
    )(command)


def chosen_settings(context: click.Context) -> EffectiveSettings:
    """The settings of this call, from all sources."""
    config = context.meta.get(_CONFIG)
    file = config if isinstance(config, Path) else find_file(Path.cwd())
    return effective_settings(context.meta.get(_GIVEN, {}), os.environ, file)


def given(context: click.Context) -> Mapping[str, object]:
    """The knobs of the command line alone, by key."""
    found: Mapping[str, object] = context.meta.get(_GIVEN, {})
    return found


def format_option(
    *formats: str, default: str = "text", of_file: bool = True
) -> Callable[[_Command], _Command]:
    """--format, restricted to what a verb can print.

    of_file: where it is not given, the ending of the file that `out_option` names says it.
    """
    return click.option(
        "--format",
        "output_format",
        type=click.Choice(formats),
        default=default,
        callback=partial(_format, formats) if of_file else None,
        help=f"Format of the result.  [default: {'as -o FILE ends, else ' * of_file}{default}]",
    )


def _format(
    formats: tuple[str, ...], context: click.Context, parameter: click.Parameter, value: str
) -> str:
    file = context.params.get("out_file")
    source = context.get_parameter_source(str(parameter.name))
    if source is not ParameterSource.DEFAULT or not isinstance(file, Path):
        return value
    meant = _ENDINGS.get(file.suffix.lower(), value)
    if meant not in formats:
        raise click.BadOptionUsage(
            "--format",
            f"-o {file} ends as {meant}, which {context.command_path} does not write; give "
            f"--format, one of {', '.join(formats)}",
            context,
        )
    return meant


def progress_option(command: _Command) -> _Command:
    """--progress and --no-progress; see `progress.ProgressReport`."""
    return click.option(
        "--progress/--no-progress",
        "progress",
        default=None,
        help="Progress on standard error: a bar on a terminal, a line every 10 s elsewhere.  "
        "[default: a bar on a terminal]",
    )(command)


def out_option(command: _Command) -> _Command:
    """-o FILE: the result, in place of standard output."""
    return click.option("-o", "--out", "out_file", type=paths.FILE, help="Write to a file.")(
        command
    )


def further_option(command: _Command) -> _Command:
    """--report, repeated; see `output.parse_report`."""
    return click.option(
        "--report", "reports", metavar="FMT=FILE", multiple=True, help="A further report."
    )(command)


def report_options(*formats: str) -> Callable[[_Command], _Command]:
    """--format, -o, further reports, --all, progress and colour, of a verb with a long report."""

    def added(command: _Command) -> _Command:
        command = color_option(command)
        command = progress_option(command)
        command = click.option(
            "--all", "show_all", is_flag=True, help="Show every row of long tables."
        )(command)
        return format_option(*formats)(out_option(further_option(command)))

    return added


def color_option(command: _Command) -> _Command:
    """--color; NO_COLOR and FORCE_COLOR are honoured under `auto`."""
    return click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        help="Colour in text on standard output.",
    )(command)


def _knob_option(knob: Knob) -> Callable[[_Command], _Command]:
    if knob.count == 0:
        return click.option(
            f"{knob.option}/--no-{knob.key}",
            default=None,
            expose_value=False,
            callback=_remember,
            help=_help_text(knob),
        )
    return click.option(
        knob.option,
        metavar=knob.metavar,
        nargs=knob.count,
        multiple=knob.repeated,
        expose_value=False,
        callback=_remember,
        help=_help_text(knob),
    )


def _help_text(knob: Knob) -> str:
    """What the knob means, and its default where it has one."""
    default: object = Settings.__dataclass_fields__[knob.field].default
    match default:
        case None | () | False:
            return knob.text
        case True:
            return f"{knob.text}  [default: on]"
        case _:
            return f"{knob.text}  [default: {default}]"


def _remember(context: click.Context, parameter: click.Parameter, value: object) -> None:
    if value not in (None, ()) and parameter.name is not None:
        key = parameter.name.replace("_", "-")
        context.meta.setdefault(_GIVEN, {})[key] = value


def _remember_config(context: click.Context, parameter: click.Parameter, value: object) -> None:
    del parameter
    context.meta[_CONFIG] = value
