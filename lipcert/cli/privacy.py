"""`lipcert privacy`: σ → ε, ε → σ and ε → steps of a planned run, and curves of ε."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from lipcert.cli import paths
from lipcert.cli.exit_codes import ExitCode
from lipcert.cli.options import color_option, format_option, out_option
from lipcert.cli.output import text_width, use_color, write
from lipcert.cli.privacy_options import RunOptions, run_options
from lipcert.diagnostics import Level
from lipcert.errors import UsageError
from lipcert.report.formats import document_text

if TYPE_CHECKING:
    from lipcert.privacy.account import Account
    from lipcert.privacy.accounting import Accountant, CurvePoint
    from lipcert.privacy.plan import TrainingPlan
    from lipcert.report.privacy import PrivacyReport

_POINTS: Final = 16
_CURVES: Final = ("steps", "noise-multiplier")


@click.command("privacy")
@click.argument("analysis", type=paths.FILE, required=False)
@run_options
@click.option("--curve", "curves", type=click.Choice(_CURVES), multiple=True, help="ε over this.")
@format_option("text", "json", "csv")
@out_option
@color_option
@click.pass_context
def command(
    context: click.Context,
    *,
    analysis: Path | None,
    curves: tuple[str, ...],
    output_format: str,
    out_file: Path | None,
    color: str,
) -> ExitCode:
    """Account for the privacy of a run; ANALYSIS is a file of `lipcert analyze --format json`.

    Give two of noise multiplier, length (--steps or --epochs) and --target-epsilon: the third is
    computed. Leaves with 1 when a declared accounting claims too small an ε, with 3 when no finite
    ε can be stated.
    """
    paths.require_writable([out_file], [analysis])
    options = RunOptions.of(context, analysis)
    report = _solve(options, curves)
    colored = out_file is None and use_color(color)
    write(_rendered(report, output_format, colored), out_file)
    return _outcome(report.account)


def _solve(options: RunOptions, curves: tuple[str, ...]) -> PrivacyReport:
    from lipcert.privacy.account import account_for
    from lipcert.privacy.accounting import accountant_named, noise_for_epsilon, steps_for_epsilon
    from lipcert.report.privacy import PrivacyReport

    wanted = accountant_named(options.accountant)
    plan, declaration, sigma = options.plan(), options.declaration(), options.noise_multiplier
    solved_for = options.solved_for
    if solved_for == "noise_multiplier":
        if options.declares:
            raise UsageError(
                "target-epsilon: how the noise is set and claimed can be judged for a noise "
                "multiplier only; give --noise-multiplier instead"
            )
        sigma = noise_for_epsilon(plan, options.target, wanted).noise_multiplier
    elif solved_for == "steps":
        effective = declaration.effective_multiplier(plan, sigma)
        if effective is not None:
            point = steps_for_epsilon(plan, effective.value, options.target, wanted)
            plan = plan.with_steps(point.steps)
    account = account_for(plan, sigma, wanted, declaration)
    account = replace(account, diagnostics=(*account.diagnostics, *options.findings()))
    drawn = {name: _curve(name, plan, account, wanted) for name in dict.fromkeys(curves)}
    return PrivacyReport(account, solved_for, options.allocation, drawn)


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


def _outcome(account: Account) -> ExitCode:
    too_small = any(
        finding.level is Level.ERROR and finding.code != "LC407" for finding in account.diagnostics
    )
    if too_small:
        return ExitCode.NEGATIVE
    return ExitCode.NO_VERDICT if account.epsilon is None else ExitCode.HOLDS


def _rendered(report: PrivacyReport, output_format: str, color: bool) -> str:
    from lipcert.report.privacy import privacy_csv, privacy_document, privacy_json

    match output_format:
        case "json":
            return privacy_json(report)
        case "csv":
            return privacy_csv(report)
    document = privacy_document(report)
    return document_text(document, output_format, width=text_width(), color=color)
