"""Plans: what is refused, and how long a run is."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.errors import UsageError
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan


def plan(**changes) -> TrainingPlan:
    values = {
        "dataset_size": 1000,
        "sampling": Sampling.POISSON,
        "delta": 1e-5,
        "batch_size": 10,
        "steps": 100,
    }
    return TrainingPlan(**{**values, **changes})


WHOLE = {"sampling": Sampling.FULL_BATCH, "batch_size": None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset_size": 0}, "dataset-size"),
        ({"dataset_size": 1.5}, "dataset-size"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"delta": -1e-5}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"batch_size": 0}, "batch-size"),
        ({"batch_size": 1001}, "rate above 1"),
        ({"batch_size": None}, "batch-size"),
        ({"steps": 0}, "steps"),
        ({"steps": None}, "exactly one"),
        ({"epochs": 2.0}, "exactly one"),
        ({"steps": None, "epochs": 0.0}, "epochs"),
        ({"steps": None, "epochs": math.inf}, "epochs"),
        ({"steps": None, "epochs": 1e300}, "epochs"),
        ({"sampling": Sampling.FULL_BATCH}, "all 1000"),
        ({"sampling": Sampling.WITHOUT_REPLACEMENT}, "use neighbours replace-one"),
        (
            {"sampling": Sampling.WITHOUT_REPLACEMENT, "neighbours": Neighbouring.ZERO_OUT},
            "use neighbours replace-one",
        ),
        ({"sampling": Sampling.SHUFFLE}, "moves all later ones"),
        (
            {"sampling": Sampling.BALLS_IN_BINS, "neighbours": Neighbouring.REPLACE_ONE},
            "use neighbours add-remove or zero-out",
        ),
        ({"rate": 0.0}, "sampling-rate: .*not a probability"),
        ({"rate": 1.5}, "sampling-rate: .*not a probability"),
        ({"rate": 0.1, **WHOLE}, "sampling-rate: .*only the rate B/N"),
    ],
)
def test_what_is_refused_says_what_to_change(changes, message) -> None:
    with pytest.raises(UsageError, match=message) as error:
        plan(**changes)
    assert "\n" not in str(error.value)


def in_bins(**changes) -> TrainingPlan:
    return plan(sampling=Sampling.BALLS_IN_BINS, batch_size=300, **changes)


def shuffled(**changes) -> TrainingPlan:
    return plan(sampling=Sampling.SHUFFLE, neighbours=Neighbouring.REPLACE_ONE, **changes)


@pytest.mark.parametrize(
    ("run", "releases", "participations"),
    [
        (plan(), 100, 100),
        (plan(steps=None, epochs=2.0), 200, 200),
        (plan(steps=None, epochs=0.001), 1, 1),
        (plan(batch_size=300, steps=None, epochs=1.0), 4, 4),
        (shuffled(batch_size=300, steps=None, epochs=2.0), 8, 2),
        (shuffled(batch_size=300, steps=None, epochs=1.5), 6, 2),
        (shuffled(batch_size=300, steps=6), 6, 2),
        (shuffled(batch_size=300, steps=7), 7, 3),
        (shuffled(batch_size=1000, steps=7), 7, 7),
        (in_bins(steps=None, epochs=1.5), 6, 2),
        (in_bins(steps=7), 7, 2),
        (in_bins(steps=9), 9, 3),
        (plan(**WHOLE, steps=None, epochs=3.0), 3, 3),
    ],
)
def test_the_length_of_a_run(run, releases, participations) -> None:
    assert run.releases == releases
    assert run.participations == participations


@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 60),
    steps=st.integers(1, 200),
    drop_last=st.booleans(),
)
def test_no_loader_of_disjoint_batches_visits_an_example_more_often(size, batch, steps, drop_last):
    batch = min(batch, size)
    run = TrainingPlan(
        size, Sampling.SHUFFLE, 1e-5, batch, steps=steps, neighbours=Neighbouring.REPLACE_ONE
    )
    per_epoch = size // batch if drop_last else math.ceil(size / batch)
    begun = math.ceil(steps / per_epoch)  # the example stands in the first batch of every epoch
    assert begun <= run.participations


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_the_rate_is_rounded_up(a, b) -> None:
    run = plan(dataset_size=max(a, b), batch_size=min(a, b))
    assert Fraction(run.sampling_rate) >= Fraction(min(a, b), max(a, b))
    assert run.sampling_rate <= 1.0


def test_a_stated_rate_is_that_of_the_loader() -> None:
    """Of 1365 examples in batches of 32, Opacus draws each with probability 1/43, and of 1437 with
    1/45, 45 times an epoch; B/N gives 44.9."""
    stated = plan(dataset_size=1437, batch_size=32, steps=None, epochs=10, rate=1 / 45)
    assert stated.releases == 450
    assert Fraction(1, 45) <= Fraction(stated.sampling_rate) <= Fraction(1, 45) + 2**-55
    assert plan(dataset_size=1365, batch_size=32, steps=None, epochs=1).releases == 43
    assert plan(dataset_size=1365, batch_size=32, steps=None, epochs=1, rate=1 / 45).releases == 45
