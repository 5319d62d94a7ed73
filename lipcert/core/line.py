"""Line: one inequality of a proof, with its rule and the numbers that the rule needs.

The class of each rule is in a file of `lines`, loaded when a line names it: so a check depends only
on the rules that its certificate uses.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from lipcert.core.codec import Bound
from lipcert.core.registry import Registry

FoundT = TypeVar("FoundT")


class NotProved(ValueError):  # noqa: N818  it is what a line is, not what went wrong
    """A line does not follow from those before it; the message says why.

    Whatever a line is derived by (steps of a chain, links, kernels) raises it for the line.
    """


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Line(ABC, Generic[FoundT]):
    """A statement about one subject. bound: the stated number, or None if it states none.

    about: the field that names the subject. proof: the `lines.proof.Proof` of the lines before it.
    """

    about: ClassVar[str] = "value"
    bound: Bound | None = None

    @property
    def rule(self) -> str:
        """The name of the rule, with that of its family before the slash."""
        return RULES.name_of(type(self))

    @property
    def stage(self) -> int:
        """The stage of the check, as in `verdict.STAGES`; lines are listed in this order."""
        return _FAMILIES[self.rule.partition("/")[0]]

    @abstractmethod
    def evaluate(self, proof: Any) -> FoundT:
        """Return what follows by the rule from what is proved; raise NotProved if nothing does.

        It reads only what earlier lines, the premises and the file establish.
        """

    def least(self, found: FoundT) -> float:
        """Return the least bound that may be stated: `found` itself, or the norm of a record."""
        return found if isinstance(found, float) else float(cast("Any", found).norm)

    @abstractmethod
    def keep(self, proof: Any, found: FoundT) -> None:
        """Add what follows, with the stated bound, to the proof."""

    @property
    def subject(self) -> str:
        """The name in the file of what is bounded; for a run, its last value."""
        found = getattr(self, self.about)
        return found if isinstance(found, str) else "".join(found[-1:])

    @property
    def stated(self) -> float:
        """The bound; inf if none is stated."""
        return math.inf if self.bound is None else self.bound

    @property
    def what(self) -> str:
        """The bounded quantity, in a word or two."""
        return _WHAT[self.stage]


_FAMILIES: Final = {"norm": 3, "ball": 4, "fact": 4, "form": 4, "pull": 5, "grad": 6}
"""The stage at which the lines of each family are evaluated."""
_WHAT: Final = {3: "operator norm", 4: "norm", 5: "cotangent", 6: "gradient"}

RULES: Final = Registry("lines", {
    "attention": "pull/attention",
    "balls": "ball/input fact/ball",
    "chains.ChainForm": "form/chain",
    "chains.FormPull": "pull/form",
    "gains": "fact/gain",
    "kernels.KernelGradient": "grad/kernel",
    "moved_balls": "fact/zero",
    "moved_balls.MovedBall": "ball/form",
    "norms": "norm/step",
    "products.ProductFact": "fact/products",
    "runs": "fact/affine norm/run pull/run",
    "signs.SignPull": "pull/signs",
    "stacks": "fact/slice norm/stack pull/stack",
    "steps": "fact/input fact/step pull/loss pull/value",
    "steps.TensorGradient": "grad/tensor",
    "windows": "fact/window",
}, lambda rule: "".join(part.title() for part in reversed(rule.split("/"))))  # fmt: skip
"""The class in `lines` for the lines of each rule."""
