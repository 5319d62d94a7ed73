"""Noise warning: whether the noise of a run drowns its gradients, said before the first release.

Input: the noise of a run, and public examples, or none. Output: a `NoiseWarning`, or nothing.
Invariants: private examples are not read, so the warning costs no privacy; the measurement decides
nothing, and no run fails because of it.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Final, final

from lipcert.analysis.bounded import Bounded
from lipcert.analysis.observing import observed_at
from lipcert.analysis.records import Usefulness
from lipcert.analysis.release import Release
from lipcert.analysis.usefulness import DROWNED, usefulness_of
from lipcert.errors import LipCertError, NoVerdictError, UsageError
from lipcert.gradient_stats.examples import RANDOM, Examples, random_examples
from lipcert.gradient_stats.labels import checked_labels
from lipcert.search.pullbacks import work
from lipcert.text.numbers import times
from lipcert.training.calibration import Calibration
from lipcert.training.intake import KnownExamples, examples_of

_MOST: Final = 64
_LEAST: Final = 4
_WORK: Final = 4e9
"""floating-point operations that the question may cost: seconds"""
_MAIN: Final = 0.5
_NORMAL: Final = "standard normal inputs, no domain being declared"


@final
class NoiseWarning(UserWarning):
    """A run whose noise is so much larger than its gradients that it will hardly learn."""


def _public(given: KnownExamples, bounds: Bounded) -> Examples:
    """UsageError unless these are examples of the network, and labels of the loss."""
    found = examples_of("public examples", given, bounds.graph, is_private=False)
    try:
        checked_labels(bounds.loss, found.y, bounds.graph.output_shape)
    except NoVerdictError as error:
        raise UsageError(f"training: public examples: {error}") from error
    return found


def usefulness(calibration: Calibration, public: Examples | None) -> Usefulness | None:
    """How useful the gradients of a run are under its noise, at public examples or at random ones;
    None where gradients are not known, or random examples take too long."""
    found, settings = calibration.bounds, calibration.settings
    examples = _random(found) if public is None else public
    observed = None if examples is None else observed_at(found, settings, examples)
    if observed is None:
        return None
    released = Release.of(found.groups, settings, calibration.noise_multiplier)
    return usefulness_of(released, settings, calibration.plan, observed)


def _random(found: Bounded) -> Examples | None:
    """Of the declared domain, or of the standard normal distribution where none is declared."""
    graph, count = found.graph, min(int(_WORK / work(found.program)), _MOST)
    if count < _LEAST:
        return None
    examples = random_examples(
        graph.input_shape,
        found.domain,
        found.loss,
        graph.output_shape,
        count,
    )
    if examples is None or math.isfinite(found.at_input.norm):
        return examples
    return replace(examples, source=_NORMAL)


def warn_of_noise(calibration: Calibration, public: KnownExamples | None) -> None:
    """A NoiseWarning where the noise of all steps drowns the gradient.

    Raises UsageError for public examples that are none.
    """
    examples = None if public is None else _public(public, calibration.bounds)
    try:
        found = usefulness(calibration, examples)
    except (LipCertError, ArithmeticError, MemoryError):  # nothing depends on it
        return
    share = None if found is None else found.noise_to_signal_of_run
    if found is None or share is None or share <= DROWNED:
        return
    warnings.warn(_message(found, share, calibration.plan.releases), NoiseWarning, stacklevel=3)


def _message(found: Usefulness, share: float, releases: int) -> str:
    observed = found.observed
    where = "" if observed is None else f" ({observed.examples} {observed.source})"
    said = [
        f"training: the noise of all {releases} releases together is {times(share)} times "
        f"{found.against}{where}: this run will hardly learn, and spends its ε all the same"
    ]
    largest = max(found.groups, key=lambda group: group.noise or 0.0)
    if found.noise and largest.noise and len(found.groups) > 1:
        part = (largest.noise / found.noise) ** 2
        if part >= _MAIN:
            said.append(
                f"{part:.0%} of the energy of the noise is that of the group {largest.name!r}"
            )
    rival = found.clipping_noise_to_signal_of_run
    if rival is not None and rival <= min(share / 2.0, DROWNED):
        said.append(
            f"GradientClipping(clip_norm=1.0) would have {times(rival)} times {found.against}"
        )
    elif rival is not None:
        said.append(
            f"gradient clipping at C = 1 would have {times(rival)} times: ask for more examples or "
            "epochs, a larger batch, or a larger ε"
        )
    said.append(
        "lipcert.suggest(model, x) lists other settings and mechanisms with what each gains, and "
        "changes of the network to be written by hand"
    )
    if observed is not None and observed.source in {RANDOM, _NORMAL}:
        said.append("public=(x, y) measures at examples that are more like yours")
    return "; ".join(said)
