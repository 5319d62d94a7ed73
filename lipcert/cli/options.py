"""Options shared by the verbs: settings, gates, examples, and how results are written.

click's parse of the command line becomes typed records, so that a verb takes only its own options.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from lipcert.cli import paths
from lipcert.cli.output import Output, parse_report
from lipcert.cli.sources import KNOBS, EffectiveSettings, Knob, effective_settings, find_file
from lipcert.settings.gates import GATES, Gates
from lipcert.settings.settings import Settings
from lipcert.settings.values import missing

if TYPE_CHECKING:
    from lipcert.gradient_stats.examples import Examples
    from lipcert.importer.model import ImportedModel

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
Option = Callable[[Any], Any]
"""Adds an option to a command."""


def option(
    spelling: str, text: str, metavar: str | None = None, default: object = None, **more: Any
) -> Option:
    """Return an option with its help, which shows the default if there is one."""
    if default is not None:
        more |= {"default": default, "show_default": True}
    return click.option(spelling, metavar=metavar, help=text, **more)


def together(options: Sequence[Option]) -> Option:
    """Combine options, in the order of the help."""

    def added(command: Any) -> Any:
        for each in reversed(options):
            command = each(command)
        return command

    return added


def knob_options(command: _Command) -> _Command:
    """Add one option per knob, and --config; read them with `chosen_settings`."""
    text = "Settings file (default: the nearest lipcert.toml or pyproject.toml)."
    knobs = (knob_option(knob, help_of(knob)) for knob in KNOBS)
    added: _Command = together([option("--config", text, "FILE", type=paths.FILE), *knobs])(command)
    return added


def chosen_settings(context: click.Context, *, complete: bool = False) -> EffectiveSettings:
    """Return the settings of this call, from all sources; complete: UsageError if some lack."""
    file = context.params["config"] or find_file(Path.cwd())
    found = effective_settings(given(context), os.environ, file)
    if complete and found.settings.asks:
        raise missing(found.settings.asks)
    return found


def given(context: click.Context) -> Mapping[str, object]:
    """Return the settings on the command line alone, as written."""
    found = {knob.key: context.params.get(knob.field) for knob in KNOBS}
    return {key: value for key, value in found.items() if value not in (None, ())}


def knob_option(knob: Knob, text: str) -> Option:
    """Return the option of a knob."""
    if knob.count == 0:
        return click.option(f"{knob.option}/--no-{knob.key}", default=None, help=text)
    return option(knob.option, text, knob.metavar, nargs=knob.count, multiple=knob.repeated)


def help_of(knob: Knob) -> str:
    """Return what the knob means, and its default if it has one."""
    default: object = Settings.__dataclass_fields__[knob.field].default
    match default:
        case None | () | False:
            return knob.text
        case True:
            return f"{knob.text}  [default: on]"
        case _:
            return f"{knob.text}  [default: {default}]"


def output_options(
    *formats: str,
    default: str = "text",
    file: bool = True,
    further: bool = False,
    show_all: bool = False,
    progress: bool = False,
    color: bool = False,
) -> Option:
    """Return --format, restricted to what a verb can print, and other options for its result.

    The command gets them as `result`. file: -o FILE; without --format its ending determines the
    format. further: additional reports in other formats. show_all, progress, color: the options
    of these names.
    """
    ending = "as -o FILE ends, else " * file
    options = [
        click.option(
            "--format",
            "output_format",
            type=click.Choice(formats),
            default=default,
            callback=partial(_format, formats) if file else None,
            help=f"Format of the result.  [default: {ending}{default}]",
        )
    ]
    if file:
        options.append(click.option("-o", "--out", "out_file", type=paths.FILE,
                                    help="Write to a file."))  # fmt: skip
    if further:
        options.append(click.option("--report", "reports", metavar="FMT=FILE", multiple=True,
                                    help="Also write a report."))  # fmt: skip
    if show_all:
        options.append(click.option("--all", "show_all", is_flag=True,
                                    help="Show every row of long tables."))  # fmt: skip
    if progress:
        text = (
            "Progress on standard error: a bar on a terminal, a line every 10 s elsewhere.  "
            "[default: a bar on a terminal]"
        )
        options.append(click.option("--progress/--no-progress", default=None, help=text))
    if color:
        choices = click.Choice(["auto", "always", "never"])
        text = "Colour in text on standard output."
        options.append(option("--color", text, default="auto", type=choices))

    def added(command: _Command) -> _Command:
        @wraps(command)
        def wrapped(
            *arguments: Any,
            output_format: str,
            out_file: Path | None = None,
            reports: Sequence[str] = (),
            show_all: bool = False,
            progress: bool | None = None,
            color: str = "never",
            **words: Any,
        ) -> object:
            destinations = tuple(parse_report(word, formats) for word in reports)
            result = Output(output_format, out_file, destinations, show_all, progress, color)
            return command(*arguments, result=result, **words)

        made: _Command = together(options)(wrapped)
        return made

    return added


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


def gate_options(*gates: str) -> Option:
    """Return the options of these gates; `gates_of` reads them."""
    texts = {gate: GATES[gate].metadata["text"] for gate in gates}
    return together([option(f"--{gate}", texts[gate], "X", type=click.FLOAT) for gate in gates])


def gates_of(words: Mapping[str, Any]) -> Gates:
    """Return the gates among the arguments of a command; UsageError for invalid limits."""
    names = (item.name for item in GATES.values())
    return Gates(**{name: words[name] for name in names if name in words})


def data_options(text: str) -> Option:
    """Return --data with this help, and options for the names of inputs and labels in it."""
    inputs = (
        "Array of the inputs; of several inputs A,B, in the order of the model.  "
        "[default: x, or image, inputs, features, …]"
    )
    labels = (
        "Array of the labels; of several outputs A,B, in the order of --loss.  "
        "[default: y, or label, target, …]"
    )
    return together(
        [
            option("--data", text, "WHERE", type=paths.WHERE),
            option("--data-x", inputs, "NAME"),
            option("--data-y", labels, "NAME"),
        ]
    )


def require_data(words: Mapping[str, Any]) -> None:
    """Raise early for a wrong --data, such as a path that does not exist."""
    from lipcert.data.opening import is_elsewhere, require_readable
    from lipcert.data.source import Columns

    Columns.of(words["data_x"], words["data_y"])
    where = words["data"]
    if where is None or is_elsewhere(where):
        return
    if "://" not in where:
        paths.require_file(Path(where))
    require_readable(where)


def some_examples(words: Mapping[str, Any], model: ImportedModel) -> Examples | None:
    """Return as many of the examples as a measurement holds; None without --data."""
    from lipcert.data.source import Columns
    from lipcert.gradient_stats.examples import open_data

    where = words["data"]
    if where is None:
        return None
    outputs = [head.name for head in model.graph.heads]
    columns = Columns.of(words["data_x"], words["data_y"], model.graph.arrays, outputs)
    return open_data(where, model.graph.input_shape, columns).some()
