"""Settings are valid by construction, and every failure names the key."""

import math
from typing import get_args

import pytest

from lipcert.errors import UsageError
from lipcert.settings.settings import ConstraintSpec, Settings
from lipcert.settings.values import nearest

CLIPS = {"mechanism": "backprop-clipping", "cotangent_clip": 1.0}


def test_defaults() -> None:
    settings = Settings()
    assert settings.input_is_assumed
    assert settings.effective_input_box == (0.0, 1.0)
    assert (settings.scope, settings.reduction) == ("point", "sum")
    assert (settings.noise_multiplier, settings.allocation) == (None, "per-layer")
    assert settings.neighbours == "add-remove"


def test_a_declared_norm_replaces_the_default_box() -> None:
    settings = Settings(input_norm=3.0)
    assert not settings.input_is_assumed
    assert settings.effective_input_box is None


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"input_norm": -1.0}, "input-norm"),
        ({"input_norm": math.nan}, "input-norm"),
        ({"input_norm": math.inf}, "input-norm"),
        ({"input_box": (1.0, 0.0)}, "input-box"),
        ({"input_box": (math.nan, 1.0)}, "input-box"),
        ({"input_box": (0.0, math.inf)}, "input-box"),
        ({"bias_norm": -1.0}, "bias-norm"),
        ({"noise_multiplier": 0.0}, "noise-multiplier"),
        ({"noise_multiplier": math.nan}, "noise-multiplier"),
        ({"loss_clip": 0.0}, "loss-clip"),
        ({"batch_size": 0}, "batch-size"),
        ({"classes": 0}, "classes"),
        ({"reduction": "mean"}, "batch-size"),
        ({"scope": "constraint-set"}, "constraint"),
        ({"scope": "point", "bias_norm": 1.0}, "scope"),
        ({"scope": "nowhere"}, "scope"),
        ({"group": "tensor"}, "group"),
        ({"allocation": "perlayer"}, "per-layer"),
        ({"neighbours": "swap"}, "neighbours"),
        ({"tier": "slow"}, "tier"),
        ({"mechanism": "cliples"}, "clipless"),
        ({"mechanism": "clipless"}, "--constraint"),
        ({"mechanism": "weight-clipping"}, "--constraint"),
        ({"mechanism": "fixed-weight-norm", "bias_norm": 1.0, "scope": "point"}, "scope"),
        ({"mechanism": "gradient-clipping"}, "--clip-norm"),
        ({"mechanism": "gradient-clipping", "clip_norm": 0.0}, "clip-norm"),
        ({"mechanism": "gradient-clipping", "clip_norm": 1.0, "decay": "in"}, "decay"),
        ({"mechanism": "backprop-clipping", "input_clip": 1.0}, "--cotangent-clip"),
        ({"mechanism": "backprop-clipping", "input_clips": {"fc": 1.0}}, "cotangent-clips"),
        ({**CLIPS, "input_clips": {"fc": 0.0}}, "input-clips, fc"),
        ({**CLIPS, "input_clips": {"fc": math.inf}}, "input-clips, fc"),
        ({**CLIPS, "input_clips": {"fc": "nothing"}}, "input-clips, fc"),
        ({**CLIPS, "cotangent_clips": {"fc": -1.0}}, "cotangent-clips, fc"),
        ({**CLIPS, "cotangent_clips": {"fc": "none"}}, "cotangent-clips, fc"),
        ({**CLIPS, "cotangent_clips": {"fc": None}}, "cotangent-clips, fc"),
        ({"input_clips": {"fc": 1.0}}, "--mechanism backprop-clipping"),
        ({"cotangent_clips": {"fc": 1.0}}, "--mechanism backprop-clipping"),
        ({"clip_norm": 1.0}, "--mechanism gradient-clipping"),
        ({"input_clip": 1.0}, "--mechanism backprop-clipping"),
        ({"conv_clip": "l2"}, "--mechanism backprop-clipping"),
    ],
)
def test_what_is_refused(changes: dict[str, object], key: str) -> None:
    with pytest.raises(UsageError, match=key):
        Settings(**changes)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf])
def test_a_constraint_has_a_positive_radius(radius: float) -> None:
    with pytest.raises(UsageError, match="constraint"):
        ConstraintSpec("spectral", radius)


def test_biases_may_be_held_at_zero() -> None:
    assert ConstraintSpec("frobenius", 0.0).radius == 0.0
    with pytest.raises(UsageError, match="constraint"):
        ConstraintSpec("frobenius", -1.0)


def test_a_batch_size_means_a_mean() -> None:
    assert Settings(batch_size=256).reduction == "mean"
    assert Settings(batch_size=256, reduction="sum").reduction == "sum"


def test_a_constraint_means_the_constraint_set() -> None:
    assert Settings(bias_norm=0.0).scope == "constraint-set"
    assert Settings(constraint=ConstraintSpec("spectral", 1.0)).scope == "constraint-set"


def test_trainable_and_freeze() -> None:
    settings = Settings(trainable=("conv*", "fc.weight"), freeze=("conv1.*",))
    trained = [
        name
        for name in ("conv1.weight", "conv2.weight", "fc.weight", "fc.bias")
        if settings.is_trained(name)
    ]
    assert trained == ["conv2.weight", "fc.weight"]


def test_a_name_with_brackets_matches_itself() -> None:
    assert not Settings(freeze=("w[0]",)).is_trained("w[0]")


def test_the_first_matching_constraint_wins() -> None:
    one, two = ConstraintSpec("spectral", 1.0), ConstraintSpec("frobenius", 2.0)
    settings = Settings(constraints=(("fc.weight", one), ("*.weight", two)))
    assert settings.own_constraint("fc.weight") == one
    assert settings.own_constraint("conv.weight") == two
    assert settings.own_constraint("conv.bias") is None
    assert str(two) == "frobenius:2"


def test_radii_of_single_layers() -> None:
    """A layer goes by its name and by those of its parameters; the first pattern that fits wins."""
    settings = Settings(
        **CLIPS,  # type: ignore[arg-type]
        input_clip=2.0,
        input_clips={"head.*": "none", "norm": None, "fc*": 4},  # type: ignore[arg-type]
        cotangent_clips=[("*.bias", 0.5), ("fc1", 9)],  # type: ignore[arg-type]
    )
    assert settings.input_clips == (("head.*", None), ("norm", None), ("fc*", 4.0))
    assert settings.input_radius(["head", "head.weight"]) is None
    assert settings.input_radius(["norm", "norm.weight"]) is None
    assert settings.input_radius(["fc1", "fc1.weight"]) == 4.0
    assert settings.input_radius(["conv", "conv.weight"]) == 2.0
    assert settings.cotangent_radius(["fc1", "fc1.weight", "fc1.bias"]) == 0.5
    assert settings.cotangent_radius(["fc1", "fc1.weight"]) == 9.0
    assert settings.cotangent_radius(["conv", "conv.weight"]) == 1.0


def test_without_an_input_clip_no_layer_clips_its_input() -> None:
    settings = Settings(**CLIPS, input_clips=(("fc", 1.0),))  # type: ignore[arg-type]
    assert settings.input_radius(["fc"]) == 1.0
    assert settings.input_radius(["head"]) is None


def test_every_cotangent_needs_a_radius() -> None:
    settings = Settings(mechanism="backprop-clipping", cotangent_clips=(("fc", 1.0),))
    assert settings.cotangent_radius(["fc"]) == 1.0
    with pytest.raises(UsageError, match=r"no entry for the layer 'head'.*--cotangent-clip"):
        settings.cotangent_radius(["head", "head.weight"])


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    Settings(freeze=("conv*",)).check_patterns(["conv1.weight"])
    with pytest.raises(UsageError, match=r"did you mean 'conv1\.weight'"):
        Settings(freeze=("conv1.weigt",)).check_patterns(["conv1.weight"])


def test_nearest() -> None:
    assert nearest("input-nrom", ["input-norm", "loss"]) == "did you mean 'input-norm'?"
    assert nearest("zzz", ["input-norm"]) == ""


def test_privacy_choices_are_those_of_the_engine() -> None:
    noise = pytest.importorskip("lipcert.privacy.noise")
    from lipcert.settings import values as settings

    assert set(get_args(settings.AllocationName)) == {way.value for way in noise.Allocation}
    assert set(get_args(settings.NeighboursName)) == {kind.value for kind in noise.Neighbouring}
    assert set(get_args(settings.ReductionName)) == {
        "auto",
        *(kind.value for kind in noise.Reduction),
    }
