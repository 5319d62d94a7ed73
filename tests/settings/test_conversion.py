"""What people hand over in Python is converted exactly, or refused with the key."""

import math
from collections.abc import Callable
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from lipcert import ConstraintSpec, Settings, UsageError, analyze, load_model
from lipcert.analysis.certificate import certify
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.settings.settings import kinds_of
from lipcert.settings.values import names, number, pair, switch, table, whole, word
from lipcert.training import (
    BackpropClipping,
    Clipless,
    FixedWeightNorm,
    GradientClipping,
    Loss,
    PlannedRun,
    TrainingMechanism,
    WeightClipping,
)

MODEL = Path(__file__).parents[2] / "models" / "digits_mlp.onnx"
SPELLINGS: dict[str, Callable[[int], Any]] = {
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
def test_floats_are_not_rounded(value: float, spelling: Callable[[float], Any]) -> None:
    exact = spelling(value) if spelling is not torch.tensor else torch.tensor(value).double()
    expected = float(torch.tensor(value)) if spelling is torch.tensor else value
    assert repr(number("key", exact)) == repr(expected)


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^some-key: .* give "):
        number("some-key", value)


@pytest.mark.parametrize(
    "value",
    [*NO_NUMBERS[:-4], 1.5, math.nan, math.inf, "60"],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_count_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^some-key: .* give "):
        whole("some-key", value)


@pytest.mark.parametrize(("kind", "value", "expected"), [
    (pair, [0, 1], (0.0, 1.0)), (pair, np.array([0, 1]), (0.0, 1.0)),
    (pair, torch.tensor([0, 1]), (0.0, 1.0)), (pair, (np.float32(-0.5), 2), (-0.5, 2.0)),
    (names, "head.weight", ("head.weight",)), (names, ["a", "b*"], ("a", "b*")),
    (switch, np.True_, True), (switch, False, False), (word, "mean", "mean"),
])  # fmt: skip
def test_conversions(kind: Any, value: Any, expected: Any) -> None:
    found = kind("key", value)
    assert (found, repr(found)) == (expected, repr(expected))


@pytest.mark.parametrize(("kind", "value"), [
    (pair, 1.0), (pair, (0, 1, 2)), (pair, "01"), (pair, np.ones((2, 2))), (pair, {0: 1, 1: 2}),
    (pair, (False, True)), (names, 3), (names, [3]), (names, b"x"), (switch, 1), (switch, "yes"),
    (word, 3), (word, b"x"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(kind: Any, value: Any) -> None:
    with pytest.raises(UsageError, match=r"^key: "):
        kind("key", value)


@pytest.mark.parametrize("value", [{"a": 1}, [("a", 1)], (["a", 1.0],), [("a", np.int64(1))]])
def test_tables(value: Any) -> None:
    assert repr(table("key", value, number)) == repr((("a", 1.0),))


@pytest.mark.parametrize("value", [{"a": "x"}, {1: 1}, ["a"], [("a",)], "ab", 3])
def test_what_is_no_table_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^key"):
        table("key", value, number)


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
    def made(spell: Callable[[int], Any]) -> Settings:
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
    def made(spell: Callable[[int], Any]) -> list[object]:
        held = {"radius": spell(value), "input_norm": spell(value), "bias_norm": spell(1)}
        mechanisms: list[TrainingMechanism] = [
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


@pytest.mark.nightly
@hypothesis_settings(max_examples=3)
@given(st.integers(1, 40), spelled)
def test_a_certificate_is_the_same_in_every_spelling(radius: int, spelling: str) -> None:
    model = load_model(MODEL, trusted=True)

    def issued(spell: Callable[[int], Any]) -> bytes:
        return certify(model, Settings(
            input_norm=spell(radius), input_box=(spell(0), spell(1)), constraint="spectral:2",
            bias_norm=spell(1), temperature=spell(2), loss_clip=spell(1), batch_size=spell(8),
            dataset_size=spell(80), steps=spell(1), delta=1e-5, sampling="poisson", tier="quick",
        )).data  # fmt: skip

    assert issued(SPELLINGS[spelling]) == issued(float)


def test_constraints_are_taken_as_text() -> None:
    spec = ConstraintSpec("spectral", 1.0)
    assert Settings(constraint="spectral:1").constraint == spec
    assert Settings(constraints={"a": "spectral:1"}).constraints == (("a", spec),)
    assert Settings(constraints=[("a", spec)]).constraints == (("a", spec),)
    assert Clipless(constraints=(("a", "spectral:1"),)).constraints == (("a", spec),)


@pytest.mark.parametrize(("changes", "key"), [
    ({"constraint": "spectral"}, "constraint"), ({"constraint": 1.0}, "constraint"),
    ({"constraint": "spektral:1"}, "spectral"), ({"constraint": "spectral:-1"}, "constraint"),
    ({"constraint": "spectral:nan"}, "constraint"), ({"constraints": {"a": 2}}, "constraints, a"),
    ({"input_norm": "8"}, "input-norm"), ({"input_norm": True}, "input-norm"),
    ({"input_norm": torch.tensor(-1)}, "input-norm"), ({"input_norm": np.nan}, "input-norm"),
    ({"input_box": 1}, "input-box"), ({"input_box": ("0", "1")}, "input-box"),
    ({"batch_size": True}, "batch-size"), ({"batch_size": 8.5}, "batch-size"),
    ({"steps": "10"}, "steps"), ({"half": 1}, "half"), ({"as_exported": "no"}, "as-exported"),
    ({"freeze": 3}, "freeze"), ({"loss": torch.nn.MSELoss()}, "loss"), ({"scope": None}, "scope"),
    ({"tier": 3}, "tier"), ({"output": 0}, "output"),
])  # fmt: skip
def test_settings_refuse_what_is_none_with_the_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError, match=key):
        Settings(**changes)


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
def test_mechanisms_refuse_on_construction(made: Callable[[], object], key: str) -> None:
    with pytest.raises(UsageError, match=key):
        made()


def test_a_loss_is_taken_as_its_word() -> None:
    assert Clipless(loss="bce").loss == Loss("bce")


def test_functions_refuse_what_is_no_model_and_no_settings() -> None:
    model = load_model(MODEL, trusted=True)
    with pytest.raises(UsageError, match=r"load_model\('model\.onnx'\)"):
        certify(str(MODEL), Settings())  # type: ignore[arg-type]
    for call in (analyze, certify):
        with pytest.raises(UsageError, match=r"lipcert\.Settings\("):
            call(model, {"input_norm": 1.0})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="engine"):
        certify(model, Settings(), "fast")
