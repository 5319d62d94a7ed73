"""`lipcert privacy`: σ → ε, ε → σ and ε → steps of a planned run, and curves of ε.

The run is given in numbers, partly read from an analysis. Where both say something of the same
thing they must agree, because the noise of the analysis was computed for what the analysis says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, final

import click

from lipcert.cli import paths
from lipcert.cli.knobs import KNOBS
from lipcert.cli.options import (
    chosen_settings,
    help_of,
    knob_option,
    option,
    output_options,
    together,
)
from lipcert.cli.options import given as stated
from lipcert.cli.output import Output
from lipcert.cli.sources import from_command_line
from lipcert.diagnostics import Level
from lipcert.errors import ExitCode, NoVerdictError, UsageError
from lipcert.settings.settings import CHOICES
from lipcert.settings.values import asks_of_run, check_choice, listed

if TYPE_CHECKING:
    from lipcert.analysis.records import Analysis
    from lipcert.diagnostics import Diagnostic
    from lipcert.privacy.account import Account, Declaration
    from lipcert.privacy.accounting import Accountant, CurvePoint
    from lipcert.privacy.plan import TrainingPlan
    from lipcert.report.privacy import PrivacyReport

_POINTS: Final = 16
_CURVES: Final = ("steps", "noise-multiplier")
_RUN_KEY: Final = "lipcert.run"
_DECLARED_KEY: Final = "lipcert.declared"
_CIRCUMSTANCES: Final = (
    "dataset_size",
    "dataset_size_from",
    "batch_size",
    "sampling",
    "sampling_rate",
    "trials",
    "delta",
    "neighbours",
    "accountant",
)
_QUANTITIES: Final = ("steps", "epochs", "noise_multiplier", "target_epsilon")
_DESCRIBED: Final = (
    *("dataset_size", "dataset_size_from", "batch_size"),
    *("sampling", "sampling_rate", "trials", "delta", "steps"),
)
"""what an analysis says of its run"""
_TEXTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "batch_size": "Examples of a batch (expected number).",
        "dataset_size": "Number of examples.",
        "noise_multiplier": "σ = noise deviation / sensitivity.",
        "target_epsilon": "The ε to be met.",
    }
)
"""of options that say something else elsewhere"""
_REDUCTIONS: Final = ("sum", "mean")


def _declare(context: click.Context, parameter: click.Parameter, value: object) -> None:
    if value is not None:
        context.meta.setdefault(_DECLARED_KEY, {})[parameter.name] = value


def _declared(spelling: str, text: str, choices: tuple[str, ...] = ()) -> Any:
    kind = click.Choice(choices) if choices else int
    metavar = None if choices else "K"
    text = f"Declare: {text}"
    return option(spelling, text, metavar, type=kind, expose_value=False, callback=_declare)


_OPTIONS: Final = (
    *(
        knob_option(knob, _TEXTS.get(knob.field) or help_of(knob), _RUN_KEY)
        for knob in KNOBS
        if knob.field in {*_CIRCUMSTANCES, *_QUANTITIES}
    ),
    _declared("--noised-groups", "each of K groups has noise σΔ_k."),
    _declared("--composition", "how these groups are counted.  [joint]",
              ("joint", "once", "separate")),
    _declared("--sensitivity-for", "the relation of the sensitivity.", CHOICES["neighbours"]),
    _declared("--sensitivity-of", "what the sensitivity is of.  [sum]", _REDUCTIONS),
    _declared("--noise-on", "what the noise is added to.  [sum]", _REDUCTIONS),
    _declared("--divisor", "what a mean divides by.  [constant]", ("constant", "batch-size")),
    _declared("--claim-sampling", "what the accountant assumed.", CHOICES["sampling"]),
)  # fmt: skip


@click.command("privacy")
@click.argument("analysis", type=paths.FILE, required=False)
@together(_OPTIONS)
@click.option("--curve", "curves", type=click.Choice(_CURVES), multiple=True, help="ε over this.")
@output_options("text", "json", "csv", color=True)
@click.pass_context
def command(
    context: click.Context,
    *,
    analysis: Path | None,
    curves: tuple[str, ...],
    result: Output,
) -> ExitCode:
    """Account for the privacy of a run; ANALYSIS is a file of `lipcert analyze --format json`.

    Give two of noise multiplier, length (--steps or --epochs) and --target-epsilon: the third is
    computed. Exits with 1 when a declared accounting claims too small an ε, with 3 when no finite
    ε can be stated.
    """
    result.require_writable([analysis])
    report = _solve(_RunOptions.of(context, analysis), curves)
    from lipcert.report.privacy import privacy_csv, privacy_document, privacy_json

    result.show(privacy_document, report, json=privacy_json, csv=privacy_csv)
    return _outcome(report)


def _solve(options: _RunOptions, curves: tuple[str, ...]) -> PrivacyReport:
    from lipcert.privacy.account import account_for
    from lipcert.privacy.accounting import accountant_named, noise_for_epsilon, steps_for_epsilon
    from lipcert.report.privacy import PrivacyReport

    wanted = accountant_named(options.accountant)
    plan, declaration, sigma = options.plan(), options.declaration(), options.noise_multiplier
    solved_for = options.solved_for
    if solved_for == "noise_multiplier":
        if options.declared:
            raise UsageError(
                "target-epsilon: how the noise is set and claimed can be judged for a noise "
                "multiplier only; give --noise-multiplier instead"
            )
        sigma = noise_for_epsilon(plan, options.target, wanted).noise_multiplier
    elif solved_for == "steps":
        effective = declaration.effective_multiplier(plan, sigma)
        if effective is not None:
            point = steps_for_epsilon(plan, effective, options.target, wanted)
            plan = plan.with_steps(point.steps)
    account = account_for(plan, sigma, wanted, declaration, options.allocation)
    account = replace(account, diagnostics=(*account.diagnostics, *options.findings()))
    drawn = {name: _curve(name, plan, account, wanted) for name in dict.fromkeys(curves)}
    return PrivacyReport(solved_for, account, drawn, account.diagnostics)


def _curve(
    name: str, plan: TrainingPlan, account: Account, wanted: Accountant | None
) -> tuple[CurvePoint, ...]:
    from lipcert.privacy.accounting import epsilon_over_noise, epsilon_over_steps

    sigma = account.noise_multiplier
    if sigma is None:
        return ()
    if name == "steps":
        return epsilon_over_steps(plan, sigma, _POINTS, wanted)
    around = [sigma * 2.0 ** ((2 * k - _POINTS) / _POINTS) for k in range(_POINTS + 1)]
    return epsilon_over_noise(plan, around, wanted)


def _outcome(report: PrivacyReport) -> ExitCode:
    too_small = any(
        finding.level is Level.ERROR and finding.code != "LC407" for finding in report.diagnostics
    )
    if too_small:
        return ExitCode.NEGATIVE
    return ExitCode.NO_VERDICT if report.privacy.epsilon is None else ExitCode.HOLDS


def _read_run(given: Mapping[str, object]) -> dict[str, Any]:
    """The values of the options that settings have too, by the names of fields."""
    found = {key.replace("-", "_"): value for key, value in from_command_line(given).items()}
    for name, value in found.items():
        if name in CHOICES:
            check_choice(name.replace("_", "-"), value, CHOICES[name])
    return found


def _fill(given: dict[str, Any], known: Mapping[str, object]) -> None:
    """Take over what was not given; of length, noise and ε only as much as leaves a question."""
    for key in _CIRCUMSTANCES:
        if known.get(key) is not None:
            given.setdefault(key, known[key])
    for key in _QUANTITIES:
        has_length = "steps" in given or "epochs" in given
        answered = has_length + ("noise_multiplier" in given) + ("target_epsilon" in given)
        is_length = key in {"steps", "epochs"}
        if known.get(key) is not None and answered < 2 and not (is_length and has_length):
            given.setdefault(key, known[key])


@final
@dataclass(frozen=True, slots=True)
class _RunOptions:
    """What was given, by the names of the options; the analysis fills gaps.

    declared: how the noise is set or claimed, as far as the user said.
    """

    given: Mapping[str, Any]
    declared: Mapping[str, Any]
    point_only: bool

    @classmethod
    def of(cls, context: click.Context, analysis: Path | None) -> _RunOptions:
        """The run, from the command line, the analysis if there is one, and then the settings."""
        given = _read_run(stated(context, _RUN_KEY))
        point_only = analysis is not None and cls._read(given, analysis)
        settings = chosen_settings(context).settings
        _fill(given, {key: getattr(settings, key) for key in (*_CIRCUMSTANCES, *_QUANTITIES)})
        return cls(given, stated(context, _DECLARED_KEY), point_only)

    @classmethod
    def _read(cls, given: dict[str, Any], analysis: Path) -> bool:
        """Fill gaps from an analysis; whether its bounds hold at the weights of its file only."""
        from lipcert.report.statements import is_stepwise

        found = _read_analysis(analysis)
        assumed, run = found.assumptions, found.privacy
        if found.network.sensitivity is None:
            raise NoVerdictError(
                f"{analysis}: the analysis found no finite sensitivity, so no noise is enough; "
                "its diagnostics say why"
            )
        for key, value in (("neighbours", assumed.neighbours), ("batch_size", assumed.batch_size)):
            if value is not None and given.setdefault(key, value) != value:
                raise UsageError(
                    f"{key.replace('_', '-')}: the noise of {analysis} was computed for {value}, "
                    f"not for {given[key]}; analyse again or leave it out"
                )
        if given.get("target_epsilon") is None or not cls._has_length(given):
            given.setdefault("noise_multiplier", assumed.noise_multiplier)
        given["allocation"] = assumed.allocation
        if run is not None:
            described = {key: getattr(run, key) for key in _DESCRIBED}
            if given.get("sampling", run.sampling) != run.sampling:
                described.pop("sampling_rate")
            _fill(given, described)
        return assumed.scope == "point" and not is_stepwise(assumed.mechanism)

    @property
    def accountant(self) -> str:
        """The accountant: auto, pld or rdp."""
        return str(self.given.get("accountant", "auto"))

    @property
    def allocation(self) -> str | None:
        """How an analysis split the noise."""
        return self.given.get("allocation")

    @property
    def noise_multiplier(self) -> float:
        """σ as given; meaningless where it is solved for."""
        return float(self.given.get("noise_multiplier", 0.0))

    @property
    def target(self) -> float:
        """The ε to be met."""
        return float(self.given["target_epsilon"])

    @property
    def solved_for(self) -> str:
        """The one of the three that was not given."""
        known = {
            "noise_multiplier": "noise_multiplier" in self.given,
            "steps": self._has_length(self.given),
            "epsilon": "target_epsilon" in self.given,
        }
        missing = [name for name, is_given in known.items() if not is_given]
        if len(missing) != 1:
            more = listed(asks_of_run({"steps": 1, **self.given}))
            raise UsageError(
                "privacy: give two of --noise-multiplier, --steps (or --epochs) and "
                f"--target-epsilon; the third is computed{more and '. Also missing: ' + more}"
            )
        return missing[0]

    def plan(self) -> TrainingPlan:
        """The plan; of one step where the steps are solved for."""
        from lipcert.privacy.plan import TrainingPlan

        one_step = 1 if self.solved_for == "steps" else None
        return TrainingPlan.described({"steps": one_step, **self.given})

    def declaration(self) -> Declaration:
        """How the noise is set and claimed, as far as the user said."""
        from lipcert.privacy.account import Composition, Declaration, Divisor
        from lipcert.privacy.noise import Neighbouring, Reduction
        from lipcert.privacy.plan import Sampling

        said = self.declared
        relation = said.get("sensitivity_for")
        claimed = said.get("claim_sampling")
        return Declaration(
            groups=said.get("noised_groups", 1),
            composition=Composition(said.get("composition", "joint")),
            sensitivity_for=Neighbouring(relation) if relation else None,
            sensitivity_of=Reduction(said.get("sensitivity_of", "sum")),
            noise_on=Reduction(said.get("noise_on", "sum")),
            divisor=Divisor(said.get("divisor", "constant")),
            claimed_sampling=Sampling(claimed) if claimed else None,
        )

    def findings(self) -> tuple[Diagnostic, ...]:
        """What is to be said of the analysis as a source."""
        from lipcert.privacy.account import POINT_ONLY

        return (POINT_ONLY,) if self.point_only else ()

    @staticmethod
    def _has_length(given: Mapping[str, object]) -> bool:
        return "steps" in given or "epochs" in given


def _read_analysis(path: Path) -> Analysis:
    """The analysis in a file and the run that it describes; NoVerdictError where it is none."""
    from lipcert.report.json import FieldError
    from lipcert.report.sources import ANALYSIS, read_analysis

    _, document = paths.read_json(path)
    if document.get("schema") != ANALYSIS:
        raise NoVerdictError(
            f"{path}: not a result of `lipcert analyze --format json` ({ANALYSIS})"
        )
    try:
        return read_analysis(document)
    except FieldError as error:
        raise NoVerdictError(
            f"{path}: not a complete analysis ({error}); write it again"
        ) from error
