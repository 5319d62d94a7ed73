"""What is missing is listed at once, whichever verb or constructor asks."""

import pytest

from lipcert.analysis.release import check_complete
from lipcert.errors import UsageError
from lipcert.settings.settings import Settings
from lipcert.settings.values import asks_of_run

OF_A_RUN = ["--dataset-size N", "--sampling poisson|", "--delta D", "--batch-size B", "--steps T"]


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"target_epsilon": 3}, OF_A_RUN),
        ({"dataset_size": 100}, OF_A_RUN[1:]),
        ({"sampling": "full-batch", "steps": 3}, [OF_A_RUN[0], OF_A_RUN[2]]),
        ({"loss": "mse", "epochs": 3}, ["--label-norm R", *OF_A_RUN[:4]]),
        ({"loss": "mse"}, ["--label-norm R"]),
        (
            {"mechanism": "gradient-clipping", "loss": "mse", "delta": 1e-5},
            ["--clip-norm C", "--label-norm R", *OF_A_RUN[:2], *OF_A_RUN[3:]],
        ),
        ({"mechanism": "backprop-clipping"}, ["--cotangent-clip C or a [cotangent-clips] table"]),
        ({"mechanism": "clipless", "reduction": "mean"}, ["--constraint KIND:R", "--batch-size B"]),
        ({"scope": "constraint-set", "steps": 3}, ["--constraint KIND:R", *OF_A_RUN[:4]]),
    ],
)
def test_one_message_lists_what_is_missing_and_nothing_else(given, asked) -> None:
    with pytest.raises(UsageError) as error:
        check_complete(Settings(**given))
    message = str(error.value)
    assert [option for option in asked if option not in message] == []
    assert message.count("--") == len(asked) + ("--steps" in message) + message.count("--bias-norm")


def test_what_is_given_is_not_asked_for() -> None:
    run = {"dataset_size": 100, "sampling": "poisson", "delta": 1e-5, "batch_size": 5}
    assert asks_of_run(run | {"steps": 3}) == asks_of_run(run | {"epochs": 0.5}) == {}
    check_complete(Settings(loss="mse", label_norm=1.0, **run, steps=3))
    check_complete(Settings())


def test_nought_is_a_value_and_refused_as_one() -> None:
    run = {"sampling": "poisson", "delta": 1e-5, "batch_size": 5, "steps": 3}
    with pytest.raises(UsageError, match="dataset-size: 0 is not"):
        check_complete(Settings(dataset_size=0, **run))
