"""Jobs: the same in every process that reads them."""

import dataclasses
import math

import pytest

from lipcert.audit.job import Job, Kind, Shard, units_of
from lipcert.audit.prepared_job import prepare
from lipcert.audit.trace.files import sealed, unsealed
from lipcert.errors import NoVerdictError, UsageError
from lipcert.measure.precision import Precision
from lipcert.settings.gates import Gates
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.models.shipped import path_of

SETTINGS = (
    Settings(),
    Settings(input_norm=1.5, loss="mse", label_norm=2.0, trainable=("a.*", "b"), batch_size=8),
    Settings(
        mechanism="clipless",
        constraint=ConstraintSpec("spectral", 1.0),
        constraints=(("a.weight", ConstraintSpec("frobenius", 0.1)),),
        bias_norm=0.3,
    ),
    Settings(allocation="custom", noise_multipliers=(("*", 1.5),), input_box=(-1.0, 0.5)),
    Settings(mechanism="gradient-clipping", clip_norm=1.0, clip_scope="group"),
)


@pytest.mark.parametrize("settings", SETTINGS)
def test_json_is_the_inverse(settings: Settings) -> None:
    job = Job("m.onnx", settings, data="d.npz", attack_steps=3, precision=Precision.TF32, limit=7)
    gated = dataclasses.replace(job, gates=Gates(max_grad_norm=2.5, max_slack=0.1))
    for one in (job, gated, dataclasses.replace(job, max_detectable_factor=math.inf)):
        assert Job.read(one.written(), "here") == one


OLDER = b'{"schema": "lipcert.audit-job/1"}'


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", OLDER, b"null", sealed({"schema": 1}, "")[0]])
def test_damage_is_named(line: bytes) -> None:
    with pytest.raises(NoVerdictError, match=r"here.* another version"):
        Job.read(line, "here")


@pytest.mark.parametrize("name", ["schema", "lipcert"])
def test_another_version_is_refused(name: str) -> None:
    members, _ = unsealed(Job("m.onnx", Settings(), data="d.npz").written())
    line, _ = sealed({**members, name: "9"}, "")
    with pytest.raises(NoVerdictError, match="was written by another version"):
        Job.read(line, "here")


@pytest.mark.parametrize("factor", [0.5, -1.0, math.nan])
def test_a_factor_below_one_is_no_limit(factor: float) -> None:
    with pytest.raises(UsageError, match="max-detectable-factor"):
        Job("m.onnx", Settings(), data="d.npz", max_detectable_factor=factor)


def test_an_audit_has_no_gate_of_a_number_that_it_does_not_measure() -> None:
    with pytest.raises(UsageError, match="max-noise-to-signal is a gate of `lipcert analyze`"):
        Job("m.onnx", Settings(), data="d.npz", gates=Gates(max_noise_to_signal=2.0))


def test_every_field_and_every_input_is_in_the_digest() -> None:
    job = Job("m.onnx", Settings(), data="d.npz")
    others = [
        dataclasses.replace(job, model="n.onnx"),
        dataclasses.replace(job, settings=Settings(input_norm=1.0)),
        dataclasses.replace(job, limit=3),
        dataclasses.replace(job, precision=Precision.FLOAT64),
        dataclasses.replace(job, max_detectable_factor=math.inf),
        dataclasses.replace(job, gates=Gates(max_slack=10.0)),
    ]
    digests = {one.digest({"model": "a"}) for one in (job, *others)}
    assert len(digests | {job.digest({"model": "b"})}) == 8


def test_units_cover_every_example_once() -> None:
    job = Job("m.onnx", Settings(), data="d.npz", unit_size=4, attack_steps=2)
    units = units_of([("model", "data", 10), ("step 5", "data", 3)], job, attacked=6)
    replays = [unit for unit in units if unit.kind is Kind.REPLAY]
    assert [(u.weights, u.start, u.stop) for u in replays] == [
        ("model", 0, 4),
        ("model", 4, 8),
        ("model", 8, 10),
        ("step 5", 0, 3),
    ]
    attacks = [unit for unit in units if unit.kind is Kind.ATTACK]
    assert [(u.weights, u.start, u.stop) for u in attacks] == [("model", 0, 6), ("step 5", 0, 3)]
    assert [unit.number for unit in units] == list(range(6))


def test_a_limit_holds_for_each_source() -> None:
    job = Job("m.onnx", Settings(), data="d.npz", unit_size=4, limit=5)
    units = units_of([("model", "data", 10)], job, attacked=6)
    assert [(u.start, u.stop) for u in units] == [(0, 4), (4, 5)]


def test_a_shard_is_counted_from_zero() -> None:
    assert Shard.of("3/8") == Shard(3, 8)
    assert str(Shard(0, 1)) == "0/1"
    for word in ("8/8", "0/0", "-1/2", "1", "1/2/3", "/4", "a/b", ""):
        with pytest.raises(UsageError, match="shard"):
            Shard.of(word)


def test_an_audit_needs_no_run_and_no_delta_unless_it_states_epsilon() -> None:
    """What is missing for an ε is asked for where one is computed, all at once."""
    some = Settings(input_norm=1.0, batch_size=32, dataset_size=1437, sampling="poisson")
    job = Job(str(path_of("digits_mlp")), some, attack_steps=1)
    assert prepare(job).claims.groups
    asked = dataclasses.replace(job, gates=Gates(max_epsilon=3.0))
    with pytest.raises(UsageError, match=r"missing: give --delta .*, --steps T or --epochs E"):
        prepare(asked)
    solved = dataclasses.replace(job, settings=dataclasses.replace(some, target_epsilon=3.0))
    with pytest.raises(UsageError, match="missing: give --delta"):
        prepare(solved)
