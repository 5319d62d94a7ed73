"""Precision: the floating-point arithmetic in which a network is evaluated, and its margin.

A measured norm n of a tensor is assumed to be right up to its `error` (what computing the norm of
given tensors rounds, see `measured`) plus margin·n + cancelled·N + floor, which stands for what
evaluating the network rounds; N is the largest norm of the same example. These are constants, not a
proof about one network:

- Backpropagation in float64 loses at most about depth × terms × 2^-53 of the sizes of what is
  added: 2^-33 for a hundred layers with sums of ten thousand terms if every rounding points the
  same way, and about 2^-43 for typical roundings. Only what cancels to less than a millionth of its
  terms could then be moved by the share 2^-20, and what cancels as a whole leaves about 2^-44·N.
  In turn, a network whose bound is exceeded by less than a millionth is not called a violation.
- Every other arithmetic is a filter in front of float64: it accepts only what lies within a bound
  by its margin, and never reports a violation. Losses are computed in float64 all the same, since
  their gradients cancel where a network is certain.
"""

from enum import Enum


class Precision(Enum):
    """The arithmetic of products; sums are accumulated in float32 or better."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    TF32 = "tf32"
    """float32 storage whose products read 10 bits of the fraction."""
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def unit(self) -> float:
        """Largest relative error of one rounding of a stored result or a read operand."""
        bits = {"float64": 52, "float32": 23, "tf32": 10, "bfloat16": 7, "float16": 10}
        return float(2.0 ** -bits[self.value])

    @property
    def margin(self) -> float:
        """The relative error of a measured norm that evaluating the network may cause."""
        return {"float64": 2.0**-20, "float32": 2.0**-7}.get(self.value, 0.5)

    @property
    def floor(self) -> float:
        """A bound on what underflow may hide, far above the smallest normal number."""
        return {"float64": 2.0**-400, "float16": 2.0**-7}.get(self.value, 2.0**-60)

    @property
    def cancelled(self) -> float:
        """The share of the largest norm of an example that may remain of terms that cancel
        completely.

        Where a right bound is 0, such as that of the gradient below a layer of equal rows, float64
        leaves such a remainder. A filter needs no allowance: its remainders are replayed in
        float64.
        """
        return 2.0**-44 if self.decides else 0.0

    @property
    def decides(self) -> bool:
        """Whether a norm above its bound is a violation in this precision; otherwise float64
        decides."""
        return self is Precision.FLOAT64

    def reached(self, bound: float) -> float:
        """Return the largest norm that may be measured if a bound in real arithmetic is right."""
        return bound / (1.0 - self.margin)
