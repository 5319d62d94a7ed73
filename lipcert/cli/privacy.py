"""`lipcert privacy`: compute σ → ε, ε → σ and ε → steps of a planned run, and curves of ε.

The run is given in numbers, partly read from an analysis. Where both state the same thing they must
agree, because the noise of the analysis was computed for what the analysis states.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import click

from lipcert.cli import paths
from lipcert.cli.options import given as stated
from lipcert.cli.options import help_of, knob_option, output_options, together
from lipcert.cli.output import Output
from lipcert.cli.sources import KNOBS, effective_settings, find_file, from_command_line
from lipcert.diagnostics import Level
from lipcert.errors import ExitCode, NoVerdictError, UsageError
from lipcert.process.progress import ProgressReport
from lipcert.settings.settings import CHOICES
from lipcert.settings.values import asks_of_run, check_choice, listed

if TYPE_CHECKING:
    from lipcert.analysis.records import Analysis
    from lipcert.diagnostics import Diagnostic
    from lipcert.privacy.accounting import CurvePoint
    from lipcert.report.privacy import PrivacyReport

_POINTS: Final = 16
_CURVES: Final = ("steps", "noise-multiplier")
_DRAWN: Final = (
    "dataset_size",
    "dataset_size_from",
    "batch_size",
    "sampling",
    "sampling_rate",
    "trials",
    "delta",
)
"""The fields, besides its length, with which an analysis describes its run."""
_CIRCUMSTANCES: Final = (*_DRAWN, "neighbours", "accountant")
_QUANTITIES: Final = ("steps", "epochs", "noise_multiplier", "target_epsilon")
_KNOWN: Final = frozenset((*_CIRCUMSTANCES, *_QUANTITIES))
_TEXTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "batch_size": "Examples of a batch (expected number).",
        "dataset_size": "Number of examples.",
        "noise_multiplier": "σ = noise deviation / sensitivity.",
        "target_epsilon": "The ε to be met.",
    }
)
"""Help of options that have another one elsewhere."""
_REDUCTIONS: Final = ("sum", "mean")


def _declared(spelling: str, field: str, text: str, choices: tuple[str, ...] = ()) -> Any:
    """Return an option that is a field of a `Declaration`."""
    kind, metavar = (click.Choice(choices), None) if choices else (int, "K")
    names = (spelling, field)
    return click.option(*names, type=kind, metavar=metavar, help=f"Declare: {text}")


_DECLARED: Final = (
    _declared("--noised-groups", "groups", "each of K groups has noise σΔ_k."),
    _declared("--composition", "composition", "how these groups are counted.  [joint]",
              ("joint", "once", "separate")),
    _declared("--sensitivity-for", "sensitivity_for", "the relation of the sensitivity.",
              CHOICES["neighbours"]),
    _declared("--sensitivity-of", "sensitivity_of", "what the sensitivity is of.  [sum]",
              _REDUCTIONS),
    _declared("--noise-on", "noise_on", "what the noise is added to.  [sum]", _REDUCTIONS),
    _declared("--divisor", "divisor", "what a mean divides by.  [constant]",
              ("constant", "batch-size")),
    _declared("--claim-sampling", "claimed_sampling", "what the accountant assumed.",
              CHOICES["sampling"]),
)  # fmt: skip
_OPTIONS: Final = tuple(
    knob_option(knob, _TEXTS.get(knob.field) or help_of(knob))
    for knob in KNOBS
    if knob.field in _KNOWN
)


@click.command("privacy")
@click.argument("analysis", type=paths.FILE, required=False)
@together([*_OPTIONS, *_DECLARED])
@click.option("--curve", "curves", type=click.Choice(_CURVES), multiple=True, help="ε over this.")
@output_options("text", "json", "csv", progress=True, color=True)
@click.pass_context
def privacy(
    context: click.Context,
    /,
    *,
    analysis: Path | None,
    curves: tuple[str, ...],
    result: Output,
    **words: object,
) -> ExitCode:
    """Account for the privacy of a run; ANALYSIS is a file of `lipcert analyze --format json`.

    Give two of noise multiplier, length (--steps or --epochs) and --target-epsilon: the third is
    computed. Exits with 1 if a declared accounting claims too small an ε, with 3 if no finite ε
    can be stated.
    """
    result.require_writable([analysis])
    given = _read_run(stated(context))
    found = () if analysis is None else _take_over(given, analysis)
    settings = effective_settings({}, os.environ, find_file(Path.cwd())).settings
    _fill(given, {key: getattr(settings, key) for key in _KNOWN})
    declared = {name: x for name, x in words.items() if x is not None and name not in _KNOWN}
    with ProgressReport(result.progress) as shown:
        report = _solve(given, declared, curves, found, shown)
    from lipcert.report.privacy import privacy_csv, privacy_document, privacy_json

    result.show(privacy_document, report, json=privacy_json, csv=privacy_csv)
    return _outcome(report)


def _solve(
    given: Mapping[str, Any],
    declared: Mapping[str, Any],
    curves: tuple[str, ...],
    found: tuple[Diagnostic, ...],
    shown: ProgressReport,
) -> PrivacyReport:
    """Compute what is missing.

    given: the run, by the names of settings. declared: how its noise is set or claimed, if the user
    declared it. found: diagnostics about the analysis that was read.
    """
    from lipcert.privacy.account import Declaration, account_for
    from lipcert.privacy.accounting import (
        CURVES,
        accountant_named,
        noise_for_epsilon,
        steps_for_epsilon,
    )
    from lipcert.privacy.plan import TrainingPlan
    from lipcert.report.privacy import PrivacyReport

    solved_for = _asked(given)
    steps = 1 if solved_for == "steps" else None
    plan, declaration = TrainingPlan.described({"steps": steps, **given}), Declaration(**declared)
    wanted = accountant_named(given.get("accountant"))
    sigma, target = given.get("noise_multiplier", 0.0), given.get("target_epsilon", 0.0)
    if solved_for == "noise_multiplier":
        if declared:
            raise UsageError(
                "target-epsilon: how the noise is set and claimed can be judged for a noise "
                "multiplier only; give --noise-multiplier instead"
            )
        sigma = noise_for_epsilon(plan, target, wanted).noise_multiplier
    elif solved_for == "steps":
        effective = declaration.effective_multiplier(plan, sigma)
        if effective is not None:
            plan = plan.with_steps(steps_for_epsilon(plan, effective, target, wanted).steps)
    account = account_for(plan, sigma, wanted, declaration, given.get("allocation"))
    account = replace(account, diagnostics=(*account.diagnostics, *found))
    drawn: dict[str, tuple[CurvePoint, ...]] = {}
    for name in dict.fromkeys(curves):
        drawn[name] = ()
        total = min(_POINTS, plan.releases) if name == "steps" else _POINTS + 1
        sigma = account.noise_multiplier
        for point in () if sigma is None else CURVES[name](plan, sigma, _POINTS, wanted):
            drawn[name] += (point,)
            shown.observe(f"ε over {name}", len(drawn[name]), total)
    return PrivacyReport(solved_for, account, drawn, account.diagnostics)


def _asked(given: Mapping[str, object]) -> str:
    """Return the one of noise, length and ε that was not given."""
    known = {
        "noise_multiplier": "noise_multiplier" in given,
        "steps": _has_length(given),
        "epsilon": "target_epsilon" in given,
    }
    missing = [name for name, is_given in known.items() if not is_given]
    if len(missing) != 1:
        more = listed(asks_of_run({"steps": 1, **given}))
        raise UsageError(
            "privacy: give two of --noise-multiplier, --steps (or --epochs) and "
            f"--target-epsilon; the third is computed{more and '. Also missing: ' + more}"
        )
    return missing[0]


def _outcome(report: PrivacyReport) -> ExitCode:
    if any(item.level is Level.ERROR and item.code != "LC407" for item in report.diagnostics):
        return ExitCode.NEGATIVE
    return ExitCode.NO_VERDICT if report.privacy.epsilon is None else ExitCode.HOLDS


def _read_run(given: Mapping[str, object]) -> dict[str, Any]:
    """Return the values of options that are also settings, by the names of fields."""
    found = {key.replace("-", "_"): value for key, value in from_command_line(given).items()}
    for name, value in found.items():
        if name in CHOICES:
            check_choice(name.replace("_", "-"), value, CHOICES[name])
    return found


def _fill(given: dict[str, Any], known: Mapping[str, object]) -> None:
    """Fill in what was not given; of length, noise and ε two at most."""
    for key in _CIRCUMSTANCES:
        if known.get(key) is not None:
            given.setdefault(key, known[key])
    for key in _QUANTITIES:
        has_length = _has_length(given)
        answered = has_length + ("noise_multiplier" in given) + ("target_epsilon" in given)
        is_length = key in {"steps", "epochs"}
        if known.get(key) is not None and answered < 2 and not (is_length and has_length):
            given.setdefault(key, known[key])


def _has_length(given: Mapping[str, object]) -> bool:
    return "steps" in given or "epochs" in given


def _take_over(given: dict[str, Any], analysis: Path) -> tuple[Diagnostic, ...]:
    """Fill gaps from an analysis; return a diagnostic if its bounds hold at its weights only."""
    from lipcert.privacy.account import POINT_ONLY
    from lipcert.report.sources import ANALYSIS, read_source

    _, document = paths.read_json(analysis)
    if document.get("schema") != ANALYSIS:
        raise NoVerdictError(
            f"{analysis}: not a result of `lipcert analyze MODEL --format json` ({ANALYSIS})"
        )
    found: Analysis = read_source(str(analysis), document).record
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
    if given.get("target_epsilon") is None or not _has_length(given):
        given.setdefault("noise_multiplier", assumed.noise_multiplier)
    given["allocation"] = assumed.allocation
    if run is not None:
        described = {key: getattr(run, key) for key in (*_DRAWN, "steps")}
        if given.get("sampling", run.sampling) != run.sampling:
            described.pop("sampling_rate")
        _fill(given, described)
    is_of_point = assumed.scope == "point" and not assumed.is_stepwise
    return (POINT_ONLY,) if is_of_point else ()
