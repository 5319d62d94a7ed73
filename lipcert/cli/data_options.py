"""The options about examples, the same for every verb that takes some.

What enters: click's parse of them. What leaves: a data set that is read as it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lipcert.cli import paths

if TYPE_CHECKING:
    from lipcert.gradient_stats.examples import Examples
    from lipcert.importer.model import ImportedModel

_Command = TypeVar("_Command", bound=Callable[..., object])


def data_options(help_text: str) -> Callable[[_Command], _Command]:
    """--data with this help, and the names of inputs and labels in it."""
    options = (
        click.option("--data", type=paths.WHERE, metavar="WHERE", help=help_text),
        click.option(
            "--data-x",
            metavar="NAME",
            help="Array, column or ending of the inputs; of a table also several, A,B,C, or *.  "
            "[default: x, or image, inputs, features, …]",
        ),
        click.option(
            "--data-y",
            metavar="NAME",
            help="Array, column or ending of the labels; of several outputs A,B, in the order of "
            "--loss.  [default: y, or label, target, …]",
        ),
    )

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def require_data(words: Mapping[str, Any]) -> None:
    """The error that a wrong --data makes soon: what it names is not there, say."""
    from lipcert.data.opening import is_elsewhere, require_readable
    from lipcert.data.source import Columns

    Columns.of(words["data_x"], words["data_y"])
    where = words["data"]
    if where is None or is_elsewhere(where):
        return
    if not Path(where).is_dir() and "://" not in where:
        paths.require_file(Path(where))
    require_readable(where)


def some_examples(words: Mapping[str, Any], model: ImportedModel) -> Examples | None:
    """As many of the examples as a measurement holds; None where there is no --data."""
    from lipcert.data.source import Columns
    from lipcert.gradient_stats.examples import open_data

    where = words["data"]
    if where is None:
        return None
    columns = Columns.of(words["data_x"], words["data_y"], model.graph.arrays)
    return open_data(where, model.graph.input_shape, columns).some()
