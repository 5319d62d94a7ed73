"""Functions of one number, applied entry by entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.evaluate import function_of
from lipcert.ops.base import Entrywise
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True)
class Activation(Entrywise):
    """y = f(x) entry by entry: name and numbers as of `core.program.Activation`."""

    name: str
    numbers: tuple[float, ...] = ()

    @property
    def kind(self) -> str:
        """Name of the function, spelled as operators are."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """f(x); NaN or infinite where it is not defined."""
        (x,) = inputs
        with np.errstate(all="ignore"):
            return function_of(self.name, self.numbers, x)
