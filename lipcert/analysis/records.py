"""Records: the answer to `lipcert analyze`, as plain records that every report format prints.

Numbers are certified upper bounds; None stands for "no bound" and always has a diagnostic.
`stated_values` collects what the lines of a certificate state about values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from lipcert.core.certificate import Certificate
from lipcert.core.ledger.mechanism import MECHANISMS
from lipcert.core.ledger.premises import InputPart
from lipcert.core.lines.proof import LOSS
from lipcert.core.lines.steps import FactLine, PullLine
from lipcert.core.program import Shape
from lipcert.diagnostics import Diagnostic
from lipcert.gradient_stats.measure import Observed, signal_words
from lipcert.graph.ir import EvalLayer
from lipcert.privacy.account import Account
from lipcert.settings.gates import GateResult

VerdictName = Literal["useful", "costly", "not usable", "unknown", "nothing trained"]
"""How usable bounds are: a class of their relative cost."""
_ATTAINED: Final = 1e-6


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The file that was analysed; `parameters` counts trained numbers."""

    path: str
    sha256: str
    parameters: int
    opset: Mapping[str, int]
    producer: str


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Everything the bounds are conditional on, as stated or defaulted.

    input_norm: 2-norm radius of one example (derived from the box if only that was given; None:
        any example is admitted).
    mechanism: its kind ("none": the network bounds its gradients itself) and radii; "layers" has
        those of single layers.
    batch: how batch independence is known ("proved" or "per-example").
    eval_layers: layers of the file that training has to keep in eval mode.
    input_ids: how many rows the tables have from which whole numbers at the input choose; 0: the
        input holds real numbers.
    input_parts: what is assumed of each of several inputs, in the order of the file; `input_box`
        is then None, and `input_norm` that of all of them together.
    notes: further assumptions in words, one sentence each.
    frozen: parameters that the file marks as not trained. fixed: other tensors that are not
        trained, and why each is taken for one.
    """

    input_norm: float | None
    input_box: tuple[float, float] | None
    loss: Mapping[str, str | float]
    scope: str
    constraints: Mapping[str, str]
    neighbours: str
    reduction: str
    batch_size: int | None
    allocation: str
    noise_multiplier: float
    mechanism: Mapping[str, object]
    batch: str
    tier: str
    arithmetic: str
    notes: tuple[str, ...]
    eval_layers: tuple[EvalLayer, ...] = ()
    input_ids: int = 0
    input_parts: tuple[InputPart, ...] = ()
    frozen: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_stepwise(self) -> bool:
        """Whether the mechanism uses bounds at the weights that a step starts from."""
        found = MECHANISMS.get(str(self.mechanism.get("kind")))
        return found is not None and found.weights == "stepwise"


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Bounds at one step of the network. Norms are 2-norms of one example's tensors.

    name: of the node of the file, with a number if that is several steps. op: what the step does.
    input_lipschitz: one bound per input. cotangent_norm: bound of ‖∂loss/∂output‖. reason: why a
    bound is absent, "" if none is.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    output: str
    shape: Shape
    input_norm: float | None
    output_norm: float | None
    operator_norm: float | None
    input_lipschitz: tuple[float | None, ...]
    cotangent_norm: float | None
    rule: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ParameterReport:
    """Per-example gradient bound G of one parameter, its sensitivity and noise."""

    name: str
    shape: Shape
    node: str
    trainable: bool
    group: str | None
    grad_norm: float | None
    sensitivity: float | None
    noise_std: float | None


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Parameters that are noised together; `noise_energy_share` = d·s²/Σ d·s²."""

    name: str
    parameters: tuple[str, ...]
    dimension: int
    grad_norm: float | None
    sensitivity: float | None
    noise_std: float | None
    noise_energy_share: float | None


@dataclass(frozen=True, slots=True)
class AllocationReport:
    """One way to split the noise: its total energy Σ d_k s_k² at the same effective multiplier."""

    name: str
    noise_energy: float
    chosen: bool


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """Bounds of the whole network.

    lipschitz: of output with respect to input. grad_norm: √Σ G² over trained parameters.
    *_witness: the value at an admissible example (and, with constraints, at admissible weights):
    a lower bound of the quantity that the bound limits from above; None if nothing was found.
    """

    lipschitz: float | None
    output_norm: float | None
    loss_cotangent_norm: float | None
    grad_norm: float | None
    sensitivity: float | None
    grad_norm_witness: float | None = None
    lipschitz_witness: float | None = None

    @property
    def grad_norm_looseness(self) -> float | None:
        """An upper bound of the ratio of grad_norm to the true value."""
        return _ratio(self.grad_norm, self.grad_norm_witness)

    @property
    def lipschitz_looseness(self) -> float | None:
        """An upper bound of the ratio of lipschitz to the true value."""
        return _ratio(self.lipschitz, self.lipschitz_witness)

    @property
    def attained(self) -> bool | None:
        """Whether grad_norm is attained, to 1e-6; None if nothing was found."""
        found = self.grad_norm_looseness
        return None if found is None else is_attained(found)


def is_attained(looseness: float) -> bool:
    """Whether a bound that is at most this many times the truth equals it, to 1e-6."""
    return looseness <= 1.0 + _ATTAINED


def _ratio(bound: float | None, reached: float | None) -> float | None:
    return bound / reached if bound is not None and reached else None


@dataclass(frozen=True, slots=True)
class GroupUsefulness:
    """The 2-norm of one group's expected noise, and its ratio to the norm of the group's signal."""

    name: str
    noise: float | None
    noise_to_signal: float | None


@dataclass(frozen=True, slots=True)
class Usefulness:
    """The noise of one release, compared with gradient clipping at C = 1 and with the gradients.

    The comparison is at equal σ, and with the mean gradient if gradients were measured. Only
    `noise` and `clipping_noise` are certified.

    noise: √(Σ d·s²) over the groups; clipping_noise: σ·Δ(1)·√d, under the same neighbours and
    reduction. *_to_signal: over the norm of the mean gradient that each of both releases (as a sum,
    if that is released); *_of_run: over √T, since noise averages over the T steps of a run.
    relative_cost: quotient of both `_to_signal`, or of both noises if no signal is known.
    slack: the bound G over the largest gradient norm that was measured.
    """

    verdict: VerdictName
    sentence: str
    noise: float | None
    clipping_noise: float
    noise_ratio: float | None
    noise_to_signal: float | None
    clipping_noise_to_signal: float | None
    noise_to_signal_of_run: float | None
    clipping_noise_to_signal_of_run: float | None
    relative_cost: float | None
    slack: float | None
    groups: tuple[GroupUsefulness, ...]
    observed: Observed | None

    @property
    def against(self) -> str:
        """What the ratio of noise to signal is compared with."""
        return signal_words(of_norms=self.observed is not None and self.observed.of_norms)


@dataclass(frozen=True, slots=True)
class Analysis:
    """The complete result. privacy: the cost of the described run; None if none is described.

    usefulness: None in records of older versions. gates: the limits that a user set, with results.
    """

    model: ModelReport
    assumptions: Assumptions
    nodes: tuple[NodeReport, ...]
    parameters: tuple[ParameterReport, ...]
    groups: tuple[GroupReport, ...]
    allocations: tuple[AllocationReport, ...]
    network: NetworkReport
    diagnostics: tuple[Diagnostic, ...]
    privacy: Account | None = None
    usefulness: Usefulness | None = None
    gates: tuple[GateResult, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasonReport:
    """A bound, and by index those from which it follows.

    what: "gradient", "cotangent", "Lipschitz constant" or "norm"; subject: of what. rule: of its
    line, for `lipcert explain RULE`. text: how it follows, with the numbers. factor: the bound over
    the largest of the same kind from which it follows. remedy: what would make it smaller, if
    anything is known. bound, factor: None if there is none.
    """

    what: str
    subject: str
    bound: float | None
    rule: str
    text: str
    factor: float | None
    remedy: str
    because: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BoundReport:
    """Why the bounds of one name are as large as they are.

    model: path of the file; sha256: of its bytes. reasons: all of them; the first `roots` explain
    the bounds of that name. factors: indices of those with the largest factors.
    """

    model: str
    sha256: str
    name: str
    roots: int
    reasons: tuple[ReasonReport, ...]
    factors: tuple[int, ...]


Bounds = dict[str, float]


def stated_values(certificate: Certificate) -> tuple[Bounds, Bounds]:
    """Return by value the least norm that a line states, and the norm of the loss's cotangent."""
    norms: Bounds = {}
    cotangents: Bounds = {}
    for line in certificate.lines:
        if isinstance(line, FactLine) and line.bound is not None:
            norms[line.value] = min(norms.get(line.value, line.bound), line.bound)
        elif isinstance(line, PullLine) and line.of == LOSS and line.bound is not None:
            cotangents[line.value] = line.bound
    return norms, cotangents
