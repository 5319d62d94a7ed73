"""`lipcert config show`: print the effective settings and where each comes from."""

import click

from lipcert.cli.options import chosen_settings, knob_options, output_options
from lipcert.cli.output import Output, write
from lipcert.cli.sources import EffectiveSettings
from lipcert.errors import ExitCode
from lipcert.report.json import dump
from lipcert.settings.written import plain
from lipcert.text.safe import safe


@click.group("config")
def command() -> None:
    """Settings: command line, LIPCERT_* environment, TOML file, defaults."""


@command.command("show")
@knob_options
@output_options("text", "json", file=False)
@click.pass_context
def show(context: click.Context, result: Output) -> ExitCode:
    """Print the effective value of every setting and where it comes from."""
    effective = chosen_settings(context)
    write(_as_json(effective) if result.format == "json" else _as_text(effective))
    return ExitCode.HOLDS


def _as_text(effective: EffectiveSettings) -> str:
    lines = [
        f"{key:<18}{_value_text(_value(effective, key)):<24}  {safe(origin)}"
        for key, origin in effective.origins.items()
    ]
    return "\n".join(lines) + "\n"


def _as_json(effective: EffectiveSettings) -> str:
    return dump(
        {
            "schema": "lipcert.config/1",
            "settings": {
                key: {"value": _value(effective, key), "source": origin}
                for key, origin in effective.origins.items()
            },
        }
    )


def _value(effective: EffectiveSettings, key: str) -> object:
    name = key.replace("-", "_")
    return plain(name, getattr(effective.settings, name))


def _value_text(value: object) -> str:
    match value:
        case None:
            return "not given"
        case []:
            return "none"
        case list():
            return " ".join(safe(str(item)) for item in value)
        case dict():
            return safe(", ".join(f"{name}={item}" for name, item in value.items())) or "none"
        case _:
            return safe(str(value))
