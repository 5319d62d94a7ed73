"""Evidence: what the prover may use besides program and premises, before it chooses among it."""

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
from lipcert.core.lines.windows import WindowFact
from lipcert.core.rules.facts import Fact
from lipcert.settings.values import TierName

Observer: TypeAlias = Callable[[str, int, int], None]
"""Called before each value that takes long, with the numbers of those done and of all."""
NormLines: TypeAlias = tuple[StepNorm | RunNorm | StackNorm, ...]
"""Lines about steps, ordered by the value that they compute, then about runs, then stacks."""


class Proposals:
    """Proposes untrusted lines that may improve on what is known; this class proposes none."""

    def of_relu(
        self, value: str, found: Fact, facts: Mapping[str, Fact]
    ) -> Iterable[GainFact | WindowFact]:
        """Yield lines that may say more of a ReLU than was found; the first valid one suffices."""
        del value, found, facts
        return ()

    def of_value(self, value: str, found: Fact, facts: Mapping[str, Fact]) -> Sequence[ChainForm]:
        """Return chains that may say more of a value than was found, given facts below it."""
        del value, found, facts
        return ()

    def of_products(self, value: str, facts: Mapping[str, Fact]) -> ProductFact | None:
        """Return a line that may say more of a value than facts do, if there is one."""
        del value, facts
        return None

    def of_cotangents(self, facts: Mapping[str, Fact]) -> Sequence[ChainForm]:
        """Return chains that may say more of cotangents."""
        del facts
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What is known of a network beforehand. norms: of linear steps, and of several of them.

    tier: how much work may be spent.
    """

    scope: ScopeClaim
    norms: NormLines = ()
    tier: TierName = "fast"
