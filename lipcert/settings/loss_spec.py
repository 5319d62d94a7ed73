"""Losses of several outputs as one text: `cls=cross-entropy,reg=0.5*mse`.

A mapping from outputs to losses means the same; the text has one spelling. This module does not
know which losses and outputs exist, and which parameters the losses have.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from lipcert.errors import UsageError
from lipcert.settings.values import check_positive, number, word

LossParameter: TypeAlias = float | bool | str

_PART: Final = re.compile(
    r"\s*([^\s=,()][^=,()]*?)\s*=\s*(?:([0-9.eE+-]+)\s*\*\s*)?([a-z-]+)\s*(?:\(([^()]*)\))?\s*(?:,|$)"
)
_WORDS: Final = {"true": True, "false": False}
_EXAMPLE: Final = "cls=cross-entropy,reg=0.5*mse(label-norm=1)"


@dataclass(frozen=True, slots=True)
class HeadLoss:
    """weight · loss of an output, by its name; parameters: its own, by the names of settings."""

    output: str
    kind: str
    weight: float = 1.0
    parameters: tuple[tuple[str, LossParameter], ...] = ()

    def __str__(self) -> str:
        weight = "" if self.weight == 1.0 else f"{self.weight!r}*"
        given = ",".join(f"{name.replace('_', '-')}={_text(x)}" for name, x in self.parameters)
        return f"{self.output}={weight}{self.kind}{given and f'({given})'}"


def read_heads(text: str) -> tuple[HeadLoss, ...]:
    """Read the losses in a text; none if it names one loss. UsageError if it is neither."""
    if "=" not in text:
        return ()
    found, at = [], 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise UsageError(
                f"loss: {text!r} is neither a loss nor one for each output, such as {_EXAMPLE!r}"
            )
        output, weight, kind, given = part.groups()
        pairs = [item.partition("=") for item in (given or "").split(",") if item.strip()]
        parameters = {name.strip(): _value(name, raw.strip()) for name, _, raw in pairs}
        found.append(_head(output, kind, 1.0 if weight is None else _number(weight), parameters))
        at = part.end()
    return _distinct(found)


def heads_text(key: str, value: object) -> str:
    """Return a loss, or one for each output, as the text of a setting.

    Mappings have texts or mappings as values:

    `{"cls": "cross-entropy", "reg": {"kind": "mse", "label_norm": 1.0, "weight": 0.5}}`
    """
    if not isinstance(value, Mapping):
        text = word(key, value)
        return ",".join(map(str, read_heads(text))) or text
    found: list[HeadLoss] = []
    for output, loss in value.items():
        if isinstance(loss, Mapping):
            own = dict(loss)
            kind, weight = word(key, own.pop("kind", None)), number("weight", own.pop("weight", 1))
            found.append(_head(word(key, output), kind, weight, own))
        else:
            found += read_heads(f"{output}={word(key, loss)}")
    text = ",".join(map(str, _distinct(found)))
    read = read_heads(text)
    if read != tuple(found):
        raise UsageError(f"{key}: an output of {text!r} has a name that a loss cannot be given for")
    return ",".join(map(str, read))


def loss_words(record: Mapping[str, object]) -> str:
    """Return a record of a loss, or of one for each output, as one line: kind and parameters."""
    kind, parts = record.get("kind", ""), record.get("parts")
    if parts is not None:
        return str(parts).replace(",", ", ")
    shown = [
        (name.replace("_", " "), f"{value:.12g}" if isinstance(value, float) else value)
        for name, value in record.items()
        if name != "kind"
    ]
    return ", ".join([str(kind), *(f"{name} {value}" for name, value in shown)])


def weighted(heads: Iterable[HeadLoss], weights: Mapping[str, float]) -> str:
    """Return the text, with other weights for some outputs."""
    found = list(heads)
    unknown = weights.keys() - {head.output for head in found}
    if unknown:
        raise UsageError(
            f"loss-weight: {min(unknown)!r} is not an output that --loss names; give --loss "
            "NAME=LOSS,…"
        )
    return ",".join(
        str(_head(head.output, head.kind, weights.get(head.output, head.weight), head.parameters))
        for head in found
    )


def _head(
    output: str,
    kind: str,
    weight: float,
    parameters: Mapping[str, LossParameter] | tuple[tuple[str, LossParameter], ...],
) -> HeadLoss:
    check_positive("loss-weight", weight)
    own = {name.replace("-", "_"): value for name, value in dict(parameters).items()}
    return HeadLoss(output, kind, weight, tuple(sorted(own.items())))


def _distinct(heads: list[HeadLoss]) -> tuple[HeadLoss, ...]:
    names = [head.output for head in heads]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"loss: the output {twice!r} has two losses; give one, with a weight")
    return tuple(heads)


def _value(name: str, raw: str) -> LossParameter:
    if raw in _WORDS:
        return _WORDS[raw]
    if not raw:
        raise UsageError(f"loss: {name!r} has no value; write it as in {_EXAMPLE!r}")
    try:
        return float(raw)
    except ValueError:
        return raw


def _number(raw: str) -> float:
    try:
        return float(raw)
    except ValueError:
        raise UsageError(f"loss: {raw!r} is not a weight; write it as in {_EXAMPLE!r}") from None


def _text(value: LossParameter) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value!r}".strip("'")
