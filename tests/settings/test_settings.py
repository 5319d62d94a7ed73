"""Settings are valid by construction, converted exactly, and read back from files."""

import math
import tomllib
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipcert import analyze, load_model
from lipcert.analysis.certificate import certify
from lipcert.analysis.release import check_complete
from lipcert.cli.sources import effective_settings
from lipcert.errors import UsageError
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.settings.settings import ConstraintSpec, Settings, kinds_of
from lipcert.settings.values import (
    asks_of_run,
    names,
    number,
    pair,
    switch,
    table,
    whole,
    word,
)
from lipcert.settings.written import settings_toml
from lipcert.training import (
    BackpropClipping,
    Clipless,
    FixedWeightNorm,
    GradientClipping,
    Loss,
    PlannedRun,
    WeightClipping,
)
from lipcert.training.mechanisms import mechanism_of

NO_CONSTRAINTS = (1.0, "spectral", *(f"spectral:{radius}" for radius in ("0", "-1", "nan", "inf")),
                  "frobenius:-1")  # fmt: skip
CLIPS = {"mechanism": "backprop-clipping", "cotangent_clip": 1.0}


def test_a_declared_norm_replaces_the_default_box() -> None:
    assert Settings().effective_input_box == (0.0, 1.0)
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
        *(({"constraint": given}, "constraint") for given in NO_CONSTRAINTS),
        ({"constraint": "spektral:1"}, "spectral"),
        ({"constraints": {"a": 2}}, "constraints, a"),
        ({"loss": torch.nn.MSELoss()}, "loss"),
        ({"scope": None}, "scope"),
    ],
)
def test_what_is_refused(changes: dict[str, object], key: str) -> None:
    with pytest.raises(UsageError, match=key):
        Settings(**changes)


def test_biases_may_be_held_at_zero() -> None:
    assert ConstraintSpec("frobenius", 0.0).radius == 0.0


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


def test_privacy_choices_are_those_of_the_engine() -> None:
    noise = pytest.importorskip("lipcert.privacy.noise")
    from lipcert.settings import values as settings

    assert set(get_args(settings.AllocationName)) == {way.value for way in noise.Allocation}
    assert set(get_args(settings.NeighboursName)) == {kind.value for kind in noise.Neighbouring}
    assert set(get_args(settings.ReductionName)) == {
        "auto",
        *(kind.value for kind in noise.Reduction),
    }


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


STATED = (
    Settings(),
    Settings(input_norm=1.0, batch_size=64, constraint="spectral:1.5"),
    Settings(input_box=(-1.0, 1.0), mechanism="weight-clipping", scope="point",
             constraints={"a.*": "frobenius:2"}),
    Settings(input_norm={"a": 1.0}, input_box={"b": (0.0, 2.0)}, loss="bce"),
    Settings(input_norm=1.0, mechanism="backprop-clipping", cotangent_clip=1.0,
             input_clips={"fc": None, "[0-9]": 2.0}),
    Settings(input_norm=1.0, freeze=("é", '"quoted"', "😀\x7f"), as_exported=True),
    Settings(input_norm=1.0, loss="cls=cross-entropy,reg=mse", loss_weight={"reg": 0.5}),
    Settings(input_norm=1.0, batch_size=64, reduction="sum", noise_multipliers={"all": 2.0},
             allocation="custom"),
)  # fmt: skip


@pytest.mark.parametrize("stated", STATED)
def test_a_file_is_read_back_as_the_same_settings(stated: Settings, tmp_path: Path) -> None:
    file = tmp_path / "lipcert.toml"
    file.write_text(settings_toml(stated, "a comment"), encoding="utf-8")
    assert effective_settings({}, {}, file).settings == stated


def test_what_follows_from_other_settings_is_left_out() -> None:
    text = settings_toml(Settings(input_norm=1.0, constraint="spectral:1", batch_size=8), "head")
    assert tomllib.loads(text) == {"input-norm": 1.0, "constraint": "spectral:1", "batch-size": 8}


MODEL = Path(__file__).parents[2] / "models" / "digits_mlp.onnx"
SPELLINGS = {
    "int": int,
    "float": float,
    "numpy int": np.int32,
    "numpy float": np.float32,
    "numpy 0-d": np.array,
    "torch int": torch.tensor,
    "torch float": lambda value: torch.tensor(float(value)),
}
counts = st.integers(1, 2**20)
spelled = st.sampled_from(sorted(SPELLINGS))
NO_NUMBERS = ["8", True, np.True_, torch.tensor(True), (1.0,), [2], np.ones(1), 1j, object(),
              Fraction(1, 3), Decimal(1), 2**53 + 1, 10**400, b"1"]  # fmt: skip


@given(st.integers(-(2**24), 2**24), spelled)
def test_whole_numbers_mean_the_same_in_every_spelling(value: int, spelling: str) -> None:
    given_ = SPELLINGS[spelling](value)
    for found, kind in ((number("key", given_), float), (whole("key", given_), int)):
        assert type(found) is kind
        assert found == value


@given(st.floats(allow_nan=False), st.sampled_from([float, np.float64, np.array, torch.tensor]))
def test_floats_are_not_rounded(value: float, spelling) -> None:
    exact = spelling(value) if spelling is not torch.tensor else torch.tensor(value).double()
    expected = float(torch.tensor(value)) if spelling is torch.tensor else value
    assert repr(number("key", exact)) == repr(expected)


@pytest.mark.parametrize(("kind", "value", "expected"), [
    (pair, [0, 1], (0.0, 1.0)), (pair, np.array([0, 1]), (0.0, 1.0)),
    (pair, torch.tensor([0, 1]), (0.0, 1.0)), (pair, (np.float32(-0.5), 2), (-0.5, 2.0)),
    (names, "head.weight", ("head.weight",)), (names, ["a", "b*"], ("a", "b*")),
    (switch, np.True_, True), (switch, False, False), (word, "mean", "mean"),
])  # fmt: skip
def test_conversions(kind: Any, value: Any, expected: Any) -> None:
    found = kind("key", value)
    assert (found, repr(found)) == (expected, repr(expected))


def tabled(key: str, value: Any) -> object:
    return table(key, value, number)


@pytest.mark.parametrize(("kind", "value"), [
    *((number, value) for value in NO_NUMBERS), *((whole, value) for value in NO_NUMBERS[:-4]),
    (whole, 1.5), (whole, math.nan), (whole, math.inf), (whole, "60"),
    (pair, 1.0), (pair, (0, 1, 2)), (pair, "01"), (pair, np.ones((2, 2))), (pair, {0: 1, 1: 2}),
    (pair, (False, True)), (names, 3), (names, [3]), (names, b"x"), (switch, 1), (switch, "yes"),
    (word, 3), (word, b"x"), (tabled, {"a": "x"}), (tabled, {1: 1}), (tabled, ["a"]),
    (tabled, [("a",)]), (tabled, "ab"), (tabled, 3),
])  # fmt: skip
def test_what_does_not_fit_is_refused(kind: Any, value: Any) -> None:
    with pytest.raises(UsageError, match="^key.* give " if kind in {number, whole} else "^key"):
        kind("key", value)


@pytest.mark.parametrize("value", [{"a": 1}, [("a", 1)], (["a", 1.0],), [("a", np.int64(1))]])
def test_tables(value: Any) -> None:
    assert repr(table("key", value, number)) == repr((("a", 1.0),))


@pytest.mark.parametrize("record", [
    Settings, Loss, PlannedRun, Clipless, WeightClipping, FixedWeightNorm, BackpropClipping,
    GradientClipping,
])  # fmt: skip
def test_every_field_of_every_record_is_converted(record: type[Any]) -> None:
    """A field of a type that nobody converts would let an integer through."""
    left = {item.name for item in fields(record)} - kinds_of(record).keys()
    assert left <= {"loss", "input_parts"}  # a Loss, which `Loss.of` takes; found, not given


@given(counts, counts, st.integers(0, 9), st.data())
def test_settings_are_the_same_in_every_spelling(radius: int, size: int, low: int, data) -> None:
    def made(spell) -> Settings:
        return Settings(
            input_norm=spell(radius), input_box=(spell(-low), spell(1)), temperature=spell(radius),
            constraint=ConstraintSpec("spectral", spell(radius)), bias_norm=spell(low),
            constraints=(("a*", ConstraintSpec("frobenius", spell(size))),), loss_clip=spell(1),
            noise_multiplier=spell(size), dataset_size=spell(size), batch_size=spell(1),
            steps=spell(size),
        )  # fmt: skip

    plain = made(float)
    assert repr(made(SPELLINGS[data.draw(spelled)])) == repr(plain)
    assert type(plain.dataset_size) is int
    assert type(plain.input_norm) is float


@given(counts, spelled)
def test_mechanisms_and_plans_are_the_same_in_every_spelling(value: int, spelling: str) -> None:
    def made(spell) -> list[object]:
        held = {"radius": spell(value), "input_norm": spell(value), "bias_norm": spell(1)}
        mechanisms = [
            Clipless(**held, orthogonalize=spell(value)), FixedWeightNorm(**held),
            WeightClipping(**held, slack=spell(1), loss=Loss(temperature=spell(value))),
            BackpropClipping(input_clip=spell(value), cotangent_clip=spell(1)),
            GradientClipping(clip_norm=spell(value), weight_decay=spell(1), decay="inside"),
        ]  # fmt: skip
        run = PlannedRun(dataset_size=spell(value), batch_size=spell(1), delta=1e-5,
                         steps=spell(value), noise_multiplier=spell(value))  # fmt: skip
        plan = TrainingPlan(spell(value), Sampling.POISSON, 1e-5, spell(1), epochs=spell(1),
                            neighbours=Neighbouring.ZERO_OUT)  # fmt: skip
        return [*mechanisms, *(item.settings(run) for item in mechanisms), run, plan]

    assert repr(made(SPELLINGS[spelling])) == repr(made(float))


def test_constraints_are_taken_as_text() -> None:
    spec = ConstraintSpec("spectral", 1.0)
    assert Settings(constraint="spectral:1").constraint == spec
    assert Settings(constraints={"a": "spectral:1"}).constraints == (("a", spec),)
    assert Settings(constraints=[("a", spec)]).constraints == (("a", spec),)
    assert Clipless(constraints=(("a", "spectral:1"),)).constraints == (("a", spec),)


@pytest.mark.parametrize(("made", "key"), [
    (lambda: Clipless(radius="1"), "radius"), (lambda: Clipless(radius=-1), "constraint"),
    (lambda: Clipless(radius=math.nan), "constraint"), (lambda: Clipless(norm="l7"), "constraint"),
    (lambda: Clipless(bias_norm=-1), "bias-norm"), (lambda: Clipless(orthogonalize=0.5), "orthog"),
    (lambda: Clipless(loss_clip=0), "loss-clip"), (lambda: Clipless(input_norm="8"), "input-norm"),
    (lambda: Clipless(radius=None), "constraint"), (lambda: Clipless(loss=3), "loss"),
    (lambda: Clipless(neighbours="any"), "neighbours"),
    (lambda: WeightClipping(slack=True), "slack"), (lambda: WeightClipping(slack=-1), "slack"),
    (lambda: GradientClipping(clip_norm=True), "clip-norm"),
    (lambda: GradientClipping(clip_norm=math.inf), "clip-norm"),
    (lambda: GradientClipping(clip_scope="all"), "clip-scope"),
    (lambda: BackpropClipping(input_clip="2"), "input-clip"),
    (lambda: Loss("mse"), "label-norm"), (lambda: Loss(temperature=-1), "temperature"),
    (lambda: Loss("mse", margin=1), "margin"), (lambda: Loss(torch.nn.MSELoss()), "kind"),
])  # fmt: skip
def test_mechanisms_refuse_on_construction(made, key: str) -> None:
    with pytest.raises(UsageError, match=key):
        made()


def test_a_loss_is_taken_as_its_word() -> None:
    assert Clipless(loss="bce").loss == Loss("bce")


def test_functions_refuse_what_is_no_model_and_no_settings() -> None:
    model = load_model(MODEL, trusted=True)
    with pytest.raises(UsageError, match=r"lipcert\.Settings\("):
        analyze(model, {"input_norm": 1.0})
    with pytest.raises(UsageError, match="engine"):
        certify(model, Settings(), "fast")


MECHANISMS = [
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
