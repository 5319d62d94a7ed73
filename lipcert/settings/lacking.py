"""What a request lacks: all of it in one message, in the words of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias, get_args

from lipcert.errors import UsageError
from lipcert.settings.values import SamplingName

Asks: TypeAlias = dict[str, tuple[str, ...]]
"""options as they are written, by what needs them"""

_RUN: Final = "for the ε of a run"
_SAMPLINGS: Final = "|".join(get_args(SamplingName))


def asks_of_run(given: Mapping[str, object]) -> Asks:
    """What a `TrainingPlan` lacks; given: values by the names of settings, None where not given."""
    whole = given.get("sampling") == "full-batch"
    asked = {
        "--dataset-size N": ("dataset_size",),
        f"--sampling {_SAMPLINGS}": ("sampling",),
        "--delta D<1/N": ("delta",),
        "--batch-size B": ("sampling" if whole else "batch_size",),
        "--steps T or --epochs E": ("steps", "epochs"),
    }
    absent = tuple(
        option for option, keys in asked.items() if all(given.get(key) is None for key in keys)
    )
    return {_RUN: absent} if absent else {}


def besides_the_run(asks: Asks) -> Asks:
    """What is missing for anything else than the ε of a run."""
    return {why: options for why, options in asks.items() if why != _RUN}


def listed(asks: Asks) -> str:
    """What is missing, in words."""
    return "; ".join(f"{', '.join(options)} ({why})" for why, options in asks.items())


def missing(asks: Asks) -> UsageError:
    """The error that lists them."""
    return UsageError(f"missing: give {listed(asks)}")
