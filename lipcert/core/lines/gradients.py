"""grad/tensor: the norm of the gradient of one example's loss with respect to a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from lipcert.core.arithmetic import add_up
from lipcert.core.budget import spend
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.proof import Proof


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TensorGradient(Line[float]):
    """‖∂loss/∂tensor‖₂ ≤ bound for every admissible example and all weights in scope.

    Proof: the gradient is the sum of what reaches the tensor through each use of it, and each is
    bounded by the rule of the step that uses it. Nothing is known of a tensor that enters a step
    as a plain number.
    """

    rule: Literal["grad/tensor"] = "grad/tensor"
    stage: ClassVar[int] = 6
    about: ClassVar[str] = "tensor"
    tensor: str

    def evaluate(self, proof: Proof) -> float:
        """The sum over the uses, from the facts below each and the cotangent above it."""
        if self.tensor in proof.program.untracked:
            raise NotProved("no rule bounds the gradient of a plain number")
        found = 0.0
        for step in proof.users.get(self.tensor, ()):
            spend()
            for name, share in proof.shares(step):
                found = add_up(found, share) if name == self.tensor else found
        return found

    def keep(self, proof: Proof, found: float) -> None:
        """For the claims about parameters."""
        del found
        proof.gradients[self.tensor] = self.stated
