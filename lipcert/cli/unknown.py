"""Unknown words on the command line: suggest what is meant.

Each suggestion is one line. For an option they come in this order: options that other tools call
so, options of other verbs, options of which the word is a choice or a part, and options that are
spelt alike.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import click

from lipcert.settings.values import nearest


def _by_word(called: Mapping[str, str]) -> Mapping[str, str]:
    """Map each word to what it stands for. called: the words for each meaning."""
    return MappingProxyType(
        {word: meant for meant, words in called.items() for word in words.split()}
    )


_ALSO_CALLED: Final = _by_word(
    {
        "batch-size": "batch bs logical-batch-size sampling-rate",
        "out": "certificate destination file output output-dir output-file outfile save",
        "clip-norm": "l2-norm-clip max-norm max-per-sample-grad-norm",
        "target-epsilon max-epsilon": "eps epsilon",
        "dataset-size": "n num-examples num-samples sample-size train-size",
        "steps": "iterations num-steps max-steps",
        "epochs": "num-epochs",
        "trials": "num-trials repetitions",
        "classes": "num-classes",
        "noise-multiplier": "noise sigma",
        "sampling": "sampler",
        "sampling-rate batch-size": "q sample-rate sampling-probability",
        "input-norm": "l2 radius",
        "input-box": "bounds range",
        "loss": "criterion",
        "freeze": "frozen",
        "data": "dataset",
        "color": "no-color",
        "model": "onnx",
        "dtype": "precision",
        "no-progress": "quiet silent",
        "all": "verbose full",
    }
)
"""What other tools and papers call options → our options, of which a verb may have some."""


_VERBS_CALLED: Final = _by_word(
    {
        "privacy": "accountant accounting epsilon",
        "audit": "attack replay",
        "analyze": "bound bounds lipschitz sensitivity",
        "inspect": "describe info show",
        "compare": "diff",
        "certify": "issue",
        "config": "settings",
        "suggest": "tune",
        "check": "validate verify",
    }
)
_IN_PYTHON: Final[Mapping[str, str]] = MappingProxyType(
    {
        "export": "in Python, lipcert.export(module, x[:1], 'net.onnx') writes the file",
        "train": "in Python, lipcert.training.make_private(...) makes a run private",
    }
)


def verb_meant(word: str, verbs: Iterable[str]) -> str:
    """Return what a user may mean who types a verb that does not exist."""
    if word in _IN_PYTHON:
        return _IN_PYTHON[word]
    if word in _VERBS_CALLED:
        return f"did you mean {_VERBS_CALLED[word]!r}?"
    return nearest(word, verbs) or f"known: {', '.join(verbs)}"


def what_is_wrong(error: click.ClickException, words: Sequence[str]) -> str:
    """Return click's message, with how a box is written, or where a second file may belong."""
    message, ctx = error.format_message(), getattr(error, "ctx", None)
    if box := re.search(r"--input-box[ =][\[(]?([^\s,]+),([^\s,\])]+)", " ".join(words)):
        return f"{message.rstrip('.')}; did you mean --input-box {box[1]} {box[2]}?"
    if ctx and "unexpected extra argument" in message and "--model" in dict(_options(ctx.command)):
        return f"{message}; did you mean --model {message.rpartition('(')[2].rstrip(')')}?"
    return message


def unknown_option(error: click.NoSuchOption, verbs: Mapping[str, click.Command]) -> str:
    """Return the message for an unknown option, with what is meant. verbs: all, by name."""
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
    """Yield every spelling that a user may write, in the order of the help."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            for spelling in (*parameter.opts, *parameter.secondary_opts):
                yield spelling, parameter


def _as_choice(name: str, known: Mapping[str, click.Option]) -> Iterator[str]:
    """Suggest --format json for `--json`."""
    for spelling, option in known.items():
        kind = option.type
        words = (
            kind.choices if isinstance(kind, click.Choice) else (option.metavar or "").split("|")
        )
        if len(words) > 1 and name in words:
            yield f"{spelling} {name}"


def _as_part(name: str, known: Mapping[str, click.Option]) -> Iterator[str]:
    """Suggest --input-norm, or one of the other norms, for `--norm`."""
    wanted = set(name.split("-"))
    for spelling in known:
        if wanted <= set(spelling.lstrip("-").split("-")) and not spelling.startswith("--no-"):
            yield spelling
