"""Evidence: what the prover may use besides program and premises, none of it chosen yet."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lipcert.core.certificate import ScopeClaim
from lipcert.core.lines.chains import ChainForm
from lipcert.core.lines.gains import GainFact
from lipcert.core.lines.norms import StepNorm
from lipcert.core.lines.products import ProductFact
from lipcert.core.lines.runs import RunNorm
from lipcert.core.lines.stacks import StackNorm
from lipcert.core.norms.claim import NormWitness
from lipcert.core.rules.facts import Fact
from lipcert.settings.values import TierName

Observer: TypeAlias = Callable[[str, int, int], None]
"""called before each value that takes long, with how many of how many are done"""
NormLines: TypeAlias = tuple[StepNorm | RunNorm | StackNorm, ...]
"""of steps, by the value that they compute, then of runs, then of stacks"""


@dataclass(frozen=True, slots=True)
class NormClaim:
    """‖linear part of a step‖₂ ≤ bound, and which route proves it, as of `core.lines.norms`."""

    bound: float
    method: str
    twists: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def witness(self) -> NormWitness:
        """The route of its proof."""
        return NormWitness(self.method, self.twists, self.counts)


class Proposals:
    """Lines that may say more than what is known; none is trusted, and these are none at all."""

    def of_relu(self, value: str, found: Fact, facts: Mapping[str, Fact]) -> Iterable[GainFact]:
        """Lines that may say more of a ReLU than was found: the first that follows is enough."""
        del value, found, facts
        return ()

    def of_value(self, value: str, found: Fact, facts: Mapping[str, Fact]) -> Sequence[ChainForm]:
        """Chains that may say more of a value than was found, from facts of what lies below."""
        del value, found, facts
        return ()

    def of_products(self, value: str, facts: Mapping[str, Fact]) -> ProductFact | None:
        """A line that may say more of a value than facts do."""
        del value, facts
        return None

    def of_cotangents(self, facts: Mapping[str, Fact]) -> Sequence[ChainForm]:
        """Chains that may say more of cotangents."""
        del facts
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What is known beforehand of a network. norms: of linear steps and of several of them.

    tier: how much work is worth it.
    """

    scope: ScopeClaim
    norms: NormLines = ()
    tier: TierName = "fast"
