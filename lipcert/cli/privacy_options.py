"""Options of `lipcert privacy`: a run in numbers, partly read from an analysis.

What enters: the command line and, where given, the JSON of an analysis. What leaves: a plan, a
declaration, and what is to be solved for. Invariant: where both sources speak of the same thing
they must agree, because the noise of the analysis was computed for what the analysis says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import click

from lipcert.cli.knobs import rate
from lipcert.cli.options import chosen_settings
from lipcert.errors import NoVerdictError, UsageError
from lipcert.settings.lacking import asks_of_run, listed
from lipcert.settings.settings import CHOICES

if TYPE_CHECKING:
    from lipcert.diagnostics import Diagnostic
    from lipcert.privacy.declaration import Declaration
    from lipcert.privacy.plan import TrainingPlan

_Command = TypeVar("_Command", bound=Callable[..., object])
_KEY: Final = "lipcert.run"
_SAMPLINGS: Final = click.Choice(CHOICES["sampling"])
_RELATIONS: Final = click.Choice(CHOICES["neighbours"])
_ACCOUNTANTS: Final = click.Choice(CHOICES["accountant"])
_SIZES: Final = click.Choice(CHOICES["dataset_size_from"])
_RATE: Final = click.UNPROCESSED
_COMPOSITIONS: Final = click.Choice(["joint", "once", "separate"])
_DIVISORS: Final = click.Choice(["constant", "batch-size"])
_REDUCTIONS: Final = click.Choice(["sum", "mean"])
_CIRCUMSTANCES: Final = (
    "dataset_size",
    "dataset_size_from",
    "batch_size",
    "sampling",
    "sampling_rate",
    "delta",
    "neighbours",
    "accountant",
)
_QUANTITIES: Final = ("steps", "epochs", "noise_multiplier", "target_epsilon")
_DECLARED: Final = (
    "noised_groups",
    "composition",
    "sensitivity_for",
    "sensitivity_of",
    "noise_on",
    "divisor",
    "claim_sampling",
)


def _remember(context: click.Context, parameter: click.Parameter, value: object) -> None:
    if value is not None and parameter.name == "sampling_rate":
        value = rate(value)
    if value is not None and parameter.name is not None:
        context.meta.setdefault(_KEY, {})[parameter.name] = value


def _option(name: str, kind: Any, text: str, metavar: str | None = None) -> Callable[[Any], Any]:
    return click.option(
        name, type=kind, metavar=metavar, help=text, expose_value=False, callback=_remember
    )


_OPTIONS: Final = (
    _option("--noise-multiplier", float, "σ = noise deviation / sensitivity.", "S"),
    _option("--target-epsilon", float, "The ε to be met.", "E"),
    _option("--delta", float, "δ of the statement; below 1/N.", "D"),
    _option("--dataset-size", int, "Number of examples.", "N"),
    _option("--dataset-size-from", _SIZES, "Whether N is a public constant.  [declared]"),
    _option("--batch-size", int, "Examples of a batch (expected number).", "B"),
    _option("--steps", int, "Number of releases.", "T"),
    _option("--epochs", float, "Passes over the data.", "E"),
    _option("--sampling", _SAMPLINGS, "How batches are really drawn."),
    _option("--sampling-rate", _RATE, "Of Poisson batches, where it is not B/N: 1/45, say.", "Q"),
    _option("--neighbours", _RELATIONS, "Which data sets count as neighbours.  [add-remove]"),
    _option("--accountant", _ACCOUNTANTS, "auto: the tightest that is sound.  [auto]"),
    _option("--noised-groups", int, "Declare: each of K groups has noise σΔ_k.", "K"),
    _option("--composition", _COMPOSITIONS, "Declare: how these groups are counted.  [joint]"),
    _option("--sensitivity-for", _RELATIONS, "Declare: the relation of the sensitivity."),
    _option("--sensitivity-of", _REDUCTIONS, "Declare: what the sensitivity is of.  [sum]"),
    _option("--noise-on", _REDUCTIONS, "Declare: what the noise is added to.  [sum]"),
    _option("--divisor", _DIVISORS, "Declare: what a mean divides by.  [constant]"),
    _option("--claim-sampling", _SAMPLINGS, "Declare: what the accountant was told."),
)


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


def run_options(command: _Command) -> _Command:
    """Add the options of a run; read them with `RunOptions.of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@final
@dataclass(frozen=True, slots=True)
class RunOptions:
    """What was given, by the names of the options; the analysis fills gaps."""

    given: Mapping[str, Any]
    point_only: bool = False

    @classmethod
    def of(cls, context: click.Context, analysis: Path | None) -> RunOptions:
        """From the command line, the analysis where there is one, and then the settings."""
        given: dict[str, Any] = dict(context.meta.get(_KEY, {}))
        point_only = analysis is not None and cls._read(given, analysis)
        settings = chosen_settings(context).settings
        _fill(given, {key: getattr(settings, key) for key in (*_CIRCUMSTANCES, *_QUANTITIES)})
        return cls(given, point_only)

    @classmethod
    def _read(cls, given: dict[str, Any], analysis: Path) -> bool:
        """Fill gaps from an analysis; whether its bounds hold at the weights of its file only."""
        from lipcert.cli.analysis_file import read_analysis
        from lipcert.core.ledger.mechanism import is_stepwise

        found, run = read_analysis(analysis)
        assumed = found.assumptions
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
        _fill(given, {} if run is None else asdict(run))
        return assumed.scope == "point" and not is_stepwise(assumed.mechanism)

    @property
    def accountant(self) -> str:
        """auto, pld or rdp."""
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
    def declares(self) -> bool:
        """Whether the user said how the noise is set or claimed."""
        return any(key in self.given for key in _DECLARED)

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
        from lipcert.privacy.declaration import Composition, Declaration, Divisor
        from lipcert.privacy.noise import Neighbouring, Reduction
        from lipcert.privacy.plan import Sampling

        relation = self.given.get("sensitivity_for")
        claimed = self.given.get("claim_sampling")
        return Declaration(
            groups=self.given.get("noised_groups", 1),
            composition=Composition(self.given.get("composition", "joint")),
            sensitivity_for=Neighbouring(relation) if relation else None,
            sensitivity_of=Reduction(self.given.get("sensitivity_of", "sum")),
            noise_on=Reduction(self.given.get("noise_on", "sum")),
            divisor=Divisor(self.given.get("divisor", "constant")),
            claimed_sampling=Sampling(claimed) if claimed else None,
        )

    def findings(self) -> tuple[Diagnostic, ...]:
        """What is to be said of the analysis as a source."""
        from lipcert.privacy.declaration import POINT_ONLY

        return (POINT_ONLY,) if self.point_only else ()

    @staticmethod
    def _has_length(given: Mapping[str, object]) -> bool:
        return "steps" in given or "epochs" in given
