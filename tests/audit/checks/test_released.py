"""Public numbers of a run that follow a private one: by several functions, and not by chance."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lipcert.audit.checks.released import _following
from lipcert.audit.trace.records import Batch, Step
from lipcert.privacy.plan import Sampling

SCHEDULES: dict[str, Callable[[int], float]] = {
    "cosine": lambda t: 0.1 + 0.1 * math.cos(0.1 * t),
    "exponential": lambda t: 0.9**t,
    "falls as 1/√t": lambda t: 1.0 / math.sqrt(1.0 + t),
    "halved twice": lambda t: 0.5 ** (t // 10),
    "cyclic": lambda t: 0.1 + 0.1 * (t % 5),
}
FUNCTIONS: dict[str, Callable[[float], float]] = {
    "linear": lambda x: 2.0 - x / 100.0,
    "1/x": lambda x: 1.0 / x,
    "√x": math.sqrt,
    "1/√x": lambda x: x**-0.5,
    "ln x": math.log,
    "x²": lambda x: x**2,
}


def followed(rates: list[float], losses: list[float], sizes: list[int]) -> list[str]:
    """What is said of a run of these numbers."""
    steps = [
        Step(0, k, 0.0, (Batch(examples=n, loss=loss),), (rate,))
        for k, (rate, loss, n) in enumerate(zip(rates, losses, sizes, strict=True))
    ]
    settings = SimpleNamespace(dataset_size=400, sampling=Sampling.POISSON.value)
    run: Any = SimpleNamespace(steps=steps, trace=SimpleNamespace(ranks=(0,)), settings=settings)
    return [report.message for report in _following(run, [None] * len(steps))]


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_rate_that_follows_a_private_number_is_found(function: str, lag: int) -> None:
    random = np.random.default_rng(0)
    sizes, losses = random.binomial(400, 0.1, 31), random.uniform(1.0, 3.0, 31)
    for x, what in ((sizes, "the size of the batch"), (losses, "its loss")):
        rates = [0.01 * FUNCTIONS[function](float(n)) for n in np.roll(x, lag)]
        (message,) = followed(rates, losses.tolist(), sizes.tolist())
        assert f"the learning rate (group 0) changes as {what} does" in message


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_public_schedule_is_left_alone(name: str) -> None:
    """Beside losses that are alike, or fall smoothly, or are noisy."""
    rates = [SCHEDULES[name](t) for t in range(30)]
    for seed in range(8):
        random = np.random.default_rng(seed)
        for noise in (0.0, 1e-3, 0.3):
            trend = np.exp(-np.arange(30) / random.uniform(5.0, 50.0)) + random.uniform(0.2, 1.0)
            losses = trend * np.exp(noise * random.standard_normal(30))
            assert not followed(rates, losses.tolist(), random.binomial(400, 0.1, 30).tolist())
