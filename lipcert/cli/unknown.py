"""Words that the command line does not know: what is meant.

One line names what people mean by such a word. For an option, in this order: those that other tools
call so, those of other verbs, those of which the word is a choice or a part, those that are spelt
alike.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import click

from lipcert.settings.choices import nearest

_ALSO_CALLED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "batch": "batch-size",
        "bs": "batch-size",
        "logical-batch-size": "batch-size",
        "certificate": "out",
        "destination": "out",
        "file": "out",
        "output": "out",
        "output-dir": "out",
        "output-file": "out",
        "outfile": "out",
        "save": "out",
        "l2-norm-clip": "clip-norm",
        "max-norm": "clip-norm",
        "max-per-sample-grad-norm": "clip-norm",
        "eps": "target-epsilon max-epsilon",
        "epsilon": "target-epsilon max-epsilon",
        "n": "dataset-size",
        "num-examples": "dataset-size",
        "num-samples": "dataset-size",
        "sample-size": "dataset-size",
        "train-size": "dataset-size",
        "iterations": "steps",
        "num-steps": "steps",
        "max-steps": "steps",
        "num-epochs": "epochs",
        "num-classes": "classes",
        "noise": "noise-multiplier",
        "sigma": "noise-multiplier",
        "sampler": "sampling",
        "q": "sampling-rate batch-size",
        "sample-rate": "sampling-rate batch-size",
        "sampling-rate": "batch-size",
        "sampling-probability": "sampling-rate batch-size",
        "l2": "input-norm",
        "radius": "input-norm",
        "bounds": "input-box",
        "range": "input-box",
        "criterion": "loss",
        "frozen": "freeze",
        "dataset": "data",
        "no-color": "color",
        "onnx": "model",
        "precision": "dtype",
        "quiet": "no-progress",
        "silent": "no-progress",
        "verbose": "all",
        "full": "all",
    }
)
"""what other tools and papers call options: the options, of which a verb may have some"""


_VERBS_CALLED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "accountant": "privacy",
        "accounting": "privacy",
        "attack": "audit",
        "bound": "analyze",
        "bounds": "analyze",
        "describe": "inspect",
        "diff": "compare",
        "epsilon": "privacy",
        "info": "inspect",
        "issue": "certify",
        "lipschitz": "analyze",
        "replay": "audit",
        "sensitivity": "analyze",
        "settings": "config",
        "show": "inspect",
        "tune": "suggest",
        "validate": "check",
        "verify": "check",
    }
)
_IN_PYTHON: Final[Mapping[str, str]] = MappingProxyType(
    {
        "export": "in Python, lipcert.export(module, x[:1], 'net.onnx') writes the file",
        "train": "in Python, lipcert.training.make_private(...) makes a run private",
    }
)


def verb_meant(word: str, verbs: Iterable[str]) -> str:
    """What a user means who asks for a verb that does not exist."""
    if word in _IN_PYTHON:
        return _IN_PYTHON[word]
    if word in _VERBS_CALLED:
        return f"did you mean {_VERBS_CALLED[word]!r}?"
    return nearest(word, verbs) or f"known: {', '.join(verbs)}"


def extra_words(error: click.UsageError) -> str:
    """click's message, and where a second file may belong."""
    message, command = error.format_message(), error.ctx.command if error.ctx else None
    if "unexpected extra argument" in message and command and "--model" in dict(_options(command)):
        return f"{message}; did you mean --model {message.rpartition('(')[2].rstrip(')')}?"
    return message


def unknown_option(error: click.NoSuchOption, verbs: Mapping[str, click.Command]) -> str:
    """The message for an unknown option, with what is meant. verbs: all of them, by name."""
    command = error.ctx.command if error.ctx is not None else None
    path = error.ctx.command_path if error.ctx is not None else "lipcert"
    known = dict(_options(command)) if command is not None else {}
    return f"{path} has no option {error.option_name}{_hint(error.option_name, known, verbs)}"


def _hint(given: str, known: Mapping[str, click.Option], verbs: Mapping[str, click.Command]) -> str:
    name = given.lstrip("-")
    usual = _ALSO_CALLED.get(name, "").split()
    meant = [f"--{word}" for word in usual if f"--{word}" in known]
    if not meant:
        if "out" in usual:
            return "; it writes to standard output: > FILE"
        others = [verb for verb, command in verbs.items() if given in dict(_options(command))]
        if others:
            return f"; it is an option of {', '.join(others)}"
        meant = list(_as_choice(name, known)) or list(_as_part(name, known))
    meant = meant or difflib.get_close_matches(given, known, cutoff=0.75)
    shown = ["-o FILE" if option == "--out" else option for option in meant]
    return f"; did you mean {' or '.join(shown)}?" if shown else ""


def _options(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    """Every spelling that a user may write, in the order of the help."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            for spelling in (*parameter.opts, *parameter.secondary_opts):
                yield spelling, parameter


def _as_choice(name: str, known: Mapping[str, click.Option]) -> Iterator[str]:
    """`--json` is --format json."""
    for spelling, option in known.items():
        kind = option.type
        words = (
            kind.choices if isinstance(kind, click.Choice) else (option.metavar or "").split("|")
        )
        if len(words) > 1 and name in words:
            yield f"{spelling} {name}"


def _as_part(name: str, known: Mapping[str, click.Option]) -> Iterator[str]:
    """`--norm` is --input-norm, or one of the other norms."""
    wanted = set(name.split("-"))
    for spelling in known:
        if wanted <= set(spelling.lstrip("-").split("-")) and not spelling.startswith("--no-"):
            yield spelling
