"""`lipcert audit` as users call it: its answers, its exit codes, and how work is shared."""

import json
import math
import shutil
import warnings
from functools import partial
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from torch.nn import functional

from lipcert.audit.recorder import Recorder
from lipcert.core.canonical import write_canonical
from tests.cli import issued
from tests.models.shipped import digits, module, path_of

MODEL = path_of("digits_mlp")
FREE = ("--mechanism", "gradient-clipping", "--clip-norm", "0.5")
"""bounds for all weights, so that any recorded ones may be audited"""


call = partial(issued.call, "audit")


def document(result, code: int = 0) -> dict:
    assert result.exit_code == code, (result.stdout[:2000], result.stderr)
    found = json.loads(result.stdout)
    assert found["schema"] == "lipcert.audit/1"
    return found


def audited(*words: object, code: int = 0, **environment: str) -> dict:
    return document(call(*words, "--format", "json", **environment), code)


def written(path, x: np.ndarray, y: np.ndarray):
    np.savez(path, x=x, y=y)
    return path


def examples(count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    split = digits((64,))
    return split.images.numpy()[:count].copy(), split.labels.numpy()[:count].copy()


@pytest.fixture
def data(tmp_path):
    return written(tmp_path / "batches.npz", *examples())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    """A recorded run of two steps."""
    folder = tmp_path_factory.mktemp("run") / "trace"
    network = module("digits_mlp", torch.float32).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    x, y = (torch.from_numpy(item) for item in examples(16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Recorder(folder, network, optimizer, every=1, store_data=True) as recorder:
            loss_fn = recorder.wrap_loss(functional.cross_entropy)
            for step in range(2):
                optimizer.zero_grad()
                recorder.batch(index=range(8 * step, 8 * step + 8))
                loss_fn(network(x[8 * step :][:8]), y[8 * step :][:8], reduction="sum").backward()
                optimizer.step()
    return folder


@pytest.fixture(scope="module")
def certificate_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("issued") / "certificate.json"
    assert issued.call("certify", MODEL, "--batch-size", 8, "-o", path).exit_code == 0
    return path.read_bytes()


@pytest.fixture
def certificate(tmp_path, certificate_bytes: bytes):
    path = tmp_path / "certificate.json"
    path.write_bytes(certificate_bytes)
    return path


def test_a_limit_is_of_the_first_examples(data) -> None:
    short = audited(MODEL, "--data", data, "--limit", 7, "--unit-size", 3)
    assert (short["examples"], short["units"], short["units_done"]) == (7, 3, 3)
    assert all(group["worst_example"]["index"] < 7 for group in short["groups"])


@pytest.mark.sample(1)
@pytest.mark.parametrize(("dtype", "rel"), [("float64", 1e-5), ("bfloat16", 0.2)])
def test_other_arithmetic(data, dtype: str, rel: float) -> None:
    exact, other = audited(MODEL, "--data", data), audited(MODEL, "--data", data, "--dtype", dtype)
    assert other["dtype"] == dtype
    for ours, theirs in zip(exact["groups"], other["groups"], strict=True):
        assert theirs["max_observed"] == pytest.approx(ours["max_observed"], rel=rel)
        assert theirs["float_bound"] >= theirs["grad_norm_bound"] == ours["grad_norm_bound"]
    looser = other if dtype == "bfloat16" else exact
    tighter = exact if dtype == "bfloat16" else other
    assert looser["groups"][0]["float_bound"] > tighter["groups"][0]["float_bound"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("is_good", [True, False], ids=["pass", "violation"])
def test_every_format_of_one_audit(tmp_path, is_good: bool) -> None:
    x, y = examples(3)
    data = written(tmp_path / "d.npz", x if is_good else x + 0.5, y)
    names = ("text", "json", "markdown", "sarif", "junit", "github")
    words = [word for name in names for word in ("--report", f"{name}={tmp_path / name}")]
    result = call(MODEL, "--data", data, *words, "-o", tmp_path / "out.txt")
    assert (result.exit_code, result.stdout) == (0 if is_good else 1, "")
    for name in names:
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert ("LC304" in text) != is_good, name
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == (
        (tmp_path / "text").read_text(encoding="utf-8")
    )
    for name in ("json", "sarif"):
        json.loads((tmp_path / name).read_text(encoding="utf-8"))
    ET.fromstring((tmp_path / "junit").read_text(encoding="utf-8"))


def test_a_certificate_is_audited_under_its_own_settings(data, certificate) -> None:
    found = audited(certificate, "--model", MODEL, "--data", data)
    assert found["bounds_from"] == str(certificate)
    assert found["assumptions"]["reduction"] == "mean"


@pytest.mark.parametrize(("factor", "code"), [(0.999, 0), (0.02, 1)])
def test_a_forged_certificate_is_caught_where_data_reach_the_bound(
    data, certificate, factor: float, code: int
) -> None:
    members = json.loads(certificate.read_text(encoding="utf-8"))
    for group in members["outputs"]["groups"]:
        group["grad_norm"] = (factor * float.fromhex(group["grad_norm"])).hex()
    certificate.write_bytes(write_canonical(members))
    found = audited(certificate, "--model", MODEL, "--data", data, code=code)
    assert any("LC301" in reason for reason in found["reasons"]) == bool(code)
    if code:
        assert found["detectable_error_factor"] < 1.0


@pytest.mark.nightly
def test_an_attack_alone_is_compared_with_random_gradients() -> None:
    words = (MODEL, "--attack", "pga", "--attack-steps", 3, "--input-norm", 2)
    found = audited(*words)
    assert found["examples"] == 0
    assert all(group["max_observed"] is None for group in found["groups"])
    assert all(group["max_attacked"] > 0.0 for group in found["groups"])
    assert found["modes"] == {"data": None, "trace": None, "attack_steps": 3}
    observed = found["usefulness"]["observed"]
    assert (observed["source"], observed["is_private"]) == ("random admissible inputs", False)


@pytest.mark.nightly
def test_the_noise_is_held_against_that_of_clipping(data) -> None:
    """Of noise split globally: σΔ√d against σ√d. Norms are those that autograd finds."""
    found = audited(
        MODEL, "--data", data, "--dtype", "float64", "--batch-size", 8, "--allocation", "global"
    )
    worth, whole = found["usefulness"], found["gradient"]
    assert worth["noise_ratio"] == pytest.approx(whole["grad_norm_bound"], rel=1e-9)
    assert worth["slack"] == pytest.approx(whole["slack"], rel=1e-9)
    observed = worth["observed"]
    assert (observed["source"], observed["examples"], observed["is_private"]) == (
        str(data),
        40,
        True,
    )
    assert observed["grad_norm_max"] == pytest.approx(whole["grad_norm_max"], rel=1e-9)
    x, y = (torch.from_numpy(item) for item in examples())
    network = module("digits_mlp", torch.float64)
    functional.cross_entropy(network(x.double()), y).backward()
    mean = math.hypot(*(float(tensor.grad.norm()) for tensor in network.parameters()))
    expected = worth["noise"] / mean
    assert worth["noise_to_signal"] == pytest.approx(expected, rel=1e-9)
    words = set(worth["verdict"].removeprefix("between ").split(" and "))
    assert words <= {"useful", "costly", "not usable"}
    shown = call(MODEL, "--data", data).stdout.splitlines()[2]
    assert shown.split(":")[0].lower() == worth["verdict"]


def test_a_recorded_run_with_and_without_data(run, data) -> None:
    alone = audited(MODEL, "--trace", run, *FREE, "--max-detectable-factor", "inf")
    assert "max_detectable_factor" not in alone
    assert (alone["verdict"], alone["examples"], alone["units"]) == ("pass", 16, 2)
    assert {check["name"] for check in alone["checks"]} >= {"trace-integrity", "contribution"}
    assert alone["groups"][0]["worst_example"]["weights"].startswith("step ")
    both = audited(MODEL, "--trace", run, "--data", data, "--limit", 5, "--no-values", *FREE)
    assert (both["examples"], both["values"]) == (10 + 10, [])
    assert both["groups"][0]["max_observed"] > 0.0 < len(alone["values"])


def test_bounds_that_speak_of_other_weights_are_not_violated(run, data) -> None:
    """Those of one point by a run, and those within constraints by the weights of the file."""
    held = ("--scope", "constraint-set", "--constraint", "spectral:0.1", "--bias-norm", "0.1")
    for words, code in ((("--trace", run), "LC319"), (("--data", data, *held), "LC310")):
        found = audited(MODEL, *words, code=3)
        assert found["verdict"] == "mismatch"
        assert any(code in reason for reason in found["reasons"])


def missing_blobs(run, folder) -> tuple[object, ...]:
    for blob in (shutil.copytree(run, folder) / "blobs").iterdir():
        blob.unlink()
    return "--trace", folder, *FREE


def wrong_label(_run, path) -> tuple[object, ...]:
    x, y = examples(12)
    y[8] = 10
    return "--data", written(path.with_suffix(".npz"), x, y), "--unit-size", 5


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [(missing_blobs, "blob"), (wrong_label, "example 8: 10 is not a class from 0 to 9")],
)
def test_a_damaged_trace_and_bad_data_are_no_verdict(run, tmp_path, spoiled, said: str) -> None:
    result = call(MODEL, *spoiled(run, tmp_path / "spoiled"))
    assert result.exit_code == 3
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--attack", "pga", "--device", "cuda:99"), "device"),
        (("--data", "{data}", "--device", "abacus"), "abacus"),
    ],
)
def test_what_is_not_there_is_no_verdict(data, words: tuple[str, ...], said: str) -> None:
    result = call(MODEL, *(word.replace("{data}", str(data)) for word in words))
    assert result.exit_code in {2, 3}
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_a_certificate_takes_no_settings(data, certificate) -> None:
    result = call(certificate, "--model", MODEL, "--data", data, "--input-norm", 1)
    assert result.exit_code == 2
    assert "stated by the certificate" in result.stderr


def test_merging_takes_a_folder_of_results(tmp_path) -> None:
    assert call("--merge", tmp_path).exit_code == 3
