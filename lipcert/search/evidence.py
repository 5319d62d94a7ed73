"""Evidence: what the prover may use besides program and premises, none of it chosen yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

from lipcert.core.certificate import ScopeClaim
from lipcert.core.lines.chains import COTANGENTS, VALUES
from lipcert.core.lines.gains import GainFact
from lipcert.core.lines.norms import StepNorm
from lipcert.core.lines.products import ProductFact
from lipcert.core.lines.runs import RunNorm
from lipcert.core.lines.stacks import StackNorm
from lipcert.core.norms import ENGINES, Engine
from lipcert.core.rules.facts import Fact
from lipcert.settings.values import TierName


@final
@dataclass(frozen=True, slots=True)
class NormClaim:
    """‖linear part of a step‖₂ ≤ bound, and which route proves it, as of `core.lines.norms`."""

    bound: float
    method: str
    twists: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class ChainWitness:
    """Multipliers that may prove something of the steps from one value up to another.

    use: VALUES or COTANGENTS.
    """

    use: str
    start: str
    stop: str
    multipliers: tuple[tuple[float, ...], ...]


class Proposals(Protocol):
    """Chains with multipliers, and lines, none of which is trusted."""

    def of_relu(self, value: str, found: Fact, facts: Mapping[str, Fact]) -> Iterator[GainFact]:
        """That may say more of a ReLU than what was found: the first that follows is enough."""
        ...

    def of_value(
        self, value: str, found: Fact, facts: Mapping[str, Fact]
    ) -> Sequence[ChainWitness]:
        """That may say more of a value than what was found, from the facts of what lies below."""
        ...

    def of_products(self, value: str, facts: Mapping[str, Fact]) -> ProductFact | None:
        """That says more of a value than facts do."""
        ...

    def of_cotangents(self, facts: Mapping[str, Fact]) -> Sequence[ChainWitness]:
        """That may say more of cotangents."""
        ...


@final
class Listed:
    """Proposes chains that are known beforehand."""

    def __init__(self, chains: Sequence[ChainWitness]) -> None:
        self._chains = chains

    def of_relu(self, value: str, found: Fact, facts: Mapping[str, Fact]) -> Iterator[GainFact]:
        """No gains are known beforehand."""
        del value, found, facts
        return iter(())

    def of_value(
        self, value: str, found: Fact, facts: Mapping[str, Fact]
    ) -> Sequence[ChainWitness]:
        """Those that end at the value."""
        del found, facts
        return [chain for chain in self._chains if (chain.stop, chain.use) == (value, VALUES)]

    def of_products(self, value: str, facts: Mapping[str, Fact]) -> ProductFact | None:
        """No products are known beforehand."""
        del value, facts
        return None

    def of_cotangents(self, facts: Mapping[str, Fact]) -> Sequence[ChainWitness]:
        """All chains that bound cotangents."""
        del facts
        return [chain for chain in self._chains if chain.use == COTANGENTS]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What is known beforehand of a network.

    norms: of linear steps, by what they compute; steps: their lines, where they are proved; runs:
    lines of affine steps in a row; stacks: of matrices that read one value. chains: that may prove
    more. tier: how much work is worth it.
    """

    scope: ScopeClaim
    norms: Mapping[str, float] = field(default_factory=dict)
    runs: tuple[RunNorm, ...] = ()
    chains: tuple[ChainWitness, ...] = ()
    engine: Engine = ENGINES["float"]
    steps: tuple[StepNorm, ...] = ()
    stacks: tuple[StackNorm, ...] = ()
    tier: TierName = "fast"

    @property
    def free(self) -> frozenset[str]:
        """The tensors whose numbers are not those of the file."""
        return frozenset(self.scope.trained if self.scope.kind == "constraint-set" else ())


__all__ = [
    "COTANGENTS",
    "VALUES",
    "ChainWitness",
    "Evidence",
    "Listed",
    "NormClaim",
    "Proposals",
]
