"""ScalarFunction: what a rule must know of a function of one number, applied entry by entry.

What enters: intervals of arguments. What leaves: rigorous intervals of values and of (Clarke)
derivatives, and three global constants. Invariant: everything is rounded outward; elementary
functions of numpy and scipy are trusted to the number of ulps stated where they are called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from lipcert.upper import FloatArray


class ScalarFunction(ABC):
    """A locally Lipschitz function of one real number; subclasses are frozen dataclasses."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Name of the function, in the spelling of ONNX where ONNX has one."""
        return type(self).__name__

    @abstractmethod
    def value(self, x: FloatArray) -> FloatArray:
        """f entry by entry, in ordinary float64."""


def sigmoid(x: FloatArray) -> FloatArray:
    """1 / (1 + e^−x) in ordinary float64."""
    with np.errstate(over="ignore", under="ignore"):
        result: FloatArray = 1.0 / (1.0 + np.exp(-x))
    return result
