"""Every verb names the layers that compute something else in train mode, in text and in JSON."""

import json

import numpy as np
import pytest

from tests.cli.issued import call
from tests.core.lower.cases import model as onnx_model
from tests.core.lower.cases import node

STATED = ("--input-norm", "3", "--loss", "nll", "--batch-size", "8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """A network with batch normalization that ends in LogSoftmax, with data and a certificate."""
    made = tmp_path_factory.mktemp("modes")
    rng = np.random.default_rng(1)
    tensors = {
        "weight": rng.standard_normal((4, 3)).astype(np.float32),
        "bn.scale": np.ones(4, np.float32),
        "bn.shift": np.zeros(4, np.float32),
        "bn.running_mean": np.zeros(4, np.float32),
        "bn.running_var": np.ones(4, np.float32),
    }
    norm = "bn.scale bn.shift bn.running_mean bn.running_var"
    nodes = [node("BatchNormalization", f"x {norm}", "n"), node("MatMul", "n weight", "z")]
    nodes.append(node("LogSoftmax", "z", "y", axis=-1))
    (made / "m.onnx").write_bytes(onnx_model(nodes, ["N", 4], tensors).SerializeToString())
    x = rng.uniform(-1.0, 1.0, (16, 4)).astype(np.float32)
    np.savez(made / "d.npz", x=x, y=rng.integers(0, 3, 16))
    done = call("certify", made / "m.onnx", *STATED, "-o", made / "c.json")
    assert done.exit_code == 0, done.stderr
    return made


def codes(document: dict[str, list[dict[str, str]]]) -> set[str]:
    return {item["code"] for item in document["diagnostics"] if item["level"] == "warning"}


def words(verb: str, folder):
    model = folder / "m.onnx"
    return {
        "inspect": ("inspect", model),
        "analyze": ("analyze", model, *STATED),
        "certify": ("certify", model, *STATED, "-o", folder / "again.json"),
        "audit": ("audit", model, *STATED, "--data", folder / "d.npz"),
    }[verb]


@pytest.mark.sample(2)
@pytest.mark.parametrize("verb", ["inspect", "analyze", "certify", "audit"])
def test_a_verb_warns_in_text_and_json(verb: str, folder) -> None:
    done = call(*words(verb, folder))
    assert done.exit_code == 0, done.stderr
    assert "LC026" in done.stdout
    assert "'bn' (BatchNormalization)" in " ".join(done.stdout.split())
    assert "eval mode" in done.stdout
    document = json.loads(call(*words(verb, folder), "--format", "json").stdout)
    assert "LC026" in codes(document)


def test_analyses_and_inspections_list_the_layers(folder) -> None:
    inspected = json.loads(call(*words("inspect", folder), "--format", "json").stdout)
    analysed = json.loads(call(*words("analyze", folder), "--format", "json").stdout)
    (layer,) = inspected["eval_mode"]
    assert (layer["kind"], layer["name"]) == ("BatchNormalization", "bn")
    assert analysed["assumptions"]["eval_mode"] == [layer]
    text = " ".join(call(*words("analyze", folder)).stdout.split())
    assert "proved on the graph, in eval mode" in text
    assert "ASSUMED to stay in eval mode, statistics frozen and nothing dropped: bn" in text


def test_a_check_rests_on_the_assumption(folder) -> None:
    done = call("check", folder / "c.json", "--model", folder / "m.onnx")
    assert done.exit_code == 3
    said = "A-EVAL [declared] Training keeps the layers BatchNormalization, named "
    assert said in done.stdout


def test_an_audit_of_a_certificate_warns_as_well(folder) -> None:
    words = ("--model", folder / "m.onnx", "--data", folder / "d.npz", "--format", "json")
    done = call("audit", folder / "c.json", *words)
    assert done.exit_code == 0, done.stderr
    assert codes(json.loads(done.stdout)) == {"LC026"}


def test_a_comparison_sees_that_more_is_assumed(folder) -> None:
    """An analysis of before the assumption against one of now."""
    now = json.loads(call(*words("analyze", folder), "--format", "json").stdout)
    (folder / "now.json").write_text(json.dumps(now), encoding="utf-8")
    del now["assumptions"]["eval_mode"]
    (folder / "before.json").write_text(json.dumps(now), encoding="utf-8")
    compare = ("compare", "--fail-on-regression", "--tolerance", "1")
    assert call(*compare, folder / "now.json", folder / "now.json").exit_code == 0
    found = call(*compare, folder / "before.json", folder / "now.json")
    assert found.exit_code == 1
    assert "eval_mode" in found.stdout
