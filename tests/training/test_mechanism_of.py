"""Settings and the mechanism that a run of them needs say the same."""

import pytest

from lipcert.errors import UsageError
from lipcert.settings.settings import ConstraintSpec, Settings
from lipcert.training import (
    BackpropClipping,
    Clipless,
    FixedWeightNorm,
    GradientClipping,
    PlannedRun,
    TrainingMechanism,
    WeightClipping,
)
from lipcert.training.mechanisms import mechanism_of

MECHANISMS: list[TrainingMechanism] = [
    Clipless(input_norm=1.0, bias_norm=0.5, loss_clip=0.1, constraints=(("a*", "frobenius:2"),)),
    WeightClipping(input_box=(0, 1), radius=None, bias_norm=1.0),
    FixedWeightNorm(norm="frobenius", radius=3.0, freeze=("b",)),
    BackpropClipping(input_clip=2.0, cotangent_clip=0.5, conv_clip="l2"),
    GradientClipping(clip_norm=0.5, clip_scope="group", decay="inside"),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda item: item.kind)
def test_settings_know_the_mechanism_that_they_are_of(mechanism):
    run = PlannedRun(dataset_size=100, batch_size=10, delta=1e-3, steps=5, noise_multiplier=1.0)
    settings = mechanism.settings(run)
    again = mechanism_of(settings)
    assert again == mechanism
    assert again.settings(run) == settings


def test_constraints_alone_are_clipless_training():
    spec = ConstraintSpec("spectral", 2.0)
    assert mechanism_of(Settings(constraint=spec)) == Clipless(
        radius=2.0, loss="auto", allocation="per-layer"
    )
    with pytest.raises(UsageError, match="a run needs a mechanism"):
        mechanism_of(Settings())
