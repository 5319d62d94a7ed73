"""Operand: a constant tensor that an op multiplies or adds, and the trained parameter behind it.

Invariant: `array` holds the numbers of the file exactly (every float format up to float64 embeds
in float64) in the orientation in which the op uses them; it is read-only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from lipcert.upper import ONE, FloatArray, Upper

PlaceArray = npt.NDArray[np.int32]
"""places in a tensor, of which there are fewer than 2^31"""


@final
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Operand:
    """A constant tensor used by an op.

    `parameter` names the trained parameter θ of which `array` is a linear view (transposed,
    reshaped, sliced, repeated, scaled), or is None for a constant of the architecture. `gain`
    bounds the Lipschitz constant of θ ↦ array in the Euclidean norm: 1 for rearrangements and
    slices, |α| for a scaling, √m for an m-fold repetition.

    The view itself: array = scale · θ[places], `places` being flat indices into θ of the shape of
    `array`, with the number 0 where they are −1; None: the entries of θ in their own order.
    """

    array: FloatArray
    parameter: str | None = None
    gain: Upper = ONE
    places: PlaceArray | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        must_copy = None if _is_read_only(self.array) else True
        array = np.array(self.array, dtype=np.float64, order="C", copy=must_copy)
        if not np.all(np.isfinite(array)):
            raise ValueError(f"operand {self.parameter or 'constant'} holds NaN or infinity")
        array.setflags(write=False)
        object.__setattr__(self, "array", array)
        if self.places is not None and self.places.shape != array.shape:
            raise ValueError(f"operand {self.parameter}: {self.places.shape} places")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor as the op uses it."""
        return self.array.shape


def _is_read_only(array: FloatArray) -> bool:
    """Whether neither an array nor what it views can be written to."""
    base = array.base
    above = base is None or (isinstance(base, np.ndarray) and _is_read_only(base))
    return above and not array.flags.writeable
