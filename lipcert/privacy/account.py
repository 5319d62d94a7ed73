"""Account: the privacy of a planned run as one record, for documents and reports.

A `Declaration` says how a run really sets its noise and how its ε was claimed; the default is that
of a correct run, which changes nothing and claims nothing. Known mistakes of private training are
diagnostics LC401 to LC406 and LC409: an error means that a claimed ε is too small or void; a
warning, that the statement is weak; an info, that noise is wasted.

Invariant: `Account.epsilon` is that of the run as it is, never of the run as it was claimed to be;
None always has an LC407. The concentrated-privacy statement (zCDP) of releases that no sampling
amplifies, ρ of one release and of the run, gives an ε by a simple conversion that is always above
that of the accountants; it is printed because papers state it.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final

from lipcert.core.arithmetic import (
    add_up,
    divide_down,
    divide_up,
    multiply_down,
    multiply_up,
    sqrt_up,
)
from lipcert.core.codec import member
from lipcert.diagnostics import Diagnostic, Level
from lipcert.errors import UsageError
from lipcert.privacy.accounting import (
    Accountant,
    accountants,
    choose,
    epsilon,
    selection_epsilon,
)
from lipcert.privacy.noise import Neighbouring, Reduction
from lipcert.privacy.plan import Sampling, SizeSource, TrainingPlan
from lipcert.privacy.selection import Law
from lipcert.settings.values import check_positive
from lipcert.text.numbers import finite

POINT_ONLY: Final = Diagnostic(
    "LC408",
    Level.WARNING,
    "",
    "the sensitivity holds only at the weights of the file, and the first step changes them",
    "compute it again before every step, or declare the constraints that training enforces",
)
"""For a run whose bounds were computed at the weights of one file."""


_CHANGE: Final = {
    Neighbouring.ADD_OR_REMOVE_ONE: "added or removed",
    Neighbouring.REPLACE_ONE: "replaced by any other",
    Neighbouring.ZERO_OUT: "left out, with its place in the batches kept empty",
}
ACCOUNTANTS: Final[Mapping[str, str]] = {
    Accountant.PLD.value: "privacy loss distributions",
    Accountant.RDP.value: "Rényi divergences",
}
_SIZE: Final = {
    SizeSource.DECLARED: "declared and public, as the rate and the number of steps are",
    SizeSource.DATA: "counted in the private data set",
}
_SAMPLING: Final = {
    Sampling.POISSON: "Poisson: each example independently with probability {share}, at every step",
    Sampling.BALLS_IN_BINS: "balls in bins: every epoch puts each example into one of its batches, "
    "uniformly and independently of all others",
    Sampling.WITHOUT_REPLACEMENT: "a uniform subset of exactly {share} examples, anew "
    "for every step",
    Sampling.SHUFFLE: "disjoint batches of {batch} in every epoch, shuffled or in fixed order: an "
    "example enters one release per epoch, and no sampling amplifies",
    Sampling.FULL_BATCH: "none: every step sees all examples",
}


class Composition(Enum):
    """How the claim counts the groups that one step noises."""

    JOINT = "joint"
    """As one release with the joint multiplier (correct)."""
    ONCE = "once"
    """As one release with the multiplier of a single group."""
    SEPARATE = "separate"
    """As separate steps, each with its own sample."""


class Divisor(Enum):
    """The number by which a mean divides."""

    CONSTANT = "constant"
    BATCH_SIZE = "batch-size"
    """The size of the current batch."""


_KINDS: Final[Mapping[str, type[Enum]]] = {
    "composition": Composition,
    "sensitivity_for": Neighbouring,
    "sensitivity_of": Reduction,
    "noise_on": Reduction,
    "divisor": Divisor,
    "claimed_sampling": Sampling,
}


@dataclass(frozen=True, slots=True)
class Declaration:
    """How the noise is set: s = σ·Δ on each of `groups` groups, with the Δ described here.

    sensitivity_for: the neighbouring relation it was computed for (None: that of the plan).
    sensitivity_of, noise_on: whether it is that of the sum or of the mean over B, and which of the
        two receives the noise.
    claimed_sampling: what the accountant was given (None: the truth).
    """

    groups: int = 1
    composition: Composition = Composition.JOINT
    sensitivity_for: Neighbouring | None = None
    sensitivity_of: Reduction = Reduction.SUM
    noise_on: Reduction = Reduction.SUM
    divisor: Divisor = Divisor.CONSTANT
    claimed_sampling: Sampling | None = None

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():  # from words, such as those of the command line
            if getattr(self, name) is not None:
                object.__setattr__(self, name, kind(getattr(self, name)))
        if self.groups < 1:
            raise UsageError(f"noised-groups: {self.groups} is not a positive number of groups")

    def relation_factor(self, plan: TrainingPlan) -> float:
        """Return the Δ that was used over the Δ of the plan's relation: ½, 1 or 2."""
        used = self.sensitivity_for or plan.neighbours
        return used.moved / plan.neighbours.moved

    def reduction_factor(self, plan: TrainingPlan) -> float:
        """Return the Δ that was used over the Δ of what is noised: 1/B, 1 or B, rounded down."""
        match self.sensitivity_of, self.noise_on:
            case Reduction.MEAN, Reduction.SUM:
                return divide_down(1.0, plan.batch)
            case Reduction.SUM, Reduction.MEAN:
                return float(plan.batch)
            case _:
                return 1.0

    def divisor_tells(self, plan: TrainingPlan) -> bool:
        """Whether the mean divides by a size that depends on who is in the batch.

        Then the scale of the noise reveals that size. Shuffled batches, batches of fixed size, and
        full ones if an example is only replaced, have the same sizes for both data sets.
        """
        if self.divisor is Divisor.CONSTANT:
            return False
        if plan.sampling is Sampling.FULL_BATCH:
            return plan.neighbours is Neighbouring.ADD_OR_REMOVE_ONE
        return plan.sampling.one_by_one

    def effective_multiplier(self, plan: TrainingPlan, noise_multiplier: float) -> float | None:
        """Return a lower bound of the multiplier of the joint release; None: no noise hides it.

        Proof: K groups with s_k = σ'·Δ_k, σ' = σ times the two factors, have the joint multiplier
        (Σ Δ_k²/s_k²)^(−1/2) = σ'/√K.
        """
        check_positive("noise-multiplier", noise_multiplier)
        if self.divisor_tells(plan):
            return None
        factor = multiply_down(self.relation_factor(plan), self.reduction_factor(plan))
        return self._joint(multiply_down(noise_multiplier, factor))

    def claimed_epsilon(self, plan: TrainingPlan, noise_multiplier: float) -> float | None:
        """Return the ε that the declared accounting claims; None if it makes no separate claim."""
        if self == Declaration(groups=self.groups):
            return None
        is_joint = self.composition is Composition.JOINT
        claimed = self._joint(noise_multiplier) if is_joint else noise_multiplier
        try:
            return epsilon(self._claimed_plan(plan), claimed)
        except UsageError:  # a claim that no accountant would make
            return None

    def _joint(self, multiplier: float) -> float:
        return divide_down(multiplier, sqrt_up(self.groups))

    def _claimed_plan(self, plan: TrainingPlan) -> TrainingPlan:
        claim = replace(
            plan,
            sampling=self.claimed_sampling or plan.sampling,
            neighbours=self.sensitivity_for or plan.neighbours,
        )
        if self.composition is Composition.SEPARATE:
            claim = claim.with_steps(claim.releases * self.groups)
        return claim


def lints(plan: TrainingPlan, declaration: Declaration) -> tuple[Diagnostic, ...]:
    """Return every mistake that can be seen, in the order of the codes."""
    drawn, claimed = plan.sampling, declaration.claimed_sampling or plan.sampling
    groups, composition = declaration.groups, declaration.composition
    factor = declaration.relation_factor(plan)
    relation, used = plan.neighbours, declaration.sensitivity_for or plan.neighbours
    reduction, noised = declaration.sensitivity_of, declaration.noise_on
    is_small = noised is Reduction.SUM
    rows = (
        (
            declaration.divisor_tells(plan),
            "LC401",
            Level.ERROR,
            "the mean divides by the size of the batch at hand, so the scale of the noise reveals "
            "that size",
            f"divide by the constant {plan.batch}",
        ),
        (
            claimed is not drawn,
            "LC402",
            Level.ERROR,
            f"batches are drawn by {drawn.value}, but accounted as {claimed.value}",
            f"draw {claimed.value} batches, or state the ε of {drawn.value}",
        ),
        (
            groups > 1 and composition is not Composition.JOINT,
            "LC403",
            Level.ERROR,
            f"{groups} groups with noise σΔ_k are counted as one release of multiplier σ"
            if composition is Composition.ONCE
            else f"{groups} groups of one sample are counted as {groups} steps with samples of "
            "their own",
            f"count one release of multiplier σ/√{groups} per step, or add √{groups} times the "
            "noise",
        ),
        (
            factor != 1.0,
            "LC404",
            Level.ERROR if factor < 1.0 else Level.INFO,
            f"the noise is set by the sensitivity for {used.value}, the statement is about "
            f"{relation.value}: the multiplier is {factor:g} times the stated one",
            f"compute the sensitivity for {relation.value}",
        ),
        (
            plan.delta * plan.dataset_size >= 1.0,
            "LC405",
            Level.WARNING,
            f"δ = {plan.delta:g} is not below 1/N = {1.0 / plan.dataset_size:g}",
            "choose a smaller δ",
        ),
        (
            reduction is not noised,
            "LC406",
            Level.ERROR if is_small else Level.INFO,
            f"the noise is on the {noised.value} and its size is that for the {reduction.value}: "
            f"{plan.batch} times too {'small' if is_small else 'large'}",
            f"use the sensitivity of the {noised.value}",
        ),
        (
            plan.size_tells,
            "LC409",
            Level.ERROR,
            "N was counted in the private data set, and under add-remove a neighbour has another: "
            "with it the rate, the divisor and the number of steps change for all examples, which "
            "no ε here covers",
            "declare N as a public constant (make_private(dataset_size=…)), or state neighbours "
            "zero-out, for which this ε holds",
        ),
    )
    return tuple(
        Diagnostic(code, level, "", message, remedy)
        for is_made, code, level, message, remedy in rows
        if is_made
    )


@dataclass(frozen=True, slots=True)
class ZeroConcentrated:
    """ρ of one release, ρ of the run, and the ε it converts to at the δ of the plan."""

    rho_per_release: float
    rho: float
    epsilon: float


def zero_concentrated(plan: TrainingPlan, noise_multiplier: float) -> ZeroConcentrated | None:
    """Return the ρ-zCDP of the run and ε = ρ + 2√(ρ ln(1/δ)).

    The result is None if batches are drawn anew for every step, or if ε overflows.

    Hypotheses: those of `accounting.epsilon`.
    Proof: a Gaussian release of multiplier σ is 1/(2σ²)-zCDP; K groups with noise σ_k·Δ_k are
    Σ 1/(2σ_k²) = 1/(2σ²) for the joint σ; the releases that one example enters add up, the
    others, on disjoint batches, cost nothing (parallel composition). Conversion: Bun and Steinke,
    Concentrated differential privacy, TCC 2016, propositions 1.3 and 1.6. −ln δ is the
    library's value, which is within one unit in the last place, raised by 2^−52 of itself.
    """
    if plan.sampling.amplifies:
        return None
    square = multiply_down(noise_multiplier, noise_multiplier)
    each = divide_up(0.5, square) if square else math.inf
    rho = multiply_up(plan.trials * plan.participations, each)
    surprise = multiply_up(-math.log(plan.delta), 1.0 + 2.0**-52)
    converted = add_up(rho, multiply_up(2.0, sqrt_up(multiply_up(rho, surprise))))
    return ZeroConcentrated(each, rho, converted) if math.isfinite(converted) else None


@dataclass(frozen=True, slots=True)
class Selection:
    """The ε of searches that do not publish all K trials; None: no finite one.

    one_trial: of a single trial. best_of: ε if only the best trial is published, by the law of the
    number of trials, whose mean is K.
    """

    one_trial: float | None
    best_of: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """States that the run, or all its trials together, are (epsilon, delta)-DP, and the conditions.

    It is the object `privacy` of documents.

    noise_multiplier: the joint one, of the whole release under the plan's relation; None if the
        noise hides nothing.
    allocation: how the noise is split among groups; None if it was not stated.
    estimates: ε by every sound accountant, the tightest first.
    poisson_epsilon: for comparison, what the same noise would cost with Poisson batches, if the
        batches are of another kind.
    claimed_epsilon: what the declared accounting would say.
    trials: how many such runs the ε covers; selection: given for several.
    statement: the assumptions, by topic.
    """

    epsilon: float | None
    delta: float
    noise_multiplier: float | None
    allocation: str | None
    sampling: str
    steps: int
    accountant: str
    neighbours: str
    dataset_size: int
    dataset_size_from: str
    batch_size: int
    sampling_rate: float | None = field(default=None, metadata=member(optional=True))
    participations: int
    estimates: Mapping[str, float | None]
    poisson_epsilon: float | None
    claimed_epsilon: float | None
    zcdp: ZeroConcentrated | None
    trials: int = field(default=1, metadata=member(optional=True))
    selection: Selection | None = field(default=None, metadata=member(optional=True))
    statement: Mapping[str, str]
    diagnostics: tuple[Diagnostic, ...] = field(
        default=(), compare=False, metadata=member(apart=True)
    )

    @property
    def plan(self) -> TrainingPlan | None:
        """The plan of the run; None if this version has no account of it."""
        return plan_of(asdict(self))


def plan_of(run: Mapping[str, Any]) -> TrainingPlan | None:
    """Return the plan of a run in a document; None if this version has no account of it."""
    try:
        return TrainingPlan.described(run)
    except (UsageError, ValueError):
        return None


def account_for(
    plan: TrainingPlan,
    noise_multiplier: float,
    accountant: Accountant | None = None,
    declaration: Declaration | None = None,
    allocation: str | None = None,
) -> Account:
    """Return the account of a run whose noise is set by `noise_multiplier` as declared.

    If no accountant is given, the first with a finite answer is used: e^ε overflows in PLD above
    ε = 700.
    """
    declared = declaration or Declaration()
    chosen = choose(plan, accountant)
    effective = declared.effective_multiplier(plan, noise_multiplier)
    sigma = effective or None
    estimates = {
        way: None if sigma is None else finite(epsilon(plan, sigma, way))
        for way in accountants(plan)
    }
    known = (
        (way, found)
        for way, found in estimates.items()
        if found is not None and accountant in {None, way}
    )
    best, found = next(known, (chosen, None))
    return Account(
        epsilon=found,
        delta=plan.delta,
        noise_multiplier=sigma,
        allocation=allocation,
        sampling=plan.sampling.value,
        steps=plan.releases,
        accountant=best.value,
        neighbours=plan.neighbours.value,
        dataset_size=plan.dataset_size,
        dataset_size_from=plan.dataset_size_from.value,
        batch_size=plan.batch,
        sampling_rate=plan.rate,
        participations=plan.participations,
        estimates={way.value: own for way, own in estimates.items()},
        poisson_epsilon=None if sigma is None else _poisson_epsilon(plan, sigma),
        claimed_epsilon=finite(declared.claimed_epsilon(plan, noise_multiplier)),
        zcdp=None if sigma is None else zero_concentrated(plan, sigma),
        trials=plan.trials,
        selection=None if sigma is None else _selection(plan, sigma),
        statement=_statement(plan, declared, sigma, best),
        diagnostics=(*lints(plan, declared), *_unbounded(found)),
    )


def _selection(plan: TrainingPlan, sigma: float) -> Selection | None:
    if plan.trials == 1:
        return None
    return Selection(
        one_trial=finite(epsilon(replace(plan, trials=1), sigma)),
        best_of={law.value: selection_epsilon(plan, sigma, law) for law in Law},
    )


def _poisson_epsilon(plan: TrainingPlan, sigma: float) -> float | None:
    """Return ε for the same number of steps with Poisson batches, by the tightest accountant."""
    if plan.sampling in {Sampling.POISSON, Sampling.FULL_BATCH}:
        return None
    poisson = replace(plan.with_steps(plan.releases), sampling=Sampling.POISSON)
    return finite(epsilon(poisson, sigma)) if accountants(poisson) else None


def _unbounded(found: float | None) -> tuple[Diagnostic, ...]:
    if found is not None:
        return ()
    return (
        Diagnostic(
            "LC407",
            Level.ERROR,
            "",
            "the run has no finite ε at this δ",
            "repair what the other findings name, or raise the noise multiplier",
        ),
    )


def _statement(
    plan: TrainingPlan, declared: Declaration, sigma: float | None, accountant: Accountant
) -> Mapping[str, str]:
    """Return everything the ε is conditional on."""
    divisor = f"a mean divides by the public constant {plan.batch}; a sum by nothing"
    if declared.divisor is Divisor.BATCH_SIZE:
        divisor = "a mean divides by the size of the batch at hand"
    steps = f"{plan.releases} steps"
    if plan.sampling.by_epoch:
        steps += f"; one example takes part in {plan.participations} of them at most"
    trials, chosen = {}, " (selection of hyperparameters included)"
    if plan.trials > 1:
        chosen = ""
        steps = f"in each trial {steps}"
        trials["trials"] = (
            f"{plan.trials}, each with batches and noise of its own, of which none costs more than "
            "the one described, at any δ; all may be published, and each may be chosen after "
            "looking at those before"
        )
    return {
        "unit": f"one of N = {plan.dataset_size} examples, {_SIZE[plan.dataset_size_from]}",
        "neighbours": f"one example is {_CHANGE[plan.neighbours]} ({plan.neighbours.value})",
        "sampling": _sampling_text(plan),
        "divisor": divisor,
        "noise": _noise_text(plan, sigma),
        "releases": steps,
        **trials,
        "accountant": f"{ACCOUNTANTS[accountant.value]}, by {_accounted_by(plan)}",
        "assumed": "every release has sensitivity Δ or less; noise is drawn exactly and "
        f"independently; {'batches stay secret; ' if plan.sampling.amplifies else ''}"
        f"nothing else about the data is published{chosen}",
    }


def _accounted_by(plan: TrainingPlan) -> str:
    own = plan.sampling is Sampling.BALLS_IN_BINS
    return "LipCert's checker" if own else "dp-accounting"


def _sampling_text(plan: TrainingPlan) -> str:
    share = f"{plan.batch} of {plan.dataset_size}"
    if plan.rate is not None:
        share = f"{plan.rate:.9g} (stated; {share} is {plan.batch / plan.dataset_size:.9g})"
    return _SAMPLING[plan.sampling].format(share=share, batch=plan.batch)


def _noise_text(plan: TrainingPlan, sigma: float | None) -> str:
    if sigma is None:
        return "no multiplier describes it"
    delta = "2G" if plan.neighbours is Neighbouring.REPLACE_ONE else "G"
    return (
        f"Gaussian, joint multiplier σ = {sigma:.12g}: deviation σ·Δ on a release of "
        f"sensitivity Δ = {delta} (sum) for gradients of norm G"
    )
