"""AuditReport: the result of `lipcert audit`, as plain records that every report format prints.

None means "there is none". Norms are 2-norms of one example's tensors.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from lipcert.analysis.records import Usefulness
from lipcert.diagnostics import Diagnostic
from lipcert.settings.gates import GateResult
from lipcert.text.numbers import at_least, at_most, beside, counted, finite, measured

BINS_PER_OCTAVE: Final = 4
LOWEST_BIN: Final = -80
HIGHEST_BIN: Final = 16


def largest(*norms: float | None) -> float | None:
    """Return the largest of the norms that exist; NaN is larger than every number."""
    found = [norm for norm in norms if norm is not None]
    if any(math.isnan(norm) for norm in found):
        return math.nan
    return max(found, default=None)


def _over(norm: float | None, bound: float | None) -> float | None:
    return None if norm is None or not bound else norm / bound


def factor_of(share: float | None) -> float | None:
    """Return the inverse of a tightness; None if it is unknown, or nothing came near the bound."""
    if share is None or not 0.0 < share < math.inf:
        return None
    return finite(1.0 / share)


class Verdict(Enum):
    """The outcome of an audit; exit code 0 for a pass, 1 for violation or exceeded, else 3."""

    PASS = "pass"
    VIOLATION = "violation"
    EXCEEDED = "exceeded"
    """Every bound holds as far as it was tried, and a number exceeds a gate that a user set."""
    INCONCLUSIVE = "inconclusive"
    """Undecided even in float64, or something was skipped or not audited."""
    MISMATCH = "mismatch"
    """The data, the weights or the trace do not belong to what was bounded."""
    PARTIAL = "partial"
    """Everything recorded passes, but the recording does not show the whole run: fewer steps than
    declared, or no end."""


@dataclass(frozen=True, slots=True, order=True)
class ExampleReference:
    """One example: the weights it was evaluated at ("model", "step 200", "attack"), and its
    index."""

    weights: str
    index: int

    def __str__(self) -> str:
        return f"example {self.index} at {self.weights}"


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many examples have observed/bound in [2^(k/4), 2^((k+1)/4)), by k.

    k is clipped to [LOWEST_BIN, HIGHEST_BIN]; 0/bound counts in LOWEST_BIN.

    Raises:
        ValueError: for other bins.
    """

    counts: Mapping[int, int] = field(default_factory=dict)
    bins_per_octave: int = BINS_PER_OCTAVE

    def __post_init__(self) -> None:
        if self.bins_per_octave != BINS_PER_OCTAVE:
            raise ValueError(f"a histogram must have {BINS_PER_OCTAVE} bins to an octave")
        if any(not LOWEST_BIN <= place <= HIGHEST_BIN for place in self.counts):
            raise ValueError("a histogram has a bin that does not exist")


@dataclass(frozen=True, slots=True)
class GroupAudit:
    """Parameters noised together: their joint per-example gradient norm, and its bound.

    grad_norm_bound: in real arithmetic; float_bound: the largest norm that the audited arithmetic
    may show if that bound is right, by the margin of its precision. max_observed: over replayed
    data; max_attacked: over examples constructed to be bad. undecided: examples still undecided
    after the recomputation in float64. If bounds are computed anew at every step, the bound is the
    one that a norm came closest to, norms at other weights are rescaled to it, and there is no
    float_bound.
    """

    name: str
    parameters: tuple[str, ...]
    dimension: int
    grad_norm_bound: float | None
    float_bound: float | None
    max_observed: float | None
    max_attacked: float | None
    violations: int
    undecided: int
    recomputed: int
    worst_example: ExampleReference | None
    histogram: Histogram

    @property
    def bound(self) -> float | None:
        """The bound of the norm; None if there is none."""
        return self.grad_norm_bound

    @property
    def norm(self) -> float | None:
        """The largest norm that was found; None if nothing was tried."""
        return largest(self.max_observed, self.max_attacked)

    @property
    def tightness(self) -> float | None:
        """The largest norm found over the bound; None if there is nothing to compare."""
        return _over(self.norm, self.bound)

    @property
    def words(self) -> tuple[str, str, str, str, str]:
        """The code of a violation, the place ("group", "conv1"), its subject, its quantity."""
        return "LC301", "group", self.name, f"the gradient norm of {self.name}", ""

    @property
    def detectable_error_factor(self) -> float | None:
        """A bound too small by this factor or more would have been noticed; None if not known.

        Any norm but 0 exceeds a bound of 0. If every norm is 0 below a larger bound, no error of
        that bound would have been noticed.
        """
        share = self.tightness
        if share is None and self.grad_norm_bound == 0.0:
            return None if self.norm is None else 1.0
        return factor_of(share)


@dataclass(frozen=True, slots=True)
class GradientAudit:
    """The gradient of all groups together: its bound, and the norms of examples.

    Norms are those that the mechanism releases: if it clips whole gradients, of clipped ones. They
    are of replayed examples if there are any, else of attacked ones. grad_norm_median: rounded down
    by at most 1.1 %. grad_norm_max: of the example that came closest to its bound, which is
    grad_norm_bound. None: no bound, or no example.
    """

    grad_norm_bound: float | None = None
    grad_norm_median: float | None = None
    grad_norm_max: float | None = None
    examples: int = 0

    @property
    def slack(self) -> float | None:
        """The bound over the largest norm; None if it is unknown, or every norm is 0."""
        return factor_of(_over(self.grad_norm_max, self.grad_norm_bound))


class Quantity(Enum):
    """The quantity that is bounded at a value of the network."""

    OUTPUT_NORM = "output_norm"
    COTANGENT_NORM = "cotangent_norm"


@dataclass(frozen=True, slots=True)
class ValueAudit:
    """A value of the network, the node that computes it ("" for the input), and its bound."""

    value: str
    node: str
    quantity: Quantity
    bound: float | None
    max_observed: float | None
    violations: int
    undecided: int
    worst_example: ExampleReference | None

    @property
    def norm(self) -> float | None:
        """The largest norm that was found; None if nothing was tried."""
        return self.max_observed

    @property
    def tightness(self) -> float | None:
        """The largest norm found over the bound; None if there is nothing to compare."""
        return _over(self.norm, self.bound)

    @property
    def words(self) -> tuple[str, str, str, str, str]:
        """As of groups; a value is placed at the node that computes it."""
        code, of = "LC302", "the norm of"
        if self.quantity is Quantity.COTANGENT_NORM:
            code, of = "LC303", "the norm of the gradient with respect to"
        kind, place = ("node", self.node) if self.node else ("value", self.value)
        return code, kind, place, f"{of} {self.value}", f"{self.quantity.value} {self.value}"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a verdict is not a pass, and the verdict that this implies.

    kind, place: what it is about. quantity: distinguishes several at one place.
    """

    verdict: Verdict
    code: str
    message: str
    kind: str
    place: str
    quantity: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"


def rank(audit: GroupAudit | ValueAudit) -> tuple[bool, bool, float]:
    """Return a key that sorts violations first, then undecided norms, then the tightest."""
    share = audit.tightness
    worst = -1.0 if share is None else math.inf if math.isnan(share) else share
    return audit.violations == 0, audit.undecided == 0, -worst


def _reasons(audit: GroupAudit | ValueAudit, *, untried: bool) -> Iterator[Reason]:
    """Yield why a norm prevents a pass. untried: its bound was tested too little."""
    (code, kind, place, subject, quantity), norm, share = audit.words, audit.norm, audit.tightness
    limit, shown = beside(audit.bound, norm)
    compared, open_ = f" ({shown} against {limit})", Verdict.INCONCLUSIVE
    if audit.violations:
        where = f", at {audit.worst_example}" if audit.worst_example else ""
        times = f" {measured(share)} times" if share is not None and share > 1.0 else " over"
        text = f"{subject} is{times} its bound{compared}"
        if norm is not None and not math.isfinite(norm):
            code, text = "LC306", f"{subject} is NaN or infinite"
        text += f"{where}; {counted(audit.violations, 'violation')}"
        yield Reason(Verdict.VIOLATION, code, text, kind, place, quantity)
    if audit.undecided:
        text = f"{subject} is undecided for {counted(audit.undecided, 'example')}{compared}"
        yield Reason(open_, "LC305", text, kind, place, quantity)
    if kind == "group" and audit.bound is None:
        yield Reason(open_, "LC102", f"{subject} has no bound to hold", kind, place)
    elif untried:
        text, factor = f"{subject} was not tried", factor_of(share)
        if norm is not None:
            text = f"{subject} is 0 in every example: nothing would show that its bound is wrong"
        if factor is not None:
            text = f"{subject} reached 1/{at_most(factor, 3)} of its bound{compared}: a bound too "
            text += "small by less than that would not have been noticed"
        yield Reason(open_, "LC307", text, kind, place)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A check besides the bounds: its code (LC3xx), what it examined, and what it found.

    name: a stable word ("weight-constraint", "admissibility", "schedule", "contribution",
    "leave-one-out", "noise", "release", "seed-reuse", "batch-independence", "agreement",
    "epsilon"). where: step, tensor or example, "" for the whole run. measured, expected: the two
    numbers compared, if there are any.
    """

    code: str
    name: str
    verdict: Verdict
    message: str
    where: str = ""
    measured: float | None = None
    expected: float | None = None
    remedy: str = ""

    @property
    def placed(self) -> str:
        """The message after its place, unless it begins with that place itself."""
        is_placed = self.message.startswith(self.where)
        return self.message if is_placed else f"{self.where}: {self.message}"

    @property
    def reason(self) -> Reason:
        """Why this check prevents a pass, if it does."""
        about = "check", self.name, self.where
        return Reason(self.verdict, self.code, self.placed, *about, self.remedy)


@dataclass(frozen=True, slots=True)
class Check:
    """A check by its code and name, and the remedy if it fails; it makes its reports.

    numbers: the two that are compared, measured and expected.
    """

    code: str
    name: str
    remedy: str = ""

    def passed(
        self, message: str, where: str = "", numbers: tuple[float, float] | None = None
    ) -> CheckReport:
        """Return a report that the check passed."""
        measured, expected = map(float, numbers) if numbers else (None, None)
        return CheckReport(self.code, self.name, Verdict.PASS, message, where, measured, expected)

    def failed(
        self,
        message: str,
        where: str = "",
        numbers: tuple[float, float] | None = None,
        *,
        verdict: Verdict = Verdict.VIOLATION,
        remedy: str = "",
    ) -> CheckReport:
        """Return a report that the check failed or is undecided.

        remedy: replaces the general one.
        """
        report = replace(self.passed(message, where, numbers), verdict=verdict)
        return replace(report, remedy=remedy or self.remedy)


@dataclass(frozen=True, slots=True)
class Modes:
    """The parts of an audit: replayed data, a recorded run, an attack (its number of steps; 0:
    none).

    data_sha256: digest of what data_sha256_of names; None if there are no data, or an older version
    wrote the report.
    """

    data: str | None
    trace: str | None
    attack_steps: int
    data_sha256: str | None = None
    data_sha256_of: str | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """How much of a run its trace shows.

    steps: the number that every rank recorded. declared: the number that the run declares or, if it
    does not, the account; None if neither does. closed: whether every rank states that it came to
    its end.
    """

    steps: int
    declared: int | None
    closed: bool

    @property
    def is_whole(self) -> bool:
        """Whether the trace shows the accounted run to its end."""
        return self.closed and self.steps >= (self.declared or 0)

    def __str__(self) -> str:
        """Say, as a suffix to the word "pass", which part of the run a pass covers; "" for the
        whole run."""
        text = ""
        if self.declared is not None and self.steps < self.declared:
            text = f", of {self.steps} of {self.declared} declared steps"
        elif not self.closed:
            text = f", of {self.steps} steps"
        return text if self.closed else f"{text}; the recording was not closed"


@dataclass(frozen=True, slots=True)
class EpsilonInterval:
    """ε of a recorded run at δ: at least `lower` with that confidence, at most `upper` as claimed.

    is_certified: whether a certificate claims it, or else the settings. is_contradicted: whether a
    correct run would show this lower end only with negligible probability. example: the one whose
    gradients show it. noise: that along gradients, in stated deviations; noise_at_most: with that
    confidence; directions: the number of directions examined, in all steps. steps: recorded with
    weights and gradients, out of `releases`; each also stands for those after it. largest_step: at
    which the example moves what is released most.
    """

    lower: float
    confidence: float
    upper: float
    is_certified: bool
    is_contradicted: bool
    delta: float
    example: ExampleReference
    noise: float
    noise_at_most: float
    directions: int
    steps: int
    releases: int
    largest_step: str

    @property
    def sentence(self) -> str:
        """Both ends, the lower rounded down and the upper rounded up."""
        low, high = at_least(self.lower, 3), at_most(self.upper, 3)
        share, origin = f"{100.0 * self.confidence:g} % confidence", self.origin
        if self.is_contradicted:
            text = f"ε is at least {low} ({share}), but {high} is {origin}"
        elif self.lower > self.upper:
            text = f"ε is at most {high} ({origin}), and within chance no less (from below {low})"
        else:
            text = f"ε is between {low} ({share}) and {high} ({origin})"
        return f"{text}, at δ = {self.delta:g}"

    @property
    def origin(self) -> str:
        """The origin of the upper end."""
        return "certified" if self.is_certified else "accounted for"

    @property
    def reason(self) -> str:
        """The evidence for the lower end."""
        return (
            f"{self.example} moves what is released most at {self.largest_step}; along gradients, "
            f"in {self.directions} directions, the noise is {self.noise:.3g} times what is stated, "
            f"at most {at_most(self.noise_at_most, 3)} times; {self.steps} of {self.releases} "
            "steps are recorded in detail"
        )


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The complete result of an audit.

    model: path and SHA-256 of the ONNX file. bounds_from: "analysis", or the certificate's path.
    examples: (weights, example) pairs replayed. units, units_done: of work; if they differ the
    verdict is not a pass. reasons: why the verdict is not a pass, one sentence each, worst first.
    max_detectable_factor: a pass requires that every group's factor is within it; None: no limit.
    gates: the limits that a user set, and the numbers that they limit. usefulness: None if nothing
    is trained, or if an older version wrote the report. seconds: of replay; plain_step_ratio: over
    a plain forward and backward pass of the same batches, None if it was not measured. notes: what
    could not be checked, and why. warnings: what was bounded under assumptions that were not
    stated, or that training may break. recording: how much of a recorded run there is; None if none
    was audited, or if an older version wrote the report. epsilon: of a recorded run from below and
    above; None if it is not known.
    """

    verdict: Verdict
    model: str
    model_sha256: str
    bounds_from: str
    modes: Modes
    assumptions: Mapping[str, str]
    examples: int
    units: int
    units_done: int
    groups: tuple[GroupAudit, ...]
    values: tuple[ValueAudit, ...]
    checks: tuple[CheckReport, ...]
    reasons: tuple[str, ...]
    device: str
    dtype: str
    seconds: float
    plain_step_ratio: float | None
    notes: tuple[str, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    max_detectable_factor: float | None = None
    gates: tuple[GateResult, ...] = ()
    gradient: GradientAudit = GradientAudit()
    usefulness: Usefulness | None = None
    recording: Recording | None = None
    epsilon: EpsilonInterval | None = None

    @property
    def detectable_error_factor(self) -> float | None:
        """The factor of the group that was tested least well; None if one is not known."""
        factors = [group.detectable_error_factor for group in self.groups]
        known = [factor for factor in factors if factor is not None]
        return max(known) if known and len(known) == len(factors) else None

    @property
    def untried_groups(self) -> tuple[GroupAudit, ...]:
        """Groups whose bound could be wrong beyond the limit without being noticed."""
        limit = self.max_detectable_factor
        return () if limit is None else tuple(g for g in self.groups if _is_untried(g, limit))

    @property
    def own_reasons(self) -> Iterator[Reason]:
        """Why checks and norms prevent a pass, the worst of each first."""
        yield from (check.reason for check in self.checks if check.verdict is not Verdict.PASS)
        untried = self.untried_groups
        norms: list[GroupAudit | ValueAudit] = [*self.groups, *self.values]
        for norm in sorted(norms, key=rank):
            yield from _reasons(norm, untried=norm in untried)


def _is_untried(group: GroupAudit, limit: float) -> bool:
    if group.grad_norm_bound is None or group.violations:
        return False
    factor = group.detectable_error_factor
    return factor is None or factor > limit
