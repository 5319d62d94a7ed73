"""Values side by side."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.interval import Interval
from lipcert.core.kinds import Concat
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Cotangent, Fact, Joined


class ConcatRule(Rule[Concat]):
    """y = the values side by side."""

    def fact(self) -> Fact:
        """√Σ X_i², and the boxes side by side; runs across the seams likewise. Attained always."""
        inputs, rank = self.inputs, len(self.shape)
        axis = self.op.axis % rank
        whole = [max(x.box.shape[i] for x in inputs) for i in range(rank)]
        boxes = [
            x.box.broadcast((*whole[:axis], before[axis], *whole[axis + 1 :]))
            for x, before in zip(inputs, self.shapes, strict=True)
        ]
        low = np.concatenate([box.lo for box in boxes], axis=axis)
        high = np.concatenate([box.hi for box in boxes], axis=axis)
        runs, columns = [x.row_norm for x in inputs], [x.column_norm for x in inputs]
        return Fact.of(
            self.shape,
            _root_sum_square([x.norm for x in inputs]),
            Interval(low, high),
            _root_sum_square(runs) if axis == rank - 1 else max(runs),
            _root_sum_square(columns) if axis == rank - 2 else max(columns),
        )

    def lipschitz(self, _: int) -> float:
        """1, since y contains x as it is. Attained always."""
        return 1.0

    def is_apart(self, *_: int) -> bool:
        """Along all axes; along that of the seams, but for the numbers of the places."""
        return True

    def pulled(self, index: int, cotangent: Cotangent) -> Cotangent:
        """l, or the part of it at this value, where the parts known of l are those of the values.

        Proof: with no axis of more than one entry before the seams, the values lie one after
        another in row-major order.
        """
        sizes = [math.prod(shape) for shape in self.shapes]
        in_a_row = math.prod(self.shape[: self.op.axis % len(self.shape)]) == 1
        if in_a_row and sizes == [size for size, _ in cotangent.parts]:
            _, part = cotangent.parts[index]
            return replace(part, norm=min(part.norm, cotangent.norm))
        return Cotangent(cotangent.norm)

    def joined_pulled(self, index: int, _: Cotangent) -> Joined:
        """The gradient at the places of this input, as it is."""
        return self.output, tuple(float(k == index) for k in range(len(self.inputs)))


def put_together(
    found: Cotangent, shares: Sequence[Cotangent], above: Mapping[str, Cotangent], apart: bool
) -> Cotangent:
    """Return bounds of the sum of gradients, where all come from inputs of one `Concat`.

    found: what else is known of the sum. above: cotangents of outputs. apart: whether no entry of
    the sum is in two of the shares.

    Proof: norms add up, so that the sum is at most Σ c_i‖g_i‖ long, for the sums c of the shares'
    own and the gradients g_i of the inputs; at most √Σ c_i²·‖g‖ by Cauchy–Schwarz. If no two of
    several perpendicular shares come from one input, their squares add up to at most
    Σ_s (Σ_i c_si²)(Σ_i ‖g_i‖²) over the i of each share s, and so to the largest Σ_i c_si² times
    ‖g‖². Attained: by parallel shares; by the longest of perpendicular ones.
    """
    known = [share.joined for share in shares if share.joined]
    if len({name for name, _ in known}) > 1:
        return found
    columns = list(zip(*(own for _, own in known), strict=True))
    sums = tuple(reduce(add_up, column) for column in columns)
    longest = _root_sum_square(sums)
    if apart and all(sum(c > 0.0 for c in column) < 2 for column in columns):
        longest = max(_root_sum_square(own) for _, own in known)
    norm = multiply_up(longest, above[known[0][0]].norm)
    return replace(found, norm=min(found.norm, norm), joined=(known[0][0], sums))


def _root_sum_square(lengths: Sequence[float]) -> float:
    return sqrt_up(reduce(add_up, (multiply_up(x, x) for x in lengths), 0.0))
