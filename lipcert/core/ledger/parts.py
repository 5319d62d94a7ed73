"""What is assumed of each of several inputs, and of each loss of a sum of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from lipcert.core.certificate import read
from lipcert.core.codec import Bound
from lipcert.core.ledger import LossParameter, admitted, described


@final
@dataclass(frozen=True, slots=True)
class InputPart:
    """What is assumed of one of several inputs, whose name and shape are those in the file."""

    name: str
    shape: tuple[int, ...]
    norm: Bound | None
    box: tuple[float, float] | None

    @property
    def text(self) -> str:
        """The text of the assumption."""
        found = admitted(self.norm, self.box)
        return f"the input {self.name} {f'has {found}' if found else 'may be anything'}"


@final
@dataclass(frozen=True, slots=True)
class LossPart:
    """weight · loss of one of several outputs, whose name is that in the file."""

    output: str
    kind: str
    parameters: tuple[LossParameter, ...]
    weight: float

    @property
    def text(self) -> str:
        """The text of the assumption."""
        return f"{self.weight!r} times {described(self.kind, self.parameters, self.output)}"


@final
@dataclass(frozen=True, slots=True)
class StatedPart:
    """As it stands in A-LOSS."""

    output: str
    kind: str
    parameters: Mapping[str, float | str]
    weight: Bound


def read_input_parts(stated: Sequence[object]) -> tuple[InputPart, ...]:
    """From the data of A-INPUT."""
    return read(tuple[InputPart, ...], list(stated), "A-INPUT.parts")


def read_loss_parts(stated: Sequence[object]) -> tuple[LossPart, ...]:
    """From the data of A-LOSS."""
    return tuple(
        LossPart(part.output, part.kind, tuple(sorted(part.parameters.items())), part.weight)
        for part in read(tuple[StatedPart, ...], list(stated), "A-LOSS.parts")
    )
