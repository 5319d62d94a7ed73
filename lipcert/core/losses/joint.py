"""Joint: the sum of losses, each of one of several outputs and with a weight."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import ClassVar, Final

from lipcert.core.arithmetic import sqrt_up
from lipcert.core.interval import Interval
from lipcert.core.kinds import Concat
from lipcert.core.ledger.premises import JOINT, LossPart
from lipcert.core.losses.base import Loss, loss_cotangent, read_loss
from lipcert.core.losses.tokens import scores_of
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Part as Output
from lipcert.core.program import Program, Shape
from lipcert.core.rules.broadcasting import scaled
from lipcert.core.rules.facts import Cotangent, Fact

_LARGEST: Final = 1e100


@dataclass(frozen=True, slots=True)
class Part:
    """weight · loss of the output of this name and shape, batch axis of one example included."""

    output: str
    shape: Shape
    loss: Loss
    weight: float

    @property
    def size(self) -> int:
        """Number of entries of the output."""
        return math.prod(self.shape)

    @property
    def is_of_classes(self) -> bool:
        """Whether a label is a class number, and no target for each entry."""
        return self.loss.of_classes and self.size > 1

    @property
    def label_size(self) -> int:
        """Number of entries of a label: one, one for each token, or one for each entry."""
        scores = scores_of(self.loss, self.shape) if self.is_of_classes else None
        return self.size if scores is None else scores.tokens

    def cotangent(self, logits: Fact) -> Cotangent:
        """The gradient by the output: weight times that of the loss."""
        return scaled(loss_cotangent(self.loss, logits, self.shape), self.weight)


@dataclass(frozen=True, slots=True)
class Joint(Loss):
    """ℓ = Σ_i w_i·ℓ_i(z_i, y_i): z_i the outputs, whose entries are read one after another.

    At least two outputs of different names; weights are positive. A label is one for each part, any
    that its loss admits.
    """

    kind: ClassVar[str] = JOINT
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        names = {part.output for part in self.parts}
        if not 1 < len(names) == len(self.parts):
            raise Unsupported("a sum of losses is one of at least two different outputs")
        for part in self.parts:
            if not 1.0 / _LARGEST <= part.weight <= _LARGEST:
                raise Unsupported(
                    f"weight: {part.weight!r} is not a positive number (1e-100 to 1e100)"
                )

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where the entries of each output are."""
        return _side_by_side([part.size for part in self.parts])

    @property
    def label_slices(self) -> tuple[slice, ...]:
        """Where the label of each part is in a row of numbers."""
        return _side_by_side([part.label_size for part in self.parts])

    def bound(self, logits: Fact, outputs: int) -> Cotangent:
        """As `of_outputs`, with what is known of all entries together."""
        box = logits.box.broadcast((1, outputs))
        facts = [
            Fact.of((1, part.size), logits.norm, Interval(box.lo[:, at], box.hi[:, at]))
            for part, at in zip(self.parts, self.slices, strict=True)
        ]
        return self.of_outputs(facts)

    def of_outputs(self, facts: Sequence[Fact]) -> Cotangent:
        """(w_1·g_1, …, w_k·g_k), g_i the gradient of ℓ_i, and √Σ(w_i‖g_i‖)² for the whole.

        Proof: ℓ_j does not depend on z_i for j ≠ i, whatever else the network makes of z_i; so the
        gradient by the entries of z_i is w_i·g_i, and the squares of the parts add up. Attained:
        where one example attains every part, as labels of different parts are free.
        """
        found = [part.cotangent(fact) for part, fact in zip(self.parts, facts, strict=True)]
        norm = math.inf
        if all(math.isfinite(part.norm) for part in found):
            norm = sqrt_up(sum((Fraction(part.norm) ** 2 for part in found), Fraction(0)))
        sizes = [part.size for part in self.parts]
        return Cotangent(norm, parts=tuple(zip(sizes, found, strict=True)))


def _side_by_side(sizes: Sequence[int]) -> tuple[slice, ...]:
    ends = accumulate(sizes)
    return tuple(slice(end - size, end) for end, size in zip(ends, sizes, strict=True))


def joint_loss(stated: Sequence[LossPart], heads: Sequence[Output]) -> Joint:
    """The loss that premises state of these outputs; `Unsupported` where it is of others."""
    if [part.output for part in stated] != [head.name for head in heads]:
        raise Unsupported("the parts of the loss are not those of the outputs that it reads")
    return Joint(
        tuple(
            Part(part.output, head.shape, read_loss(part.kind, dict(part.parameters)), part.weight)
            for part, head in zip(stated, heads, strict=True)
        )
    )


def joint_cotangent(loss: Joint, program: Program, facts: Mapping[str, Fact]) -> Cotangent:
    """The gradient at the output of a program, from what is known of each of its outputs.

    Proof: values side by side in one row, as long as the outputs, are the outputs.
    """
    step = next((step for step in program.steps if step.output == program.output), None)
    sizes = [part.size for part in loss.parts]
    if program.shapes[program.output] != (1, sum(sizes)):
        raise Unsupported("the parts of the loss do not make up the output")
    if (
        step is not None
        and isinstance(step.op, Concat)
        and step.op.axis == 1
        and [program.size(name) for name in step.inputs] == sizes
    ):
        return loss.of_outputs([facts[name] for name in step.inputs])
    return loss.bound(facts[program.output], sum(sizes))
