"""action.yml: its scripts are run as GitHub runs them, on shipped networks, green and red."""

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from xml.etree.ElementTree import parse

import numpy as np
import pytest

from lipcert.core.certificate import read_certificate
from tests.commands import lipcert
from tests.github_job import ACTION, ROOT, STEPS, Job, make_checkout
from tests.models.shipped import path_of

ACCEPTED = "A-INPUT,A-LOSS,A-MECHANISM,A-NEIGH,A-GRAD-AGG,A-RNG,A-NUMERIC"
OPTIONS = "--loss cross-entropy\n--input-norm 8 --batch-size 64"


def git(folder: Path, *words: str) -> None:
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    make_checkout(tmp_path)
    return tmp_path


def job(folder: Path, **inputs: str) -> Job:
    named = {name.replace("_", "-"): text for name, text in inputs.items()}
    words = {"model": "nets/*.onnx", "options": OPTIONS, "accept-assumptions": ACCEPTED}
    return Job(folder, words | named)


@pytest.mark.nightly
def test_green(folder: Path) -> None:
    """Certified, valid, audited; every report is written and what is stated agrees."""
    x = np.random.default_rng(0).uniform(0.1, 0.9, (8, 64)).astype(np.float32)
    np.savez(folder / "checkout" / "x.npz", x=x, y=np.arange(8) % 10)
    limits = {"max_grad_norm": "1e6", "max_sensitivity": "1e6", "max_slack": "1000"}
    done = job(folder, data="x.npz", **limits).run()
    assert done.code == 0, done.log
    assert done.outputs["exit-code"] == "0"
    (result,) = json.loads(done.outputs["results"])
    assert result["model"] == "nets/mlp.onnx"
    assert result["exit_codes"] == dict.fromkeys(("analyze", "certify", "check", "audit"), 0)
    certificate = done.report("nets/mlp", "certificate.lipcert.json")
    claimed = read_certificate(certificate.read_bytes()).network.grad_norm
    assert claimed == pytest.approx(result["grad_norm"], rel=2.0**-20)
    assert result["sensitivity"] == pytest.approx(result["grad_norm"] / 64, rel=1e-12)
    for verb in ("analyze", "check", "audit"):
        (run,) = json.loads(done.report("nets/mlp", f"{verb}.sarif").read_text())["runs"]
        assert run["automationDetails"]["id"].startswith(f"lipcert/{verb}/")
        assert parse(done.report("nets/mlp", f"{verb}.xml")).getroot().get("failures") == "0"
    assert f"| `nets/mlp.onnx` | {' | '.join(['holds'] * 4)} |  |" in done.summary
    assert "<summary>audit <code>nets/mlp.onnx</code></summary>" in done.summary
    assert "8 examples replayed" in done.summary
    constraints, extra = (folder / "installed").read_text().split()[-2:]
    assert (Path(constraints), extra) == (ROOT / "constraints.txt", f"{ROOT}[audit]")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("inputs", "code", "told"),
    [
        ({"max_sensitivity": "1e-3"}, 1, "over --max-sensitivity 0.001"),
        ({"max_epsilon": "3"}, 3, "the ε of the run is not known"),
        ({"accept_assumptions": ""}, 3, "assumption A-INPUT is neither checked nor accepted"),
        ({"options": "--no-such-option"}, 2, "no-such-option"),
        ({"model": "nets/none.onnx"}, 2, "::error title=lipcert::no file matches nets/none.onnx"),
    ],
)
def test_red(folder: Path, inputs: dict[str, str], code: int, told: str) -> None:
    """Annotated, and in the summary, unless nothing was run."""
    done = job(folder, **inputs).run()
    assert done.code == code, done.log
    assert told in done.log
    assert (folder / "installed").read_text().split()[-1] == str(ROOT)
    if "model" not in inputs:
        assert done.outputs["exit-code"] == str(code)
        assert "| **" in done.summary


@pytest.mark.nightly
def test_nothing_of_an_earlier_job_passes_for_this_one(folder: Path) -> None:
    done = job(folder, options="--no-such-option", base="")
    old = done.report("nets/mlp", "analyze.json")
    old.parent.mkdir(parents=True)
    old.write_text('{"network": {"grad_norm": 1.0}}')
    shutil.copy(path_of("digits_mlp"), old.with_name("certificate.lipcert.json"))
    old.with_name("audit.md").write_text("Pass")
    assert done.run().code == 2
    (result,) = json.loads(done.outputs["results"])
    assert (result["grad_norm"], result["exit_codes"]) == (None, {"analyze": 2, "certify": 2})
    assert "Pass" not in done.summary


@pytest.mark.nightly
def test_a_certificate_that_is_kept_beside_a_network_is_checked(folder: Path) -> None:
    kept = folder / "checkout" / "nets" / "mlp.lipcert.json"
    words = ["--input-norm", "8", "--batch-size", "64", "--loss", "cross-entropy"]
    assert lipcert(["certify", str(path_of("digits_cnn")), *words, "-o", str(kept)]).exit_code == 0
    done = job(folder).run()
    assert (done.code, json.loads(done.outputs["results"])[0]["exit_codes"]["check"]) == (1, 1)
    assert "title=LC201 stage" in done.log
    assert parse(done.report("nets/mlp", "check.xml")).getroot().get("failures") == "0"
    assert parse(done.report("nets/mlp", "check-kept.xml")).getroot().get("failures") != "0"


@cache
def scaled(factor: float) -> bytes:
    """The network with a first layer of other weights."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path_of("digits_mlp"))
    tensor = next(item for item in model.graph.initializer if item.name == "hidden1.weight")
    numbers = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(numbers * np.float32(factor), tensor.name))
    return model.SerializeToString()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("inputs", "code", "words"),
    [
        ({}, 1, "a regression"),
        ({"fail_on_regression": "false"}, 0, "a regression"),
        ({"tolerance": "9"}, 0, "no regression"),
    ],
)
def test_a_change_is_compared_with_the_base(
    folder: Path, inputs: dict[str, str], code: int, words: str
) -> None:
    """Of the network that both have; one that is new is said to be."""
    checkout, origin = folder / "checkout", folder / "origin"
    git(checkout, "init", "-q", "-b", "main")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "-m", "base")
    git(folder, "clone", "-q", "--bare", "checkout", "origin")
    git(checkout, "remote", "add", "origin", str(origin))
    (checkout / "nets" / "mlp.onnx").write_bytes(scaled(2.0))
    (checkout / "nets" / "new.onnx").write_bytes(scaled(0.5))
    done = job(folder, **inputs)
    done.base_ref = "main"
    done.run()
    assert done.code == code, done.log
    found = {item["model"]: item["exit_codes"] for item in json.loads(done.outputs["results"])}
    assert found["nets/mlp.onnx"]["compare"] == code
    assert "compare" not in found["nets/new.onnx"]
    assert re.search(rf"grew, .*: {words}", done.summary)
    assert "The base has no nets/new.onnx." in done.summary
    assert not (folder / "temp" / "lipcert" / "base").exists()


def test_inputs_and_outputs_are_used_and_reach_no_script_unquoted() -> None:
    """An expression in a script would be code of whoever names a branch or a file."""
    used = set()
    for step in STEPS.values():
        assert "${{" not in step.get("run", "")
        assert ("run" in step) == (step.get("shell") == "bash")
        places = [step.get("if", ""), *step.get("env", {}).values()]
        places += step.get("with", {}).values()
        used |= {name for text in places for name in re.findall(r"inputs\.([\w-]+)", text)}
    assert used == set(ACTION["inputs"])
    for item in ACTION["outputs"].values():
        assert re.fullmatch(r"\$\{\{ steps\.verdict\.outputs\.[\w-]+ \}\}", item["value"])
    assert all(item.get("required") or "default" in item for item in ACTION["inputs"].values())
